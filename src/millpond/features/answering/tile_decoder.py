"""Stored tiles as a fetcher reads them, in one function.

Almost every tile is of the plan's own cells and format, so its bytes begin with a known head, and only
cells that are not stored as they are need decoding. What the checksum vouches for is not checked again.
Any other tile, and any fault, goes through the plan, which says what is wrong.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from millpond.features.plan import GroupByPlan
from millpond.features.sealing import DECODE_ERRORS, HEADER
from millpond.features.tiles import Tile
from millpond.features.value_codec import VALUE_FORMAT_VERSION, cell_id

_SEAL_BYTES = HEADER.size
_NUMBERS = 4
_crc32 = zlib.crc32
_checksum = struct.Struct(">xI").unpack_from
_decode = msgspec.msgpack.Decoder(list[Any]).decode


class TileDecoder:
    """Decodes the tiles of one plan; equal to the plan's `decode_tile`, and faster.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> plan = compile_group_by(
    ...     GroupBy("route", (Field("origin", "string"),), (), (Aggregation("count", windows=("1h",)),)))
    >>> TileDecoder(plan).decode(b"EWR", plan.encode_tile(b"EWR", Tile(0, 300_000, ir=(3,)))).ir
    (3,)
    """

    __slots__ = ("_body", "_cells", "_head", "_length", "_plan", "_version")

    def __init__(self, plan: GroupByPlan) -> None:
        cells = plan.tile_cells.cells
        self._plan = plan
        self._version = VALUE_FORMAT_VERSION
        self._head = (
            bytes.fromhex(plan.generation) + bytes((len(cells),)) + b"".join(cell_id(cell.id) for cell in cells)
        )
        self._body = _SEAL_BYTES + len(self._head)
        self._length = _NUMBERS + len(cells)
        self._cells = _cells_decoder([None if cell.plain else cell.decode for cell in cells])

    def decode(self, key: bytes, data: bytes) -> Tile:
        """Give the tile that bytes hold; cells that it lacks are `UNKNOWN`.

        Raises:
            CorruptionError: the bytes are torn or altered, of another key, format or generation.
        """
        body = data[_SEAL_BYTES:]
        if body.startswith(self._head) and data[0] == self._version and _checksum(data)[0] == _crc32(body, _crc32(key)):
            try:
                stored = _decode(data[self._body :])
                if len(stored) == self._length:
                    return Tile(stored[0], stored[1], stored[2], stored[3], self._cells(stored))
            except DECODE_ERRORS:
                pass
        return self._plan.decode_tile(key, data)


def _cells_decoder(decoders: list[Callable[[Any], Any] | None]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Write out the reading of each cell."""
    names: dict[str, Any] = {f"decode_{place}": decode for place, decode in enumerate(decoders)}
    cells = [
        f"stored[{_NUMBERS + place}]" if decode is None else f"decode_{place}(stored[{_NUMBERS + place}])"
        for place, decode in enumerate(decoders)
    ]
    source = f"def cells(stored):\n    return ({', '.join(cells)}{',' if cells else ''})\n"
    exec(compile(source, "<cells>", "exec"), names)  # noqa: S102 - source of numbers only
    made: Callable[[list[Any]], tuple[Any, ...]] = names["cells"]
    return made
