"""The blocks of tiles that one call of the operator touches: read together for all slots, changed, then written back.

Place on the data path: inside the operator of the stream of tiles. `processor` defines the life of a tile. This
module carries it out for all keys of a slot together.

Invariant: state holds each tile once, in the block of its slot and address. An open tile of a higher layer has never
been emitted. Only the tiles of the keys that change are read from a block, unless the block closes; then all are read.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import repeat

import pyarrow as pa

from millpond.features import (
    CLOSING_KEY,
    MARKER_ADDRESS,
    GroupByPlan,
    encode_marker,
    layer_of,
    tile_address,
    tile_start,
)
from millpond.features.stored.rows import start_of
from millpond.features.stored.value_codec import VALUE_FORMAT_VERSION
from millpond.features.stored.value_header import with_headers
from millpond.spark.features.tiles.ends import TileEnds
from millpond.spark.features.tiles.leaves import Place, StoredBlocks, TileStates
from millpond.spark.features.tiles.rows import AMENDED, CLOSED, CLOSING, MARKED, OPENED, TileRows
from millpond.spark.features.tiles.slots import CLOSING_SLOT, Block, TileCells, add_tiles


class TouchedTiles:
    """The blocks that one call touches.

    ``_written`` has for each changed block the keys whose tiles changed; none if the block was only completed.
    ``_changed`` has what happened to each tile. A tile that is not in it is not emitted.
    """

    def __init__(self, plan: GroupByPlan, retention_ms: int, states: TileStates, watermark_ms: int) -> None:
        self._plan = plan
        self._layers = plan.layers
        self._handle = states.handle
        self._watermark_ms = watermark_ms
        self._blocks = StoredBlocks(plan.tile_codec, states)
        self._written: dict[Place, dict[bytes, None]] = {}
        self._changed: dict[Place, dict[bytes, int]] = {}
        self._marked: dict[int, dict[bytes, None]] = {}
        self._due: dict[int, list[int]] = {}
        self._due_times: list[int] = []
        self._ends = TileEnds(plan.layers, retention_ms)
        self._woken: set[tuple[int, int]] = set()
        # In the order of the requests: neighbours share a key group, so the states are written in runs.
        self._timers: dict[tuple[int, int], None] = {}
        self._emitted = TileRows()

    # Reading.

    def load_open(self, tiles: Mapping[tuple[int, int], TileCells]) -> None:
        """Read the smallest tiles that `tiles`, given by slot and start, are merged into."""
        self._blocks.load({(slot, tile_address(0, start)): one.cells for (slot, start), one in tiles.items()})

    def load_late(self, tiles: Mapping[tuple[int, int], TileCells]) -> None:
        """Read the tiles, of all layers, that the late `tiles`, given by slot and start, are merged into."""
        wanted: dict[Place, dict[bytes, None]] = {}
        for (slot, start_ms), one in tiles.items():
            for layer, size in enumerate(self._layers):
                place = slot, tile_address(layer, tile_start(start_ms, size))
                wanted.setdefault(place, {}).update(dict.fromkeys(one.cells))
        self._blocks.load(wanted)

    def load_due(self, due: Iterable[tuple[int, int]]) -> None:
        """Read what due timers need, given as (slot, time).

        These are the tiles that close, the tiles of the next layer that they are merged into, and the roots of the
        blocks that are forgotten.
        """
        wanted: dict[Place, Collection[bytes] | None] = {}
        above: dict[Place, list[Place]] = {}
        for slot, time_ms in due:
            self._woken.add((time_ms, slot))
            self._add_due(slot, time_ms)
            ends = self._ends.at(time_ms)
            closing = [(slot, tile_address(layer, start_ms)) for layer, start_ms in ends.closed]
            wanted.update(dict.fromkeys(closing))
            for address in ends.forgotten:
                wanted.setdefault((slot, address), ())
            if ends.above is not None:
                above.setdefault((slot, ends.above), []).extend(closing)
        self._blocks.load(wanted)
        fed: dict[Place, dict[bytes, None]] = {place: {} for place in above if place not in wanted}
        for place, keys in fed.items():
            for below in above[place]:
                block = self._blocks.get(below, None)
                keys.update(dict.fromkeys(block.open_keys() if block is not None else ()))
        self._blocks.load(fed)

    # Changing.

    def merge(self, slot: int, start_ms: int, tiles: TileCells) -> list[bytes]:
        """Merge events into their tiles and, if late, into those above. Return the keys with late events.

        Args:
            slot: the slot of the keys.
            start_ms: the start of the tiles.
            tiles: the tiles of these events alone.
        """
        return self._feed(slot, 0, start_ms, tiles)

    def close_due(self) -> None:
        """Close each open tile that ends by the watermark, and forget what is due, in the order of the times."""
        while self._due_times:
            time_ms = heapq.heappop(self._due_times)
            ends = self._ends.at(time_ms)
            for slot in self._due.pop(time_ms):
                for layer, start_ms in ends.closed:
                    self._close(slot, layer, start_ms)
                for address in ends.forgotten:
                    self._forget(slot, address)

    def _add_due(self, slot: int, time_ms: int) -> None:
        if time_ms not in self._due:
            self._due[time_ms] = []
            heapq.heappush(self._due_times, time_ms)
        self._due[time_ms].append(slot)

    def _feed(self, slot: int, layer: int, start_ms: int, tiles: TileCells, *, closing: bool = False) -> list[bytes]:
        """Merge tiles into those of a layer that hold a time, and those of closed keys into the next layer too.

        An absent tile whose end the watermark has passed was complete and empty, so it counts as closed. This does not
        hold where a tile closes in this call (`closing`): the tiles that hold it were not closed before this batch
        either.

        Return the keys whose tiles were closed.
        """
        size = self._layers[layer]
        start = tile_start(start_ms, size)
        place = slot, tile_address(layer, start)
        block = self._blocks.get(place, tiles.cells) or self._blocks.made(place)
        passed = not closing and start + size <= self._watermark_ms
        closed: list[bytes] = []
        if passed or block.complete or block.versions:
            closed = [key for key in tiles.cells if (block.is_closed(key) if key in block.cells else passed)]
        add_tiles(self._plan, block, tiles)
        if place in self._written:
            self._written[place] |= dict.fromkeys(tiles.cells)
        else:
            self._written[place] = dict.fromkeys(tiles.cells)
        changed = self._changed.setdefault(place, {})
        if len(closed) < len(tiles.cells):
            # An open tile that ends by the watermark has a timer that fires in this batch.
            if closing or start + size > self._watermark_ms:
                self._wake(slot, start + size)
            if layer == 0:
                opened = tiles.cells.keys() - closed if closed else tiles.cells
                changed.update(zip(opened, repeat(OPENED)))
        if closed:
            self._amend(slot, layer, start, closed)
            if layer + 1 < len(self._layers):
                self._feed(slot, layer + 1, start_ms, tiles.of(closed))
        return closed

    def _amend(self, slot: int, layer: int, start_ms: int, keys: list[bytes]) -> None:
        place = (slot, tile_address(layer, start_ms))
        block, changed = self._blocks.read(place), self._changed[place]
        for key in keys:
            # However many events amend a tile in one batch, its version goes up once.
            if changed.get(key) != AMENDED:
                block.versions[key] = block.versions.get(key, 0) + 1
                changed[key] = AMENDED
        self._marked.setdefault(slot, {}).update(dict.fromkeys(keys))
        self._wake(slot, self._ends.forgotten_at(layer, start_ms))

    def _close(self, slot: int, layer: int, start_ms: int) -> None:
        place = slot, tile_address(layer, start_ms)
        block = self._blocks.get(place, None)
        if block is None or block.complete:
            return
        keys = block.open_keys()
        block.complete = True
        self._written.setdefault(place, {})
        self._changed.setdefault(place, {}).update(zip(keys, repeat(CLOSED)))
        self._wake(slot, self._ends.forgotten_at(layer, start_ms))
        if layer + 1 < len(self._layers) and keys:
            self._feed(slot, layer + 1, start_ms, block.of(keys), closing=True)

    def _forget(self, slot: int, address: int) -> None:
        place = slot, address
        self._blocks.remove(place)
        self._changed.pop(place, None)
        self._written.pop(place, None)

    def _wake(self, slot: int, time_ms: int) -> None:
        """Revisit a slot at a time: by a timer, or in this call if the watermark has passed the time."""
        if time_ms > self._watermark_ms:
            self._timers[slot, time_ms] = None
        elif (time_ms, slot) not in self._woken:
            self._woken.add((time_ms, slot))
            self._add_due(slot, time_ms)

    def tell_closing_time(self) -> None:
        """Emit the time up to which tiles are closed, and set a timer for the end of the next tile."""
        size = self._layers[0]
        closed_ms = tile_start(self._watermark_ms, size)
        self._timers[CLOSING_SLOT, closed_ms + size] = None
        self._emitted.add(CLOSING_KEY, 0, None, CLOSING, closed_ms)

    def count(self, what: int, events: int) -> None:
        """Emit a count of events."""
        if events:
            self._emitted.add(b"", 0, None, what, events)

    # Writing.

    def written(self) -> Iterator[pa.Table]:
        """Write back what changed, set the timers, and return the rows to emit. Each key's marker comes last."""
        for place, changed in self._changed.items():
            self._emit(place, self._blocks.read(place), changed)
        self._raise_markers()
        self._blocks.write(self._written)
        if self._timers:
            slots = pa.table({"slot": pa.array([slot for slot, _ in self._timers], pa.int32())})
            times = pa.array([time_ms for _, time_ms in self._timers], pa.int64())
            self._handle.registerTimers(slots, times)
        return self._emitted.tables()

    def _emit(self, place: Place, block: Block, changed: dict[bytes, int]) -> None:
        """Emit the tiles of a block that changed."""
        codec, address = self._plan.tile_codec, place[1]
        start_ms, size_ms = start_of(address), self._layers[layer_of(address)]
        for (form, version), keys in self._alike(block, changed).items():
            complete = block.complete or version > 0
            opening = codec.opening(form, start_ms, size_ms, complete=complete, version=version)
            bodies = list(map(opening.__add__, map(block.cells.__getitem__, keys)))
            values = with_headers(VALUE_FORMAT_VERSION, keys, bodies)
            self._emitted.add_tiles(keys, address, values, list(map(changed.__getitem__, keys)))

    def _alike(self, block: Block, keys: Collection[bytes]) -> dict[tuple[bytes, int], list[bytes]]:
        """Group the keys by form and version: the tiles of a group begin with the same bytes."""
        whole = self._plan.tile_codec.form
        if not (block.forms or block.versions):
            return {(whole, 0): list(keys)}
        alike: dict[tuple[bytes, int], list[bytes]] = {}
        for key in keys:
            alike.setdefault((block.forms.get(key, whole), block.versions.get(key, 0)), []).append(key)
        return alike

    def _raise_markers(self) -> None:
        """Raise and emit the markers of the keys whose closed tiles changed."""
        marked = {(slot, MARKER_ADDRESS): keys for slot, keys in self._marked.items()}
        self._blocks.load(marked)
        for place, keys in marked.items():
            block = self._blocks.get(place, keys) or self._blocks.made(place)
            for key in sorted(keys):
                block.versions[key] = amendments = block.versions.get(key, 0) + 1
                self._emitted.add(key, MARKER_ADDRESS, encode_marker(key, amendments), MARKED, amendments)
        self._written |= marked
