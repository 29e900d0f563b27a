"""Reads the values that format 1 wrote: batch rows and tiles of counts, sums, averages, minima, maxima.

    version (1 byte), first four bytes of the definition's hash, CRC-32 of what follows, MessagePack

Nothing writes format 1. A store that holds it is served until its next upload. In it, all cells of a batch row are
suffixes, and sums of doubles are stored as mantissa and shift. A window under an hour had a hop of five minutes,
where format 2 has one. So a GroupBy with such a window is not read.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from millpond.features.batch import BatchIr
from millpond.features.cells.cell import Cell, CellOperation
from millpond.features.cells.stored_values import decode_int
from millpond.features.definitions import GroupBy
from millpond.features.stored.value_header import DECODE_ERRORS, unreadable
from millpond.features.tiles import Tile
from millpond.features.windows import HOUR_MS, parse_window

FORMAT_VERSION = 1

_HEADER = struct.Struct(">BII")
_MAX_BYTES = 280
_MAX_SHIFT = 2_200
_TILE_MS = 300_000


class _Batch(msgspec.Struct, array_like=True, frozen=True):
    batch_end_ms: int
    segments: tuple[int, ...]
    columns: list[list[Any]]


class _Tile(msgspec.Struct, array_like=True, frozen=True):
    start_ms: int
    size_ms: int
    complete: bool
    version: int
    columns: list[list[Any]]


_decode_batch = msgspec.msgpack.Decoder(_Batch).decode
_decode_tile = msgspec.msgpack.Decoder(_Tile).decode


def definition_hash(group_by: GroupBy) -> str | None:
    """Return the hash that format 1 wrote for a definition; None if format 1 could not express it."""
    inputs_as_then = all(field.type in ("boolean", "double", "long", "string") for field in group_by.inputs)
    aggregations_as_then = all(
        one.operation in ("average", "count", "max", "min", "sum")
        and not one.buckets
        and all(window is None or parse_window(window) >= HOUR_MS for window in one.windows)
        for one in group_by.aggregations
    )
    if not (inputs_as_then and aggregations_as_then and group_by.accuracy == "temporal" and group_by.tiled):
        return None
    declared = {
        "name": group_by.name,
        "keys": [{"name": field.name, "type": field.type} for field in group_by.keys],
        "inputs": [{"name": field.name, "type": field.type} for field in group_by.inputs],
        "aggregations": [
            {"operation": one.operation, "input": one.column, "windows": one.windows} for one in group_by.aggregations
        ],
    }
    definition = {"key_format": 1, "tile_ms": _TILE_MS, "group_by": declared}
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:16]


class Format1Codec:
    """Decodes the values of one definition; immutable."""

    __slots__ = ("_cells", "_definition", "_group_by")

    def __init__(self, group_by: GroupBy, cells: Sequence[CellOperation]) -> None:
        self._group_by = group_by.name
        self._definition = definition_hash(group_by)
        self._cells = tuple(cells)

    def decode_batch(self, data: bytes) -> BatchIr:
        """Return the batch IR that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, or of another definition.
        """
        what = f"batch row of GroupBy {self._group_by!r}"
        body = self._opened(what, data)
        try:
            stored = _decode_batch(body)
            return BatchIr(stored.batch_end_ms, stored.segments, self._columns(stored.columns, len(stored.segments)))
        except DECODE_ERRORS as cause:
            raise unreadable(what, str(cause)) from cause

    def decode_tile(self, data: bytes) -> Tile:
        """Return the tile that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, or of another definition.
        """
        what = f"tile of GroupBy {self._group_by!r}"
        body = self._opened(what, data)
        try:
            stored = _decode_tile(body)
            ir = tuple(column[0] for column in self._columns(stored.columns, 1))
            return Tile(stored.start_ms, stored.size_ms, stored.complete, stored.version, ir)
        except DECODE_ERRORS as cause:
            raise unreadable(what, str(cause)) from cause

    def _opened(self, what: str, data: bytes) -> bytes:
        if len(data) < _HEADER.size:
            raise unreadable(what, f"{len(data)} bytes are shorter than the header of {_HEADER.size}")
        _, definition, checksum = _HEADER.unpack_from(data)
        body = data[_HEADER.size :]
        if zlib.crc32(body) != checksum:
            raise unreadable(what, "its checksum does not fit")
        if self._definition is None or definition != int(self._definition[:8], 16):
            raise unreadable(what, f"it was written under definition {definition:08x}; the GroupBy has changed")
        return body

    def _columns(self, stored: list[list[Any]], length: int) -> tuple[tuple[Cell, ...], ...]:
        columns = tuple(
            tuple(_decoded(operation, column)) for operation, column in zip(self._cells, stored, strict=True)
        )
        if any(len(column) != length for column in columns):
            raise ValueError(f"a column has not {length} cells")
        return columns


def _decoded(operation: CellOperation, column: list[Any]) -> list[Cell]:
    kind, _, type_ = operation.id.partition(":")
    if kind != "sum":
        return [operation.decode(stored) for stored in column]
    if not type_.startswith("double"):
        return [decode_int(stored, _MAX_BYTES) for stored in column]
    return [_fixed_point(*pair) for pair in zip(column[::2], column[1::2], strict=True)]


def _fixed_point(mantissa: Any, shift: Any) -> int:
    if type(shift) is not int or not 0 <= shift <= _MAX_SHIFT:
        raise ValueError(f"a shift of {shift!r} is out of range")
    return decode_int(mantissa, _MAX_BYTES) << shift
