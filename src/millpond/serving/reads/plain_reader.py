"""The short read of a key whose closed tiles are not cached: its batch row and its tiles, in one round.

Place on the data path: GroupBys without a cache of closed tiles, and keys that a full cache does not admit. The batch
row may be cached.
"""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from millpond.features import tile_range
from millpond.features.answering import Layout
from millpond.kv import Get, TimedValue
from millpond.serving.caches.batch_rows import BatchRow, batch_bases, batch_get, decoded_row
from millpond.serving.caches.closed_tiles import has_unknown, tail_irs
from millpond.serving.group_status import Served
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.landed_batch import LandedBatch, View
from millpond.serving.reads.short_read import ShortResult
from millpond.serving.reads.tile_spans import LatestRanges, are_placed


class PlainReader:
    """Reads keys of one GroupBy without caching their tiles; immutable except for the ranges it remembers.

    Args:
        group: the GroupBy.
        layout: the wanted windows.
    """

    __slots__ = ("_ranges", "group", "layout", "tail_of_none")

    def __init__(self, group: ServedGroup, layout: Layout) -> None:
        self.group = group
        self.layout = layout
        self.tail_of_none = group.plan.new_ir()
        self._ranges = LatestRanges(group.tile_ms, self._ranges_until)

    def begin(self, key: bytes, query_ms: int, now_ms: int) -> "PlainRead | None":  # noqa: ARG002 - as of every reader
        """Begin to read a key; None if no batch is served that covers the query.

        Args:
            key: the encoded key.
            query_ms: the query time.
            now_ms: the present; not used, because a plain read always ends at the query.
        """
        served = self.group.served
        landed = served.landed
        if landed is None or not landed.batch_end_ms <= query_ms <= landed.horizon_end_ms:
            return None
        return self.read(key, query_ms, served, landed, landed.view(self.layout, query_ms), None)

    def read(
        self,
        key: bytes,
        query_ms: int,
        served: Served,
        landed: LandedBatch,
        view: View,
        row: BatchRow | None,
        *,
        keeps_row: bool = False,
    ) -> "PlainRead":
        """Begin to read a key whose window starts and batch row were already looked up.

        Args:
            key: the encoded key.
            query_ms: the query time.
            served: what is served.
            landed: the batch that answers.
            view: where the windows start.
            row: the batch row if it is cached.
            keeps_row: whether to cache a batch row that is read.
        """
        dataset = landed.info.streaming_dataset
        gets = [Get(dataset, key, first, last) for first, last in self._ranges.of(view, query_ms, served.closed_ms)]
        asks_batch = view.reads_batch and (row is None or not self.group.skips_batch_get)
        if asks_batch:
            gets.append(batch_get(landed, key))
        return PlainRead(gets, self, key, query_ms, landed, view, row, asks_batch, keeps_row)

    def begin_missed(self, key: bytes, query_ms: int, now_ms: int) -> "PlainRead | None":
        """Do the same as `begin`, which looks nothing up."""
        return self.begin(key, query_ms, now_ms)

    def _ranges_until(self, view: View, last_ms: int, closed_ms: int) -> list[tuple[int, int]]:
        cuts = [start for start in view.starts if start is not None]
        return [tile_range(*span) for span in self.group.plan.spans(view.read_start_ms, last_ms, closed_ms, cuts)]


class PlainRead(msgspec.Struct, frozen=True, gc=False):
    """The read of one whole key.

    Attributes:
        gets: what the store is asked; the last get is that of the batch row if `asks_batch`.
        reader: the reader that made it.
        key: the encoded key.
        query_ms: the query time.
        landed: the batch that answers.
        view: where the windows start.
        row: the batch row if it is cached.
        asks_batch: whether the batch row is read.
        keeps_row: whether to cache a batch row that is read.
    """

    gets: list[Get]
    reader: PlainReader
    key: bytes
    query_ms: int
    landed: LandedBatch
    view: View
    row: BatchRow | None
    asks_batch: bool
    keeps_row: bool

    def end(self, answers: Sequence[Sequence[TimedValue]]) -> ShortResult | None:
        """Decode the rows and return the result; None if the key needs the full read."""
        reader, key, view, landed, row = self.reader, self.key, self.view, self.landed, self.row
        layout, group = reader.layout, reader.group
        bases = layout.empties
        rows_read = bytes_read = 0
        is_confirmed = True
        on_confirmed: Callable[[], None] | None = None
        if self.asks_batch:
            *answers, batch_rows = answers
            if batch_rows:
                rows_read, bytes_read = 1, len(batch_rows[-1].value)
        if row is not None and view.reads_batch:
            bases = row.bases(layout, view)
        elif self.asks_batch:
            is_confirmed = bool(batch_rows)
            if self.keeps_row and group.batch_cache is not None:
                row = decoded_row(group, landed, key, batch_rows)
                bases = row.bases(layout, view)
                if is_confirmed:
                    group.batch_cache.put(key, row)
                else:
                    on_confirmed = partial(group.batch_cache.put, key, row)
            elif batch_rows:
                batch = group.decode_batch(key, batch_rows[-1].value)
                if batch.batch_end_ms != landed.batch_end_ms:
                    return None
                bases = batch_bases(layout, view, batch)
        decode = group.decode_tile
        rows = [row for part in answers for row in part]
        tiles = [decode(key, row.value) for row in rows]
        if not are_placed(group.plan, rows, tiles):
            return None
        if tiles and tiles[-1].start_ms >= self.query_ms:
            tiles = [tile for tile in tiles if tile.start_ms < self.query_ms]
        tails = tail_irs(layout, view, tiles, landed.batch_end_ms, reader.tail_of_none)
        if has_unknown(tails):
            return None
        bytes_read += sum([len(row.value) for row in rows])
        saved = view.reads_batch and not self.asks_batch
        counts = (int(self.asks_batch), saved, len(answers), rows_read + len(rows), bytes_read, len(rows), 0)
        return ShortResult(bases, tails, landed, counts, is_confirmed, on_confirmed)

    def close(self) -> None:
        """Do nothing: no other fetch waits for a plain read."""
