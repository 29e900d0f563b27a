"""Reading one key of one GroupBy: what the caches have, what the store must be asked, what is kept.

Place on the data path: between a fetch, which sends gets of many keys in one call, and the caches. A read
is a generator: it yields `Reads` and is sent their rows. So one text serves blocking and async stores,
one key and many, and needs no store in a test.

Most reads need one round, and one with everything cached needs the tail alone. There is a second round

- if the batch row is absent: it is believed only if a serving info read after it names the same batch;
- if the amendment marker has moved: what was cached is dropped and the tiles are read from their start.

Invariant: what is read equals what an uncached read of that moment gives. The closing time is known
before the tiles are read, and the marker is read no later than any tile, so a tile that is amended in
between is met by the next read as a marker that moved.
"""

from collections.abc import Collection, Generator, Sequence
from concurrent.futures import Future
from typing import TypeAlias

import msgspec

from millpond.errors import UnavailableError
from millpond.features import Tile
from millpond.features.answering import Layout
from millpond.kv import Get, TimedValue
from millpond.serving.batch_rows import BatchRow, batch_get, cached_row, decoded_row
from millpond.serving.closed_tiles import ClosedTiles
from millpond.serving.counters import Tally
from millpond.serving.flight import Flight
from millpond.serving.group_status import Served
from millpond.serving.landed_batch import ALL_TIME_MS, LandedBatch, View
from millpond.serving.served_group import ServedGroup
from millpond.serving.stream_read import StreamRead

_MAX_FLIPS = 3
"""How often one read follows a batch that is replaced while it is being read."""


class Reads(msgspec.Struct, frozen=True):
    """What a read asks for next: rows, or whether its batch is still served, or another's result."""

    gets: Sequence[Get] = ()
    confirm: bool = False
    flight: Future["KeyData | None"] | None = None


CONFIRM = Reads(confirm=True)

KeyReading: TypeAlias = Generator[Reads, list[list[TimedValue]], "KeyData"]


class KeyData(msgspec.Struct, frozen=True):
    """What was read of one key: enough to answer every query that asked for it.

    Attributes:
        landed: the batch that answers.
        row: the batch row; None where no window reaches into the batch.
        closed: the closed tiles; None if none are kept.
        tiles: the tiles behind the closed ones, or all, oldest first; some may start after the query.
        after_ms: where those begin.
        batch_from: where the batch row came from.
        tiles_from: where the closed tiles came from.
        stored_tiles: how many tiles the store was asked for and had.
        view: the window starts for which all tiles were read; None where they were read for the queries only.
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
        layout: the windows wanted; that of the group where anything is cached.
        key: the encoded key.
        queries: the times asked for, ascending, none before the batch end.
        now_ms: the present, from which on there are no tiles.
        tally: counts what is done.
        is_looked_up: whether a short way has looked into the cache of closed tiles before.

    Raises:
        CorruptionError: a row does not decode. Nothing of it is cached.
        UnavailableError: the batch was replaced again and again.
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
    """The batch that a read began with is served no more, and the one that is cannot answer."""


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
    """Read with one landed batch; None if another is served by now."""
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
    """Tell whether what another fetch read of a key also answers some queries."""
    view = data.view
    return view is not None and all(view.holds(query) and data.from_ms <= query <= data.until_ms for query in queries)


def _count_rows(tally: Tally, rows: Sequence[TimedValue]) -> None:
    tally.rows += len(rows)
    tally.bytes += sum([len(row.value) for row in rows])
