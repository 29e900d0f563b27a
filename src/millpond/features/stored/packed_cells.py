"""The cells of a tile as bytes: one MessagePack value after the other, without a list around them.

Place on the data path: between the cell operations and the stream of tiles. Events are combined into packed cells,
state keeps them, and a tile's bytes end in them. So a tile that nothing is merged into is never decoded.

The packed cells of many tiles, joined and given a list header, are one MessagePack list. So the tiles that are
merged in one batch are decoded by one call, and merged cell by cell. Stored fixed-point numbers are added by their
mantissas. Cells that are stored as they are need no decoding. All others are decoded, merged and encoded.
`GroupByPlan.merge_tiles` is the oracle.
"""

import operator
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import msgspec

from millpond.features.cells.cell import Cell, CellOperation, Ir
from millpond.features.cells.counts_and_sums import add_all_encoded, add_encoded, encode_fixed_point

_LIST_OF_32_BITS = b"\xdd"
"""The first byte of a MessagePack list whose length takes four bytes."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class PackedCells:
    r"""Packs, unpacks and merges the cells of tiles; immutable.

    Args:
        cells: the cell operations of an IR.

    >>> from millpond.features.cells.counts_and_sums import count_cells
    >>> packed = PackedCells((count_cells(None),))
    >>> packed.pack((3,)), packed.unpack(packed.merge([packed.pack((3,))], [packed.pack((300,))])[0])
    (b'\x03', (303,))
    """

    __slots__ = ("_cells", "_decoders", "_encoders", "_header_bytes", "_merges")

    def __init__(self, cells: Sequence[CellOperation]) -> None:
        self._cells = tuple(cells)
        self._encoders = tuple(cell.encode for cell in cells)
        self._decoders = tuple(cell.decode for cell in cells)
        self._merges = tuple(map(_stored_merge, cells))
        self._header_bytes = len(_encode([None] * len(cells))) - len(cells)

    def pack(self, ir: Ir) -> bytes:
        """Return the packed cells of an IR that knows them all."""
        return _encode([encode(cell) for encode, cell in zip(self._encoders, ir, strict=True)])[self._header_bytes :]

    def pack_columns(self, columns: Sequence[Sequence[Cell]], count: int) -> list[bytes]:
        """Return the packed cells of some IRs, given as one column for each cell."""
        return self.pack_stored(
            [list(map(encode, column)) for encode, column in zip(self._encoders, columns, strict=True)], count
        )

    def pack_stored(self, columns: Sequence[Sequence[Any]], count: int) -> list[bytes]:
        """Return the packed cells of some IRs, given as one column of stored forms for each cell."""
        return self._packed_rows(columns, count)

    def unpack(self, packed: bytes) -> Ir:
        """Return the IR of packed cells; raises what a cell's ``decode`` raises, or a MsgspecError."""
        return tuple([decode(one) for decode, one in zip(self._decoders, self._stored([packed]), strict=True)])

    def merge(self, lefts: Sequence[bytes], rights: Sequence[bytes]) -> list[bytes]:
        """Merge each of the packed cells in ``lefts`` with the one at the same position in ``rights``."""
        if not lefts:
            return []
        width, count = len(self._merges), len(lefts)
        stored = self._stored([*lefts, *rights])
        half = width * count
        merged = [
            map(merge, stored[place:half:width], stored[half + place :: width])
            for place, merge in enumerate(self._merges)
        ]
        return self._packed_rows(merged, count)

    def merge_runs(self, runs: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Merge the packed cells of each run. Each cell is encoded once, however long the run is."""
        stored, width = self._stored(list(chain.from_iterable(runs))), len(self._cells)
        bounds = list(pairwise(accumulate(map(len, runs), initial=0)))
        merged = [_merged_runs(cell, stored[place::width], bounds) for place, cell in enumerate(self._cells)]
        return self._packed_rows(merged, len(runs))

    def _packed_rows(self, columns: Sequence[Any], count: int) -> list[bytes]:
        if not columns:
            return [b""] * count
        header = self._header_bytes
        return [_encode(row)[header:] for row in zip(*columns, strict=True)]

    def _stored(self, packed: Sequence[bytes]) -> list[Any]:
        header = _LIST_OF_32_BITS + (len(packed) * len(self._merges)).to_bytes(4, "big")
        stored: list[Any] = _decode(b"".join([header, *packed]))
        return stored


def _merged_runs(cell: CellOperation, stored: Sequence[Any], bounds: Sequence[tuple[int, int]]) -> list[Any]:
    """Merge the stored cells of one kind between each pair of bounds."""
    merge_all = cell.merge_all
    if cell.plain:
        return [merge_all(stored[first:end]) for first, end in bounds]
    if _adds_fixed_points(cell):
        return [add_all_encoded(stored[first:end]) for first, end in bounds]
    cells = list(map(cell.decode, stored)) if cell.decode_all is None else cell.decode_all(stored)
    encode = cell.encode
    return [encode(merge_all(cells[first:end])) for first, end in bounds]


def _stored_merge(cell: CellOperation) -> Callable[[Any, Any], Any]:
    """Return the function that merges two stored cells."""
    if cell.plain:
        return cell.merge
    if _adds_fixed_points(cell):
        return add_encoded
    encode, decode, merge = cell.encode, cell.decode, cell.merge
    return lambda left, right: encode(merge(decode(left), decode(right)))


def _adds_fixed_points(cell: CellOperation) -> bool:
    """Return whether stored cells are fixed-point numbers that a merge adds."""
    return cell.encode is encode_fixed_point and cell.merge is operator.add
