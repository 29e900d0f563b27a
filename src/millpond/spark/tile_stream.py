"""Streaming tiles: what comes after the batch end, five minutes at a time, from keyed state to the KV store.

Place on the data path: events come in, tiles go out to where the fetcher reads them. `TileProcessor`
is an ordinary PySpark `StatefulProcessor`; `write_tiles` runs it and writes what it emits.

The life of a tile: it *opens* with its first event and is emitted, whole, in each batch that changes
it. A timer at its end *closes* it: it is emitted once more, complete. A late event *amends* it: it is
emitted complete again, under the next version; a tile that first appears after its end has passed was
complete and empty until then, so it begins at version 1. When a tile is so old that no query can reach
it (`retention_ms` after its end), it is *forgotten*; an event for it after that is left out, because a
tile made of it alone would overwrite the whole one, and a warning says how many were.

The state holds each tile as the bytes that were emitted. Equal events make equal bytes in any order,
so a batch that Spark runs again writes the same rows again, over themselves.

Delivery: at least once, and idempotent: same key and start, same bytes. Freshness: one micro-batch.
Recovery: restart from the checkpoint.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

from millpond.errors import DataError, OptionError
from millpond.features import HORIZON_MS, GroupBy, Ir, Tile, compile_group_by, stream_dataset, tile_start
from millpond.features.batch import check_batch_end
from millpond.kv import KVStore, Put
from millpond.spark.feature_columns import feature_columns, key_names
from millpond.spark.keyed import keyed
from millpond.spark.worker_garbage import leave_modules_out

TILE_SCHEMA = "key binary, start_ms bigint, tile binary, complete boolean, version bigint"
"""What `TileProcessor` emits: the encoded key, the tile's start, its bytes, and two of its fields in the clear."""

DEFAULT_RETENTION_MS = HORIZON_MS + HORIZON_MS // 2
"""How long after its end a tile can still be amended: two days for queries, and one for late events."""

_log = logging.getLogger(__name__)


class TileProcessor(StatefulProcessor):  # type: ignore[misc]  # PySpark is untyped here
    """Keeps the tiles of one key and emits those that changed; for the time mode ``EventTime``.

    Its rows lie in the order of `feature_columns`: the key's parts, the time, the inputs.

    Args:
        group_by: whose tiles.
        retention_ms: how long after its end a tile can still be amended; whole tiles.

    Raises:
        OptionError: the retention is shorter than two days, or not a whole number of tiles.
    """

    def __init__(self, group_by: GroupBy, retention_ms: int = DEFAULT_RETENTION_MS) -> None:
        self._plan = compile_group_by(group_by)
        self._tile_ms = tile_ms = self._plan.tile_ms
        if retention_ms < HORIZON_MS or retention_ms % tile_ms:
            raise OptionError(
                f"retention_ms {retention_ms} must be at least {HORIZON_MS} (two days, as far as queries reach) and "
                f"a multiple of {tile_ms}; the nearest is {max(HORIZON_MS, tile_start(retention_ms, tile_ms))}"
            )
        self._retention_ms = retention_ms
        self._time_at = len(group_by.keys)
        self._inputs = slice(self._time_at + 1, self._time_at + 1 + len(group_by.inputs))
        self._left_out = 0

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state: a map from the start of a tile to its bytes."""
        self._handle = handle
        self._tiles = handle.getMapState("tiles", "start_ms bigint", "tile binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Take a batch's events of one key; emit each tile that they changed, once."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        encoded_key = self._plan.encode_key(key)
        if encoded_key is None:
            return
        for start_ms, (times, inputs) in sorted(self._by_tile(key, rows).items()):
            if start_ms + self._tile_ms + self._retention_ms <= watermark_ms:
                self._left_out += len(inputs)
                continue
            changed = self._changed(encoded_key, start_ms, self._plan.collect(times, inputs), watermark_ms)
            yield self._emitted(encoded_key, changed)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Close the tile that ends here, and forget the one that ended a retention ago."""
        end_ms = expiredTimerInfo.getExpiryTimeInMs()
        self._tiles.removeKey((end_ms - self._retention_ms - self._tile_ms,))
        encoded_key = self._plan.encode_key(key)
        tile = None if encoded_key is None else self._stored(encoded_key, end_ms - self._tile_ms)
        if encoded_key is None or tile is None:
            return
        self._handle.registerTimer(end_ms + self._retention_ms)
        if not tile.complete:
            closed = Tile(tile.start_ms, tile.size_ms, complete=True, version=tile.version, ir=tile.ir)
            yield self._emitted(encoded_key, closed)

    def close(self) -> None:
        """Say how many events came too late even to amend."""
        if self._left_out:
            _log.warning(
                "GroupBy %r: %d events came more than %d ms after their tile ended and were left out; "
                "the next batch upload has them",
                self._plan.name,
                self._left_out,
                self._retention_ms,
            )
            self._left_out = 0

    def _by_tile(self, key: Any, rows: Iterable[Row]) -> dict[int, tuple[list[int], list[tuple[Any, ...]]]]:
        by_tile: dict[int, tuple[list[int], list[tuple[Any, ...]]]] = {}
        time_at, inputs = self._time_at, self._inputs
        for row in rows:
            time_ms = row[time_at]
            if time_ms is None:
                raise DataError(
                    f"GroupBy {self._plan.name!r}: an event of key {key} has no time; drop it or give it one"
                )
            times, of_tile = by_tile.setdefault(tile_start(time_ms, self._tile_ms), ([], []))
            times.append(time_ms)
            of_tile.append(row[inputs])
        return by_tile

    def _changed(self, key: bytes, start_ms: int, ir: Ir, watermark_ms: int) -> Tile:
        """Give a tile with some more events; see the module's text for what becomes of its version."""
        former = self._stored(key, start_ms)
        end_ms = start_ms + self._tile_ms
        complete = end_ms <= watermark_ms
        if former is None:
            # A complete tile needs no closing any more, only to be forgotten.
            self._handle.registerTimer(end_ms + self._retention_ms if complete else end_ms)
            return Tile(start_ms, self._tile_ms, complete=complete, version=int(complete), ir=ir)
        version = former.version + former.complete
        return Tile(start_ms, self._tile_ms, complete=complete, version=version, ir=self._plan.merge(former.ir, ir))

    def _stored(self, key: bytes, start_ms: int) -> Tile | None:
        stored = self._tiles.getValue((start_ms,))
        return None if stored is None else self._plan.decode_tile(key, bytes(stored[0]))

    def _emitted(self, encoded_key: bytes, tile: Tile) -> Row:
        encoded = self._plan.encode_tile(encoded_key, tile)
        self._tiles.updateValue((tile.start_ms,), (encoded,))
        return Row(key=encoded_key, start_ms=tile.start_ms, tile=encoded, complete=tile.complete, version=tile.version)


def tile_updates(
    events: DataFrame,
    group_by: GroupBy,
    *,
    time_column: str,
    start_ms: int,
    lateness_ms: int,
    retention_ms: int = DEFAULT_RETENTION_MS,
) -> DataFrame:
    """Give the stream of tiles as they change, in the columns of ``TILE_SCHEMA``.

    Commonly used through `write_tiles`; by itself when tiles go to another place as well.

    Args:
        events: a streaming DataFrame with the key, input and time columns.
        group_by: what to compute.
        time_column: the event time, a column of milliseconds since the epoch, UTC, without nulls.
        start_ms: events before it are left out: the batch end of the upload that has them.
        lateness_ms: how far the watermark stays behind the latest event. A larger one completes tiles
            later and amends fewer.
        retention_ms: how long after its end a tile can still be amended; whole tiles.

    Raises:
        OptionError: the start is not a midnight UTC, the lateness is negative, the retention too short.
        DataError: a column is missing or of a wrong type.
    """
    check_batch_end(start_ms, compile_group_by(group_by).tile_ms)
    if lateness_ms < 0:
        raise OptionError(f"lateness_ms {lateness_ms} is negative; the watermark cannot be ahead of the events")
    keys = key_names(group_by)
    timed = (
        events.select(*feature_columns(events, group_by, time_column))
        .where((F.col("time_ms") >= start_ms) | F.col("time_ms").isNull())
        .withColumn("event_time", F.timestamp_millis("time_ms"))
        .withWatermark("event_time", f"{lateness_ms} milliseconds")
    )
    processor = TileProcessor(group_by, retention_ms)
    return keyed(timed, *keys).transformWithState(processor, TILE_SCHEMA, "Update", "EventTime", late="keep")


def put_tiles(group_by: GroupBy, store: KVStore) -> Callable[[DataFrame, int], None]:
    """Give the ``foreachBatch`` function that writes a micro-batch of `tile_updates`, from the executors.

    Args:
        group_by: whose tiles; they go to its stream dataset.
        store: where to; it must be able to travel to the executors.
    """
    dataset = stream_dataset(group_by.name, compile_group_by(group_by).generation)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        leave_modules_out()
        for batch in batches:
            keys, starts, tiles = (column.to_pylist() for column in batch.columns)
            store.put_many(dataset, list(map(Put, keys, tiles, starts)))
        yield from ()

    def put(updates: DataFrame, _batch_id: int) -> None:
        updates.select("key", "start_ms", "tile").mapInArrow(write, "nothing boolean").collect()

    return put


def write_tiles(
    events: DataFrame,
    group_by: GroupBy,
    store: KVStore,
    checkpoint: str,
    *,
    time_column: str,
    start_ms: int,
    lateness_ms: int,
    retention_ms: int = DEFAULT_RETENTION_MS,
    trigger: Mapping[str, Any] | None = None,
) -> StreamingQuery:
    """Start the query that keeps a GroupBy's tiles up to date in the KV store.

    Args:
        events: as for `tile_updates`.
        group_by: what to compute; its name is the query's, with ``.stream`` after it.
        store: where the tiles go; it must be able to travel to the executors.
        checkpoint: the folder of the query's checkpoint.
        time_column: as for `tile_updates`.
        start_ms: as for `tile_updates`.
        lateness_ms: as for `tile_updates`.
        retention_ms: as for `tile_updates`.
        trigger: the arguments of Spark's ``trigger``, such as ``{"availableNow": True}``; as soon as
            there is data if None.

    Raises:
        OptionError, DataError: as `tile_updates`.

    Example::

        query = write_tiles(
            flights, route, LmdbStore("kv"), "checkpoints/route",
            time_column="time_ms", start_ms=info.batch_end_ms, lateness_ms=600_000,
        )
        query.awaitTermination()
    """
    updates = tile_updates(
        events,
        group_by,
        time_column=time_column,
        start_ms=start_ms,
        lateness_ms=lateness_ms,
        retention_ms=retention_ms,
    )
    writer = updates.writeStream.queryName(f"{group_by.name}.stream").outputMode("update")
    if trigger is not None:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(put_tiles(group_by, store)).option("checkpointLocation", checkpoint).start()
