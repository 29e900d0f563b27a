"""The short way to many keys at once: one look into the cache, one range a key, one pass over what came back.

Place on the data path: `CachedReader` for the keys of one call. What a call knows is worked out once: the batch
that is served, the present tile, the window starts. Keys with an open tile or two and no late event, which
are the usual ones, are decoded and merged by columns; any other is ended by the short way of one key.
"""

from collections.abc import Sequence

import msgspec

from millpond.errors import CorruptionError, UnavailableError
from millpond.features.answering import Column
from millpond.features.answering.layout import Projection
from millpond.kv import Get, TimedValue
from millpond.serving.cached_reader import CachedRead, CachedReader
from millpond.serving.closed_tiles import NO_MARKER, ClosedTiles
from millpond.serving.landed_batch import LandedBatch, View
from millpond.serving.served_group import Served
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
        missed: the places of the keys that have no get.
    """

    gets: list[Get]
    reader: CachedReader
    query_ms: int
    served: Served
    landed: LandedBatch
    found: list[ClosedTiles]
    missed: list[int]

    def columns(self, answers: Sequence[list[TimedValue] | UnavailableError]) -> "KeyColumns | None":
        """Take the tails that are alike: at most two tiles, all open, no late event; None if none is, or one is odd."""
        query_ms, group = self.query_ms, self.reader.group
        limit_ms, closed_ms = query_ms - query_ms % group.tile_ms, self.served.closed_ms
        places: list[int] = []
        counts: list[int] = []
        tail_rows: list[TimedValue] = []
        keys: list[bytes] = []
        for place, (get, closed, rows) in enumerate(zip(self.gets, self.found, answers, strict=True)):
            end_ms = closed.end_ms
            if (
                isinstance(rows, list)
                and len(rows) <= _PAIR
                and closed.marker == NO_MARKER
                and closed.view.latest_start_ms <= end_ms
                and (limit_ms <= end_ms or closed_ms <= end_ms)
                and (not rows or rows[-1].time_ms < query_ms)
            ):
                places.append(place)
                counts.append(len(rows))
                tail_rows += rows
                keys += [get.key] * len(rows)
        stored = [row.value for row in tail_rows]
        tiles = group.tile_columns.decode(keys, stored) if places else None
        if (
            tiles is None
            or any(tiles.complete)
            or [row.time_ms for row in tail_rows] != list(tiles.start_ms)
            or tiles.size_ms.count(group.tile_ms) < len(stored)
        ):
            return None
        found = [self.found[place] for place in places] if len(places) < len(self.found) else self.found
        return KeyColumns(
            places,
            [closed.bases for closed in found],
            group.tile_columns.merged(tiles.cells, counts),
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
        places: of their gets.
        bases: of each key, for each window the cells of its closed part.
        tails: for each cell of the plan, that of the open part of each key.
        counts: what was read of all of them, see `READ_COUNTS`.
    """

    places: Sequence[int]
    bases: Sequence[Sequence[Projection]]
    tails: Sequence[Column]
    counts: ReadCounts


def begin_many(reader: CachedReader, keys: Sequence[bytes], query_ms: int, now_ms: int) -> CachedReads | None:
    """Look up some keys at once; None if their tails end before the present, or are kept themselves.

    Args:
        reader: the short way to one key.
        keys: the encoded keys, each once.
        query_ms: the time that is asked for, of all.
        now_ms: the present, from which on there are no tiles.
    """
    group = reader.group
    served, cache, tile_ms = group.served, group.tile_cache, group.tile_ms
    landed = served.landed
    if (
        landed is None
        or cache is None
        or not reader.is_whole
        or reader.freshness_ms
        or query_ms > landed.horizon_end_ms
    ):
        return None
    if -(-query_ms // tile_ms) * tile_ms < now_ms:
        return None
    held = cache.get_present(keys)
    dataset, restarts = landed.info.streaming_dataset, served.restarts
    earliest_ms, latest_ms = query_ms - group.longest_tail_ms, query_ms + tile_ms
    view: View | None = None
    gets: list[Get] = []
    found: list[ClosedTiles] = []
    missed: list[int] = []
    for place, key in enumerate(keys):
        closed = held.get(key)
        if closed is None or closed.landed is not landed or closed.restarts != restarts or closed.is_partial:
            missed.append(place)
            continue
        if closed.view is not view:
            view = closed.view if closed.view.holds(query_ms) else None
        if view is None or not earliest_ms < closed.end_ms < latest_ms:
            missed.append(place)
            continue
        gets.append(Get(dataset, key, closed.end_ms, END_OF_STREAM))
        found.append(closed)
    return CachedReads(gets, reader, query_ms, served, landed, found, missed)
