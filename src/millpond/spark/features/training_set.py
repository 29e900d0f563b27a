"""The training set: the features of a Join as they were at each query's time, beside the query's columns.

Place on the data path: it reads history and queries, and returns what a model is trained on. It uses the same plans and
the same window rule as the fetcher, so a model is trained on what it is served.

For each GroupBy, events and queries are put into one table and shuffled by key. In Python they are sorted by key and
time (`row_sort`), and one pass answers each query where it lies among the events (`features.point_in_time`). A query
row carries its columns, and the features computed so far, through that shuffle. So rows are not multiplied or joined
back, need no id, and do not pass through the driver.

Delivery: every query once. Freshness: temporal features include all events before the query. Snapshot features, and
those of a GroupBy without aggregations, include the events before the midnight UTC at or before the query.
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
_ROW = "row of the query"
"""A column's name that no key, feature or derivation has."""

_HASH = "key_hash"
_OWN = "columns as queried"
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
    """Return the features of a Join, or of one GroupBy, as of each query, after the query's own columns.

    If a query's key has a null part, the features of that part of the Join are null. Rows of the sources with a
    null in their key, or without a time, are left out, as in the upload.

    Args:
        queries: one row for each query: the key columns, a time, the context fields of the Join, and any other
            columns, such as labels, which are passed through. None asks for every key that has been seen, at
            regular steps: see ``every``.
        target: what to compute.
        time_column: the query time: milliseconds since the epoch, UTC, or a timestamp, which is cut to whole
            milliseconds. It has no nulls.
        tables: DataFrames that replace the sources' tables of these names. A GroupBy without sources reads the one
            under its own name.
        snapshots_end_ms: the batch end of the snapshots of entity sources.
        bootstrap: logged answers, in the form of the fetcher's log. A query with a logged answer of the same
            keys, context and time gets it instead of a computed one.
        every: without queries, the time from one query to the next, such as ``"1h"``.
        between: without queries, the first step and the end, which is not included: milliseconds or datetimes
            with a time zone. Each key gets queries from the first step after its first row on.
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
    """Return the features of checked queries after their columns; see `training_set` and `sources.Arrivals`."""
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
    """Return rows with the features of one part after their columns."""
    group_by = part.group_by
    answers: PointInTime | ChangingRows = (
        ChangingRows(group_by, time_column) if changing else PointInTime(group_by, time_column=time_column)
    )
    asked = _queries_of(rows, join, part, history, time_column)
    rows_of_keys = _together(_events_of(history, asked, group_by, changing=changing), asked, group_by)
    types = {name: T.StructField(name, _spark_type(text)) for name, text in answers.types.items()}
    schema = T.StructType([T.StructField(_ROW, _row_type(rows)), *types.values()])
    answered = rows_of_keys.mapInArrow(_answering(answers), schema)
    return _named(_derived_of(answered, part), rows.columns, part)


def _queries_of(rows: DataFrame, join: Join, part: JoinPart, history: DataFrame, time_column: str) -> DataFrame:
    """Return the queries of a part in the columns of its events, and last the whole row.

    The row is the only element of an array. In Arrow, the empty array of an event takes one offset, while a null struct
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
    """Return the value of a column in rows that do not have it.

    Arrays and maps are empty, not null. For each row that it writes to Arrow, Spark asks for the size so far. That call
    goes over all nulls since the last value that is not null.
    """
    if isinstance(type_, T.ArrayType):
        return F.array().cast(type_)
    return F.create_map().cast(type_) if isinstance(type_, T.MapType) else F.lit(None).cast(type_)


def _event_columns(history: DataFrame, group_by: GroupBy) -> list[str]:
    """Return the names of the columns that only events have."""
    names = input_names(group_by)
    return [*names, TIME, IS_DELETE] if VISIBLE in history.columns else names


def _events_of(history: DataFrame, asked: DataFrame, group_by: GroupBy, *, changing: bool) -> DataFrame:
    """Return the events of a part in the columns of its queries."""
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
    """Bring the rows of each key into one partition, and add the hash of the key as first column."""
    keys = key_names(group_by)
    # A query without a key has no events, so it may go to any partition. They must not all go to one.
    key_hash = F.when(has_key(keys), F.xxhash64(*keys)).otherwise(F.xxhash64(_ORDER))
    rows = events.unionByName(asked)
    return rows.select(key_hash.alias(_HASH), *rows.columns).repartition(_HASH)


def _answering(
    answers: PointInTime | ChangingRows,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task: it takes the rows of its keys and yields queries with their features."""
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
        F.col(quoted(_ROW)).getField(column).cast(_spark_type(field.type)).alias(field.name)
        for (column, _), field in zip(part.columns, group_by.keys, strict=True)
        if field.name not in features
    ]
    return _with_expressions(answered.select("*", *keys), compiled)


def _named(answered: DataFrame, own: Sequence[str], part: JoinPart) -> DataFrame:
    """Return the queries' own columns, followed by the features under their names in the Join."""
    names = [*part.group_by.feature_names, *(derivation.name for derivation in part.group_by.derivations)]
    return answered.select(
        *(F.col(quoted(_ROW)).getField(name).alias(name) for name in own),
        *(F.col(quoted(name)).alias(part.renamed(name)) for name in names),
    )


def _derived(rows: DataFrame, join: Join) -> DataFrame:
    """Add the derivations of the Join, over its features, keys and context fields."""
    if not join.derivations:
        return rows
    compiled = CompiledDerivations(join.derivations, derivation_columns(join))
    # A query's column may have a narrower type than the Join declares. Derivations see the declared one, as online.
    typed = {
        field.name: checked_column(rows, field, "column", f"Join {join.name!r}")
        for field in (*join.keys, *join.context)
        if rows.schema[field.name].dataType != _spark_type(field.type)
    }
    if not typed:
        return _with_expressions(rows, compiled)
    own = F.struct(*(F.col(quoted(name)).alias(name) for name in typed)).alias(_OWN)
    columns = [typed[name].alias(name) if name in typed else F.col(quoted(name)) for name in rows.columns]
    derived = _with_expressions(rows.select(*columns, own), compiled)
    return derived.select(
        *(
            F.col(quoted(_OWN)).getField(name).alias(name) if name in typed else F.col(quoted(name))
            for name in derived.columns
            if name != _OWN
        )
    )


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
    """Raise an error if queries lack a column, or have one with the name of a feature."""
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
