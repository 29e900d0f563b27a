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
from itertools import pairwise
from typing import TypeAlias

import msgspec

from millpond.errors import CorruptionError, UnavailableError
from millpond.features import MARKER_ADDRESS, GroupByPlan, Tile, decode_marker, tile_address, tile_range
from millpond.features.answering import Layout
from millpond.features.layers import Span, spans
from millpond.kv import Get, TimedValue
from millpond.serving.batch_rows import BatchRow
from millpond.serving.closed_tiles import NO_MARKER, ClosedForm, ClosedTiles, close, closed_end
from millpond.serving.counters import Tally
from millpond.serving.landed_batch import LandedBatch, View
from millpond.serving.served_group import Served, ServedGroup

_MAX_FLIPS = 3
"""How often one read follows a batch that is replaced while it is being read."""

_END_OF_STREAM = MARKER_ADDRESS + 1


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
        view: the window starts for which all tiles up to the end of the stream were read; None where they were
            read up to the last query only.
        from_ms: the earliest query that this answers.
    """

    landed: LandedBatch
    row: BatchRow | None
    closed: ClosedTiles | None
    tiles: Sequence[Tile]
    after_ms: int
    view: View | None = None
    from_ms: int = 0
    batch_from: str = "store"
    tiles_from: str = "store"
    stored_tiles: int = 0


def read_key(group: ServedGroup, layout: Layout, key: bytes, queries: Sequence[int], tally: Tally) -> KeyReading:
    """Read one key.

    Args:
        group: the GroupBy.
        layout: the windows wanted; that of the group where anything is cached.
        key: the encoded key.
        queries: the times asked for, ascending, none before the batch end.
        tally: counts what is done.

    Raises:
        CorruptionError: a row does not decode. Nothing of it is cached.
        UnavailableError: the batch was replaced again and again.
    """
    for _ in range(_MAX_FLIPS):
        served = group.served
        landed = served.landed
        if landed is None or queries[0] < landed.batch_end_ms:
            raise BatchGone
        data = yield from _read(group, layout, key, queries, served, landed, tally)
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
    tally: Tally,
) -> Generator[Reads, list[list[TimedValue]], KeyData | None]:
    """Read with one landed batch; None if another is served by now."""
    if not group.has_stream:
        return (yield from _read_values(group, key, landed, tally))
    stream = _Stream(group, layout, key, queries, served, landed, tally)
    row = _cached_row(group, key, landed) if stream.reads_batch else None
    if group.is_cached and stream.is_now and (stream.misses or (row is None and stream.reads_batch)):
        flight = group.flights.get(key)
        if flight is not None:
            yield Reads(flight=flight)
            data = flight.result()
            if data is not None and data.landed is landed and _answers(data, queries):
                tally.joined += 1
                return data
            return None if data is None else (yield from _read_rows(group, layout, key, row, stream, landed, tally))
        flight = group.flights[key] = Future()
        data = None
        try:
            data = yield from _read_rows(group, layout, key, row, stream, landed, tally)
        finally:
            group.flights.pop(key, None)
            flight.set_result(data)
        return data
    return (yield from _read_rows(group, layout, key, row, stream, landed, tally))


def _read_rows(
    group: ServedGroup,
    layout: Layout,
    key: bytes,
    row: BatchRow | None,
    stream: "_Stream",
    landed: LandedBatch,
    tally: Tally,
) -> Generator[Reads, list[list[TimedValue]], KeyData | None]:
    batch_from = "cache" if row is not None else "store"
    gets = stream.gets()
    asks_batch = stream.reads_batch and (row is None or not group.skips_batch_get)
    if asks_batch:
        gets.append(_batch_get(landed, key))
        tally.batch_gets += 1
    elif stream.reads_batch:
        tally.batch_gets_saved += 1
    answers = yield Reads(gets)
    batch_rows = answers.pop() if asks_batch else []
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
        batch_from,
        stream.source,
        stream.stored_tiles,
    )


class _Stream:
    """The streaming side of one read: which tiles to get, and what of them is closed."""

    def __init__(
        self,
        group: ServedGroup,
        layout: Layout,
        key: bytes,
        queries: Sequence[int],
        served: Served,
        landed: LandedBatch,
        tally: Tally,
    ) -> None:
        self.group = group
        self.layout = layout
        self.key = key
        self.landed = landed
        self.closed_ms = served.closed_ms
        self.restarts = served.restarts
        self.tally = tally
        self.first_ms, self.query_ms = queries[0], queries[-1]
        self.tiles: Sequence[Tile] = ()
        self.stored_tiles = 0
        self.source = "store"
        self.marker = NO_MARKER
        self.with_pieces = not group.form.kinds
        self.closed: ClosedTiles | None = None
        views = [landed.view(layout, query) for query in queries]
        self.view = views[-1]
        self.reads_batch = any(view.reads_batch for view in views)
        self.read_start_ms = min(view.read_start_ms for view in views)
        self.cuts_ms = {start for view in views for start in view.starts if start is not None}
        if len(queries) > 1:
            tile_ms = landed.plan.tile_ms
            self.cuts_ms.update(-(-query // tile_ms) * tile_ms for query in queries)
        self.is_now = self.view.holds(queries[0]) and self.view.is_cacheable and group.tile_cache is not None
        if self.is_now:
            self._look_up()
        self.admits = True
        if self.is_now and self.closed is None and not group.doorkeeper.admits(key):
            self.admits = self.is_now = False
        self.misses = self.is_now and self.closed is None
        self.after_ms = self.read_start_ms if self.closed is None else self.closed.end_ms
        self.needless = 0

    def gets(self) -> list[Get]:
        """Give the gets of the tiles; the first brings the marker along where closed tiles are kept."""
        key, dataset, plan = self.key, self.landed.info.streaming_dataset, self.landed.plan
        self.needless = 0
        if not self.is_now:
            wanted = plan.spans(self.read_start_ms, self.query_ms, self.closed_ms, self.cuts_ms)
            found = [Get(dataset, key, *tile_range(*span)) for span in wanted]
        else:
            closed_ms = min(self.closed_ms, self.first_ms // plan.tile_ms * plan.tile_ms)
            if self.with_pieces:
                wanted = cacheable_spans(self.group.form, self.view, self.after_ms, self.query_ms, closed_ms)
            else:
                last_ms = max(self.after_ms, -(-self.query_ms // plan.tile_ms) * plan.tile_ms)
                wanted = plan.spans(self.after_ms, last_ms, closed_ms, self.cuts_ms) or [(0, last_ms, last_ms)]
            last_ms = wanted.pop()[1] if wanted[-1][0] == 0 else wanted[-1][2]
            found = [Get(dataset, key, last_ms, _END_OF_STREAM)]
            found += [Get(dataset, key, *tile_range(*span)) for span in wanted]
            if self.closed is not None and not self.group.moves_start:
                needless = plan.spans(self.read_start_ms, self.after_ms, self.closed_ms)
                found += [Get(dataset, key, *tile_range(*span)) for span in needless]
                self.needless = len(needless)
        self.tally.stream_gets += len(found)
        return found

    def take(self, answers: Sequence[Sequence[TimedValue]]) -> bool:
        """Take the rows of the gets; False if a closed tile was amended: then the gets are to be sent anew."""
        rows = [row for part in answers for row in part]
        self.tally.rows += len(rows)
        self.tally.bytes += sum([len(row.value) for row in rows])
        if self.needless:
            # The start of the get is not moved, but what is closed is decoded once only.
            rows = [row for part in answers[: -self.needless] for row in part]
        if self.is_now:
            last = answers[0]
            marker = NO_MARKER
            if last and last[-1].time_ms == MARKER_ADDRESS:
                marker = last[-1].value
                rows.remove(last[-1])
            if marker != NO_MARKER and (self.closed is None or marker != self.closed.marker):
                decode_marker(self.key, marker)
            if self.closed is not None and marker != self.closed.marker:
                self.tally.dropped_amended += 1
                self._drop()
                return False
            self.marker = marker
        decode, key = self.group.decode_tile, self.key
        tiles = [decode(key, row.value) for row in rows]
        self._check(rows, tiles)
        if len(tiles) > 1:
            tiles.sort(key=_tile_start)
        self.stored_tiles = len(tiles)
        self.tally.tiles += len(tiles)
        self.tiles = tiles
        return True

    def keep(self, row: BatchRow | None) -> None:
        """Merge and cache what is closed of the tiles."""
        if not self.is_now:
            return
        group, view, before = self.group, self.view, self.closed
        tile_ms = self.landed.plan.tile_ms
        tiles = self.tiles
        end_ms, count = closed_end(self.after_ms, tiles, self.closed_ms, self.first_ms // tile_ms * tile_ms)
        if before is not None:
            self.tally.tiles_saved += before.tiles
            if end_ms == before.end_ms and before.view is view:
                return
        bases = self.layout.empties if row is None else row.bases(self.layout, view)
        self.closed = close(
            group.form,
            before,
            self.landed,
            view,
            bases,
            tiles[:count],
            end_ms,
            self.restarts,
            self.marker,
            with_pieces=self.with_pieces,
        )
        self.tiles = tiles[count:]
        self.after_ms = end_ms
        if group.tile_cache is not None:
            group.tile_cache.put(self.key, self.closed)

    def _look_up(self) -> None:
        cache = self.group.tile_cache
        found = None if cache is None else cache.get(self.key)
        if found is None:
            return
        tile_ms = self.landed.plan.tile_ms
        if found.landed is not self.landed or found.restarts != self.restarts:
            self._drop()
        elif found.view.from_ms > self.first_ms or found.end_ms - tile_ms >= self.first_ms:
            # A query about the past sees less than is closed by now; it is answered from the store.
            self.is_now = False
        elif found.end_ms >= self.view.read_start_ms:
            same_view = found.view.holds(self.first_ms) and found.view.holds(self.query_ms)
            if found.pieces is None and not same_view:
                # The key is asked for again after its windows moved: now pieces pay.
                self.with_pieces = True
                return
            self.with_pieces = found.pieces is not None
            self.closed = found
            self.source = "cache"
            if same_view:
                self.view = found.view

    def _drop(self) -> None:
        if self.group.tile_cache is not None:
            self.group.tile_cache.invalidate(self.key)
        self.closed = None
        self.with_pieces = True
        self.source = "store"
        self.after_ms = self.read_start_ms = self.view.read_start_ms

    def _check(self, rows: Sequence[TimedValue], tiles: Sequence[Tile]) -> None:
        """Refuse tiles that lie where they do not belong."""
        if not are_placed(self.landed.plan, rows, tiles):
            raise CorruptionError(
                f"GroupBy {self.group.name!r}: the tiles of key {self.key!r} at the times "
                f"{sorted(row.time_ms for row in rows)[:8]} say that they start at "
                f"{[tile.start_ms for tile in tiles][:8]}. Restart the stream from its batch."
            )


def are_placed(plan: GroupByPlan, rows: Sequence[TimedValue], tiles: Sequence[Tile]) -> bool:
    """Tell whether each tile lies at the time of its own start and layer."""
    layers = plan.layers
    smallest = layers[0]
    for row, tile in zip(rows, tiles, strict=True):
        expected = tile.start_ms
        if tile.size_ms != smallest and tile.size_ms in layers:
            expected = tile_address(layers.index(tile.size_ms), expected)
        if row.time_ms != expected:
            return False
    return True


def cacheable_spans(form: ClosedForm, view: View, start_ms: int, end_ms: int, closed_ms: int) -> list[Span]:
    """Give the tiles to read where closed ones are kept: no larger than the pieces that short windows need.

    Args:
        form: which pieces there are.
        view: where the short windows start.
        start_ms: where the reading starts.
        end_ms: the query.
        closed_ms: the closing time.
    """
    layers = form.layout.plan.layers
    smallest = layers[0]
    last_ms = max(start_ms, -(-end_ms // smallest) * smallest)
    if len(layers) == 1 or last_ms - start_ms < layers[1]:
        return [(0, start_ms, last_ms)]
    edges = sorted({start_ms, last_ms, *(kept for kept in view.kept_from if start_ms < kept < last_ms)})
    found: list[Span] = []
    for left, right in pairwise(edges):
        largest = min(
            (kind.hop_ms for kind, kept in zip(form.kinds, view.kept_from, strict=True) if kept <= left),
            default=layers[-1],
        )
        allowed = [size for size in layers if size <= largest]
        for layer, first, last in spans(allowed, left, right, closed_ms):
            joins = found and found[-1][0] == layer and found[-1][2] == first
            found.append((layer, found.pop()[1] if joins else first, last))
    return found


def _read_values(
    group: ServedGroup, key: bytes, landed: LandedBatch, tally: Tally
) -> Generator[Reads, list[list[TimedValue]], KeyData | None]:
    row = _cached_row(group, key, landed)
    batch_from = "cache" if row is not None else "store"
    if row is None or not group.skips_batch_get:
        tally.batch_gets += 1
        answers = yield Reads([_batch_get(landed, key)])
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


def _cached_row(group: ServedGroup, key: bytes, landed: LandedBatch) -> BatchRow | None:
    if group.batch_cache is None:
        return None
    row = group.batch_cache.get(key)
    return row if row is not None and row.landed is landed else None


def decoded_row(group: ServedGroup, landed: LandedBatch, key: bytes, rows: Sequence[TimedValue]) -> BatchRow:
    """Give what the store has of a key in a batch, or that it has nothing.

    Raises:
        CorruptionError: the row does not decode, or is of another batch.
    """
    if not rows:
        return BatchRow(landed, None)
    plan, stored = landed.plan, rows[-1].value
    if plan.group_by.accuracy == "snapshot":
        batch_end_ms, values = plan.decode_values(key, stored)
        _check_end(landed, key, batch_end_ms)
        return BatchRow(landed, None, values, len(stored))
    batch = group.decode_batch(key, stored)
    _check_end(landed, key, batch.batch_end_ms)
    return BatchRow(landed, batch, None, len(stored))


def _check_end(landed: LandedBatch, key: bytes, batch_end_ms: int) -> None:
    if batch_end_ms != landed.batch_end_ms:
        raise CorruptionError(
            f"dataset {landed.info.batch_dataset!r}: the row of key {key!r} ends at {batch_end_ms}, the batch at "
            f"{landed.batch_end_ms}. Upload the batch again."
        )


def _batch_get(landed: LandedBatch, key: bytes) -> Get:
    return Get(landed.info.batch_dataset, key, landed.batch_end_ms, landed.batch_end_ms + 1)


def _answers(data: KeyData, queries: Collection[int]) -> bool:
    """Tell whether what another fetch read of a key also answers some queries."""
    view = data.view
    return view is not None and all(view.holds(query) and query >= data.from_ms for query in queries)


def _tile_start(tile: Tile) -> int:
    return tile.start_ms
