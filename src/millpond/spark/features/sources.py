"""Reads sources: returns the rows of a GroupBy, in the plan's columns, from the tables that its sources name.

Place on the data path: before upload, stream and training set. Three readers share one rule for selects and wheres, so
that they see the same rows:

- `batch_rows`, for the upload: the rows before a batch end;
- `stream_rows`, for the stream: rows and changes as they arrive;
- `history_rows`, for the training set: all rows, and when each became visible.

A source's ``table`` is the name of a table or view, or a path of files in the session's default format (Parquet by
default). A DataFrame given under that name replaces it. ``wheres`` and ``selects`` use the table's own columns. The
columns of times and changes are kept beside the selects, unless a select has their name.

An entity's table is read as *changes*: a row that appears, and a row that goes, each with the time from which it
counts. A change without a mutation time counts from the row's own time. The snapshot contains every change before the
snapshot's end, so for earlier times those changes are reverted.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Literal

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import DataError, OptionError
from millpond.features import Field, GroupBy
from millpond.features.definitions import EntitySource, EventSource, JoinSource, Source
from millpond.features.stored.rows import MAX_QUERY_MS
from millpond.features.windows import DAY_MS
from millpond.spark.features.columns import checked_column, plan_columns, quoted
from millpond.spark.features.join_columns import query_time

VISIBLE = "visible_ms"
"""The time from which a row counts, for queries after it; null if only its own time decides."""

IS_DELETE = "is_delete"
"""Whether the row is removed, not added."""

Arrivals = Literal["streamed", "uploaded"]
"""When an event begins to count, if its source has an arrival time.

``streamed``: from its arrival on. ``uploaded``: likewise, but an event of a day that has ended counts only from the
midnight after its arrival on, because a stream leaves it to the next upload.
"""

Tables = Mapping[str, DataFrame]
"""DataFrames by the name of the table that each replaces."""


def batch_rows(spark: SparkSession, group_by: GroupBy, batch_end_ms: int, tables: Tables | None = None) -> DataFrame:
    """Return the rows of a GroupBy before a batch end, and those without a time, in the plan's columns.

    Args:
        spark: reads the tables.
        group_by: the GroupBy whose sources are read; without any, the table of its own name is read.
        batch_end_ms: rows at or after it are left out. Snapshots of entities must be as of this time, also those
            that a Join among the sources reads.
        tables: DataFrames that replace the tables of these names.

    Raises:
        DataError: a table or column is missing or of a wrong type, or a select or where is not SQL that fits.
    """
    read = []
    for source in sources_of(group_by):
        table = source.snapshots if isinstance(source, EntitySource) else None
        if isinstance(source, JoinSource):
            rows = _joined(spark, source, tables, batch_end_ms)
        else:
            rows = _read(spark, source, table, tables)
        read.append(rows.select(*plan_columns(rows, group_by, _time_column(source))))
    return _union(read).where((F.col("time_ms") < batch_end_ms) | F.col("time_ms").isNull())


def stream_rows(spark: SparkSession, group_by: GroupBy, tables: Tables | None = None) -> DataFrame:
    """Return the streaming rows of a GroupBy: the plan's columns, then ``visible_ms`` and ``is_delete``.

    ``visible_ms`` is the time from which an entity's change counts, null for events.

    Args:
        spark: reads the streams. A path is read with the schema of the history's table.
        group_by: the GroupBy whose sources are read.
        tables: streaming DataFrames that replace the streams of these names.

    Raises:
        OptionError: a source has no stream.
        DataError: as `batch_rows`.
    """
    read = []
    whose = f"GroupBy {group_by.name!r}"
    for source, history, stream in streams_of(group_by):
        rows = _selected(_stream(spark, stream, history, tables), source, stream)
        # A batch has every event before its end, whenever it arrived. So the stream too goes by the event's own time.
        changes = _changes(rows, source, whose) if isinstance(source, EntitySource) else _always()
        read.append(rows.select(*plan_columns(rows, group_by, source.time_column), *changes))
    return _union(read)


def streams_of(group_by: GroupBy) -> list[tuple[EventSource | EntitySource, str, str]]:
    """Return the sources of a GroupBy, each with the table of its history or changes and their stream.

    Raises:
        OptionError: a source has no stream.
    """
    found: list[tuple[EventSource | EntitySource, str, str]] = []
    whose = f"GroupBy {group_by.name!r}"
    for source in sources_of(group_by):
        if isinstance(source, JoinSource):
            raise OptionError(f"{whose}: a Join has no stream of its own; upload this GroupBy instead of streaming it")
        if isinstance(source, EventSource):
            history, stream = source.table, source.stream
        else:
            history, stream = source.mutations, source.mutation_stream
        if stream is None:
            raise OptionError(f"{whose}: its source {history!r} has no stream; declare one, or only upload it")
        found.append((source, history, stream))
    return found


def history_rows(
    spark: SparkSession,
    group_by: GroupBy,
    *,
    snapshots_end_ms: int | None = None,
    arrivals: Arrivals | None = None,
    tables: Tables | None = None,
) -> DataFrame:
    """Return all rows of a GroupBy: the plan's columns, and if rows come and go, ``visible_ms`` and ``is_delete``.

    Args:
        spark: reads the tables.
        group_by: the GroupBy whose sources are read.
        snapshots_end_ms: the batch end of the snapshots of entities; required if there are any, also in a Join among
            the sources.
        arrivals: when an event begins to count, if its source has an arrival time; if None, only its own time
            decides.
        tables: DataFrames that replace the tables of these names.

    Raises:
        OptionError: an entity source without ``snapshots_end_ms``.
        DataError: as `batch_rows`.
    """
    whose = f"GroupBy {group_by.name!r}"
    with_changes = comes_and_goes(group_by, arrivals)
    read = []
    for source in sources_of(group_by):
        if isinstance(source, EntitySource):
            read += _entity_history(spark, source, group_by, snapshots_end_ms, tables)
            continue
        if isinstance(source, JoinSource):
            rows = _joined(spark, source, tables, snapshots_end_ms)
        else:
            rows = _read(spark, source, None, tables)
        columns = plan_columns(rows, group_by, _time_column(source))
        if with_changes:
            columns += _changes(rows, source, whose) if arrivals else _always()
        rows = rows.select(*columns)
        read.append(_left_to_upload(rows) if arrivals == "uploaded" else rows)
    return _union(read)


def comes_and_goes(group_by: GroupBy, arrivals: Arrivals | None = None) -> bool:
    """Return whether `history_rows` returns ``visible_ms`` and ``is_delete``."""
    if arrivals is not None and knows_arrivals(group_by):
        return True
    return any(isinstance(source, EntitySource) for source in sources_of(group_by))


def knows_arrivals(group_by: GroupBy) -> bool:
    """Return whether a source of a GroupBy has an arrival time."""
    return any(
        isinstance(source, EventSource) and source.arrival_time_column is not None for source in sources_of(group_by)
    )


def sources_of(group_by: GroupBy) -> tuple[Source, ...]:
    """Return the sources of a GroupBy; without any, a table and a stream of its own name."""
    return group_by.sources or (EventSource(group_by.name, stream=group_by.name),)


def read_source(spark: SparkSession, source: EventSource, tables: Tables | None = None) -> DataFrame:
    """Return the rows of an event source, with its selects and wheres applied.

    Raises:
        DataError: the table is missing, or a select or where is not SQL that fits.
    """
    return _read(spark, source, None, tables)


def _entity_history(
    spark: SparkSession, source: EntitySource, group_by: GroupBy, snapshots_end_ms: int | None, tables: Tables | None
) -> list[DataFrame]:
    whose = f"GroupBy {group_by.name!r}"
    if snapshots_end_ms is None:
        raise OptionError(
            f"{whose}: its source {source.snapshots!r} is a snapshot; say snapshots_end_ms, the batch end that it is of"
        )
    snapshot = _read(spark, source, source.snapshots, tables)
    mutations = _read(spark, source, source.mutations, tables)
    changes = mutations.select(
        *plan_columns(mutations, group_by, source.time_column), *_changes(mutations, source, whose)
    )
    taken_back = changes.where(F.col(VISIBLE) < snapshots_end_ms).select(
        *changes.columns[:-2], F.lit(None).cast("bigint").alias(VISIBLE), (~F.col(IS_DELETE)).alias(IS_DELETE)
    )
    columns = plan_columns(snapshot, group_by, source.time_column)
    return [snapshot.select(*columns, *_always()), taken_back, changes]


def _left_to_upload(rows: DataFrame) -> DataFrame:
    """Make events that arrived after their day had ended count from the next midnight on."""
    if VISIBLE not in rows.columns:
        return rows
    midnight = F.col(VISIBLE) - F.pmod(VISIBLE, F.lit(DAY_MS))
    late = F.col("time_ms") < midnight
    # A row counts for queries after its time, so it gets the last millisecond of the day.
    return rows.withColumn(VISIBLE, F.when(late, midnight + DAY_MS - 1).otherwise(F.col(VISIBLE)))


def _changes(rows: DataFrame, source: Source, whose: str) -> list[Column]:
    """Return the columns ``visible_ms`` and ``is_delete`` of a source's rows."""
    if isinstance(source, EntitySource):
        changed = checked_column(rows, Field(source.mutation_time_column, "long"), "mutation time column", whose)
        before = checked_column(rows, Field(source.is_before_column, "boolean"), "is_before column", whose)
        own = checked_column(rows, Field(source.time_column, "long"), "time column", whose)
        return [F.coalesce(changed, own).alias(VISIBLE), F.coalesce(before, F.lit(False)).alias(IS_DELETE)]
    arrival = source.arrival_time_column if isinstance(source, EventSource) else None
    if arrival is None:
        return _always()
    arrived = checked_column(rows, Field(arrival, "long"), "arrival time column", whose)
    return [arrived.alias(VISIBLE), F.lit(False).alias(IS_DELETE)]


def _always() -> list[Column]:
    return [F.lit(None).cast("bigint").alias(VISIBLE), F.lit(False).alias(IS_DELETE)]


def _time_column(source: Source) -> str:
    return source.join.left.time_column if isinstance(source, JoinSource) else source.time_column


def _read(
    spark: SparkSession, source: EventSource | EntitySource, table: str | None, tables: Tables | None
) -> DataFrame:
    name = table if table is not None else source.table  # type: ignore[union-attr]  # only entities say which
    return _selected(_table(spark, name, tables), source, name)


def _joined(spark: SparkSession, source: JoinSource, tables: Tables | None, snapshots_end_ms: int | None) -> DataFrame:
    from millpond.spark.features.training_set import training_set

    left = source.join.left
    queries = read_source(spark, left, tables)
    timed, untimed = queries, None
    if left.time_column in queries.columns:
        time = query_time(queries, left.time_column, f"Join {source.join.name!r}")
        has_time = time.isNotNull() & (time < MAX_QUERY_MS)
        timed, untimed = queries.where(has_time), queries.where(~has_time)
    rows = training_set(
        timed, source.join, time_column=left.time_column, tables=tables, snapshots_end_ms=snapshots_end_ms
    )
    if untimed is not None:
        # As with other sources, rows without a time are left out and counted, and do not fail the others. A time after
        # every query is after every batch end, too.
        features = rows.schema.fields[len(queries.columns) :]
        rows = rows.unionByName(
            untimed.select("*", *(F.lit(None).cast(field.dataType).alias(field.name) for field in features))
        )
    return _selected(rows, source, source.join.name)


def _selected(rows: DataFrame, source: Source, name: str) -> DataFrame:
    """Apply the wheres and selects of a source; columns of times and changes are kept."""
    try:
        for where in source.wheres:
            rows = rows.where(where)
        selects = dict(source.selects)
        if not selects:
            return rows
        kept = [one for one in _carried(source) if one not in selects and one in rows.columns]
        return rows.select(
            *(F.expr(expression).alias(column) for column, expression in selects.items()),
            *(F.col(quoted(column)) for column in kept),
        )
    except AnalysisException as cause:
        raise DataError(
            f"source {name!r}: its selects {dict(source.selects)} and wheres {list(source.wheres)} do not fit its "
            f"columns {rows.columns}: {cause}"
        ) from cause


def _carried(source: Source) -> list[str]:
    if isinstance(source, EntitySource):
        return [source.time_column, source.mutation_time_column, source.is_before_column]
    if isinstance(source, JoinSource):
        return [source.join.left.time_column]
    return [source.time_column] + ([source.arrival_time_column] if source.arrival_time_column else [])


def _table(spark: SparkSession, name: str, tables: Tables | None) -> DataFrame:
    if tables is not None and name in tables:
        return tables[name]
    try:
        return spark.read.load(name) if _is_path(name) else spark.table(name)
    except AnalysisException as cause:
        raise _missing(name, tables, cause) from cause


def _stream(spark: SparkSession, name: str, history: str, tables: Tables | None) -> DataFrame:
    if tables is not None and name in tables:
        return tables[name]
    try:
        if _is_path(name):
            return spark.readStream.schema(_table(spark, history, tables).schema).load(name)
        return spark.readStream.table(name)
    except AnalysisException as cause:
        raise _missing(name, tables, cause) from cause


def _missing(name: str, tables: Tables | None, cause: Exception) -> DataError:
    return DataError(
        f"source {name!r} is neither a table that Spark knows, nor a path that it reads, nor among the tables given "
        f"{sorted(tables or ())}; create it, or correct its name: {cause}"
    )


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name


def _union(rows: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, rows)
