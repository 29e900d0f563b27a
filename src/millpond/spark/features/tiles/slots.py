"""Hash slots: the keys of a stream of tiles, divided into a fixed number of parts.

Place on the data path: between the events of a stream and the operator's state. The operator's key is a slot. Its state
holds *blocks*: a block has the tiles of all keys of a slot that start together. So the cost of each key of the state
(reading, writing, timers, the commit) is paid once for hundreds of tiles.

A block with more than a few dozen keys is divided into leaves (`leaves`), so that a change does not rewrite all of
it.

    block:           [form, complete, {key: packed cells}, {key: version}, {key: form}]
    combined tiles:  {start: [[key], [packed cells], [number of events]]}

A key that is not among a block's versions has a tile of version 0. A key that is not among its forms has a tile of the
block's form. Only late events give a tile a version. So a tile with a version is complete, and every other tile is
complete if its block is.

Source: Redis Cluster's hash slots, for the division.
"""

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from millpond.features import GroupByPlan, Ir
from millpond.features.stored.value_codec import TileCodec
from millpond.features.stored.value_header import DECODE_ERRORS, checked_body, unreadable, with_header

SLOTS = 256
"""The number of slots. A stream keeps its number of slots as long as its checkpoint lives."""

CLOSING_SLOT = SLOTS
"""The slot of no key. Its batches and timers make the operator emit the closing time."""

FORMAT_VERSION = 1
"""The format of a block and of a slot's markers."""

_WHAT = "block of tiles"

_KEY_BYTES = 6
"""The most bytes that a key and its tile take besides their own."""


def slot_of(key: bytes) -> int:
    """Return the slot of a key.

    >>> slot_of(b"EWR"), slot_of(b"JFK")
    (114, 159)
    """
    return zlib.crc32(key) % SLOTS


def slots_of(keys: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """Return the slot of each key.

    >>> slots_of([b"EWR", b"JFK"]).tolist()
    [114, 159]
    """
    return (np.fromiter(map(zlib.crc32, keys), np.int64, len(keys)) % SLOTS).astype(np.int32)


class TileCells:
    """The packed cells of some keys' tiles.

    Attributes:
        cells: the packed cells of each key.
        forms: the form of each tile that lacks cells of the plan, by key.
    """

    __slots__ = ("cells", "forms")

    def __init__(self, cells: dict[bytes, bytes] | None = None, forms: dict[bytes, bytes] | None = None) -> None:
        self.cells: dict[bytes, bytes] = {} if cells is None else cells
        self.forms: dict[bytes, bytes] = {} if forms is None else forms

    def of(self, keys: Sequence[bytes]) -> "TileCells":
        """Return the tiles of some of the keys."""
        if len(keys) == len(self.cells):
            return TileCells(self.cells, self.forms)
        cells, forms = self.cells, self.forms
        return TileCells({key: cells[key] for key in keys}, {key: forms[key] for key in keys if key in forms})


class Block(TileCells):
    """The tiles of a slot's keys that start together. A block of markers has only versions, and no cells.

    Attributes:
        complete: whether the watermark has passed the end of the tiles.
        versions: the number of amendments by late events, for each key whose tile has any.
    """

    __slots__ = ("complete", "versions")

    def __init__(
        self,
        cells: dict[bytes, bytes] | None = None,
        forms: dict[bytes, bytes] | None = None,
        *,
        complete: bool = False,
        versions: dict[bytes, int] | None = None,
    ) -> None:
        super().__init__(cells, forms)
        self.complete = complete
        self.versions: dict[bytes, int] = {} if versions is None else versions

    def keys(self) -> Collection[bytes]:
        """Return the keys of the block."""
        return self.cells or self.versions

    def sizes(self) -> npt.NDArray[np.int64]:
        """Return about how many bytes each key takes."""
        keys, cells = self.keys(), self.cells
        sizes = np.fromiter(map(len, keys), np.int64, len(keys)) + _KEY_BYTES
        return sizes + np.fromiter(map(len, cells.values()), np.int64, len(cells)) if cells else sizes

    def fits(self, most: int) -> bool:
        """Return whether all keys take about so many bytes at most."""
        keys = self.keys()
        rest = most - _KEY_BYTES * len(keys)
        return rest >= 0 and sum(map(len, keys)) + sum(map(len, self.cells.values())) <= rest

    def part(self, keys: Iterable[bytes]) -> "Block":
        """Return a block of some of the keys; it is not marked complete."""
        cells, forms, versions = self.cells, self.forms, self.versions
        if not cells:
            return Block(versions={key: versions[key] for key in keys})
        part = Block({key: cells[key] for key in keys})
        if forms:
            part.forms = {key: forms[key] for key in part.cells if key in forms}
        if versions:
            part.versions = {key: versions[key] for key in part.cells if key in versions}
        return part

    def take(self, part: "Block") -> None:
        """Add the keys of another block."""
        self.cells.update(part.cells)
        if part.forms:
            self.forms.update(part.forms)
        if part.versions:
            self.versions.update(part.versions)

    def is_closed(self, key: bytes) -> bool:
        """Return whether the tile of a key is closed."""
        return self.complete or key in self.versions

    def open_keys(self) -> list[bytes]:
        """Return the keys whose tiles are open."""
        if self.complete:
            return []
        versions = self.versions
        return [key for key in self.cells if key not in versions] if versions else list(self.cells)


class _StoredBlock(msgspec.Struct, array_like=True):
    form: bytes
    complete: bool
    cells: dict[bytes, bytes]
    versions: dict[bytes, int]
    forms: dict[bytes, bytes]


class CombinedTiles(msgspec.Struct, array_like=True):
    """The combined events of a slot's keys; each key has one tile.

    Args:
        keys: the keys, each at most once.
        cells: the packed cells of each key.
        events: the number of events of each key.
    """

    keys: list[bytes]
    cells: list[bytes]
    events: list[int]


_encode = msgspec.msgpack.Encoder().encode
_decode_block = msgspec.msgpack.Decoder(_StoredBlock).decode
_decode_markers = msgspec.msgpack.Decoder(dict[bytes, int]).decode
_decode_combined = msgspec.msgpack.Decoder(dict[int, CombinedTiles]).decode


def encode_combined(tiles: dict[int, CombinedTiles]) -> bytes:
    """Return the bytes of a slot's combined tiles, given by start."""
    return _encode(tiles)


def decode_combined(data: bytes) -> dict[int, CombinedTiles]:
    """Return the combined tiles that `encode_combined` wrote, by start.

    >>> decode_combined(encode_combined({0: CombinedTiles([b"EWR"], [b"cells"], [2])}))[0].events
    [2]
    """
    found: dict[int, CombinedTiles] = _decode_combined(data)
    return found


def encode_block(codec: TileCodec, block: Block) -> bytes:
    """Return the bytes of a block."""
    stored = _StoredBlock(codec.form, block.complete, block.cells, block.versions, block.forms)
    return with_header(FORMAT_VERSION, _encode(stored))


def decode_block(codec: TileCodec, data: bytes) -> Block:
    """Return the block that bytes hold, with the cells of the codec's plan.

    Raises:
        CorruptionError: the bytes are torn or altered, or of another generation.
    """
    try:
        stored = _decode_block(checked_body(FORMAT_VERSION, data, _WHAT))
    except DECODE_ERRORS as cause:
        raise unreadable(_WHAT, str(cause)) from cause
    block = Block(stored.cells, stored.forms, complete=stored.complete, versions=stored.versions)
    if stored.form != codec.form:
        codec.check_generation(stored.form)
        _take_over(codec, stored.form, block)
    return block


def _take_over(codec: TileCodec, form: bytes, block: Block) -> None:
    """Convert the tiles of a block to the cells of a plan that has changed."""
    former, block.forms = block.forms, {}
    for key, cells in block.cells.items():
        known, block.cells[key] = codec.pack(codec.unpack(former.get(key, form), cells))
        if known != codec.form:
            block.forms[key] = known


def encode_markers(markers: dict[bytes, int]) -> bytes:
    """Return the bytes of the markers of a slot's keys: how often closed tiles of each key were amended."""
    return with_header(FORMAT_VERSION, _encode(markers))


def decode_markers(data: bytes) -> dict[bytes, int]:
    """Return the markers that `encode_markers` wrote.

    Raises:
        CorruptionError: the bytes are torn or altered.

    >>> decode_markers(encode_markers({b"EWR": 3}))
    {b'EWR': 3}
    """
    try:
        found: dict[bytes, int] = _decode_markers(checked_body(FORMAT_VERSION, data, "block of markers"))
    except DECODE_ERRORS as cause:
        raise unreadable("block of markers", str(cause)) from cause
    return found


def add_tiles(plan: GroupByPlan, tiles: TileCells, others: TileCells) -> None:
    """Merge `others` into `tiles`. Both may have tiles of the same key."""
    cells, forms = tiles.cells, tiles.forms
    both = [key for key in others.cells if key in cells] if cells else []
    partial: list[bytes] = []
    if forms or others.forms:
        partial = [key for key in both if key in forms or key in others.forms]
        both = [key for key in both if key not in forms and key not in others.forms]
    merged = plan.tile_codec.packed.merge([cells[key] for key in both], [others.cells[key] for key in both])
    irs = [plan.merge_tiles((_ir(plan, tiles, key), _ir(plan, others, key))) for key in partial]
    cells.update(others.cells)
    forms.update(others.forms)
    cells.update(zip(both, merged, strict=True))
    for key, ir in zip(partial, irs, strict=True):
        forms[key], cells[key] = plan.tile_codec.pack(ir)


def merged_tiles(plan: GroupByPlan, parts: Iterable[TileCells]) -> TileCells:
    """Merge the tiles of several parts, which do not change."""
    merged, partial = TileCells(), TileCells()
    runs: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for part in parts:
        if part.forms:
            add_tiles(plan, partial, part)
            continue
        for key, cells in part.cells.items():
            runs[key].append(cells)
    merged.cells = {key: run[0] for key, run in runs.items()}
    several = {key: run for key, run in runs.items() if len(run) > 1}
    merged.cells.update(zip(several, plan.tile_codec.packed.merge_runs(list(several.values())), strict=True))
    add_tiles(plan, merged, partial)
    return merged


def _ir(plan: GroupByPlan, tiles: TileCells, key: bytes) -> Ir:
    codec = plan.tile_codec
    return codec.unpack(tiles.forms.get(key, codec.form), tiles.cells[key])
