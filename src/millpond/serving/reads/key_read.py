"""The full read of one key of one GroupBy: look into the caches, get the rest from the store, cache what was read.

Place on the data path: between a fetch, which sends the gets of many keys in one call, and the caches. It handles
every case that no short read (`short_read`) does. A read is a generator: it yields `Reads` and is sent their rows. So
the same code serves blocking and async stores, one key and many, and tests need no store.

Most reads need one round. If everything is cached, that round gets the tail alone. There is a second round

- if the batch row is absent: that is trusted only if a serving info read afterwards names the same batch;
- if the amendment marker has changed: the cached tiles are dropped and all tiles are read again.

Invariant: the result equals that of an uncached read at the same moment. The closing time is known before the tiles
are read, and the marker is read no later than any tile. So if a tile is amended in between, the next read finds a
changed marker.
"""

from collections.abc import Collection, Generator, Sequence
from concurrent.futures import Future
from typing import TypeAlias

import msgspec

from millpond.errors import UnavailableError
from millpond.features import Tile
from millpond.features.answering import Layout
from millpond.kv import Get, TimedValue
from millpond.serving.caches.batch_rows import BatchRow, batch_get, cached_row, decoded_row
from millpond.serving.caches.closed_tiles import ClosedTiles
from millpond.serving.counters import Tally
from millpond.serving.group_status import Served
from millpond.serving.groups.flight import Flight
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.landed_batch import ALL_TIME_MS, LandedBatch, View
from millpond.serving.reads.stream_read import StreamRead

_MAX_FLIPS = 3
"""How many times one read begins, if the batch is replaced while it is read each time."""


class Reads(msgspec.Struct, frozen=True):
    """What a read needs next: rows, a check that its batch is still served, or the result of another fetch."""

    gets: Sequence[Get] = ()
    confirm: bool = False
    flight: Future["KeyData | None"] | None = None


CONFIRM = Reads(confirm=True)

KeyReading: TypeAlias = Generator[Reads, list[list[TimedValue]], "KeyData"]


class KeyData(msgspec.Struct, frozen=True):
    """The data of one key: enough to answer every query of the fetch.

    Attributes:
        landed: the batch that answers.
        row: the batch row; None if no window reaches into the batch.
        closed: the closed tiles; None if none are cached.
        tiles: the tiles after the closed ones, or all tiles, oldest first; some may start after the query.
        after_ms: where `tiles` begin.
        batch_from: where the batch row came from: ``store`` or ``cache``.
        tiles_from: where the closed tiles came from: ``store`` or ``cache``.
        stored_tiles: how many tiles the store returned.
        view: the window starts for which all tiles were read; None if they were read for the queries only.
        from_ms: the earliest query that this answers.
        until_ms: the latest query that this answers.
    """

    landed: LandedBatch
    row: BatchRow | None
    closed: ClosedTiles | None
    tiles: Sequence[Tile]
    after_ms: int
    view: View | None = None
    from_ms: int = 0
    until_ms: int = ALL_TIME_MS
    batch_from: str = "store"
    tiles_from: str = "store"
    stored_tiles: int = 0


def read_key(
    group: ServedGroup,
    layout: Layout,
    key: bytes,
    queries: Sequence[int],
    now_ms: int,
    tally: Tally,
    *,
    is_looked_up: bool = False,
) -> KeyReading:
    """Read one key.

    Args:
        group: the GroupBy.
        layout: the wanted windows; the group's own layout if anything is cached.
        key: the encoded key.
        queries: the query times, ascending, none before the batch end.
        now_ms: the present; no tile starts at or after it.
        tally: counts the work.
        is_looked_up: whether a short read already looked the key up in the cache of closed tiles.

    Raises:
        CorruptionError: a row does not decode. It is not cached.
        UnavailableError: the batch was replaced `_MAX_FLIPS` times during the read.
        BatchGone: no batch is served, or the first query is before the end of the served batch.
    """
    for _ in range(_MAX_FLIPS):
        served = group.served
        landed = served.landed
        if landed is None or queries[0] < landed.batch_end_ms:
            raise BatchGone
        data = yield from _read(group, layout, key, queries, served, landed, now_ms, tally, is_looked_up=is_looked_up)
        if data is not None:
            return data
    raise UnavailableError(f"the batch of {group.name} was replaced {_MAX_FLIPS} times during one fetch. Try again.")


class BatchGone(Exception):  # noqa: N818 - it is no error: the answer says what is served now
    """The batch that a read began with was replaced, and the one that is served cannot answer."""


def _read(
    group: ServedGroup,
    layout: Layout,
    key: bytes,
    queries: Sequence[int],
    served: Served,
    landed: LandedBatch,
    now_ms: int,
    tally: Tally,
    *,
    is_looked_up: bool,
) -> Generator[Reads, list[list[TimedValue]], KeyData | None]:
    """Read with one landed batch; None if it was replaced meanwhile."""
    if not group.has_stream:
        return (yield from _read_values(group, key, landed, tally))
    stream = StreamRead(group, layout, key, queries, served, landed, now_ms, tally, is_looked_up=is_looked_up)
    row = cached_row(group, key, landed) if stream.reads_batch else None
    if group.is_cached and stream.is_now and (stream.misses or (row is None and stream.reads_batch)):
        flight = group.flights.get(key)
        if flight is not None:
            under_way = flight.future()
            yield Reads(flight=under_way)
            data = under_way.result()
            if data is not None and data.landed is landed and _answers(data, queries):
                tally.joined += 1
                return data
            if data is None and group.served.landed is not landed:
                return None
            return (yield from _read_rows(group, layout, key, row, stream, landed, tally))
        flight = group.flights[key] = Flight()
        data = None
        try:
            data = yield from _read_rows(group, layout, key, row, stream, landed, tally)
        finally:
            group.flights.pop(key, None)
            flight.end(data)
        return data
    return (yield from _read_rows(group, layout, key, row, stream, landed, tally))


def _read_rows(
    group: ServedGroup,
    layout: Layout,
    key: bytes,
    row: BatchRow | None,
    stream: StreamRead,
    landed: LandedBatch,
    tally: Tally,
) -> Generator[Reads, list[list[TimedValue]], KeyData | None]:
    batch_from = "cache" if row is not None else "store"
    gets = stream.gets()
    asks_batch = stream.reads_batch and (row is None or not group.skips_batch_get)
    if asks_batch:
        gets.append(batch_get(landed, key))
        tally.batch_gets += 1
    elif stream.reads_batch:
        tally.batch_gets_saved += 1
    answers = yield Reads(gets)
    batch_rows = answers.pop() if asks_batch else []
    _count_rows(tally, batch_rows)
    if stream.reads_batch and row is None:
        row = decoded_row(group, landed, key, batch_rows)
        if row.batch is None:
            yield CONFIRM
            if group.served.landed is not landed:
                return None
        row.bases(layout, stream.view)
        if group.batch_cache is not None and stream.admits:
            group.batch_cache.put(key, row)
    if not stream.take(answers):
        answers = yield Reads(stream.gets())
        stream.take(answers)
    stream.keep(row)
    return KeyData(
        landed,
        row,
        stream.closed,
        stream.tiles,
        stream.after_ms,
        stream.view if stream.is_now else None,
        stream.first_ms // landed.plan.tile_ms * landed.plan.tile_ms - landed.plan.tile_ms + 1,
        ALL_TIME_MS if stream.reads_to_end else stream.last_ms,
        batch_from,
        stream.source,
        stream.stored_tiles,
    )


def _read_values(
    group: ServedGroup, key: bytes, landed: LandedBatch, tally: Tally
) -> Generator[Reads, list[list[TimedValue]], KeyData | None]:
    row = cached_row(group, key, landed)
    batch_from = "cache" if row is not None else "store"
    if row is None or not group.skips_batch_get:
        tally.batch_gets += 1
        answers = yield Reads([batch_get(landed, key)])
        _count_rows(tally, answers[0])
        if row is None:
            row = decoded_row(group, landed, key, answers[0])
            if row.values is None:
                yield CONFIRM
                if group.served.landed is not landed:
                    return None
            if group.batch_cache is not None:
                group.batch_cache.put(key, row)
    else:
        tally.batch_gets_saved += 1
    return KeyData(landed, row, None, (), landed.batch_end_ms, batch_from=batch_from)


def _answers(data: KeyData, queries: Collection[int]) -> bool:
    """Return whether the data that another fetch read of a key also answers these queries."""
    view = data.view
    return view is not None and all(view.holds(query) and data.from_ms <= query <= data.until_ms for query in queries)


def _count_rows(tally: Tally, rows: Sequence[TimedValue]) -> None:
    tally.rows += len(rows)
    tally.bytes += sum([len(row.value) for row in rows])
