"""Short reads of a key of a GroupBy that has caches.

Place on the data path: the most common read. The key's closed tiles are cached, and their bases include the batch,
so the batch row is not looked up. If the windows have not moved and no closed tile was amended, one range is read:
the tail and, after it, the amendment marker. A key that is not cached is read whole. It is then cached if that
pays (`doorkeeper`).

If some steps of CHIP-1 are switched off, the same reads also get what these steps would save: the batch row, and
the tiles from their start.

A query about the past reads two ranges in the same round: the marker, and the tail up to the query. So the tiles
between the query and the present are neither read nor decoded. The marker comes first, because it must be read no
later than any tile.
"""

from collections.abc import Callable, Sequence

import msgspec

from millpond.features import MARKER_ADDRESS, Ir, Tile, tile_range
from millpond.features.answering import pair_merger
from millpond.kv import Get, TimedValue
from millpond.serving.caches.batch_rows import batch_get, cached_row
from millpond.serving.caches.closed_tiles import (
    NO_MARKER,
    ClosedTiles,
    RecentTail,
    close,
    closed_end,
    has_unknown,
    tail_irs,
)
from millpond.serving.group_status import Served
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.landed_batch import ALL_TIME_MS, LandedBatch
from millpond.serving.reads.keeping_read import KeepingRead, KeepingReader
from millpond.serving.reads.plain_reader import PlainRead, PlainReader
from millpond.serving.reads.short_read import ShortResult
from millpond.serving.reads.stream_read import END_OF_STREAM

_NO_ROWS: Sequence[Sequence[TimedValue]] = [[]]
_PAIR = 2


class CachedReader:
    """Reads the tails of keys of one GroupBy whose closed tiles are cached; immutable.

    Args:
        group: the GroupBy, with at least one cache.
        clock: monotonic milliseconds, for `tail_freshness_ms`.
    """

    __slots__ = (
        "_longest_tail_ms",
        "_tile_cache",
        "_tile_ms",
        "clock",
        "empty_tails",
        "freshness_ms",
        "group",
        "is_whole",
        "keeping",
        "merge",
        "plain",
    )

    def __init__(self, group: ServedGroup, clock: Callable[[], int]) -> None:
        self.group = group
        self.clock = clock
        self.merge = pair_merger(group.plan)
        self.plain = PlainReader(group, group.layout)
        self.empty_tails: Sequence[Ir] = group.layout.no_tails
        self.keeping = KeepingReader(group, self.empty_tails[0])
        self.is_whole = group.skips_batch_get and group.moves_start
        self._tile_cache = group.tile_cache
        self._tile_ms = group.tile_ms
        self._longest_tail_ms = group.longest_tail_ms
        self.freshness_ms = group.tail_freshness_ms

    def begin(self, key: bytes, query_ms: int, now_ms: int) -> "CachedRead | KeepingRead | PlainRead | None":
        """Look up a key, and begin a short read; None if the key needs the full read (`key_read`)."""
        served = self.group.served
        landed = served.landed
        cache = self._tile_cache
        if landed is None or query_ms > landed.horizon_end_ms:
            return None
        if cache is None:
            return self._begin_row(key, query_ms, served, landed)
        closed: ClosedTiles | None = cache.get(key)
        if closed is None:
            return self._missed(key, query_ms, now_ms, served, landed)
        if closed.is_partial or (closed.served is not served and not closed.holds(served)):
            return None
        view, end_ms, tile_ms = closed.view, closed.end_ms, self._tile_ms
        if not (view.from_ms <= query_ms < view.until_ms and -tile_ms < query_ms - end_ms < self._longest_tail_ms):
            return None
        if self.freshness_ms:
            recent = recent_tail(closed, query_ms, self.clock() - self.freshness_ms)
            if recent is not None:
                return CachedRead((), self, key, query_ms, served, closed, recent)
        dataset = landed.info.streaming_dataset
        last_ms = -(-query_ms // tile_ms) * tile_ms
        gets: tuple[Get, ...] = (Get(dataset, key, end_ms, END_OF_STREAM),)
        if last_ms < now_ms:
            gets = (Get(dataset, key, MARKER_ADDRESS, END_OF_STREAM), Get(dataset, key, end_ms, last_ms))
        if self.is_whole:
            return CachedRead(gets, self, key, query_ms, served, closed)
        needless = self._needless(key, served, closed)
        asks_batch = view.reads_batch and not self.group.skips_batch_get
        return CachedRead((*gets, *needless), self, key, query_ms, served, closed, None, len(needless), asks_batch)

    def begin_missed(self, key: bytes, query_ms: int, now_ms: int) -> "KeepingRead | PlainRead | None":
        """Begin to read a key that a look-up of many keys missed; None if the key needs the full read."""
        cache, served = self._tile_cache, self.group.served
        landed = served.landed
        if cache is None or landed is None or cache.peek(key) is not None:
            return None
        return self._missed(key, query_ms, now_ms, served, landed)

    def _begin_row(self, key: bytes, query_ms: int, served: Served, landed: LandedBatch) -> PlainRead | None:
        """Begin to read a key where only batch rows are cached."""
        group = self.group
        if query_ms < landed.batch_end_ms:
            return None
        view = landed.view(group.layout, query_ms)
        row = cached_row(group, key, landed) if view.reads_batch else None
        keeps_row = row is None and view.reads_batch and group.doorkeeper.admits(key)
        return self.plain.read(key, query_ms, served, landed, view, row, keeps_row=keeps_row)

    def _missed(
        self, key: bytes, query_ms: int, now_ms: int, served: Served, landed: LandedBatch
    ) -> "KeepingRead | PlainRead | None":
        """Begin to read a key whole, and to cache it if the doorkeeper admits it; None for the full read."""
        group = self.group
        if not landed.batch_end_ms <= query_ms <= landed.horizon_end_ms:
            return None
        view, doorkeeper = landed.view(group.layout, query_ms), group.doorkeeper
        keeps = view.is_cacheable and doorkeeper.admits(key)
        if keeps and -(-query_ms // self._tile_ms) * self._tile_ms < now_ms:
            return None
        row = cached_row(group, key, landed) if keeps or doorkeeper.looks_for_rows else None
        if keeps:
            return self.keeping.begin(key, query_ms, served, landed, view, row)
        return self.plain.read(key, query_ms, served, landed, view, row)

    def _needless(self, key: bytes, served: Served, closed: ClosedTiles) -> list[Get]:
        """Return the gets that the switched-off steps would save: of the closed tiles, and of the batch row."""
        group, landed = self.group, closed.landed
        gets: list[Get] = []
        if not group.moves_start:
            spans = group.plan.spans(closed.view.read_start_ms, closed.end_ms, served.closed_ms)
            gets += [Get(landed.info.streaming_dataset, key, *tile_range(*span)) for span in spans]
        if closed.view.reads_batch and not group.skips_batch_get:
            gets.append(batch_get(landed, key))
        return gets


class CachedRead(msgspec.Struct, frozen=True, gc=False):
    """The read of one key's tail, followed by the gets that switched-off steps do not save.

    Attributes:
        gets: what the store is asked.
        reader: the reader that made it.
        key: the encoded key.
        query_ms: the query time.
        served: what was served when the key was looked up.
        closed: the cached closed tiles of the key.
        recent: a tail that was read recently, used in place of a read.
        needless: how many of the last gets switched-off steps would save.
        asks_batch: whether the last get is that of the batch row.
    """

    gets: tuple[Get, ...]
    reader: CachedReader
    key: bytes
    query_ms: int
    served: Served
    closed: ClosedTiles
    recent: RecentTail | None = None
    needless: int = 0
    asks_batch: bool = False

    def end(self, answers: Sequence[Sequence[TimedValue]]) -> ShortResult | None:
        """Decode the rows of the tail, and merge tiles that have closed into the cache; None for the full read."""
        reader, closed, query_ms, recent = self.reader, self.closed, self.query_ms, self.recent
        if recent is not None:
            counts = (0, closed.view.reads_batch, 0, 0, 0, 0, closed.tiles)
            return ShortResult(closed.bases, recent[3], closed.landed, counts)
        if answers == _NO_ROWS and closed.marker == NO_MARKER and not self.needless and not reader.freshness_ms:
            # Most keys have had no event since their last tile closed.
            end_ms = closed.end_ms
            if end_ms >= self.served.closed_ms or end_ms >= query_ms - query_ms % reader.group.tile_ms:
                counts = (0, closed.view.reads_batch, 1, 0, 0, 0, closed.tiles)
                return ShortResult(closed.bases, reader.empty_tails, closed.landed, counts)
        needless_rows = bytes_read = 0
        if self.needless:
            needless = [row for part in answers[-self.needless :] for row in part]
            needless_rows, bytes_read = len(needless), sum([len(row.value) for row in needless])
            answers = answers[: -self.needless]
        is_whole = len(answers) == 1
        rows = answers[0] if is_whole else [*answers[1], *answers[0]]
        tiles_end = count = len(rows)
        if rows and rows[-1].time_ms == MARKER_ADDRESS:
            if rows[-1].value != closed.marker:
                return None
            tiles_end = count - 1
            bytes_read += len(closed.marker)
        elif closed.marker != NO_MARKER:
            return None
        group, key = reader.group, self.key
        decode, tile_ms = group.decode_tile, group.tile_ms
        read: list[Tile] = []
        for row in rows[:tiles_end] if tiles_end < count else rows:
            value = row.value
            tile = decode(key, value)
            if tile.start_ms != row.time_ms or tile.size_ms != tile_ms:
                return None
            bytes_read += len(value)
            read.append(tile)
        tiles: Sequence[Tile] = read
        limit_ms = query_ms - query_ms % tile_ms
        tiles_saved = closed.tiles
        if limit_ms > closed.end_ms and (self.served.closed_ms > closed.end_ms or (tiles and tiles[0].complete)):
            grown = _grown(group, self.served, key, closed, tiles, limit_ms)
            if grown is None:
                return None
            closed, tiles = grown
        used = tiles
        if tiles and tiles[-1].start_ms >= query_ms:
            used = [tile for tile in tiles if tile.start_ms < query_ms]
        tails = _tails(reader, closed, used)
        if tails is None or closed.is_partial:
            return None
        if reader.freshness_ms and used is tiles:
            until_ms = ALL_TIME_MS if is_whole else -(-query_ms // tile_ms) * tile_ms
            closed.recent_tail = (reader.clock(), tiles[-1].start_ms if tiles else -ALL_TIME_MS, until_ms, tails)
        asks_batch = self.asks_batch
        counts = (
            int(asks_batch),
            closed.view.reads_batch and not asks_batch,
            len(answers) + self.needless - asks_batch,
            count + needless_rows,
            bytes_read,
            tiles_end,
            tiles_saved,
        )
        return ShortResult(closed.bases, tails, closed.landed, counts)

    def close(self) -> None:
        """Do nothing: no other read waits for a tail."""


def recent_tail(closed: ClosedTiles, query_ms: int, since_ms: int) -> RecentTail | None:
    """Return the tail that was last read of a key, if it was read at or after `since_ms` and answers the query."""
    recent = closed.recent_tail
    if recent is not None and recent[0] >= since_ms and recent[1] < query_ms <= recent[2]:
        return recent
    return None


def _tails(reader: CachedReader, closed: ClosedTiles, tiles: Sequence[Tile]) -> Sequence[Ir] | None:
    """Return the IR of the open part of each window; None if one of its cells is unknown."""
    empty_tails = reader.empty_tails
    count = len(tiles)
    if not count:
        return empty_tails
    if closed.view.latest_start_ms > closed.end_ms:
        tails = tail_irs(reader.group.layout, closed.view, tiles, closed.end_ms, empty_tails[0])
        return None if has_unknown(tails) else tails
    tail = tiles[0].ir
    if count == _PAIR:
        other = tiles[1].ir
        if type(tail) is not tuple or type(other) is not tuple:
            return None
        tail = reader.merge(tail, other)
    elif count > _PAIR:
        tail = reader.group.plan.merge_all([tile.ir for tile in tiles])
    return (tail,) * len(empty_tails) if type(tail) is tuple else None


def _grown(
    group: ServedGroup, served: Served, key: bytes, closed: ClosedTiles, tiles: Sequence[Tile], limit_ms: int
) -> tuple[ClosedTiles, Sequence[Tile]] | None:
    """Merge the closed tiles at the start of the tail into the closed part, and cache it.

    Return the closed part and the remaining tail; None if the batch row is needed and not cached.
    """
    end_ms, count = closed_end(closed.end_ms, tiles, served.closed_ms, limit_ms)
    if end_ms == closed.end_ms:
        return closed, tiles
    layout, bases = group.layout, group.layout.empties
    if closed.view.reads_batch and closed.pieces is not None:
        row = None if group.batch_cache is None else group.batch_cache.get(key)
        if row is None or row.landed is not closed.landed:
            return None
        bases = row.bases(layout, closed.view)
    grown = close(
        group.form,
        closed,
        closed.landed,
        closed.view,
        bases,
        tiles[:count],
        end_ms,
        served,
        closed.marker,
        with_pieces=closed.pieces is not None,
    )
    if group.tile_cache is not None:
        group.tile_cache.put(key, grown)
    return grown, tiles[count:]
