"""Decodes stored tiles for a fetcher, in one generated function.

Place on the data path: between the KV store and the finisher. Almost every tile has the plan's own cells and format.
Then its bytes begin with a known head, and only cells with a stored form of their own need decoding. What the checksum
guarantees is not checked again. The plan's `decode_tile` handles any other tile and any fault, and says what is wrong.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from millpond.features.plan import GroupByPlan
from millpond.features.stored.value_codec import VALUE_FORMAT_VERSION, cell_id
from millpond.features.stored.value_header import DECODE_ERRORS, HEADER
from millpond.features.tiles import Tile

_checksum = struct.Struct(">xI").unpack_from


class TileDecoder:
    """Decodes the tiles of one plan; equal to the plan's `decode_tile`, and faster.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> plan = compile_group_by(
    ...     GroupBy("route", (Field("origin", "string"),), (), (Aggregation("count", windows=("1h",)),)))
    >>> TileDecoder(plan).decode(b"EWR", plan.encode_tile(b"EWR", Tile(0, 300_000, ir=(3,)))).ir
    (3,)
    """

    __slots__ = ("decode",)

    decode: Callable[[bytes, bytes], Tile]
    """Takes a key and the bytes, and returns the tile; cells that it lacks are `UNKNOWN`.

    Raises:
        CorruptionError: the bytes are torn or altered, of another key, format or generation.
    """

    def __init__(self, plan: GroupByPlan) -> None:
        self.decode = _compiled(plan)


def tile_head(plan: GroupByPlan) -> bytes:
    """Return the bytes with which the body of every tile of a plan's own cells begins."""
    cells = plan.tile_cells.cells
    return bytes.fromhex(plan.generation) + bytes((len(cells),)) + b"".join(cell_id(cell.id) for cell in cells)


def _compiled(plan: GroupByPlan) -> Callable[[bytes, bytes], Tile]:
    """Generate and compile the decoder, with the position of each cell written out."""
    cells = plan.tile_cells.cells
    head = tile_head(plan)
    names: dict[str, Any] = {
        "Tile": Tile,
        "checksum": _checksum,
        "crc32": zlib.crc32,
        "decode_errors": DECODE_ERRORS,
        "head": head,
        "otherwise": plan.decode_tile,
        "unpack": msgspec.msgpack.Decoder(list[Any]).decode,
    }
    names |= {f"decode_{place}": cell.decode for place, cell in enumerate(cells) if not cell.plain}
    stored = [f"cell_{place}" for place in range(len(cells))]
    ir = [
        name if cell.plain else f"decode_{place}({name})"
        for place, (name, cell) in enumerate(zip(stored, cells, strict=True))
    ]
    source = f"""
def decode(key, data):
    body = data[{HEADER.size}:]
    if body.startswith(head) and data[0] == {VALUE_FORMAT_VERSION} and checksum(data)[0] == crc32(body, crc32(key)):
        try:
            {", ".join(["start_ms", "size_ms", "complete", "version", *stored])} = unpack(body[{len(head)}:])
            return Tile(start_ms, size_ms, complete, version, ({"".join(f"{one}, " for one in ir)}))
        except decode_errors:
            pass
    return otherwise(key, data)
"""
    exec(compile(source, "<tile_decoder>", "exec"), names)  # noqa: S102 - source of numbers only
    made: Callable[[bytes, bytes], Tile] = names["decode"]
    return made
