"""The batch upload: writes all rows before a batch end, as one row for each key, to a new dataset of the KV store.

Place on the data path: it reads the history and writes the fetcher's batch data. It runs as one Spark job: rows are
shuffled by key, and each task collects the rows of its keys and writes the result itself.

Invariant: what is served is always one whole upload. The rows go to a dataset that nothing points to yet. The
ServingInfo that points to it is written last, in one step. A crash before that leaves the former upload served. Running
again writes a new dataset, and the next success drops what the crash left behind. A task that Spark runs twice writes
the same bytes to the same places. Of two uploads of one GroupBy at once, one is refused (`upload_lease`).

Delivery: every row once, or none is served. Freshness: up to the batch end, from the moment this returns. Recovery: run
it again.
"""

import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from millpond.errors import DataError, OptionError
from millpond.features import (
    SERVING_INFO_DATASET,
    GroupBy,
    GroupByPlan,
    ServingInfo,
    batch_dataset,
    compile_group_by,
    parse_window,
    serving_info_key,
    stream_dataset,
)
from millpond.features.batch import check_batch_end
from millpond.features.query_times import SEVENTIES_END_MS
from millpond.features.stored.value_header import checked_body, unreadable, with_header
from millpond.kv import Get, KVStore, Put
from millpond.metrics import NO_METRICS, Recorder
from millpond.spark.environment.worker_garbage import leave_modules_out
from millpond.spark.features.columns import key_names
from millpond.spark.features.hops.batch_rows_of_keys import RowCounts, batch_rows_of_keys
from millpond.spark.features.hops.table import HopChange, HopTable
from millpond.spark.features.hops.tasks import HopTask
from millpond.spark.features.sources import Tables, batch_rows
from millpond.spark.features.task_outcomes import outcomes_of
from millpond.spark.features.upload_lease import leased

_OUTCOME = (
    "rows bigint, bytes bigint, checksum bigint, events bigint, without_key bigint, without_time bigint, "
    "latest_ms bigint, problem string, table_files array<string>"
)
_CHECKSUM_BITS = 63
_RETIRED_FORMAT = 1

_log = logging.getLogger(__name__)


class UploadCounts(msgspec.Struct, frozen=True):
    """The counts of one upload, added up over its tasks.

    Attributes:
        rows: the number of rows written, one for each key.
        bytes: the size of their values.
        checksum: the checksum of all rows; their order does not matter.
        events: the number of source rows before the batch end.
        without_key: those of them with a null in their key, which belong to no key.
        without_time: those of them without a time, which belong to no window.
    """

    rows: int = 0
    bytes: int = 0
    checksum: int = 0
    events: int = 0
    without_key: int = 0
    without_time: int = 0


def upload(
    group_by: GroupBy,
    batch_end_ms: int,
    store: KVStore,
    *,
    tables: Tables | None = None,
    landing_ms: int | None = None,
    spark: SparkSession | None = None,
    recorder: Recorder = NO_METRICS,
    clock: Callable[[], int] | None = None,
    hop_table: str | os.PathLike[str] | None = None,
) -> ServingInfo:
    """Upload the features of all rows before a batch end, and serve them from then on.

    The upload that was served before stays in the store for readers that still hold its serving info.
    Older uploads are dropped, and so are the tiles of a generation that neither of the two uses.

    Args:
        group_by: what to compute.
        batch_end_ms: a full hour UTC, and a multiple of the plan's smallest tile; not in the future, and not before
            the batch end that is served.
            Rows at or after it are left to the stream.
        store: the store to write to; it must be picklable, because it travels to the executors.
        tables: DataFrames that replace the tables of these names. A GroupBy without sources reads the one under its
            own name.
        landing_ms: the time of this upload; the present time if None. The served upload must not have landed later. If
            it landed at this time, it is replaced like any other.
        spark: reads the sources; the active session if None.
        recorder: gets the counts of rows, bytes and seconds.
        clock: milliseconds since the epoch, UTC; the wall clock if None.
        hop_table: a folder that keeps the history collected into hops, so that a further day reads only its own
            events. Events that come more than three days late need a `backfill`. A batch end before that of the
            table is uploaded from the events alone.

    Raises:
        OptionError: the batch end is invalid or in the future, or a batch end or landing time after this one is
            served already.
        DataError: a column is missing or of a wrong type (then nothing has been written), or a value in
            it cannot be aggregated (then the former upload is still served).
        UnavailableError: another upload of this GroupBy is running, or the store failed; the former upload
            is still served.
        CorruptionError: the hop table cannot be read; the former upload is still served.

    Example::

        store = LmdbStore("kv")
        info = upload(route, 1_388_361_600_000, store, tables={"route": flights})
        store.get_many([Get(info.batch_dataset, plan.encode_key(("JFK", "UA")))])
    """
    clock = clock or wall_clock
    began_ms = clock()
    plan = compile_group_by(group_by)
    check_batch_end(batch_end_ms, plan.tile_ms)
    if batch_end_ms > began_ms:
        shown = np.datetime64(batch_end_ms, "ms")
        raise OptionError(
            f"GroupBy {plan.name!r}: batch_end_ms {batch_end_ms} ({shown} UTC) is in the future; events before it may "
            "still come. Upload up to a time that has passed."
        )
    spark = spark or SparkSession.active()
    rows = batch_rows(spark, group_by, batch_end_ms, tables)
    table = None if hop_table is None else HopTable(plan, hop_table)
    with leased(store, plan.name, clock) as lease:
        landing_ms = clock() if landing_ms is None else landing_ms
        previous = read_serving_info(store, plan.name)
        _check_order(plan, batch_end_ms, landing_ms, previous)
        dataset = _unread(batch_dataset(plan.name, batch_end_ms, landing_ms), previous)
        change = None if table is None else _change(spark, table, rows, batch_end_ms, watch=True)
        outcomes = _written(plan, store, dataset, batch_end_ms, rows, change)
        if table is not None and change is not None and (settled := table.settled(change)) is None:
            change = _change(spark, table, rows, batch_end_ms, watch=False)
            outcomes = _written(plan, store, dataset, batch_end_ms, rows, change)
        elif table is not None and change is not None:
            change = settled
        counts = _summed(plan, outcomes)
        _warn_of_units(plan, batch_end_ms, counts, outcomes)
        info = ServingInfo(
            group_by=plan.name,
            definition_hash=plan.definition_hash,
            batch_end_ms=batch_end_ms,
            batch_landing_ms=landing_ms,
            batch_dataset=dataset,
            streaming_dataset=stream_dataset(plan.name, plan.generation),
            generation=plan.generation,
            batch_form=plan.batch_form,
            layers=plan.layers,
            accuracy=group_by.accuracy,
            rows=counts.rows,
            checksum=counts.checksum,
        )
        lease.check()
        if table is not None and change is not None:
            table.publish(change, [name for row in outcomes for name in row.table_files])
        store.put_many(SERVING_INFO_DATASET, [Put(serving_info_key(plan.name), info.encode())])
        _drop_older(store, info, previous)
    _tell(recorder, plan.name, counts, (clock() - began_ms) / 1000)
    return info


def read_serving_info(store: KVStore, group_by: str) -> ServingInfo | None:
    """Return the serving info of the upload that is served; None if there is none.

    Raises:
        CorruptionError: the stored bytes are not a serving info.
    """
    (found,) = store.get_many([Get(SERVING_INFO_DATASET, serving_info_key(group_by))])
    return ServingInfo.decode(found[-1].value) if found else None


def wall_clock() -> int:
    """Return the present time, in milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - "now" by the wall clock is what landing means


def _check_order(plan: GroupByPlan, batch_end_ms: int, landing_ms: int, previous: ServingInfo | None) -> None:
    """Refuse an upload that is older than the one that is served: its day after would be in no batch and no tile."""
    if previous is None:
        return
    if previous.batch_end_ms > batch_end_ms:
        raise OptionError(
            f"GroupBy {plan.name!r}: batch_end_ms {batch_end_ms} is before {previous.batch_end_ms}, the batch end that "
            "is served; events between the two would be missing. A later upload has replaced this one: do not run it "
            "again, or upload the served batch end again"
        )
    if previous.batch_landing_ms > landing_ms:
        raise OptionError(
            f"GroupBy {plan.name!r}: landing_ms {landing_ms} is before {previous.batch_landing_ms}, when the "
            "upload that is now served landed; give the time of this upload, or leave it out"
        )


def _unread(dataset: str, previous: ServingInfo | None) -> str:
    """Return the name of a dataset that is not served: a second one if an upload is run again with its landing time."""
    return f"{dataset}.again" if previous is not None and previous.batch_dataset == dataset else dataset


def _written(
    plan: GroupByPlan,
    store: KVStore,
    dataset: str,
    batch_end_ms: int,
    rows: DataFrame,
    change: HopChange | None,
) -> list[Row]:
    """Run the job that writes all rows, and return its outcomes, one for each task.

    What an earlier job may have written to the dataset is dropped first.

    Args:
        plan: the plan of the GroupBy.
        store: the store to write to.
        dataset: the dataset of this upload.
        batch_end_ms: the end of the history.
        rows: the rows of the sources.
        change: the change of the hop table, if there is one.
    """
    store.drop(dataset)
    batch_ttl = plan.group_by.batch_ttl
    store.create(dataset, rows="one", ttl_ms=None if batch_ttl is None else parse_window(batch_ttl))
    write = _writer(plan, store, dataset, batch_end_ms, change and change.task)
    job = (_by_key(rows, plan.group_by) if change is None else change.rows).mapInArrow(write, _OUTCOME)
    return outcomes_of(job, f"GroupBy {plan.name!r}: nothing of this upload is served:")


def _by_key(rows: DataFrame, group_by: GroupBy) -> DataFrame:
    keys = key_names(group_by)
    return rows.repartition(*keys).sortWithinPartitions(*keys)


def _change(
    spark: SparkSession, table: HopTable, rows: DataFrame, batch_end_ms: int, *, watch: bool
) -> HopChange | None:
    """Return the change that moves a hop table to the batch end; None if the table already ends later."""
    state = table.state()
    if state is not None and state.end_ms > batch_end_ms:
        return None
    return table.change(spark, rows, batch_end_ms, with_rows=True, watch=watch)


def _writer(
    plan: GroupByPlan, store: KVStore, dataset: str, batch_end_ms: int, task: HopTask | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task: it takes rows sorted by key, writes them to the store, and yields one outcome.

    A row that cannot be aggregated is reported in the outcome and does not fail the task, because a retry would not
    help.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        leave_modules_out()
        rows = written = checksum = 0
        events = RowCounts()
        problem = None
        attempt = None if task is None else task.attempt()
        made = (
            batch_rows_of_keys(plan, batch_end_ms, batches, events)
            if attempt is None
            else attempt.batch_rows(batches, events)
        )

        def puts() -> Iterator[Put]:
            nonlocal rows, written, checksum
            for key, value in made:
                rows += 1
                written += len(value)
                checksum += zlib.crc32(value, zlib.crc32(key))
                yield Put(key, value, batch_end_ms)

        try:
            store.bulk_put(dataset, puts())
        except DataError as error:
            problem = str(error)
        counts = (rows, written, checksum, events.events, events.without_key, events.without_time, events.latest_ms)
        files = () if attempt is None else attempt.files
        outcome = dict(zip(_OUTCOME_NAMES, (*counts, problem, files), strict=True))
        yield pa.RecordBatch.from_pylist([outcome], schema=_OUTCOME_SCHEMA)

    return write


_OUTCOME_NAMES = [part.split()[0] for part in _OUTCOME.split(", ")]
_OUTCOME_TYPES = {"problem": pa.string(), "table_files": pa.list_(pa.string())}
_OUTCOME_SCHEMA = pa.schema([(name, _OUTCOME_TYPES.get(name, pa.int64())) for name in _OUTCOME_NAMES])


def _summed(plan: GroupByPlan, outcomes: list[Row]) -> UploadCounts:
    problems = [row.problem for row in outcomes if row.problem is not None]
    if problems:
        raise DataError(f"{problems[0]}; nothing of this upload is served")
    totals = {name: sum(getattr(row, name) for row in outcomes) for name in UploadCounts.__struct_fields__}
    totals["checksum"] %= 1 << _CHECKSUM_BITS
    counts = UploadCounts(**totals)
    if counts.without_key or counts.without_time:
        _log.warning(
            "GroupBy %r: of %d rows, %d have a null in their key and %d have no time; they are in no feature",
            plan.name,
            counts.events,
            counts.without_key,
            counts.without_time,
        )
    return counts


def _warn_of_units(plan: GroupByPlan, batch_end_ms: int, counts: UploadCounts, outcomes: list[Row]) -> None:
    """Warn if a batch is empty or all of the seventies, as it is if the times are no milliseconds."""
    if not counts.rows:
        _log.warning(
            "GroupBy %r: the batch is empty, as no row with a key is before its end, %s UTC. If the times of the rows "
            "are in microseconds, divide them by 1000: expected are milliseconds since 1970 UTC",
            plan.name,
            np.datetime64(batch_end_ms, "ms"),
        )
    latest_ms = max((row.latest_ms for row in outcomes if row.latest_ms is not None), default=None)
    if latest_ms is not None and 0 <= latest_ms < SEVENTIES_END_MS <= batch_end_ms:
        _log.warning(
            "GroupBy %r: the latest of %d rows is of %s UTC, and %d keys were written. If its times are in seconds, "
            "multiply them by 1000: expected are milliseconds since 1970 UTC",
            plan.name,
            counts.events,
            np.datetime64(latest_ms, "ms"),
            counts.rows,
        )


def _tell(recorder: Recorder, name: str, counts: UploadCounts, seconds: float) -> None:
    recorder.count("millpond_upload_rows_total", counts.rows, name=name)
    recorder.count("millpond_upload_bytes_total", counts.bytes, name=name)
    recorder.count("millpond_upload_seconds_total", max(0.0, seconds), name=name)
    recorder.count("millpond_upload_events_total", counts.events, name=name)
    recorder.count("millpond_upload_events_without_key_total", counts.without_key, name=name)
    recorder.count("millpond_upload_events_without_time_total", counts.without_time, name=name)


def _drop_older(store: KVStore, info: ServingInfo, previous: ServingInfo | None) -> None:
    """Drop the datasets of earlier uploads and generations, except those that readers may still use.

    The tiles of a generation are dropped one upload after the generation was replaced. A generation that no upload has
    served yet stays, because its stream runs ahead of its first upload.
    """
    kept = {info.batch_dataset, info.streaming_dataset}
    if previous is not None:
        kept |= {previous.batch_dataset, previous.streaming_dataset}
    for dataset in store.datasets():
        if dataset.startswith(f"{info.group_by}.batch.") and dataset not in kept:
            store.drop(dataset)
    key = f"{info.group_by}.retired".encode()
    (rows,) = store.get_many([Get(SERVING_INFO_DATASET, key)])
    retired = _retired(key, rows[-1].value) if rows else set()
    for dataset in sorted(retired - kept):
        store.drop(dataset)
    waiting = retired & kept
    if previous is not None and previous.streaming_dataset != info.streaming_dataset:
        waiting |= {previous.streaming_dataset}
    if waiting != retired:
        store.put_many(
            SERVING_INFO_DATASET, [Put(key, with_header(_RETIRED_FORMAT, msgspec.json.encode(sorted(waiting)), key))]
        )


def _retired(key: bytes, value: bytes) -> set[str]:
    """Return the datasets of the generations that wait to be dropped."""
    what = "list of retired generations"
    try:
        return msgspec.json.decode(checked_body(_RETIRED_FORMAT, value, what, key), type=set[str])
    except msgspec.MsgspecError as cause:
        raise unreadable(what, str(cause)) from cause
