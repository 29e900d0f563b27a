"""Hash slots: the keys of a stream of tiles, divided into a fixed number of parts.

Place on the data path: between the events of a stream and the operator's state. The operator's key is a slot, and
its state holds the tiles of all keys of a slot that start together as one *block*. So what is done once for each key
of the state (reading, writing, timers, the commit) is done once for hundreds of tiles.

A block of more keys than a few dozen lies in leaves (`tile_leaves`), so that a change does not write all of it.

    block:           [form, complete, {key: packed cells}, {key: version}, {key: form}]
    combined tiles:  {start: [[key], [packed cells], [number of events]]}

A tile of a block has version 0 and the block's form if it is not among the versions and forms. Only late events give
a tile a version, so one that has a version is complete, and all others are as the block says.

Source: Redis Cluster's hash slots, for the division.
"""

import zlib
from collections.abc import Collection, Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from millpond.features import GroupByPlan, Ir
from millpond.features.value_codec import TileCodec
from millpond.features.value_header import DECODE_ERRORS, checked_body, unreadable, with_header

SLOTS = 256
"""How many slots there are; a stream keeps its number as long as its checkpoint lives."""

CLOSING_SLOT = SLOTS
"""The slot of no key: its batches and timers say up to when tiles are closed."""

FORMAT_VERSION = 1
"""The format of a block and of a slot's markers."""

_WHAT = "block of tiles"

_KEY_BYTES = 6
"""What a key and its tile take besides their own bytes, at most."""


def slot_of(key: bytes) -> int:
    """Give the slot of a key.

    >>> slot_of(b"EWR"), slot_of(b"JFK")
    (114, 159)
    """
    return zlib.crc32(key) % SLOTS


class TileCells:
    """The packed cells of some keys' tiles.

    Attributes:
        cells: of each key its packed cells.
        forms: of each key whose tile lacks cells of the plan, the form of its cells.
    """

    __slots__ = ("cells", "forms")

    def __init__(self, cells: dict[bytes, bytes] | None = None, forms: dict[bytes, bytes] | None = None) -> None:
        self.cells: dict[bytes, bytes] = {} if cells is None else cells
        self.forms: dict[bytes, bytes] = {} if forms is None else forms

    def of(self, keys: Sequence[bytes]) -> "TileCells":
        """Give the tiles of some of the keys."""
        if len(keys) == len(self.cells):
            return TileCells(self.cells, self.forms)
        cells, forms = self.cells, self.forms
        return TileCells({key: cells[key] for key in keys}, {key: forms[key] for key in keys if key in forms})


class Block(TileCells):
    """The tiles of a slot's keys that start together; of markers, which have no cells, the versions alone.

    Attributes:
        complete: whether the watermark has passed their end.
        versions: of each key whose tile late events have amended, how often.
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
        """Give the keys that it has."""
        return self.cells or self.versions

    def sizes(self) -> npt.NDArray[np.int64]:
        """Give of each key how many bytes it takes, about."""
        keys, cells = self.keys(), self.cells
        sizes = np.fromiter(map(len, keys), np.int64, len(keys)) + _KEY_BYTES
        return sizes + np.fromiter(map(len, cells.values()), np.int64, len(cells)) if cells else sizes

    def size(self) -> int:
        """Give how many bytes all keys take, about."""
        return sum(map(len, self.keys())) + sum(map(len, self.cells.values())) + _KEY_BYTES * len(self.keys())

    def part(self, keys: Iterable[bytes]) -> "Block":
        """Give the block of some of the keys, not complete."""
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
        """Take in the keys of a part."""
        self.cells.update(part.cells)
        if part.forms:
            self.forms.update(part.forms)
        if part.versions:
            self.versions.update(part.versions)

    def is_closed(self, key: bytes) -> bool:
        """Tell whether the tile of a key is closed."""
        return self.complete or key in self.versions

    def open_keys(self) -> list[bytes]:
        """Give the keys whose tiles are open."""
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
    """The events of a slot's keys in one tile of each, combined.

    Args:
        keys: each at most once.
        cells: the packed cells of each.
        events: how many events each has.
    """

    keys: list[bytes]
    cells: list[bytes]
    events: list[int]


_encode = msgspec.msgpack.Encoder().encode
_decode_block = msgspec.msgpack.Decoder(_StoredBlock).decode
_decode_markers = msgspec.msgpack.Decoder(dict[bytes, int]).decode
_decode_combined = msgspec.msgpack.Decoder(dict[int, CombinedTiles]).decode


def encode_combined(tiles: dict[int, CombinedTiles]) -> bytes:
    """Give the bytes of a slot's combined tiles, by where they start."""
    return _encode(tiles)


def decode_combined(data: bytes) -> dict[int, CombinedTiles]:
    """Read what `encode_combined` wrote.

    >>> decode_combined(encode_combined({0: CombinedTiles([b"EWR"], [b"cells"], [2])}))[0].events
    [2]
    """
    found: dict[int, CombinedTiles] = _decode_combined(data)
    return found


def encode_block(codec: TileCodec, block: Block) -> bytes:
    """Give the bytes of a block."""
    stored = _StoredBlock(codec.form, block.complete, block.cells, block.versions, block.forms)
    return with_header(FORMAT_VERSION, _encode(stored))


def decode_block(codec: TileCodec, data: bytes) -> Block:
    """Give the block that bytes hold, with the cells of the codec's plan.

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
    """Give the tiles of a block the cells of a plan that has changed."""
    former, block.forms = block.forms, {}
    for key, cells in block.cells.items():
        known, block.cells[key] = codec.pack(codec.unpack(former.get(key, form), cells))
        if known != codec.form:
            block.forms[key] = known


def encode_markers(markers: dict[bytes, int]) -> bytes:
    """Give the bytes of how often closed tiles of a slot's keys were amended."""
    return with_header(FORMAT_VERSION, _encode(markers))


def decode_markers(data: bytes) -> dict[bytes, int]:
    """Read what `encode_markers` wrote.

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
    """Merge other tiles into some tiles, of which they may share keys."""
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


def _ir(plan: GroupByPlan, tiles: TileCells, key: bytes) -> Ir:
    codec = plan.tile_codec
    return codec.unpack(tiles.forms.get(key, codec.form), tiles.cells[key])
