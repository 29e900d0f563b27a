"""Decodes and merges the tiles of many keys by columns.

Place on the data path: the tails of one call of `fetch_many`. `TileDecoder` makes an object of each tile. For a hundred
tiles only the cells are needed, so here each cell has one column, and work on a column is a loop in C.

Invariant: results equal those of `TileDecoder` and `merge`, tile by tile. If a tile has another form or does not
decode, `decode` returns None and the caller uses `TileDecoder`.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, repeat
from operator import itemgetter
from typing import Any

import msgspec

from millpond.features.answering.tile_decoder import tile_head
from millpond.features.cells.cell import Cell, CellOperation
from millpond.features.cells.stored_values import encode_int
from millpond.features.plan import GroupByPlan
from millpond.features.scalar_values import LONG_MAX, LONG_MIN
from millpond.features.stored.packed_columns import list_header
from millpond.features.stored.value_codec import VALUE_FORMAT_VERSION
from millpond.features.stored.value_header import DECODE_ERRORS, HEADER

_NUMBERS = 4
_body = itemgetter(slice(HEADER.size, None))
_ARRAY = struct.Struct(">BI")
"""The header of a MessagePack array: its first byte and its length."""

_ARRAY_MARK = 0xDD
_crc32 = zlib.crc32
_unpack = msgspec.msgpack.Decoder(list[Any]).decode

Column = Sequence[Cell]
"""One cell of each tile, or of each key."""


class TileColumns(msgspec.Struct, frozen=True, gc=False):
    """Some tiles, each at the same position in every column; `cells` has a column for each cell of the plan."""

    start_ms: Sequence[int]
    size_ms: Sequence[int]
    complete: Sequence[bool]
    cells: Sequence[Column]


class TileColumnDecoder:
    """Decodes and merges tiles of one plan; immutable.

    >>> from millpond.features import Aggregation, Field, GroupBy, Tile, compile_group_by
    >>> plan = compile_group_by(GroupBy("route", (Field("origin", "string"),), (), (Aggregation("count"),)))
    >>> tiles = [plan.encode_tile(b"EWR", Tile(start, 300_000, ir=(count,))) for start, count in ((0, 3), (300_000, 4))]
    >>> decoder = TileColumnDecoder(plan)
    >>> columns = decoder.decode([b"EWR", b"JFK"], [2, 0], tiles)
    >>> columns.start_ms, columns.cells
    ([0, 300000], [[3, 4]])
    >>> decoder.merged(columns.cells, [2, 0])
    [[7, 0]]
    """

    __slots__ = ("_cells_of", "_decoders", "_empties", "_head", "_merges", "_opening_of", "_width")

    def __init__(self, plan: GroupByPlan) -> None:
        cells = plan.tile_cells.cells
        self._width = _NUMBERS + len(cells)
        # A tile's checksum guarantees that its list is as long as the list's header says.
        self._head = tile_head(plan) + list_header(self._width)
        opening = struct.Struct(f"{HEADER.format}{len(self._head)}s")
        self._opening_of = opening.unpack_from
        self._cells_of = itemgetter(slice(opening.size, None))
        self._decoders = tuple((place, _column_decoder(cell)) for place, cell in enumerate(cells) if not cell.plain)
        self._empties = tuple(cell.empty for cell in cells)
        self._merges = tuple(cell.merge for cell in cells)

    def decode(self, keys: Sequence[bytes], counts: Sequence[int], stored: Sequence[bytes]) -> TileColumns | None:
        """Return the tiles that bytes hold; None if one of them needs `TileDecoder`.

        Args:
            keys: the keys of the tiles.
            counts: the number of tiles of each key.
            stored: the bytes of all tiles, those of a key one after the other.
        """
        count = len(stored)
        if not count:
            return TileColumns((), (), (), [()] * len(self._empties))
        try:
            addresses = chain.from_iterable(map(repeat, map(_crc32, keys), counts))
            sums = map(_crc32, map(_body, stored), addresses)
            expected = zip(repeat(VALUE_FORMAT_VERSION, count), sums, repeat(self._head, count), strict=True)
            if list(map(self._opening_of, stored)) != list(expected):
                return None
            # Joined to one MessagePack array, all tiles are decoded in one call.
            width = self._width
            joined = _unpack(b"".join([_ARRAY.pack(_ARRAY_MARK, count * width), *map(self._cells_of, stored)]))
            split: list[Column] = [joined[place::width] for place in range(width)]
            start_ms, size_ms, complete, _, *columns = split
            for place, decode in self._decoders:
                columns[place] = decode(columns[place])
        except DECODE_ERRORS:
            return None
        return TileColumns(start_ms, size_ms, complete, columns)

    def merged(self, cells: Sequence[Column], counts: Sequence[int]) -> list[Column]:
        """Return the cells of each key: those of its tiles merged; for a key without tiles, the cells of no events.

        Args:
            cells: the columns of the tiles, those of a key one after the other.
            counts: the number of tiles of each key.
        """
        most = max(counts)
        if min(counts) == most:
            return [
                self._merged_evenly(place, [cells[place][depth::most] for depth in range(most)], len(counts))
                for place in range(len(self._empties))
            ]
        firsts = [0, *accumulate(counts)]
        nowhere = firsts.pop()
        picks = [
            itemgetter(
                *[first + depth if depth < count else nowhere for first, count in zip(firsts, counts, strict=True)]
            )
            for depth in range(most)
        ]
        return [
            self._merged_evenly(place, [pick([*cells[place], empty]) for pick in picks], len(counts))
            for place, empty in enumerate(self._empties)
        ]

    def _merged_evenly(self, place: int, columns: Sequence[Column], keys: int) -> Column:
        """Merge one cell of the first tiles of all keys with that of their second tiles, and so on."""
        if not columns:
            return (self._empties[place],) * keys
        merged = columns[0]
        for column in columns[1:]:
            merged = list(map(self._merges[place], merged, column))
        return merged


def _column_decoder(cell: CellOperation) -> Callable[[Column], Column]:
    """Return the function that decodes a column of stored cells. Whole numbers of 64 bits are stored as they are."""
    decode = cell.decode
    if cell.decode_all is not None:
        return cell.decode_all
    if cell.encode is not encode_int:
        return lambda column: list(map(decode, column))

    def decode_ints(column: Column) -> Column:
        if set(map(type, column)) == {int} and min(column) >= LONG_MIN and max(column) <= LONG_MAX:
            return column
        return list(map(decode, column))

    return decode_ints
