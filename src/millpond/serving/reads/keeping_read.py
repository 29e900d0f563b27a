"""The short read of a key that is read whole and then cached.

Place on the data path: keys that the cache missed and admits. It does what the full read (`key_read`) does for such a
key, in the common case: one query, up to the present, and nothing cached except perhaps the batch row.

Invariant: a read that was begun must be ended or closed, because other fetches that miss the same key wait for it
(`ServedGroup.flights`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from millpond.cache import Cache
from millpond.features import MARKER_ADDRESS, Ir, Tile, decode_marker
from millpond.kv import Get, TimedValue
from millpond.serving.caches.batch_rows import BatchRow, batch_get, decoded_row
from millpond.serving.caches.closed_tiles import NO_MARKER, ClosedTiles, close, closed_end, has_unknown, tail_irs
from millpond.serving.group_status import Served
from millpond.serving.groups.flight import Flight
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.landed_batch import LandedBatch, View
from millpond.serving.reads.key_read import KeyData
from millpond.serving.reads.short_read import ShortResult
from millpond.serving.reads.stream_read import END_OF_STREAM
from millpond.serving.reads.tile_spans import LatestRanges, are_placed, ranges_behind


class KeepingReader:
    """Reads keys of one GroupBy whole, and caches them; immutable except for the ranges it remembers.

    Args:
        group: the GroupBy, with a cache of closed tiles.
        empty: the IR of no events.
    """

    __slots__ = ("_ranges", "empty", "group")

    def __init__(self, group: ServedGroup, empty: Ir) -> None:
        self.group = group
        self.empty = empty
        self._ranges = LatestRanges(group.tile_ms, self._ranges_until)

    def begin(
        self, key: bytes, query_ms: int, served: Served, landed: LandedBatch, view: View, row: BatchRow | None
    ) -> "KeepingRead | None":
        """Begin to read a key up to the present; None if another fetch is reading it.

        Args:
            key: the encoded key.
            query_ms: the query time.
            served: what is served.
            landed: the batch that answers.
            view: where the windows start.
            row: the batch row if it is cached.
        """
        group = self.group
        flight = Flight()
        if group.flights.setdefault(key, flight) is not flight:
            return None
        dataset = landed.info.streaming_dataset
        tail_ms, ranges = self._ranges.of(
            view, query_ms, min(served.closed_ms, query_ms // group.tile_ms * group.tile_ms)
        )
        # The marker comes with the first range: it must be read no later than any tile.
        gets = [Get(dataset, key, tail_ms, END_OF_STREAM)]
        gets += [Get(dataset, key, first, last) for first, last in ranges]
        asks_batch = view.reads_batch and (row is None or not group.skips_batch_get)
        if asks_batch:
            gets.append(batch_get(landed, key))
        return KeepingRead(gets, self, key, query_ms, served, landed, view, row, flight, asks_batch=asks_batch)

    def _ranges_until(self, view: View, last_ms: int, closed_ms: int) -> tuple[int, list[tuple[int, int]]]:
        form = self.group.form
        cuts = [start for start in view.starts if start is not None]
        return ranges_behind(
            form, view, view.read_start_ms, last_ms, closed_ms, with_pieces=not form.kinds, cuts_ms=cuts
        )


class KeepingRead:
    """The read of one whole key, which is then cached."""

    __slots__ = ("_asks_batch", "_flight", "_landed", "_query_ms", "_reader", "_row", "_served", "_view", "gets", "key")

    def __init__(
        self,
        gets: list[Get],
        reader: KeepingReader,
        key: bytes,
        query_ms: int,
        served: Served,
        landed: LandedBatch,
        view: View,
        row: BatchRow | None,
        flight: Flight,
        *,
        asks_batch: bool,
    ) -> None:
        self.gets = gets
        self.key = key
        self._reader = reader
        self._query_ms = query_ms
        self._served = served
        self._landed = landed
        self._view = view
        self._row = row
        self._flight = flight
        self._asks_batch = asks_batch

    def end(self, answers: Sequence[Sequence[TimedValue]]) -> ShortResult | None:
        """Decode and cache the rows, and return the result; None if the key needs the full read."""
        try:
            return self._end(answers)
        finally:
            self.close()

    def close(self) -> None:
        """End the flight, if `end` did not: fetches that wait for this key then read it themselves."""
        flights, flight = self._reader.group.flights, self._flight
        if flights.get(self.key) is flight:
            del flights[self.key]
        flight.end(None)

    def _end(self, answers: Sequence[Sequence[TimedValue]]) -> ShortResult | None:
        group, key, landed, view = self._reader.group, self.key, self._landed, self._view
        layout, query_ms, row = group.layout, self._query_ms, self._row
        batch_rows: Sequence[TimedValue] = ()
        if self._asks_batch:
            *answers, batch_rows = answers
        rows = [row for part in answers for row in part]
        row_count = len(rows) + len(batch_rows)
        bytes_read = sum([len(one.value) for one in rows]) + sum([len(one.value) for one in batch_rows])
        marker, last = NO_MARKER, answers[0]
        if last and last[-1].time_ms == MARKER_ADDRESS:
            marker = last[-1].value
            decode_marker(key, marker)
            del rows[len(last) - 1]
        is_new, is_confirmed, bases = False, True, layout.empties
        if view.reads_batch:
            if row is None:
                row, is_new = decoded_row(group, landed, key, batch_rows), True
                is_confirmed = row.batch is not None
            bases = row.bases(layout, view)
        decode = group.decode_tile
        tiles = [decode(key, one.value) for one in rows]
        if not are_placed(group.plan, rows, tiles):
            return None
        if len(tiles) > 1:
            tiles.sort(key=_start_of)
        closed, rest = self._closed(tiles, bases, marker)
        used = rest
        if rest and rest[-1].start_ms >= query_ms:
            used = [tile for tile in rest if tile.start_ms < query_ms]
        tails = tail_irs(layout, view, used, closed.end_ms, self._reader.empty)
        if closed.is_partial or has_unknown(tails):
            return None
        counts = (
            int(self._asks_batch),
            view.reads_batch and not self._asks_batch,
            len(answers),
            row_count,
            bytes_read,
            len(tiles),
            0,
        )
        keep = partial(_keep, group, key, closed, row if is_new else None)
        if not is_confirmed:
            return ShortResult(closed.bases, tails, landed, counts, is_confirmed, keep)
        keep()
        from_ms = query_ms // group.tile_ms * group.tile_ms - group.tile_ms + 1
        self._flight.end(KeyData(landed, row, closed, rest, closed.end_ms, view, from_ms, stored_tiles=len(tiles)))
        return ShortResult(closed.bases, tails, landed, counts)

    def _closed(
        self, tiles: Sequence[Tile], bases: Sequence[tuple[object, ...]], marker: bytes
    ) -> tuple[ClosedTiles, Sequence[Tile]]:
        """Merge the closed tiles; return the closed part, and the tiles after it."""
        group, view, served = self._reader.group, self._view, self._served
        limit_ms = self._query_ms // group.tile_ms * group.tile_ms
        end_ms, count = closed_end(view.read_start_ms, tiles, served.closed_ms, limit_ms)
        closed = close(
            group.form,
            None,
            self._landed,
            view,
            bases,
            tiles[:count],
            end_ms,
            served,
            marker,
            with_pieces=not group.form.kinds,
        )
        return closed, tiles[count:]


def _keep(group: ServedGroup, key: bytes, closed: ClosedTiles, row: BatchRow | None) -> None:
    """Put the closed part and, if it is new, the batch row into the caches; into full caches later."""
    is_full, waiting = group.doorkeeper.is_full, group.waiting
    entries: tuple[tuple[Cache[bytes, Any] | None, ClosedTiles | BatchRow | None], ...] = (
        (group.tile_cache, closed),
        (group.batch_cache, row),
    )
    for cache, entry in entries:
        if cache is None or entry is None:
            continue
        if is_full:
            waiting.add(partial(_put_late, group, cache, key, entry))
        else:
            cache.put(key, entry)


def _put_late(group: ServedGroup, cache: Cache[bytes, Any], key: bytes, entry: ClosedTiles | BatchRow) -> None:
    """Put an entry that waited, unless another batch is served by now, or another fetch put an entry of this batch."""
    found = cache.peek(key)
    if entry.landed is group.served.landed and (found is None or found.landed is not entry.landed):
        cache.put(key, entry)


def _start_of(tile: Tile) -> int:
    return tile.start_ms
