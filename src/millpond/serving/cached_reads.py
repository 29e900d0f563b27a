"""The short way to many keys at once: one look into the cache, one range a key, one pass over what came back.

Place on the data path: `CachedReader` for the keys of one call. What a call knows is worked out once: the batch
that is served, the present tile, the window starts. Keys with an open tile or two and no late event, which
are the usual ones, are decoded and merged by columns; any other is ended by the short way of one key.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from millpond.errors import CorruptionError, UnavailableError
from millpond.features.answering import Column
from millpond.features.answering.layout import Projection
from millpond.kv import Get, TimedValue
from millpond.serving.cached_reader import CachedRead, CachedReader, recent_tail
from millpond.serving.closed_tiles import NO_MARKER, ClosedTiles, RecentTail
from millpond.serving.group_status import Served
from millpond.serving.landed_batch import ALL_TIME_MS, LandedBatch, View
from millpond.serving.short_read import ReadCounts, ShortResult
from millpond.serving.stream_read import END_OF_STREAM

_PAIR = 2


class CachedReads(msgspec.Struct, frozen=True, gc=False):
    """Some keys of which the tails are read, all up to the present.

    Attributes:
        gets: one for each key of which the closed tiles are cached.
        reader: the short way to one key.
        query_ms: the time that is asked for.
        served: what was served when the keys were looked up.
        landed: the batch that answers.
        found: the closed tiles of each get.
        places: of the keys of the gets.
        recent: the places of the keys of which the tail was read not long ago, with their closed tiles and that tail.
        missed: the places of the other keys.
        are_alike: whether no key of the gets has a late event, a window within its tail, or a tile that closed since.
    """

    gets: list[Get]
    reader: CachedReader
    query_ms: int
    served: Served
    landed: LandedBatch
    found: list[ClosedTiles]
    places: list[int]
    recent: list[tuple[int, ClosedTiles, RecentTail]]
    missed: list[int]
    are_alike: bool

    def columns(self, answers: Sequence[list[TimedValue] | UnavailableError]) -> "KeyColumns | None":
        """Take the tails that are alike: at most two tiles, all open, no late event; None if none is, or one is odd."""
        group = self.reader.group
        if self.are_alike and set(map(type, answers)) == {list} and len(max(answers, key=len)) <= _PAIR:  # type: ignore[arg-type]
            places: Sequence[int] = range(len(answers))
            tails: Sequence[Any] = answers
        else:
            places = [place for place, rows in enumerate(answers) if self._is_usual(place, rows)]
            tails = [answers[place] for place in places]
        counts = list(map(len, tails))
        tail_rows: list[TimedValue] = list(chain.from_iterable(tails))
        times = [row.time_ms for row in tail_rows]
        if not places or (times and max(times) >= self.query_ms):
            return None
        is_whole = len(places) == len(self.found)
        gets = self.gets if is_whole else [self.gets[place] for place in places]
        stored = [row.value for row in tail_rows]
        tiles = group.tile_columns.decode([get.key for get in gets], counts, stored)
        if (
            tiles is None
            or any(tiles.complete)
            or times != list(tiles.start_ms)
            or tiles.size_ms.count(group.tile_ms) < len(stored)
        ):
            return None
        found = self.found if is_whole else [self.found[place] for place in places]
        columns = group.tile_columns.merged(tiles.cells, counts)
        if self.reader.freshness_ms:
            self._keep_tails(found, columns, tails)
        return KeyColumns(
            places,
            [closed.bases for closed in found],
            columns,
            (
                0,
                sum([closed.view.reads_batch for closed in found]),
                len(found),
                len(stored),
                sum(map(len, stored)),
                len(stored),
                sum([closed.tiles for closed in found]),
            ),
        )

    def _is_usual(self, place: int, rows: list[TimedValue] | UnavailableError) -> bool:
        """Tell whether a tail is of at most two tiles, of which none amends or ends what is closed."""
        closed = self.found[place]
        return (
            isinstance(rows, list)
            and len(rows) <= _PAIR
            and (not rows or rows[-1].time_ms < self.query_ms)
            and _is_alike(closed, self.query_ms - self.query_ms % self.reader.group.tile_ms, self.served.closed_ms)
        )

    def _keep_tails(self, found: Sequence[ClosedTiles], tails: Sequence[Column], read: Sequence[Any]) -> None:
        """Keep the tails for the fetches of the next milliseconds."""
        now_ms, windows = self.reader.clock(), len(self.reader.empty_tails)
        for closed, rows, tail in zip(found, read, zip(*tails, strict=True), strict=True):
            newest_ms = rows[-1].time_ms if rows else -ALL_TIME_MS
            closed.recent_tail = (now_ms, newest_ms, ALL_TIME_MS, (tail,) * windows)

    def recent_columns(self) -> "KeyColumns | None":
        """Take the tails that were read not long ago and are the same for all windows; None if another is there."""
        if not self.recent or any(tails[0] is not tails[-1] for _, _, (_, _, _, tails) in self.recent):
            return None
        found = [closed for _, closed, _ in self.recent]
        return KeyColumns(
            [place for place, _, _ in self.recent],
            [closed.bases for closed in found],
            list(zip(*[tails[0] for _, _, (_, _, _, tails) in self.recent], strict=True)),
            (
                0,
                sum([closed.view.reads_batch for closed in found]),
                0,
                0,
                0,
                0,
                sum([closed.tiles for closed in found]),
            ),
        )

    def end(self, place: int, rows: list[TimedValue] | UnavailableError) -> ShortResult | None:
        """Take the rows of one tail; None if the long way is to be taken, which says what is wrong."""
        get = self.gets[place]
        if isinstance(rows, UnavailableError):
            return None
        try:
            return CachedRead((get,), self.reader, get.key, self.query_ms, self.served, self.found[place]).end((rows,))
        except CorruptionError:
            return None


class KeyColumns(msgspec.Struct, frozen=True, gc=False):
    """What was found of the keys that are alike.

    Attributes:
        places: of their gets; of those without, of their keys.
        bases: of each key, for each window the cells of its closed part.
        tails: for each cell of the plan, that of the open part of each key.
        counts: what was read of all of them, see `READ_COUNTS`.
    """

    places: Sequence[int]
    bases: Sequence[Sequence[Projection]]
    tails: Sequence[Column]
    counts: ReadCounts


def begin_many(reader: CachedReader, keys: Sequence[bytes], query_ms: int, now_ms: int) -> CachedReads | None:
    """Look up some keys at once; None if their tails end before the present, or a step is off.

    Args:
        reader: the short way to one key.
        keys: the encoded keys, each once.
        query_ms: the time that is asked for, of all.
        now_ms: the present, from which on there are no tiles.
    """
    group = reader.group
    served, cache, tile_ms = group.served, group.tile_cache, group.tile_ms
    landed = served.landed
    if landed is None or cache is None or not reader.is_whole or query_ms > landed.horizon_end_ms:
        return None
    if -(-query_ms // tile_ms) * tile_ms < now_ms:
        return None
    held = cache.get_present(keys)
    dataset = landed.info.streaming_dataset
    earliest_ms, latest_ms = query_ms - group.longest_tail_ms, query_ms + tile_ms
    view: View | None = None
    gets: list[Get] = []
    found: list[ClosedTiles] = []
    places: list[int] = []
    recent: list[tuple[int, ClosedTiles, RecentTail]] = []
    missed: list[int] = []
    least_ms = min(query_ms - query_ms % tile_ms, served.closed_ms)
    are_alike = True
    since_ms = reader.clock() - reader.freshness_ms if reader.freshness_ms else None
    for place, key in enumerate(keys):
        closed = held.get(key)
        if closed is None or closed.is_partial or (closed.served is not served and not closed.holds(served)):
            missed.append(place)
            continue
        if closed.view is not view:
            view = closed.view if closed.view.holds(query_ms) else None
        end_ms = closed.end_ms
        if view is None or not earliest_ms < end_ms < latest_ms:
            missed.append(place)
            continue
        if end_ms < least_ms or view.latest_start_ms > end_ms or closed.marker != NO_MARKER:
            are_alike = False
        if since_ms is not None:
            tail = recent_tail(closed, query_ms, since_ms)
            if tail is not None:
                recent.append((place, closed, tail))
                continue
        gets.append(Get(dataset, key, end_ms, END_OF_STREAM))
        found.append(closed)
        places.append(place)
    return CachedReads(gets, reader, query_ms, served, landed, found, places, recent, missed, are_alike)


def _is_alike(closed: ClosedTiles, limit_ms: int, closed_ms: int) -> bool:
    """Tell whether a key has no late event, no window within its tail, and no tile that closed since."""
    end_ms = closed.end_ms
    return (
        closed.marker == NO_MARKER
        and closed.view.latest_start_ms <= end_ms
        and (limit_ms <= end_ms or closed_ms <= end_ms)
    )
