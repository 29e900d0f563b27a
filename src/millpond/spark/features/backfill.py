"""Backfill: brings the hop table of a GroupBy up to an end, without an upload.

Place on the data path: before the batch upload, which continues from the same table.
"""

import os
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from millpond.errors import DataError, OptionError
from millpond.features import GroupBy, compile_group_by
from millpond.features.batch import check_batch_end
from millpond.features.windows import DAY_MS
from millpond.spark.environment.worker_garbage import leave_modules_out
from millpond.spark.features.hops.batch_rows_of_keys import RowCounts
from millpond.spark.features.hops.manifest import HopManifest
from millpond.spark.features.hops.table import HopTable
from millpond.spark.features.sources import Tables, batch_rows
from millpond.spark.features.task_outcomes import outcomes_of
from millpond.spark.features.upload import wall_clock

_SCHEMA = pa.schema([("files", pa.list_(pa.string())), ("problem", pa.string())])


def backfill(
    group_by: GroupBy,
    days: tuple[int, int],
    folder: str | os.PathLike[str],
    *,
    tables: Tables | None = None,
    spark: SparkSession | None = None,
    clock: Callable[[], int] | None = None,
) -> HopManifest:
    """Collect days into the hop table that `upload` continues from.

    A table that does not exist is built from all events before the end. After that, only days that are new, or whose
    events have changed, are read. If the table has merged the first of the days into the time before (it is older than
    every window, and than three days), the table is built anew.

    Args:
        group_by: what to collect; all its sources are event sources.
        days: where the days begin and end, in milliseconds since the epoch, UTC. The end is a full hour and is not
            included, and not in the future. A table that reaches further keeps its end.
        folder: the folder of the table; driver and executors see it under one path.
        tables: DataFrames that replace the tables of these names.
        spark: reads the sources; the active session if None.
        clock: milliseconds since the epoch, UTC; the wall clock if None.

    Raises:
        OptionError: the days do not begin at a midnight UTC, end before they begin or in the future, or the GroupBy
            has a source that is not of events.
        DataError: a column is missing or of a wrong type, or a value cannot be aggregated; the table stays as it was.
        UnavailableError: another run has changed the table meanwhile.
        CorruptionError: the table's manifest, or a file that must be written again, cannot be read.

    Example::

        backfill(route, (1_385_769_600_000, 1_388_361_600_000), "hops/route", tables={"route": flights})
    """
    begin_ms, end_ms = days
    plan = compile_group_by(group_by)
    check_batch_end(end_ms, plan.tile_ms)
    if type(begin_ms) is not int or begin_ms % DAY_MS or begin_ms >= end_ms:
        raise OptionError(f"days {days!r} must begin at a midnight UTC in milliseconds, and before they end")
    now_ms = (clock or wall_clock)()
    if end_ms > now_ms:
        raise OptionError(
            f"GroupBy {plan.name!r}: days {days!r} end in the future (it is {now_ms}); later uploads would miss the "
            "events that are still to come. Collect days that have passed."
        )
    spark = spark or SparkSession.active()
    table = HopTable(plan, folder)
    state = table.state()
    if state is not None:
        end_ms = max(end_ms, state.end_ms)
    events = batch_rows(spark, group_by, end_ms, tables)
    change = table.change(spark, events, end_ms, begin_ms)
    task = change.task

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        leave_modules_out()
        attempt, problem = task.attempt(), None
        try:
            attempt.write_files(batches, RowCounts())
        except DataError as error:
            problem = str(error)
        yield pa.RecordBatch.from_pylist([{"files": attempt.files, "problem": problem}], schema=_SCHEMA)

    job = change.rows.mapInArrow(run, "files array<string>, problem string")
    outcomes = outcomes_of(job, f"GroupBy {plan.name!r}: the hop table stays as it was:")
    problems = [row.problem for row in outcomes if row.problem is not None]
    if problems:
        raise DataError(f"{problems[0]}; the hop table stays as it was")
    return table.publish(change, [name for row in outcomes for name in row.files])
