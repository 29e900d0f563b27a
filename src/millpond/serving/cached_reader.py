"""The short way to a key of which everything but the tail is cached.

Place on the data path: the usual read. The closed tiles are in the cache, with the batch in their bases,
so the batch row is not looked up. The windows have not moved, and no closed tile was amended. Then one
range is read: the tail and, behind it, the amendment marker.

A query about the past reads two ranges in the same round: the marker, and the tail up to the query. So
the tiles between the query and now are neither read nor decoded. The marker comes first: it must be read
no later than any tile.
"""

from collections.abc import Callable, Sequence

import msgspec

from millpond.features import MARKER_ADDRESS, Ir, Tile
from millpond.features.answering import pair_merger
from millpond.kv import Get, TimedValue
from millpond.serving.batch_rows import BatchRow
from millpond.serving.closed_tiles import NO_MARKER, ClosedTiles, RecentTail, close, closed_end, has_unknown, tail_irs
from millpond.serving.landed_batch import ALL_TIME_MS
from millpond.serving.plain_reader import PlainRead, PlainReader
from millpond.serving.served_group import Served, ServedGroup
from millpond.serving.short_read import ShortResult
from millpond.serving.stream_read import END_OF_STREAM

_PAIR = 2


class CachedReader:
    """Reads the tails of keys of one GroupBy whose closed tiles are cached; immutable.

    Args:
        group: the GroupBy, with both caches and all steps on.
        clock: monotonic milliseconds, for `tailfreshness_ms`.
    """

    __slots__ = (
        "_longest_tail_ms",
        "_tile_cache",
        "_tile_ms",
        "clock",
        "empty_tails",
        "freshness_ms",
        "group",
        "merge",
        "plain",
    )

    def __init__(self, group: ServedGroup, clock: Callable[[], int]) -> None:
        self.group = group
        self.clock = clock
        self.merge = pair_merger(group.plan)
        self.plain = PlainReader(group, group.layout)
        self.empty_tails: Sequence[Ir] = (group.plan.new_ir(),) * len(group.layout.windows)
        self._tile_cache = group.tile_cache
        self._tile_ms = group.tile_ms
        self._longest_tail_ms = group.longest_tail_ms
        self.freshness_ms = group.tail_freshness_ms

    def begin(self, key: bytes, query_ms: int, now_ms: int) -> "CachedRead | PlainRead | None":
        """Look up a key; None if the long way is to be taken."""
        served = self.group.served
        landed = served.landed
        cache = self._tile_cache
        if landed is None or cache is None or query_ms > landed.horizon_end_ms:
            return None
        closed: ClosedTiles | None = cache.get(key)
        if closed is None:
            return self._missed(key, query_ms)
        if closed.landed is not landed or closed.restarts != served.restarts or closed.is_partial:
            return None
        view, end_ms, tile_ms = closed.view, closed.end_ms, self._tile_ms
        if not (view.from_ms <= query_ms < view.until_ms and -tile_ms < query_ms - end_ms < self._longest_tail_ms):
            return None
        if self.freshness_ms:
            recent = closed.recent_tail
            if recent is not None and query_ms <= recent[1] and self.clock() - recent[0] <= self.freshness_ms:
                return CachedRead((), self, key, query_ms, served, closed, recent)
        dataset = landed.info.streaming_dataset
        last_ms = -(-query_ms // tile_ms) * tile_ms
        if last_ms < now_ms:
            marker = Get(dataset, key, MARKER_ADDRESS, END_OF_STREAM)
            return CachedRead((marker, Get(dataset, key, end_ms, last_ms)), self, key, query_ms, served, closed)
        return CachedRead((Get(dataset, key, end_ms, END_OF_STREAM),), self, key, query_ms, served, closed)

    def begin_missed(self, key: bytes, query_ms: int, now_ms: int) -> PlainRead | None:  # noqa: ARG002 - see `begin` of `PlainReader`
        """Begin to read a key that a look-up of many did not give; None if the long way is to be taken."""
        cache = self._tile_cache
        if cache is None or cache.peek(key) is not None:
            return None
        return self._missed(key, query_ms)

    def _missed(self, key: bytes, query_ms: int) -> PlainRead | None:
        """Begin to read a key that the cache does not let in; None if an entry is to be made of it."""
        group = self.group
        served = group.served
        landed = served.landed
        if landed is None or not landed.batch_end_ms <= query_ms <= landed.horizon_end_ms:
            return None
        view, doorkeeper = landed.view(group.layout, query_ms), group.doorkeeper
        if view.is_cacheable and doorkeeper.admits(key):
            return None
        row: BatchRow | None = None
        if doorkeeper.looks_for_rows and group.batch_cache is not None:
            row = group.batch_cache.get(key)
            if row is not None and row.landed is not landed:
                row = None
        return self.plain.read(key, query_ms, served, landed, view, row)


class CachedRead(msgspec.Struct, frozen=True, gc=False):
    """One key of which the tail is read."""

    gets: tuple[Get, ...]
    reader: CachedReader
    key: bytes
    query_ms: int
    served: Served
    closed: ClosedTiles
    recent: RecentTail | None = None

    def end(self, answers: Sequence[Sequence[TimedValue]]) -> ShortResult | None:
        """Take the rows of the tail, and merge what of it is closed by now; None for the long way."""
        reader, closed, query_ms, recent = self.reader, self.closed, self.query_ms, self.recent
        if recent is not None:
            _, _, held, tails = recent
            if tails is None or (held and held[-1].start_ms >= query_ms):
                tails = _tails(reader, closed, [tile for tile in held if tile.start_ms < query_ms])
                if tails is None:
                    return None
            counts = (0, closed.view.reads_batch, 0, 0, 0, 0, closed.tiles)
            return ShortResult(closed.bases, tails, closed.landed, counts)
        is_whole = len(answers) == 1
        rows = answers[0] if is_whole else [*answers[1], *answers[0]]
        count = len(rows)
        tiles_end, bytes_read = count, 0
        if rows and rows[-1].time_ms == MARKER_ADDRESS:
            if rows[-1].value != closed.marker:
                return None
            tiles_end, bytes_read = count - 1, len(closed.marker)
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
        if reader.freshness_ms:
            until_ms = ALL_TIME_MS if is_whole else -(-query_ms // tile_ms) * tile_ms
            closed.recent_tail = (reader.clock(), until_ms, tiles, tails if used is tiles else None)
        counts = (0, closed.view.reads_batch, len(answers), count, bytes_read, tiles_end, tiles_saved)
        return ShortResult(closed.bases, tails, closed.landed, counts)


def _tails(reader: CachedReader, closed: ClosedTiles, tiles: Sequence[Tile]) -> Sequence[Ir] | None:
    """Give the open part of each window; None if a cell of it is not known."""
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
    """Merge the first tiles of the tail into the closed part, and cache that; None without the batch row."""
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
        closed.restarts,
        closed.marker,
        with_pieces=closed.pieces is not None,
    )
    if group.tile_cache is not None:
        group.tile_cache.put(key, grown)
    return grown, tiles[count:]
