"""The blocks of tiles that one call of the operator touches: read together for all slots, changed, then written back.

Place on the data path: inside the operator of the stream of tiles. `processor` defines the life of a tile. This
module carries it out for all keys of a slot together.

Invariant: state holds each tile once, in the block of its slot and address. Only the tiles of the keys that change are
read from a block, unless the block closes; then all are read.

A block of a higher layer is empty until it closes. It is there from the moment when a tile below it opens. So an absent
block whose end has passed was complete and empty, and one that is empty and not complete has a timer that closes it.
Earlier versions merged each closed tile into the one above at once, and left blocks of late events incomplete. The
tiles of such blocks are made anew when they close or are amended.
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
from millpond.spark.features.tiles.slots import CLOSING_SLOT, Block, TileCells, add_tiles, merged_tiles


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
        """Read the smallest tiles that `tiles`, given by slot and start, are merged into.

        Where there are none yet, also read the roots of the blocks that will be above them.
        """
        places = {(slot, tile_address(0, start)): one.cells for (slot, start), one in tiles.items()}
        self._blocks.load(places)
        new = [place for place in places if self._blocks.get(place, ()) is None]
        for layer in range(1, len(self._layers)):
            above = {(slot, self._address_above(layer, start_of(address))): () for slot, address in new}
            self._blocks.load(above)
            new = [place for place in above if self._blocks.get(place, ()) is None]

    def load_late(self, tiles: Mapping[tuple[int, int], TileCells]) -> None:
        """Read the tiles, of all layers, that the late `tiles`, given by slot and start, are merged into."""
        wanted: dict[Place, dict[bytes, None]] = {}
        for (slot, start_ms), one in tiles.items():
            for layer in range(len(self._layers)):
                place = slot, self._address_above(layer, start_ms)
                wanted.setdefault(place, {}).update(dict.fromkeys(one.cells))
        self._blocks.load(wanted)

    def load_due(self, due: Iterable[tuple[int, int]]) -> None:
        """Read what due timers need, given as (slot, time).

        These are the tiles that close, the roots of the blocks above them, and those of the blocks that are forgotten.
        """
        wanted: dict[Place, Collection[bytes] | None] = {}
        for slot, time_ms in due:
            self._woken.add((time_ms, slot))
            self._add_due(slot, time_ms)
            ends = self._ends.at(time_ms)
            wanted.update(((slot, tile_address(layer, start_ms)), None) for layer, start_ms in ends.closed)
            for address in (*ends.forgotten, *([] if ends.above is None else [ends.above])):
                wanted.setdefault((slot, address), ())
        self._blocks.load(wanted)

    def _address_above(self, layer: int, start_ms: int) -> int:
        """Return the address of the tile of a layer that holds a time."""
        return tile_address(layer, tile_start(start_ms, self._layers[layer]))

    # Changing.

    def merge(self, slot: int, start_ms: int, tiles: TileCells) -> list[bytes]:
        """Merge events into their tiles and, if late, into the closed ones above. Return the keys with late events.

        An absent tile whose end the watermark has passed was complete and empty, so it counts as closed.

        Args:
            slot: the slot of the keys.
            start_ms: the start of the tiles.
            tiles: the tiles of these events alone.
        """
        place = slot, tile_address(0, start_ms)
        known = self._blocks.get(place, tiles.cells)
        block = known or self._blocks.made(place)
        passed = start_ms + self._layers[0] <= self._watermark_ms
        closed: list[bytes] = []
        if passed or block.complete or block.versions:
            closed = [key for key in tiles.cells if (block.is_closed(key) if key in block.cells else passed)]
        self._add(place, block, tiles)
        if len(closed) < len(tiles.cells):
            # An open tile that ends by the watermark has a timer that fires in this batch.
            if not passed:
                self._wake(slot, start_ms + self._layers[0])
            opened = tiles.cells.keys() - closed if closed else tiles.cells
            self._changed[place].update(zip(opened, repeat(OPENED)))
            if known is None:
                self._open_above(slot, 0, start_ms)
        if closed:
            self._amend(place, closed)
            self._amend_above(slot, 0, start_ms, tiles.of(closed))
        return closed

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

    def _add(self, place: Place, block: Block, tiles: TileCells) -> None:
        add_tiles(self._plan, block, tiles)
        if place in self._written:
            self._written[place] |= dict.fromkeys(tiles.cells)
        else:
            self._written[place] = dict.fromkeys(tiles.cells)
        self._changed.setdefault(place, {})

    def _open_above(self, slot: int, layer: int, start_ms: int) -> None:
        """Make the empty open blocks above a tile, and set the timers that close them."""
        for above in range(layer + 1, len(self._layers)):
            place = slot, self._address_above(above, start_ms)
            if self._blocks.get(place, ()) is not None:
                return
            self._blocks.made(place)
            self._written[place] = {}
            self._wake(slot, start_of(place[1]) + self._layers[above])

    def _amend(self, place: Place, keys: list[bytes]) -> None:
        block, changed = self._blocks.read(place), self._changed[place]
        for key in keys:
            # However many events amend a tile in one batch, its version goes up once.
            if changed.get(key) != AMENDED:
                block.versions[key] = block.versions.get(key, 0) + 1
                changed[key] = AMENDED
        slot, address = place
        self._marked.setdefault(slot, {}).update(dict.fromkeys(keys))
        self._wake(slot, self._ends.forgotten_at(layer_of(address), start_of(address)))

    def _amend_above(self, slot: int, layer: int, start_ms: int, tiles: TileCells) -> None:
        """Amend the closed tiles above late ones. An open tile takes them in when it closes."""
        for above in range(layer + 1, len(self._layers)):
            place = slot, self._address_above(above, start_ms)
            end_ms = start_of(place[1]) + self._layers[above]
            block = self._blocks.get(place, tiles.cells)
            if block is not None and block.complete:
                self._add(place, block, tiles)
            elif end_ms > self._watermark_ms or (block is not None and self._blocks.is_empty(place)):
                self._open_above(slot, above - 1, start_ms)
                return
            else:
                # It was complete and empty. Tiles below it may be open, so it too is made of all that are below.
                if block is None:
                    self._blocks.made(place)
                self._changed.setdefault(place, {})
                self._wake(slot, end_ms)
            self._amend(place, list(tiles.cells))

    def _close(self, slot: int, layer: int, start_ms: int) -> None:
        place = slot, tile_address(layer, start_ms)
        block = self._blocks.get(place, None)
        if block is None or block.complete:
            return
        changed, written = self._changed.setdefault(place, {}), self._written.setdefault(place, {})
        if layer == 0:
            keys = block.open_keys()
        else:
            made = self._made_of_below(slot, layer, start_ms)
            block.cells, block.forms = made.cells, made.forms
            written.update(dict.fromkeys(block.cells))
            keys = [key for key in block.cells if key not in changed]
        block.complete = True
        changed.update(zip(keys, repeat(CLOSED)))
        self._wake(slot, self._ends.forgotten_at(layer, start_ms))
        if keys:
            self._open_above(slot, layer, start_ms)

    def _made_of_below(self, slot: int, layer: int, start_ms: int) -> TileCells:
        """Return the tiles of a layer, made of those of the layer below, which state forgets later."""
        starts = range(start_ms, start_ms + self._layers[layer], self._layers[layer - 1])
        return merged_tiles(self._plan, self._blocks.seen((slot, tile_address(layer - 1, start)) for start in starts))

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
