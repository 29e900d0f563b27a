"""Blocks of tiles in keyed state. A large block is divided into leaves, so that a change writes only its own leaf.

Place on the data path: inside the operator of the stream of tiles, between the changes of one call (`touched_tiles`)
and the states of the Arrow form.

A small block is one entry of state. A block that outgrows `LEAF_BYTES` is *divided*: its keys go into *leaves* of up to
that size, each an entry of its own, and the block's own entry becomes a *root*. A leaf has the keys of one range of
hashes. The root says where the ranges begin, and whether the tiles are complete. So a change writes the leaves of its
keys, and closing a divided block writes only its root. A leaf that outgrows the size is divided in turn, as in a
B-tree, and no other leaf is touched. So what a call writes depends on the keys that it changed, not on how many keys
there are.

    blocks: address                -> a block, or a root:         [complete, [where the range of each leaf begins]]
    leaves: address, range's begin -> a block of the keys of that range, or markers of such keys

Invariant: the ranges of a root cover all hashes, so the first one begins at 0, and each range has its leaf in state.
The mark of completeness in a leaf is ignored. An undivided block in stored state may have any size; it is divided when
it changes.

Trade-off: with small leaves a change writes little, but state has more entries. Leaves are never joined again: tiles
only grow, and a forgotten block is removed whole.

Source: R. Bayer and E. McCreight, "Organization and Maintenance of Large Ordered Indexes" (1972), for the division.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.features import MARKER_ADDRESS
from millpond.features.stored.value_codec import TileCodec
from millpond.features.stored.value_header import DECODE_ERRORS, checked_body, unreadable, with_header
from millpond.spark.features.tiles.slots import Block, decode_block, decode_markers, encode_block, encode_markers
from millpond.spark.forms.arrow_handles import ArrowProcessorHandle

LEAF_BYTES = 1_024
"""About the most bytes of tiles in one entry of state. A single tile may be larger."""

ROOT_FORMAT_VERSION = 2
"""The format of a root. Blocks and markers have format 1, so the first byte tells them from a root."""

_ROOT_FORMAT_BYTE = bytes([ROOT_FORMAT_VERSION])

Place = tuple[int, int]
"""Slot and address of a block."""

_HASHES = 1 << 32
_WHAT = "root of a block of tiles"


class TileStates(NamedTuple):
    """The states of the operator: blocks by slot and address, leaves by slot, address and begin of range."""

    handle: ArrowProcessorHandle
    blocks: Any  # an ArrowMapState
    leaves: Any  # an ArrowMapState

    @classmethod
    def of(cls, handle: ArrowProcessorHandle) -> "TileStates":
        """Declare the states."""
        return cls(
            handle,
            handle.getMapState("blocks", "address bigint", "value binary"),
            handle.getMapState("leaves", "address bigint, begin bigint", "value binary"),
        )


class _Root(msgspec.Struct, array_like=True):
    complete: bool
    begins: list[int]


_encode = msgspec.msgpack.Encoder().encode
_decode_root = msgspec.msgpack.Decoder(_Root).decode


def encode_root(begins: list[int], *, complete: bool) -> bytes:
    """Return the bytes of the root of a divided block."""
    return with_header(ROOT_FORMAT_VERSION, _encode(_Root(complete, begins)))


def decode_root(data: bytes) -> tuple[bool, list[int]]:
    """Return whether the tiles of a divided block are complete, and where the ranges of its leaves begin.

    Raises:
        CorruptionError: the bytes are torn or altered.

    >>> decode_root(encode_root([0, 2_000_000_000], complete=True))
    (True, [0, 2000000000])
    """
    try:
        root = _decode_root(checked_body(ROOT_FORMAT_VERSION, data, _WHAT))
    except DECODE_ERRORS as cause:
        raise unreadable(_WHAT, str(cause)) from cause
    if root.begins[:1] != [0] or any(begin >= after for begin, after in pairwise([*root.begins, _HASHES])):
        raise unreadable(_WHAT, f"its ranges begin at {root.begins[:3]}… and do not cover the hashes in order")
    return root.complete, root.begins


class _Stored:
    """A block as state holds it.

    Attributes:
        block: the block, with the keys of the leaves that were read.
        begins: where the ranges of its leaves begin; empty if it is not divided.
        unread: those of ``begins`` whose leaves were not read.
        complete: whether state marks the block complete.
    """

    __slots__ = ("begins", "block", "complete", "unread")

    def __init__(self, block: Block, begins: list[int]) -> None:
        self.block = block
        self.begins = begins
        self.unread = set(begins)
        self.complete = block.complete

    def unread_of(self, keys: Collection[bytes] | None) -> list[int]:
        """Return the begins of the unread leaves of some keys; None for the keys means all leaves."""
        if keys is None:
            return sorted(self.unread)
        begins = np.asarray(self.begins)
        touched = np.unique(begins[np.searchsorted(begins, _hashes(keys), side="right") - 1])
        return [begin for begin in touched.tolist() if begin in self.unread]

    def divided(self, changed: Collection[bytes]) -> Iterator[tuple[int, list[bytes]]]:
        """Divide the leaves that have outgrown their size; yield begin and keys of each leaf with a changed key."""
        begins = np.asarray(self.begins or [0])
        keys = list(self.block.keys())
        hashes = _hashes(keys)
        touched = np.unique(
            np.searchsorted(begins, hashes if len(changed) == len(keys) else _hashes(changed), side="right") - 1
        )
        order = np.argsort(hashes, kind="stable")
        hashes, sizes = hashes[order], self.block.sizes()[order]
        ordered = [keys[row] for row in order.tolist()]
        starts = np.searchsorted(hashes, begins[touched])
        ends = np.searchsorted(hashes, np.append(begins[1:], _HASHES)[touched])
        new: list[int] = []
        for begin, start, end in zip(begins[touched].tolist(), starts.tolist(), ends.tolist(), strict=True):
            cuts = _cuts(hashes[start:end], sizes[start:end])
            new += (found := [begin, *hashes[start:end][cuts].tolist()])
            for at, (first, last) in zip(found, pairwise([0, *cuts, end - start]), strict=True):
                yield at, ordered[start + first : start + last]
        self.begins = sorted({*self.begins, *new})


def _cuts(hashes: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> list[int]:
    """Return where to cut ascending hashes into pieces of about equal size, none much larger than a leaf.

    Keys of one hash stay together.
    """
    total = int(sizes.sum())
    if total <= LEAF_BYTES:
        return []
    pieces = -(-total // LEAF_BYTES)
    wanted = np.searchsorted(np.cumsum(sizes), np.arange(1, pieces) * total / pieces)
    at_firsts = np.unique(np.searchsorted(hashes, hashes[wanted]))
    return [cut for cut in at_firsts.tolist() if cut]


def _hashes(keys: Collection[bytes]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(zlib.crc32, keys), np.int64, len(keys))


class StoredBlocks:
    """The blocks that one call reads and writes."""

    def __init__(self, codec: TileCodec, states: TileStates) -> None:
        self._codec = codec
        self._states = states
        self._stored: dict[Place, _Stored | None] = {}
        self._gone: dict[Place, list[int]] = {}

    def load(self, wanted: Mapping[Place, Collection[bytes] | None]) -> None:
        """Read what is wanted and was not read yet, with one read of each state.

        Args:
            wanted: the keys wanted of each block; None for all of them, and no keys for the root alone.

        Raises:
            CorruptionError: stored state cannot be read.
        """
        missing = [place for place in wanted if place not in self._stored]
        for place, data in zip(missing, _values(self._states.blocks, missing), strict=True):
            self._stored[place] = None if data is None else self._decoded(place, data)
        leaves = [
            (slot, address, begin)
            for (slot, address), keys in wanted.items()
            if (stored := self._stored[slot, address]) is not None and stored.unread
            for begin in stored.unread_of(keys)
        ]
        for (slot, address, begin), data in zip(leaves, _values(self._states.leaves, leaves), strict=True):
            self._read_leaf((slot, address), begin, data)

    def get(self, place: Place, keys: Collection[bytes] | None) -> Block | None:
        """Return a block with some of its keys read, or all keys if None; None if there is no such block."""
        stored = self._stored.get(place)
        if stored is None or stored.unread:
            self.load({place: keys})
            stored = self._stored[place]
        return None if stored is None else stored.block

    def read(self, place: Place) -> Block:
        """Return a block that was read and exists."""
        stored = self._stored[place]
        assert stored is not None  # noqa: S101 - the caller has read it
        return stored.block

    def is_empty(self, place: Place) -> bool:
        """Return whether a block that was read has no tiles, in its leaves either."""
        stored = self._stored[place]
        return stored is None or not (stored.begins or stored.block.cells or stored.block.versions)

    def seen(self, places: Iterable[Place]) -> list[Block]:
        """Return those of the blocks that exist, with all of their keys, and keep none that was not read before."""
        wanted: dict[Place, None] = dict.fromkeys(places)
        passing = [place for place in wanted if place not in self._stored]
        self.load(wanted)
        found = [stored.block for place in wanted if (stored := self._stored[place]) is not None]
        for place in passing:
            del self._stored[place]
        return found

    def made(self, place: Place) -> Block:
        """Make an empty block where there is none, and return it."""
        stored = self._stored[place] = _Stored(Block(), [])
        return stored.block

    def remove(self, place: Place) -> None:
        """Remove a block, if there is one, and all of its leaves."""
        self.load({place: ()})
        if (stored := self._stored[place]) is not None:
            self._gone[place] = stored.begins
            self._stored[place] = None

    def write(self, changed: Mapping[Place, Collection[bytes]]) -> None:
        """Write back what changed, and remove what is gone.

        Args:
            changed: the changed keys of each block; none if it was only completed.
        """
        blocks: dict[tuple[int, ...], bytes] = {}
        leaves: dict[tuple[int, ...], bytes] = {}
        for place, keys in changed.items():
            stored = self._stored[place]
            assert stored is not None  # noqa: S101 - a removed block has not changed
            block, before = stored.block, len(stored.begins)
            if not before and block.fits(LEAF_BYTES):
                blocks[place] = self._encoded(place, block)
                continue
            # A block that is divided for the first time writes all of its keys.
            for begin, leaf in stored.divided(keys if before else block.keys()):
                leaves[*place, begin] = self._encoded(place, block.part(leaf))
            if len(stored.begins) != before or stored.complete != block.complete:
                blocks[place] = encode_root(stored.begins, complete=block.complete)
        _update(self._states.blocks, blocks)
        _update(self._states.leaves, leaves)
        _remove(self._states.blocks, list(self._gone))
        _remove(self._states.leaves, [(*place, begin) for place, begins in self._gone.items() for begin in begins])

    def _decoded(self, place: Place, data: bytes) -> _Stored:
        if data[:1] == _ROOT_FORMAT_BYTE:
            complete, begins = decode_root(data)
            return _Stored(Block(complete=complete), begins)
        return _Stored(self._block(place, data), [])

    def _read_leaf(self, place: Place, begin: int, data: bytes | None) -> None:
        if data is None:
            raise unreadable(
                "block of tiles", f"of slot {place[0]}, address {place[1]}, the leaf that begins at {begin} is missing"
            )
        stored, leaf = self._stored[place], self._block(place, data)
        assert stored is not None  # noqa: S101 - it has leaves
        stored.block.take(leaf)
        stored.unread.remove(begin)

    def _block(self, place: Place, data: bytes) -> Block:
        if place[1] == MARKER_ADDRESS:
            return Block(versions=decode_markers(data))
        return decode_block(self._codec, data)

    def _encoded(self, place: Place, block: Block) -> bytes:
        if place[1] == MARKER_ADDRESS:
            return encode_markers(block.versions)
        return encode_block(self._codec, block)


_MAP_KEYS = ("address", "begin")


def _tables(places: Collection[tuple[int, ...]]) -> tuple[pa.Table, pa.Table]:
    """Return the slots and the map keys of places as the states take them."""
    slots, *map_keys = (pa.array(numbers, pa.int64()) for numbers in zip(*places, strict=True))
    return pa.table({"slot": slots.cast(pa.int32())}), pa.table(dict(zip(_MAP_KEYS, map_keys, strict=False)))


def _values(state: Any, places: Collection[tuple[int, ...]]) -> list[bytes | None]:
    if not places:
        return []
    found: list[bytes | None] = state.get_many(*_tables(places))["value"].to_pylist()
    return found


def _update(state: Any, values: Mapping[tuple[int, ...], bytes]) -> None:
    if values:
        state.update_many(*_tables(values), {"value": pa.array(list(values.values()), pa.binary())})


def _remove(state: Any, places: Collection[tuple[int, ...]]) -> None:
    if places:
        state.remove_many(*_tables(places))
