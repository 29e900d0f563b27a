"""Short reads of many keys at once: one cache look-up, one range per key, one pass over the rows.

Place on the data path: does the work of `CachedReader` for all keys of one call. What the keys share is computed
once: the batch that is served, the present tile, the window starts. Most keys have at most two open tiles and no
late event. Their tiles are decoded and merged column by column. Every other key is finished as a single `CachedRead`.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from millpond.errors import CorruptionError, UnavailableError
from millpond.features.answering import Column
from millpond.features.answering.layout import Projection
from millpond.kv import Get, TimedValue
from millpond.serving.caches.closed_tiles import NO_MARKER, ClosedTiles, RecentTail
from millpond.serving.counters import ReadCounts
from millpond.serving.group_status import Served
from millpond.serving.landed_batch import ALL_TIME_MS, LandedBatch, View
from millpond.serving.reads.cached_reader import CachedRead, CachedReader, recent_tail
from millpond.serving.reads.short_read import ShortResult
from millpond.serving.reads.stream_read import END_OF_STREAM

_PAIR = 2


class CachedReads(msgspec.Struct, frozen=True, gc=False):
    """The reads of the tails of several keys, all up to the present.

    Attributes:
        gets: one get per key whose closed tiles are cached and whose tail must be read.
        reader: the reader for one key.
        query_ms: the query time.
        served: what was served when the keys were looked up.
        landed: the batch that answers.
        found: for each get, the key's closed tiles.
        places: for each get, the index of its key.
        recent: the index of each key whose tail was read recently, with its closed tiles and that tail.
        missed: the indexes of the other keys.
        are_alike: whether no key of the gets has a late event, a window that starts within its tail, or a tile that
            closed since.
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
        """Merge by columns the tails that are alike: at most two tiles, all open, no late event.

        None if no tail is alike, or if a tile of one is complete, misplaced, or does not decode with the others.
        """
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
        """Return whether a tail has at most two tiles, and none of them amends or extends the closed part."""
        closed = self.found[place]
        return (
            isinstance(rows, list)
            and len(rows) <= _PAIR
            and (not rows or rows[-1].time_ms < self.query_ms)
            and _is_alike(closed, self.query_ms - self.query_ms % self.reader.group.tile_ms, self.served.closed_ms)
        )

    def _keep_tails(self, found: Sequence[ClosedTiles], tails: Sequence[Column], read: Sequence[Any]) -> None:
        """Keep the tails for fetches within `tail_freshness_ms`."""
        now_ms, windows = self.reader.clock(), len(self.reader.empty_tails)
        for closed, rows, tail in zip(found, read, zip(*tails, strict=True), strict=True):
            newest_ms = rows[-1].time_ms if rows else -ALL_TIME_MS
            closed.recent_tail = (now_ms, newest_ms, ALL_TIME_MS, (tail,) * windows)

    def recent_columns(self) -> "KeyColumns | None":
        """Return the recently read tails as columns; None if there is none, or one differs between windows."""
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
        """Finish one key with the rows of its tail; None for the full read, which also reports errors."""
        get = self.gets[place]
        if isinstance(rows, UnavailableError):
            return None
        try:
            return CachedRead((get,), self.reader, get.key, self.query_ms, self.served, self.found[place]).end((rows,))
        except CorruptionError:
            return None


class KeyColumns(msgspec.Struct, frozen=True, gc=False):
    """The results for the keys that are alike, as columns.

    Attributes:
        places: the indexes of their gets; for `recent_columns`, of their keys.
        bases: for each key, the cells of each window's closed part.
        tails: for each cell of the plan, a column with that cell of each key's open part.
        counts: what was read for all of them, see `READ_COUNTS`.
    """

    places: Sequence[int]
    bases: Sequence[Sequence[Projection]]
    tails: Sequence[Column]
    counts: ReadCounts


def begin_many(reader: CachedReader, keys: Sequence[bytes], query_ms: int, now_ms: int) -> CachedReads | None:
    """Look up some keys at once.

    None if the query is about the past or beyond the batch's horizon, if a step of CHIP-1 is off, or if there is no
    batch or no cache of closed tiles.

    Args:
        reader: the reader for one key.
        keys: the encoded keys, each once.
        query_ms: the query time of all keys.
        now_ms: the present; no tile starts at or after it.
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
    """Return whether a key has no late event, no window that starts within its tail, and no tile that closed since."""
    end_ms = closed.end_ms
    return (
        closed.marker == NO_MARKER
        and closed.view.latest_start_ms <= end_ms
        and (limit_ms <= end_ms or closed_ms <= end_ms)
    )
