"""The short read of a key that is read whole and then cached.

Place on the data path: keys that the cache missed and admits. It does what the full read (`key_read`) does for such a
key, in the common case: one query, up to the present, and nothing cached except perhaps the batch row. It answers from
the tiles as they are. Its entries are made afterwards (`new_entries`), for a full cache after a later fetch.

Invariant: a read that was begun must be ended or closed, because other fetches that miss the same key wait for it
(`ServedGroup.flights`).
"""

from collections.abc import Sequence
from functools import partial

from millpond.features import MARKER_ADDRESS, Ir, Tile, decode_marker
from millpond.kv import Get, TimedValue
from millpond.serving.caches.batch_rows import BatchRow, batch_get, decoded_row
from millpond.serving.caches.closed_tiles import NO_MARKER, has_unknown, tail_irs
from millpond.serving.caches.new_entries import NewEntries
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
        used = tiles
        if tiles and tiles[-1].start_ms >= query_ms:
            used = [tile for tile in tiles if tile.start_ms < query_ms]
        tails = tail_irs(layout, view, used, landed.batch_end_ms, self._reader.empty)
        if has_unknown(tails):
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
        entries = NewEntries(
            group, key, query_ms, self._served, landed, view, bases, tiles, marker, row if is_new else None
        )
        keep = partial(group.waiting.add, entries.put) if group.doorkeeper.is_full else entries.put
        if not is_confirmed:
            return ShortResult(bases, tails, landed, counts, is_confirmed, keep)
        keep()
        from_ms = query_ms // group.tile_ms * group.tile_ms - group.tile_ms + 1
        self._flight.end(KeyData(landed, row, None, tiles, view.read_start_ms, view, from_ms, stored_tiles=len(tiles)))
        return ShortResult(bases, tails, landed, counts)


def _start_of(tile: Tile) -> int:
    return tile.start_ms
