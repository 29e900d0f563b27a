"""The spine: the queries of a training set that brings none, made from the keys that have been seen.

Place on the data path: before the training set. Each key gets a query at every step, from the first step after its
first row on.
"""

from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import DataError, OptionError
from millpond.features import Join, parse_window
from millpond.spark.features.columns import TIME, checked_column, has_key, key_names, quoted
from millpond.spark.features.join_columns import query_time
from millpond.spark.features.sources import Tables, history_rows, read_source

Time = int | datetime
"""Milliseconds since the epoch, or a datetime with a time zone."""

_FIRST = "time of the first row"
"""A column's name that no key has."""


def spine(
    spark: SparkSession | None,
    join: Join,
    every: str | None,
    between: tuple[Time, Time] | None,
    time_column: str,
    tables: Tables | None,
) -> DataFrame:
    """Return one row for each key and step: the key columns of a Join, and the time in milliseconds.

    The keys are those of the Join's left source. Without one, they come from the first part that has all of the
    Join's keys.

    Raises:
        OptionError: the session, ``every`` or ``between`` is missing or malformed, the Join has context
            fields or no source of keys.
        DataError: a table or column is missing or of a wrong type.
    """
    if spark is None or every is None or between is None:
        raise OptionError(
            f"Join {join.name!r}: without queries, give spark=, every= such as '1h', and between=(start, end)"
        )
    if join.context:
        raise OptionError(
            f"Join {join.name!r}: its context fields {[field.name for field in join.context]} are known to queries "
            "only; give queries"
        )
    step_ms = parse_window(every)
    start_ms, end_ms = (_milliseconds(time) for time in between)
    if start_ms >= end_ms:
        raise OptionError(f"between {between!r}: the start must lie before the end")
    seen = _first_seen(spark, join, tables)
    # The first step after the first row.
    late_ms = F.greatest(F.col(quoted(_FIRST)) + 1 - start_ms, F.lit(0).cast("bigint"))
    first_step = F.lit(start_ms) + F.ceil(late_ms / F.lit(step_ms)).cast("bigint") * step_ms
    steps = F.sequence(first_step, F.lit(end_ms - 1), F.lit(step_ms).cast("bigint"))
    return seen.where(first_step < end_ms).select(
        *(F.col(quoted(field.name)) for field in join.keys), F.explode(steps).alias(time_column)
    )


def _first_seen(spark: SparkSession, join: Join, tables: Tables | None) -> DataFrame:
    """Return each key without null parts, and the time of its first row. Rows without a time are left out."""
    names = [field.name for field in join.keys]
    if join.left is not None:
        whose = f"Join {join.name!r}"
        rows = read_source(spark, join.left, tables)
        keys = [checked_column(rows, field, "key", whose).alias(field.name) for field in join.keys]
        rows = rows.select(*keys, query_time(rows, join.left.time_column, whose).alias(_FIRST))
    else:
        part = next((part for part in join.parts if {column for column, _ in part.columns} == set(names)), None)
        if part is None:
            raise OptionError(
                f"Join {join.name!r} has no left source, and no part has all of its keys {names}; give it a left "
                "source, or give queries"
            )
        history = history_rows(spark, part.group_by, snapshots_end_ms=0, tables=tables)
        renamed = [
            F.col(name).alias(column) for name, (column, _) in zip(key_names(part.group_by), part.columns, strict=True)
        ]
        rows = history.select(*renamed, F.col(TIME).alias(_FIRST))
    return (
        rows.where(has_key([quoted(name) for name in (*names, _FIRST)]))
        .groupBy(*map(quoted, names))
        .agg(F.min(quoted(_FIRST)).alias(_FIRST))
    )


def _milliseconds(time: Time) -> int:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise OptionError(f"between: {time!r} has no time zone; write datetime(..., tzinfo=UTC)")
        return (time - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND
    if isinstance(time, bool) or not isinstance(time, int):
        raise DataError(f"between: {time!r} is neither milliseconds nor a datetime")
    return time


_MILLISECOND = datetime(1970, 1, 1, 0, 0, 0, 1000, UTC) - datetime(1970, 1, 1, tzinfo=UTC)
