"""The short way to a key of which everything but the tail is cached.

Place on the data path: the usual request. `key_read` is the long way, for everything; this one knows only
the case in which the batch row and the closed tiles are in the caches, the windows have not moved, and no
closed tile was amended. Then one range is read, and there is no generator, no list of spans and no second
round. In any other case it gives None, and the long way is taken from its start.

Both ways end in the same closed tiles and tail, which a test compares.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millpond.features import MARKER_ADDRESS, Ir, Tile
from millpond.features.answering import Finishers
from millpond.kv import Get, TimedValue
from millpond.serving.closed_tiles import NO_MARKER, ClosedTiles, close, closed_end, has_unknown, tail_irs
from millpond.serving.counters import Counters
from millpond.serving.messages import FetchResponse, ValueState
from millpond.serving.prepared import Prepared, PreparedPart
from millpond.serving.served_group import Served, ServedGroup

_END_OF_STREAM = MARKER_ADDRESS + 1


def look_up(group: ServedGroup, served: Served, key: bytes, query_ms: int) -> ClosedTiles | None:
    """Give the closed tiles of a key if only its tail is to be read."""
    tile_cache, batch_cache = group.tile_cache, group.batch_cache
    if tile_cache is None or batch_cache is None or not group.is_hot:
        return None
    # A look that leads nowhere is counted by the long way, not here.
    closed: ClosedTiles | None = tile_cache.peek(key)
    landed = served.landed
    if closed is None or closed.landed is not landed or closed.restarts != served.restarts or landed is None:
        return None
    view, behind_ms = closed.view, query_ms - closed.end_ms
    if not view.from_ms <= query_ms < view.until_ms or not -group.tile_ms < behind_ms < group.longest_tail_ms:
        return None
    if query_ms > landed.horizon_end_ms:
        return None
    if view.reads_batch:
        row = batch_cache.peek(key)
        if row is None or row.landed is not landed:
            return None
        batch_cache.get(key)
    tile_cache.get(key)
    return closed


def tail_get(closed: ClosedTiles, key: bytes) -> Get:
    """Give the get of the tail and the marker."""
    return Get(closed.landed.info.streaming_dataset, key, closed.end_ms, _END_OF_STREAM)


def take_tail(
    group: ServedGroup,
    served: Served,
    key: bytes,
    query_ms: int,
    closed: ClosedTiles,
    rows: Sequence[TimedValue],
) -> tuple[ClosedTiles, Sequence[Tile]] | None:
    """Decode the tail, and merge what of it is closed by now.

    Returns:
        The closed tiles, later ones if the closed part has grown, and the tiles behind them; None if a closed
        tile was amended, or a row is not what it should be.

    Raises:
        CorruptionError: a tile does not decode.
    """
    if rows and rows[-1].time_ms == MARKER_ADDRESS:
        if rows[-1].value != closed.marker:
            return None
        rows = rows[:-1]
    elif closed.marker != NO_MARKER:
        return None
    decode, tile_ms = group.decode_tile, group.tile_ms
    tiles: list[Tile] = []
    for row in rows:
        tile = decode(key, row.value)
        if tile.start_ms != row.time_ms or tile.size_ms != tile_ms:
            return None
        tiles.append(tile)
    limit_ms = query_ms - query_ms % tile_ms
    end_ms = closed.end_ms
    if limit_ms > end_ms and (served.closed_ms > end_ms or (tiles and tiles[0].complete)):
        return _grown(group, served, key, closed, tiles, limit_ms)
    return closed, tiles


def _grown(
    group: ServedGroup, served: Served, key: bytes, closed: ClosedTiles, tiles: Sequence[Tile], limit_ms: int
) -> tuple[ClosedTiles, Sequence[Tile]] | None:
    """Merge the first tiles of the tail into the closed part, and cache that."""
    end_ms, count = closed_end(closed.end_ms, tiles, served.closed_ms, limit_ms)
    if end_ms == closed.end_ms:
        return closed, tiles
    layout, bases = group.layout, group.layout.empties
    if closed.view.reads_batch:
        row = None if group.batch_cache is None else group.batch_cache.peek(key)
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


class HotTarget:
    """A prepared GroupBy that is answered by the short way where that is possible; immutable.

    Args:
        prepared: the GroupBy and the features wanted of it, without derivations.
        counters: where fetches are counted.
        clock: monotonic milliseconds, for `tail_freshness_ms`.
    """

    __slots__ = ("_clock", "_counters", "_empty_tails", "_features", "_finish", "_freshness_ms", "group", "prepared")

    def __init__(self, prepared: Prepared, part: PreparedPart, counters: Counters, clock: Callable[[], int]) -> None:
        self.prepared = prepared
        self.group = part.group
        self._counters = counters
        self._clock = clock
        self._features = prepared.features
        self._finish = Finishers(part.group.layout, prepared.features).compiled
        self._empty_tails = (part.group.plan.new_ir(),) * len(part.group.layout.windows)
        self._freshness_ms = part.group.tail_freshness_ms

    def begin(self, keys: Mapping[str, Any], query_ms: int) -> "HotFetch | None":
        """Look up a key; None if the long way is to be taken.

        Raises:
            DataError: a part of the key is missing, unknown, or not of its declared type.
        """
        key = self.group.plan.encode_key(keys)
        if key is None:
            return None
        served = self.group.served
        closed = look_up(self.group, served, key, query_ms)
        return None if closed is None else (served, key, closed)

    def recent(self, keys: Mapping[str, Any], query_ms: int, found: "HotFetch") -> FetchResponse | None:
        """Answer from a tail that was read not long ago; None if there is none."""
        closed = found[2]
        recent = closed.recent_tail
        if recent is None or self._clock() - recent[0] > self._freshness_ms:
            return None
        return self._answer(keys, query_ms, closed, recent[1], None)

    def end(
        self,
        keys: Mapping[str, Any],
        query_ms: int,
        found: "HotFetch",
        rows: Sequence[TimedValue],
        *,
        calls: bool = True,
        is_timed: bool = False,
    ) -> FetchResponse | None:
        """Answer from the rows of the tail; None if the long way is to be taken.

        Args:
            keys: as in the request.
            query_ms: the time.
            found: what `begin` gave.
            rows: what the store has for its get.
            calls: whether this get counts as a call of the store, and not as a part of one.
            is_timed: whether decoding and finishing are timed.

        Raises:
            CorruptionError: a tile does not decode.
        """
        served, key, closed = found
        began = time.perf_counter() if is_timed else 0.0
        taken = take_tail(self.group, served, key, query_ms, closed, rows)
        if taken is None:
            return None
        kept, tiles = taken
        if self._freshness_ms:
            kept.recent_tail = (self._clock(), tiles)
        if not is_timed:
            return self._answer(keys, query_ms, kept, tiles, rows, calls=calls)
        decoded = time.perf_counter()
        answer = self._answer(keys, query_ms, kept, tiles, rows, calls=calls)
        self._counters.timed("decode", decoded - began)
        self._counters.timed("finish", time.perf_counter() - decoded)
        return answer

    def _answer(
        self,
        keys: Mapping[str, Any],
        query_ms: int,
        closed: ClosedTiles,
        tiles: Sequence[Tile],
        rows: Sequence[TimedValue] | None,
        *,
        calls: bool = True,
    ) -> FetchResponse | None:
        if tiles and tiles[-1].start_ms >= query_ms:
            tiles = [tile for tile in tiles if tile.start_ms < query_ms]
        tails: Sequence[Ir] = self._empty_tails
        if len(tiles) == 1 and closed.view.latest_start_ms <= closed.end_ms:
            tail = tiles[0].ir
            if type(tail) is not tuple:
                return None
            tails = (tail,) * len(tails)
        elif tiles:
            tails = tail_irs(self.group.layout, closed.view, tiles, closed.end_ms, tails[0])
            if has_unknown(tails):
                return None
        if closed.is_partial:
            return None
        features = self._finish(closed.bases, tails)
        states: dict[str, ValueState] = {}
        null = 0
        if None in features.values():
            states = {name: "null" for name, value in features.items() if value is None}
            null = len(states)
        count = len(features)
        self._counters.hot_fetch(rows, closed.tiles, null, count - null, calls=calls)
        return FetchResponse(
            self.prepared.target.name, keys, query_ms, features, states, {}, closed.landed.batch_end_ms
        )


HotFetch = tuple[Served, bytes, ClosedTiles]
"""What is served, the encoded key, and its closed tiles."""
