"""The tiles that one call of the operator touches: read for all keys at once, changed, written back for all at once.

Place on the data path: inside the operator of the stream of tiles (`tile_processor`), which says what a
tile's life is. This module carries it out.

Invariant: `others` and `newest` together hold each tile once, as the bytes that were last emitted; a
tile of a higher layer that is still open was never emitted.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from millpond.features import (
    CLOSING_KEY,
    MARKER_ADDRESS,
    GroupByPlan,
    Ir,
    Tile,
    decode_marker,
    encode_marker,
    tile_address,
    tile_start,
)
from millpond.spark.forms.arrow_handles import ArrowProcessorHandle

TILE_SCHEMA = "key binary, address bigint, value binary, change int, amount bigint"
"""What the operator emits: a row for the KV store and what it is; see `Change`."""

OPENED, CLOSED, AMENDED, MARKED, CLOSING, LATE, FORGOTTEN = range(7)
"""What a row is: an open, closed or amended tile; a marker; and in ``amount`` a closing time or a count of events."""

_UNREAD = object()
_NOT_TOLD = -1
"""A tile of a higher layer that is still open: it changed, and is emitted when it closes."""


class _Ends(NamedTuple):
    """What ends at a time, for any key.

    Args:
        closed: layer and start of the tiles that end then, the smallest first.
        forgotten: the addresses of the tiles that state drops then.
        looked_at: the addresses of all tiles that are looked at for that.
    """

    closed: tuple[tuple[int, int], ...]
    forgotten: tuple[int, ...]
    looked_at: tuple[int, ...]


class TileStates(NamedTuple):
    """Where the operator keeps tiles: of each key the newest open one, and all others by their addresses."""

    handle: ArrowProcessorHandle
    newest: Any  # an ArrowValueState
    others: Any  # an ArrowMapState


_FIRST_LAYER_ABOVE = MARKER_ADDRESS
"""Below it lie the addresses of the smallest tiles."""

_OUTPUT = pa.schema(
    [
        ("key", pa.binary()),
        ("address", pa.int64()),
        ("value", pa.binary()),
        ("change", pa.int32()),
        ("amount", pa.int64()),
    ]
)


class _Row(msgspec.Struct, frozen=True, gc=False):
    key: bytes
    address: int
    value: bytes | None
    change: int
    amount: int = 0


class TouchedTiles:
    """The tiles that one call touches: read for all keys at once, changed here, written back for all keys at once.

    ``_tiles`` has every tile that was read or made, by key and address, None where there is none. Stored bytes are
    decoded when their tile is looked at, and bytes that did not change are written as they are.
    """

    def __init__(
        self, plan: GroupByPlan, retention_ms: int, states: TileStates, keys: pa.Table, watermark_ms: int
    ) -> None:
        self._plan = plan
        self._layers = plan.layers
        self._retention_ms = retention_ms
        self._states = states
        self._watermark_ms = watermark_ms
        self._tiles: dict[tuple[bytes, int], Tile | bytes | None] = {}
        self._markers: dict[bytes, int] = {}
        self._changed: dict[tuple[bytes, int], int] = {}
        self._marked: set[bytes] = set()
        self._gone: set[tuple[bytes, int]] = set()
        self._due: dict[int, list[bytes]] = {}
        self._due_times: list[int] = []
        self._ends: dict[int, _Ends] = {}
        self._woken: set[tuple[int, bytes]] = set()
        # In the order in which they are asked for: neighbours share a key group, so that states are written by runs.
        self._timers: dict[tuple[bytes, int], None] = {}
        self.emitted: list[_Row] = []
        names = keys.column("key").to_pylist()
        found = self._states.newest.get_many(keys)
        self._newest_starts: dict[bytes, int | None] = dict(zip(names, found["start_ms"].to_pylist(), strict=True))
        for (key, start_ms), stored in zip(self._newest_starts.items(), found["tile"].to_pylist(), strict=True):
            if start_ms is not None:
                self._tiles[key, start_ms] = stored

    # Reading.

    def load_open(self, pairs: Iterable[tuple[bytes, int]]) -> None:
        """Read tiles of the smallest layer; a tile that is newer than the newest cannot be there."""
        wanted = []
        for key, start_ms in pairs:
            newest = self._newest_starts[key]
            if newest is None or start_ms > newest:
                self._tiles[key, start_ms] = None
            else:
                wanted.append((key, start_ms))
        self._load(wanted)

    def load_late(self, pairs: Sequence[tuple[bytes, int]]) -> None:
        """Read closed tiles, those of all layers that hold them, and the markers of their keys."""
        wanted = [
            (key, tile_address(layer, tile_start(start_ms, size)))
            for key, start_ms in pairs
            for layer, size in enumerate(self._layers)
        ]
        self._load([*wanted, *((key, MARKER_ADDRESS) for key, _ in pairs)])

    def load_due(self, due: Iterable[tuple[bytes, int]]) -> None:
        """Read the tiles that end at the times of timers, those that hold them, and those to be forgotten."""
        wanted: list[tuple[bytes, int]] = []
        for key, time_ms in due:
            self._woken.add((time_ms, key))
            self._add_due(key, time_ms)
            wanted += [(key, address) for address in self._ends_at(time_ms).looked_at]
        self._load(wanted)

    def _load(self, wanted: Iterable[tuple[bytes, int]]) -> None:
        missing = [place for place in dict.fromkeys(wanted) if place not in self._tiles]
        if not missing:
            return
        keys = pa.table({"key": pa.array([key for key, _ in missing], pa.binary())})
        addresses = pa.table({"address": pa.array([address for _, address in missing], pa.int64())})
        found = self._states.others.get_many(keys, addresses)["value"].to_pylist()
        for (key, address), stored in zip(missing, found, strict=True):
            if address == MARKER_ADDRESS:
                self._markers[key] = 0 if stored is None else decode_marker(key, stored)
                self._tiles[key, address] = None
            else:
                self._tiles[key, address] = stored

    # Changing.

    def merge(self, key: bytes, start_ms: int, parts: Sequence[bytes]) -> bool:
        """Take events into their tile, and into those above it that are closed; tell whether they were late.

        Args:
            key: of the events.
            start_ms: where their tile starts.
            parts: tiles of nothing but these events, as bytes. The only part of a new tile is the tile.
        """
        place, end_ms = (key, start_ms), start_ms + self._layers[0]
        if len(parts) == 1 and end_ms > self._watermark_ms and self._tiles.get(place, _UNREAD) is None:
            self._tiles[place] = parts[0]
            self._changed.setdefault(place, OPENED)
            self._wake(key, end_ms)
            return False
        return self._feed(
            key, 0, start_ms, self._plan.merge_tiles([self._plan.decode_tile(key, one).ir for one in parts])
        )

    def close_due(self) -> None:
        """Close every tile that ends by the watermark and is open yet, in the order of their ends."""
        while self._due_times:
            time_ms = heapq.heappop(self._due_times)
            ends = self._ends_at(time_ms)
            for key in self._due.pop(time_ms):
                for layer, start_ms in ends.closed:
                    self._close(key, layer, start_ms)
                for address in ends.forgotten:
                    self._forget(key, address)

    def _ends_at(self, time_ms: int) -> "_Ends":
        """Give what ends at a time; it is the same for all keys."""
        if time_ms not in self._ends:
            forgotten_ms = time_ms - self._retention_ms
            closed = [(layer, time_ms - size) for layer, size in enumerate(self._layers) if time_ms % size == 0]
            # The layers divide each other, so these are the first ones; the tile above the last of them takes it in.
            above = self._layers[len(closed) : len(closed) + 1] if closed else ()
            looked_at = [tile_address(layer, start_ms) for layer, start_ms in closed]
            looked_at += [tile_address(len(closed), tile_start(time_ms - 1, size)) for size in above]
            forgotten = [one for layer in range(len(self._layers)) for one in self._forgotten(layer, forgotten_ms)]
            self._ends[time_ms] = _Ends(tuple(closed), tuple(forgotten), (*looked_at, *forgotten))
        return self._ends[time_ms]

    def _add_due(self, key: bytes, time_ms: int) -> None:
        if time_ms not in self._due:
            self._due[time_ms] = []
            heapq.heappush(self._due_times, time_ms)
        self._due[time_ms].append(key)

    def _forgotten(self, layer: int, time_ms: int) -> list[int]:
        """Give the addresses of a layer's tiles that are forgotten together, once the last one ended at a time."""
        size, span = self._layers[layer], self._span(layer)
        if time_ms % span:
            return []
        return [tile_address(layer, start_ms) for start_ms in range(time_ms - span, time_ms, size)]

    def _span(self, layer: int) -> int:
        """Give the size of the spans whose tiles of a layer are forgotten together: one timer for all of them."""
        return self._layers[min(layer + 1, len(self._layers) - 1)]

    def _forget_later(self, key: bytes, layer: int, start_ms: int) -> None:
        span = self._span(layer)
        self._wake(key, tile_start(start_ms, span) + span + self._retention_ms)

    def _feed(self, key: bytes, layer: int, start_ms: int, ir: Ir, *, closing: bool = False) -> bool:
        """Merge an IR into the tile of a layer that holds a time; from a closed tile it goes on to the next layer.

        An absent tile whose end the watermark has passed was complete and empty. Not so where a tile closes
        just now (`closing`): then the ones that hold it were not closed before this batch either.
        """
        amended = False
        for number in range(layer, len(self._layers)):
            size = self._layers[number]
            start = tile_start(start_ms, size)
            address = tile_address(number, start)
            former = self._tile(key, address)
            closed = former.complete if former else not closing and start + size <= self._watermark_ms
            merged = ir if former is None else self._plan.merge_tiles((former.ir, ir))
            if not closed:
                if former is None:
                    self._wake(key, start + size)
                version = 0 if former is None else former.version
                self._tiles[key, address] = Tile(start, size, version=version, ir=merged)
                self._changed.setdefault((key, address), OPENED if number == 0 else _NOT_TOLD)
                return amended
            amended = True
            # However many events amend a tile in one batch, its version goes up once.
            raised = 0 if self._changed.get((key, address)) == AMENDED else 1
            version = raised if former is None else former.version + raised
            self._tiles[key, address] = Tile(start, size, complete=True, version=version, ir=merged)
            self._changed[key, address] = AMENDED
            self._marked.add(key)
            if former is None:
                self._forget_later(key, number, start)
        return amended

    def _close(self, key: bytes, layer: int, start_ms: int) -> None:
        address = tile_address(layer, start_ms)
        tile = self._tile(key, address)
        if tile is None or tile.complete:
            return
        size = self._layers[layer]
        self._tiles[key, address] = Tile(start_ms, size, complete=True, version=tile.version, ir=tile.ir)
        self._changed[key, address] = CLOSED
        above = layer + 1
        # A tile that is there above was fed by one of the same span, which has set the timer.
        if above == len(self._layers) or not self._is_there(key, above, start_ms):
            self._forget_later(key, layer, start_ms)
        if above < len(self._layers):
            self._feed(key, above, start_ms, tile.ir, closing=True)

    def _is_there(self, key: bytes, layer: int, time_ms: int) -> bool:
        return self._tile(key, tile_address(layer, tile_start(time_ms, self._layers[layer]))) is not None

    def _forget(self, key: bytes, address: int) -> None:
        if (key, address) not in self._tiles:
            self._load([(key, address)])
        if self._tiles[key, address] is not None:
            self._tiles[key, address] = None
            self._changed.pop((key, address), None)
            self._gone.add((key, address))

    def _tile(self, key: bytes, address: int) -> Tile | None:
        place = (key, address)
        if place not in self._tiles:
            self._load([place])
        tile = self._tiles[place]
        if isinstance(tile, bytes):
            self._tiles[place] = tile = self._plan.decode_tile(key, tile)
        return tile

    def _wake(self, key: bytes, time_ms: int) -> None:
        """Come back to a key at a time: by a timer, or in this call if the watermark has passed it."""
        if time_ms > self._watermark_ms:
            self._timers[key, time_ms] = None
        elif (time_ms, key) not in self._woken:
            self._woken.add((time_ms, key))
            self._add_due(key, time_ms)

    def tell_closing_time(self) -> None:
        """Emit up to when tiles are closed, and come back at the end of the next one."""
        size = self._layers[0]
        closed_ms = tile_start(self._watermark_ms, size)
        self._timers[CLOSING_KEY, closed_ms + size] = None
        self.emitted.append(_Row(CLOSING_KEY, 0, None, CLOSING, closed_ms))

    def count(self, what: int, events: int) -> None:
        """Emit a count of events."""
        if events:
            self.emitted.append(_Row(b"", 0, None, what, events))

    # Writing.

    def written(self) -> pa.Table:
        """Write back what changed, set the timers, and give the rows to emit: of each key its marker last."""
        encoded = {
            (key, address): self._encoded(key, address)
            for key, address in self._changed
            if self._tiles[key, address] is not None
        }
        for (key, address), change in self._changed.items():
            if change != _NOT_TOLD and (key, address) in encoded:
                self.emitted.append(_Row(key, address, encoded[key, address], change))
        self._write_states(encoded)
        if self._timers:
            keys = pa.table({"key": pa.array([key for key, _ in self._timers], pa.binary())})
            self._states.handle.registerTimers(keys, pa.array([time_ms for _, time_ms in self._timers], pa.int64()))
        rows = self.emitted
        return pa.table(
            [
                pa.array([row.key for row in rows], pa.binary()),
                pa.array([row.address for row in rows], pa.int64()),
                pa.array([row.value for row in rows], pa.binary()),
                pa.array([row.change for row in rows], pa.int32()),
                pa.array([row.amount for row in rows], pa.int64()),
            ],
            schema=_OUTPUT,
        )

    def _write_states(self, encoded: dict[tuple[bytes, int], bytes]) -> None:
        others: dict[tuple[bytes, int], bytes] = {}
        newest: dict[bytes, tuple[int, bytes] | None] = {}
        for (key, address), value in encoded.items():
            tile = self._tiles[key, address]
            kept = self._newest_starts.get(key)
            is_open = address < _FIRST_LAYER_ABOVE and (isinstance(tile, bytes) or not (tile is None or tile.complete))
            if is_open and (kept is None or address >= kept):
                if kept is not None and kept < address:
                    others[key, kept] = encoded.get((key, kept)) or self._encoded(key, kept)
                newest[key] = (address, value)
                self._newest_starts[key] = address
            else:
                others[key, address] = value
                if kept == address:
                    newest[key] = None
                    self._newest_starts[key] = None
        self._load((key, MARKER_ADDRESS) for key in sorted(self._marked) if key not in self._markers)
        for key in sorted(self._marked):
            amendments = self._markers.get(key, 0) + 1
            others[key, MARKER_ADDRESS] = marker = encode_marker(key, amendments)
            self.emitted.append(_Row(key, MARKER_ADDRESS, marker, MARKED, amendments))
        self._update_newest(newest)
        self._update_others(others)

    def _encoded(self, key: bytes, address: int) -> bytes:
        tile = self._tiles[key, address]
        assert tile is not None  # noqa: S101 - what is written was read or made
        return tile if isinstance(tile, bytes) else self._plan.encode_tile(key, tile)

    def _update_newest(self, newest: dict[bytes, tuple[int, bytes] | None]) -> None:
        kept = {key: value for key, value in newest.items() if value is not None}
        if kept:
            keys = pa.table({"key": pa.array(list(kept), pa.binary())})
            starts, tiles = zip(*kept.values(), strict=True)
            self._states.newest.update_many(
                keys, {"start_ms": pa.array(starts, pa.int64()), "tile": pa.array(tiles, pa.binary())}
            )
        gone = [key for key, value in newest.items() if value is None]
        if gone:
            self._states.newest.clear_many(pa.table({"key": pa.array(gone, pa.binary())}))

    def _update_others(self, others: dict[tuple[bytes, int], bytes]) -> None:
        if others:
            keys = pa.table({"key": pa.array([key for key, _ in others], pa.binary())})
            addresses = {"address": pa.array([address for _, address in others], pa.int64())}
            self._states.others.update_many(keys, addresses, {"value": pa.array(list(others.values()), pa.binary())})
        if self._gone:
            gone = sorted(self._gone)
            keys = pa.table({"key": pa.array([key for key, _ in gone], pa.binary())})
            self._states.others.remove_many(keys, {"address": pa.array([address for _, address in gone], pa.int64())})
