"""The blocks of tiles that one call of the operator touches: read for all slots at once, changed, written back at once.

Place on the data path: inside the operator of the stream of tiles (`tile_processor`), which says what a
tile's life is. This module carries it out, for all keys of a slot together.

Invariant: state holds each tile once, in the block of its slot and address; a tile of a higher layer that is still
open was never emitted.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

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
from millpond.features.rows import start_of
from millpond.features.sealing import seal_all
from millpond.features.value_codec import VALUE_FORMAT_VERSION
from millpond.spark.features.tile_ends import TileEnds
from millpond.spark.features.tile_rows import AMENDED, CLOSED, CLOSING, MARKED, OPENED, TileRows
from millpond.spark.features.tile_slots import (
    CLOSING_SLOT,
    Block,
    TileCells,
    add_tiles,
    decode_block,
    decode_markers,
    encode_block,
    encode_markers,
)
from millpond.spark.forms.arrow_handles import ArrowProcessorHandle

Place = tuple[int, int]
"""Slot and address of a block."""


class TileStates(NamedTuple):
    """Where the operator keeps blocks and markers: by slot and address."""

    handle: ArrowProcessorHandle
    blocks: Any  # an ArrowMapState


class TouchedTiles:
    """The blocks that one call touches.

    ``_blocks`` has every block that was read or made, None where there is none. ``_changed`` has of each that changed
    what became of its tiles; a tile that is not in it is not emitted.
    """

    def __init__(self, plan: GroupByPlan, retention_ms: int, states: TileStates, watermark_ms: int) -> None:
        self._plan = plan
        self._layers = plan.layers
        self._states = states
        self._watermark_ms = watermark_ms
        self._blocks: dict[Place, Block | None] = {}
        self._changed: dict[Place, dict[bytes, int]] = {}
        self._marked: dict[int, dict[bytes, None]] = {}
        self._gone: dict[Place, None] = {}
        self._due: dict[int, list[int]] = {}
        self._due_times: list[int] = []
        self._ends = TileEnds(plan.layers, retention_ms)
        self._woken: set[tuple[int, int]] = set()
        # In the order in which they are asked for: neighbours share a key group, so that states are written by runs.
        self._timers: dict[tuple[int, int], None] = {}
        self._emitted = TileRows()

    # Reading.

    def _load(self, places: Iterable[Place]) -> None:
        """Read blocks, all at once."""
        missing = [place for place in dict.fromkeys(places) if place not in self._blocks]
        for (slot, address), stored in zip(missing, self._stored(missing), strict=True):
            self._blocks[slot, address] = None if stored is None else decode_block(self._plan.tile_codec, stored)

    def _stored(self, places: list[Place]) -> list[bytes | None]:
        if not places:
            return []
        addresses = pa.table({"address": pa.array([address for _, address in places], pa.int64())})
        found = self._states.blocks.get_many(_slots([slot for slot, _ in places]), addresses)
        stored: list[bytes | None] = found["value"].to_pylist()
        return stored

    def load_open(self, starts: Iterable[tuple[int, int]]) -> None:
        """Read blocks of the smallest tiles, by slot and start."""
        self._load((slot, tile_address(0, start_ms)) for slot, start_ms in starts)

    def load_late(self, starts: Iterable[tuple[int, int]]) -> None:
        """Read blocks of closed tiles, and those of all layers that hold them."""
        self._load(
            (slot, tile_address(layer, tile_start(start_ms, size)))
            for slot, start_ms in starts
            for layer, size in enumerate(self._layers)
        )

    def load_due(self, due: Iterable[tuple[int, int]]) -> None:
        """Read what ends at the times of timers (slot, time), what holds it, and what is to be forgotten."""
        wanted: list[Place] = []
        for slot, time_ms in due:
            self._woken.add((time_ms, slot))
            self._add_due(slot, time_ms)
            wanted += [(slot, address) for address in self._ends.at(time_ms).looked_at]
        self._load(wanted)

    def _block(self, slot: int, address: int) -> Block | None:
        place = (slot, address)
        if place not in self._blocks:
            self._load([place])
        return self._blocks[place]

    # Changing.

    def merge(self, slot: int, start_ms: int, tiles: TileCells) -> list[bytes]:
        """Take events into their tiles, and into those above them that are closed; give the keys whose events are late.

        Args:
            slot: of the keys.
            start_ms: where the tiles start.
            tiles: of nothing but these events.
        """
        return self._feed(slot, 0, start_ms, tiles)

    def close_due(self) -> None:
        """Close every tile that ends by the watermark and is open yet, in the order of their ends."""
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
        """Merge tiles into those of a layer that hold a time, and from the closed ones on into the next layer.

        An absent tile whose end the watermark has passed was complete and empty. Not so where a tile closes
        just now (`closing`): then the ones that hold it were not closed before this batch either.

        Gives the keys whose tiles were closed.
        """
        size = self._layers[layer]
        start = tile_start(start_ms, size)
        address = tile_address(layer, start)
        block = self._block(slot, address)
        if block is None:
            block = self._blocks[slot, address] = Block()
        passed = not closing and start + size <= self._watermark_ms
        closed: list[bytes] = []
        if passed or block.complete or block.versions:
            closed = [key for key in tiles.cells if (block.is_closed(key) if key in block.cells else passed)]
        add_tiles(self._plan, block, tiles)
        changed = self._changed.setdefault((slot, address), {})
        if len(closed) < len(tiles.cells):
            # The block of an open tile that ends by the watermark has its timer in this batch.
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
        block, changed = self._blocks[place], self._changed[place]
        assert block is not None  # noqa: S101 - the tiles were merged into it
        for key in keys:
            # However many events amend a tile in one batch, its version goes up once.
            if changed.get(key) != AMENDED:
                block.versions[key] = block.versions.get(key, 0) + 1
                changed[key] = AMENDED
        self._marked.setdefault(slot, {}).update(dict.fromkeys(keys))
        self._wake(slot, self._ends.forgotten_at(layer, start_ms))

    def _close(self, slot: int, layer: int, start_ms: int) -> None:
        address = tile_address(layer, start_ms)
        block = self._block(slot, address)
        if block is None or block.complete:
            return
        keys = block.open_keys()
        block.complete = True
        self._changed.setdefault((slot, address), {}).update(zip(keys, repeat(CLOSED)))
        self._wake(slot, self._ends.forgotten_at(layer, start_ms))
        if layer + 1 < len(self._layers) and keys:
            self._feed(slot, layer + 1, start_ms, block.of(keys), closing=True)

    def _forget(self, slot: int, address: int) -> None:
        if self._block(slot, address) is not None:
            self._blocks[slot, address] = None
            self._changed.pop((slot, address), None)
            self._gone[slot, address] = None

    def _wake(self, slot: int, time_ms: int) -> None:
        """Come back to a slot at a time: by a timer, or in this call if the watermark has passed it."""
        if time_ms > self._watermark_ms:
            self._timers[slot, time_ms] = None
        elif (time_ms, slot) not in self._woken:
            self._woken.add((time_ms, slot))
            self._add_due(slot, time_ms)

    def tell_closing_time(self) -> None:
        """Emit up to when tiles are closed, and come back at the end of the next one."""
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
        """Write back what changed, set the timers, and give the rows to emit: of each key its marker last."""
        codec = self._plan.tile_codec
        values: dict[Place, bytes] = {}
        for place, changed in self._changed.items():
            block = self._blocks[place]
            assert block is not None  # noqa: S101 - what is forgotten has not changed
            self._emit(place, block, changed)
            values[place] = encode_block(codec, block)
        values |= self._raised_markers()
        self._update(values)
        if self._timers:
            times = pa.array([time_ms for _, time_ms in self._timers], pa.int64())
            self._states.handle.registerTimers(_slots([slot for slot, _ in self._timers]), times)
        return self._emitted.tables()

    def _emit(self, place: Place, block: Block, changed: dict[bytes, int]) -> None:
        """Emit the tiles of a block that changed."""
        codec, address = self._plan.tile_codec, place[1]
        start_ms, size_ms = start_of(address), self._layers[layer_of(address)]
        for (form, version), keys in self._alike(block, changed).items():
            complete = block.complete or version > 0
            opening = codec.opening(form, start_ms, size_ms, complete=complete, version=version)
            values = seal_all(VALUE_FORMAT_VERSION, keys, [opening + block.cells[key] for key in keys])
            self._emitted.add_tiles(keys, address, values, [changed[key] for key in keys])

    def _alike(self, block: Block, keys: Collection[bytes]) -> dict[tuple[bytes, int], list[bytes]]:
        """Give the keys of tiles that begin with the same bytes, by form and version."""
        whole = self._plan.tile_codec.form
        if not (block.forms or block.versions):
            return {(whole, 0): list(keys)}
        alike: dict[tuple[bytes, int], list[bytes]] = {}
        for key in keys:
            alike.setdefault((block.forms.get(key, whole), block.versions.get(key, 0)), []).append(key)
        return alike

    def _raised_markers(self) -> dict[Place, bytes]:
        """Raise the markers of the keys whose closed tiles changed, and emit them."""
        places = [(slot, MARKER_ADDRESS) for slot in self._marked]
        raised: dict[Place, bytes] = {}
        for (slot, address), stored in zip(places, self._stored(places), strict=True):
            markers = {} if stored is None else decode_markers(stored)
            for key in sorted(self._marked[slot]):
                markers[key] = amendments = markers.get(key, 0) + 1
                self._emitted.add(key, address, encode_marker(key, amendments), MARKED, amendments)
            raised[slot, address] = encode_markers(markers)
        return raised

    def _update(self, values: dict[Place, bytes]) -> None:
        if values:
            addresses = {"address": pa.array([address for _, address in values], pa.int64())}
            stored = {"value": pa.array(list(values.values()), pa.binary())}
            self._states.blocks.update_many(_slots([slot for slot, _ in values]), addresses, stored)
        if self._gone:
            addresses = {"address": pa.array([address for _, address in self._gone], pa.int64())}
            self._states.blocks.remove_many(_slots([slot for slot, _ in self._gone]), addresses)


def _slots(slots: list[int]) -> pa.Table:
    return pa.table({"slot": pa.array(slots, pa.int32())})
