"""After the operator: writes the tiles of a micro-batch to the KV store, then the closing time that covers them.

Place on the data path: last step of the stream of tiles, a ``foreachBatch`` function. The executors write the tiles.
Rows of one key lie in one partition, its marker last, so the store never has a marker before its tile. When all
partitions are done, the driver writes the closing time. A crash before that leaves the closing time too early, never
too late.

The partitions of state are coalesced into at most as many tasks as there are cores. So the tiles of several partitions
go to the store together. A store that keeps rows by key, such as LMDB, touches each of its pages once for all of them.
They stay Arrow columns as far as the store can take them (`ArrowPuts`).
"""

import logging
from collections.abc import Callable, Iterable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from millpond.features import CLOSING_KEY, MARKER_ADDRESS, ClosingTime, encode_closing_time
from millpond.features.stored.rows import start_of
from millpond.kv import KVStore, Put
from millpond.kv.arrow_puts import ArrowPuts
from millpond.metrics import NO_METRICS, Recorder
from millpond.spark.environment.session import is_connect
from millpond.spark.environment.worker_garbage import leave_modules_out
from millpond.spark.features.tiles.combine import EventCounts
from millpond.spark.features.tiles.rows import AMENDED, CLOSED, CLOSING, FORGOTTEN, LATE, OPENED
from millpond.spark.shuffle.arrow_lots import lots
from millpond.spark.shuffle.pack import unpack

_log = logging.getLogger(__name__)

_WRITTEN = "change int, amount bigint"

_OF_TILES = ["key", "address", "value"]
"""The columns that make a row of the store."""

_ROWS_A_WRITE = 200_000
_BYTES_A_WRITE = 64 << 20
"""The most rows and bytes of one write. Many rows at once are written faster than the few of an Arrow batch: LMDB
rewrites each page once.
"""


class TileCounts(msgspec.Struct, frozen=True):
    """The counts of one micro-batch of a stream of tiles.

    Attributes:
        written: the number of tiles put into the store, of all layers.
        closed: those of them that closed.
        amended: those of them that were closed and changed by late events.
        late: the number of events whose tile was closed.
        forgotten: the number of events whose tile is older than the retention; the next upload has them.
        closing_time_ms: the time up to which tiles are closed; None if the batch emitted none.
    """

    written: int = 0
    closed: int = 0
    amended: int = 0
    late: int = 0
    forgotten: int = 0
    closing_time_ms: int | None = None


def tile_writer(
    dataset: str,
    name: str,
    store: KVStore,
    counts: EventCounts,
    recorder: Recorder = NO_METRICS,
    *,
    keep_ms: int = 0,
    started_ms: int | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return the ``foreachBatch`` function that writes what a `TileProcessor` emits, packed in the operator's blobs.

    Args:
        dataset: the dataset of the stream's generation.
        name: the name of the GroupBy, for metrics.
        store: the store to write to; it must be picklable, because it travels to the executors.
        counts: the counts of events from before the shuffle.
        recorder: gets the metrics of each micro-batch.
        keep_ms: how long after its start a tile stays in the store, if tiles expire.
        started_ms: the stream has all events from this time on; None if that is not known.
    """
    events = EventTotals(counts)

    def put(updates: DataFrame, _batch_id: int) -> None:
        rows = _by_few_tasks(updates).mapInArrow(_writer(dataset, store, keep_ms), _WRITTEN).collect()
        batch = summed((row.change, row.amount) for row in rows)
        if batch.closing_time_ms is not None:
            closing = ClosingTime(0, 1, batch.closing_time_ms, started_ms)
            until_ms = keep_until_ms(closing.closed_ms, keep_ms)
            store.put_many(dataset, [Put(CLOSING_KEY, encode_closing_time(closing), 0, until_ms)])
        counted = events.since_last()
        if 0 < events.told("without_time") == counted["without_time"]:
            _log.warning(
                "GroupBy %r: %d events have no time, or one after the year 2499 as times in microseconds have; they "
                "are in no feature. Expected are milliseconds since 1970 UTC. Further ones are only counted, by "
                "millpond_stream_events_without_time_total",
                name,
                counted["without_time"],
            )
        of_seventies = counted.pop("of_seventies", 0)
        if 0 < events.told("of_seventies") == of_seventies:
            _log.warning(
                "GroupBy %r: %d events are before 1980, and so before the stream's start; they are in no tile. If the "
                "times of events are in seconds, multiply them by 1000: expected are milliseconds since 1970 UTC. "
                "Further ones are only counted, by millpond_stream_events_before_start_total",
                name,
                of_seventies,
            )
        record(recorder, name, batch, counted)

    return put


def _by_few_tasks(updates: DataFrame) -> DataFrame:
    """Return the rows in no more partitions than there are cores.

    A client of Spark Connect does not know the number of cores, so its rows stay as they are.
    """
    spark = updates.sparkSession
    return updates if is_connect(spark) else updates.coalesce(spark.sparkContext.defaultParallelism)


def summed(rows: Iterable[tuple[int, int]]) -> TileCounts:
    """Add up the counts of the partitions, given as (change, amount).

    >>> summed([(OPENED, 2), (CLOSED, 1), (CLOSING, 300_000)])
    TileCounts(written=3, closed=1, amended=0, late=0, forgotten=0, closing_time_ms=300000)
    """
    totals = dict.fromkeys((OPENED, CLOSED, AMENDED, LATE, FORGOTTEN), 0)
    closing: list[int] = []
    for change, amount in rows:
        if change == CLOSING:
            closing.append(amount)
        elif change in totals:
            totals[change] += amount
    return TileCounts(
        written=totals[OPENED] + totals[CLOSED] + totals[AMENDED],
        closed=totals[CLOSED],
        amended=totals[AMENDED],
        late=totals[LATE],
        forgotten=totals[FORGOTTEN],
        closing_time_ms=min(closing, default=None),
    )


def record(recorder: Recorder, name: str, batch: TileCounts, events: dict[str, int]) -> None:
    """Record the metrics of a micro-batch."""
    for what, amount in events.items():
        recorder.count(f"millpond_stream_events_{what}_total", amount, name=name)
    recorder.count("millpond_stream_events_late_total", batch.late, name=name)
    recorder.count("millpond_stream_events_forgotten_total", batch.forgotten, name=name)
    recorder.count("millpond_stream_tiles_written_total", batch.written, name=name)
    recorder.count("millpond_stream_tiles_closed_total", batch.closed, name=name)
    recorder.count("millpond_stream_tiles_amended_total", batch.amended, name=name)
    if batch.closing_time_ms is not None:
        recorder.gauge("millpond_stream_closing_time_seconds", batch.closing_time_ms / 1000, name=name)


class EventTotals:
    """Reads the accumulators of a stream's events after each micro-batch."""

    def __init__(self, counts: EventCounts) -> None:
        accumulators = {
            "read": counts.events,
            "before_start": counts.before_start,
            "without_key": counts.without_key,
            "without_time": counts.without_time,
            "of_seventies": counts.of_seventies,
        }
        self._accumulators = {name: one for name, one in accumulators.items() if one is not None}
        self._told = dict.fromkeys(self._accumulators, 0)

    def since_last(self) -> dict[str, int]:
        """Return what was counted since the last call."""
        totals = {name: one.value for name, one in self._accumulators.items()}
        grown = {name: total - self._told[name] for name, total in totals.items()}
        self._told = totals
        return grown

    def told(self, name: str) -> int:
        """Return what was counted until the last call of `since_last`."""
        return self._told.get(name, 0)


def keep_until_ms(address: int, keep_ms: int) -> int:
    """Return until when a tile is kept: by its own time, so that a replay keeps old tiles no longer than new ones.

    A marker has no time. An expired marker is safe to lose, because its absence differs from what was cached.

    >>> keep_until_ms(300_000, keep_ms=1_000), keep_until_ms(-300_000, keep_ms=1_000)
    (301000, 0)
    >>> keep_until_ms(MARKER_ADDRESS, keep_ms=1_000)
    0
    """
    return 0 if address == MARKER_ADDRESS else max(0, start_of(address) + keep_ms)


def _count(batch: pa.Table, counted: dict[int, int]) -> None:
    """Count tiles and markers by kind, and add up the closing time and the counts of the other rows."""
    for found in pc.value_counts(batch.filter(batch.column("value").is_valid()).column("change")).to_pylist():
        counted[found["values"]] = counted.get(found["values"], 0) + found["counts"]
    others = batch.filter(batch.column("value").is_null())
    for change, amount in zip(others.column("change").to_pylist(), others.column("amount").to_pylist(), strict=True):
        counted[change] = amount if change == CLOSING else counted.get(change, 0) + amount


def _kept_until(addresses: pa.Array, keep_ms: int) -> pa.Array:
    """Return until when each tile is kept. Many tiles share few addresses."""
    found = addresses.dictionary_encode()
    each = [keep_until_ms(address, keep_ms) for address in found.dictionary.to_pylist()]
    return pa.array(each, pa.int64()).take(found.indices)


def _writer(
    dataset: str, store: KVStore, keep_ms: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        leave_modules_out()
        counted: dict[int, int] = {}
        for lot in lots(unpack(batches), _ROWS_A_WRITE, _BYTES_A_WRITE):
            _count(lot, counted)
            tiles = lot.select(_OF_TILES).filter(lot.column("value").is_valid())
            keys, addresses, values = (column.combine_chunks() for column in tiles.columns)
            store.put_many(dataset, ArrowPuts(keys, values, addresses, _kept_until(addresses, keep_ms)))
        yield pa.record_batch(
            [pa.array(list(counted), pa.int32()), pa.array(list(counted.values()), pa.int64())],
            names=["change", "amount"],
        )

    return write
