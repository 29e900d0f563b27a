"""The training set: the features of a Join as they were at each query's time, beside the query's columns.

Place on the data path: history and queries come in, what a model is trained on goes out. It asks the same
plans and the same window rule as the fetcher, so a model is trained on what it is served.

For each GroupBy the events and the queries meet in one table and are shuffled by key. In Python they are
sorted by key and time (`row_sort`), and one pass answers each query where it lies among the events
(`features.point_in_time`). A query row carries its columns, and the features that it has already, through
that shuffle. So nothing is multiplied, nothing is joined back, no row needs an id, and nothing passes
through the driver.

Delivery: every query once. Freshness: temporal features hold all events before the query; snapshot
features, and values as they are, those before the midnight UTC at or before it.
"""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from millpond.errors import DataError, OptionError
from millpond.features import CompiledDerivations, Field, GroupBy, Join, JoinPart
from millpond.features.definitions.feature_types import derivation_columns, feature_types
from millpond.features.point_in_time.changing_rows import ChangingRows
from millpond.features.point_in_time.sorted_rows import PointInTime
from millpond.features.types import parse_type
from millpond.features.windows import DAY_MS
from millpond.spark.features.columns import TIME, checked_column, has_key, input_names, key_names, quoted
from millpond.spark.features.join_columns import as_join, query_time
from millpond.spark.features.logged_answers import split_by_answers
from millpond.spark.features.row_sort import RowSort
from millpond.spark.features.sources import IS_DELETE, VISIBLE, Arrivals, Tables, comes_and_goes, history_rows
from millpond.spark.features.spine import Time, spine

_ORDER = "order_ms"
_IS_QUERY = "is_query"
_ROW = "row"
_HASH = "key_hash"
_UTC = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")


def training_set(
    queries: DataFrame | None,
    target: Join | GroupBy,
    *,
    time_column: str = "time_ms",
    tables: Tables | None = None,
    snapshots_end_ms: int | None = None,
    bootstrap: DataFrame | None = None,
    every: str | None = None,
    between: tuple[Time, Time] | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """Give the features of a Join, or of one GroupBy, as of each query, behind the query's own columns.

    A query whose key has a null part has null features of that part. Rows of the sources whose key has a
    null part, or that have no time, are left out, as they are by the upload.

    Args:
        queries: one row for each question: the key columns, a time, the context fields of the Join, and
            any other columns, such as labels, which are passed through. None asks for every key that has
            been seen, again and again: see ``every``.
        target: what to compute.
        time_column: when each question is asked: milliseconds since the epoch, UTC, or a timestamp, of
            which the part below a millisecond is dropped. Without nulls.
        tables: DataFrames that are taken for the sources' tables of these names; for a GroupBy without
            sources under its own name.
        snapshots_end_ms: the batch end as of which the snapshots of entity sources are.
        bootstrap: logged answers, as the fetcher's log has them. A query with a logged answer of the same
            keys, context and time gets it instead of a computed one.
        every: without queries, the time from one question to the next, such as ``"1h"``.
        between: without queries, the first question and the end, not included: milliseconds or datetimes
            with a time zone. Each key is asked for from the first step after its first row on.
        spark: without queries, the session.

    Raises:
        DataError: a column is missing, of a wrong type, or has the name of a feature.
        OptionError: a derivation is faulty, an entity source has no ``snapshots_end_ms``, or ``every`` and
            ``between`` do not fit.

    Example::

        flights = spark.read.parquet("flights")  # origin, time_ms, amount, was_late
        training_set(flights, flight_join).write.parquet("training/2026-06")
        training_set(None, flight_join, every="1h", between=(first_ms, last_ms), spark=spark)
    """
    join = as_join(target)
    if queries is None:
        queries = spine(spark, join, every, between, time_column, tables)
    elif every is not None or between is not None:
        raise OptionError("every and between make the queries; leave them out, or give no queries")
    _check_queries(queries, join, time_column)
    if bootstrap is None:
        return features_as_of(queries, join, time_column, tables, snapshots_end_ms)
    served, others = split_by_answers(queries, bootstrap, join, time_column)
    computed = features_as_of(others, join, time_column, tables, snapshots_end_ms)
    return served.unionByName(computed)


def features_as_of(
    queries: DataFrame,
    join: Join,
    time_column: str,
    tables: Tables | None,
    snapshots_end_ms: int | None,
    arrivals: Arrivals | None = None,
) -> DataFrame:
    """Give the features of checked queries behind their columns; see `training_set` and `sources.Arrivals`."""
    rows = queries
    for part in join.parts:
        history = history_rows(
            queries.sparkSession, part.group_by, snapshots_end_ms=snapshots_end_ms, arrivals=arrivals, tables=tables
        )
        rows = _with_part(rows, join, part, history, time_column, changing=comes_and_goes(part.group_by, arrivals))
    return _derived(rows, join)


def _with_part(
    rows: DataFrame, join: Join, part: JoinPart, history: DataFrame, time_column: str, *, changing: bool
) -> DataFrame:
    """Give rows with the features of one part behind their columns."""
    group_by = part.group_by
    answers: PointInTime | ChangingRows = ChangingRows(group_by) if changing else PointInTime(group_by)
    asked = _queries_of(rows, join, part, history, time_column)
    rows_of_keys = _together(_events_of(history, asked, group_by, changing=changing), asked, group_by)
    types = {name: T.StructField(name, _spark_type(text)) for name, text in answers.types.items()}
    schema = T.StructType([T.StructField(_ROW, _row_type(rows)), *types.values()])
    answered = rows_of_keys.mapInArrow(_answering(answers), schema)
    return _named(_derived_of(answered, part), rows.columns, part)


def _queries_of(rows: DataFrame, join: Join, part: JoinPart, history: DataFrame, time_column: str) -> DataFrame:
    """Give the queries of a part in the columns that its events have, and last the whole row.

    The row is the only element of an array: in Arrow, the empty array of an event is an offset, while a null struct
    would take room for each of its fields.
    """
    group_by = part.group_by
    whose = f"Join {join.name!r}"
    time_ms = query_time(rows, time_column, whose)
    if group_by.accuracy == "snapshot":
        time_ms = time_ms - F.pmod(time_ms, F.lit(DAY_MS))
    keys = [
        checked_column(rows, Field(column, field.type), "key", whose).alias(name)
        for (column, _), field, name in zip(part.columns, group_by.keys, key_names(group_by), strict=True)
    ]
    found = {field.name: field.dataType for field in history.schema.fields}
    return rows.select(
        *keys,
        time_ms.alias(_ORDER),
        F.lit(True).alias(_IS_QUERY),
        *(_nothing(found[name]).alias(name) for name in _event_columns(history, group_by)),
        F.array(F.struct(*(F.col(quoted(name)) for name in rows.columns))).alias(_ROW),
    )


def _nothing(type_: T.DataType) -> Column:
    """Give what stands in a column that rows of the other kind have.

    Not a null array or map: for each row that Spark writes to Arrow it looks at the size so far, and then goes over all
    null ones since the last that was not null.
    """
    if isinstance(type_, T.ArrayType):
        return F.array().cast(type_)
    return F.create_map().cast(type_) if isinstance(type_, T.MapType) else F.lit(None).cast(type_)


def _event_columns(history: DataFrame, group_by: GroupBy) -> list[str]:
    """Name the columns that only events have."""
    names = input_names(group_by)
    return [*names, TIME, IS_DELETE] if VISIBLE in history.columns else names


def _events_of(history: DataFrame, asked: DataFrame, group_by: GroupBy, *, changing: bool) -> DataFrame:
    """Give the events of a part in the columns of its queries."""
    row_type = asked.schema[_ROW].dataType
    keys = key_names(group_by)
    return history.where(has_key(keys) & F.col(TIME).isNotNull()).select(
        *keys,
        F.col(VISIBLE if changing else TIME).alias(_ORDER),
        F.lit(False).alias(_IS_QUERY),
        *_event_columns(history, group_by),
        _nothing(row_type).alias(_ROW),
    )


def _together(events: DataFrame, asked: DataFrame, group_by: GroupBy) -> DataFrame:
    """Bring the rows of each key into one partition, with the hash of the key before them."""
    keys = key_names(group_by)
    # A query without a key has no events: where it goes does not matter, but not all to one place.
    key_hash = F.when(has_key(keys), F.xxhash64(*keys)).otherwise(F.xxhash64(_ORDER))
    rows = events.unionByName(asked)
    return rows.select(key_hash.alias(_HASH), *rows.columns).repartition(_HASH)


def _answering(
    answers: PointInTime | ChangingRows,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Give the function of one task: the rows of its keys in, queries with their features out."""
    sort = RowSort(len(answers.group_by.keys))

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in answers.answers(sort(batches)):
            place = table.column_names.index(_ROW)
            yield from table.set_column(place, _ROW, pc.list_flatten(table.column(place))).to_batches()

    return answer


def _derived_of(answered: DataFrame, part: JoinPart) -> DataFrame:
    """Add the derivations of a part's own GroupBy, over its features and keys."""
    group_by = part.group_by
    if not group_by.derivations:
        return answered
    columns = {field.name: field.type for field in group_by.keys} | feature_types(group_by)
    compiled = CompiledDerivations(group_by.derivations, columns)
    features = set(feature_types(group_by))
    keys = [
        F.col(_ROW).getField(column).cast(_spark_type(field.type)).alias(field.name)
        for (column, _), field in zip(part.columns, group_by.keys, strict=True)
        if field.name not in features
    ]
    return _with_expressions(answered.select("*", *keys), compiled)


def _named(answered: DataFrame, own: Sequence[str], part: JoinPart) -> DataFrame:
    """Give the queries' own columns, and behind them the features under their names in the Join."""
    names = [*part.group_by.feature_names, *(derivation.name for derivation in part.group_by.derivations)]
    return answered.select(
        *(F.col(_ROW).getField(name).alias(name) for name in own),
        *(F.col(quoted(name)).alias(part.renamed(name)) for name in names),
    )


def _derived(rows: DataFrame, join: Join) -> DataFrame:
    """Add the derivations of the Join, over its features, keys and context fields."""
    if not join.derivations:
        return rows
    return _with_expressions(rows, CompiledDerivations(join.derivations, derivation_columns(join)))


def _with_expressions(rows: DataFrame, compiled: CompiledDerivations) -> DataFrame:
    zone = str(rows.sparkSession.conf.get("spark.sql.session.timeZone"))
    if zone not in _UTC:
        raise OptionError(
            f"spark.sql.session.timeZone is {zone!r}; derivations are computed in UTC, as the fetcher does. "
            'Set it to "UTC" before the training set is made'
        )
    expressions = [f"{sql} AS {quoted(name)}" for name, sql in compiled.spark_expressions()]
    return rows.selectExpr("*", *expressions)


def _check_queries(queries: DataFrame, join: Join, time_column: str) -> None:
    """Refuse queries that lack a column, or have one of a feature's name."""
    whose = f"Join {join.name!r}"
    for field in join.keys:
        checked_column(queries, field, "key", whose)
    query_time(queries, time_column, whose)
    for field in join.context:
        checked_column(queries, field, "context field", whose)
    own: dict[str, str] = {}
    for name in queries.columns:
        if name.lower() in own:
            raise DataError(f"{whose}: the queries have two columns {name!r}; rename one, Spark cannot tell them apart")
        own[name.lower()] = name
    derived = [derivation.name for derivation in join.derivations]
    for name in (*join.feature_names, *derived):
        if name.lower() in own:
            raise DataError(
                f"{whose}: the queries have a column {own[name.lower()]!r}, which is also a feature; drop or rename it"
            )


def _row_type(rows: DataFrame) -> T.StructType:
    return T.StructType([T.StructField(field.name, field.dataType) for field in rows.schema.fields])


def _spark_type(text: str) -> T.DataType:
    return T.DataType.fromDDL(parse_type(text).spark_name)
