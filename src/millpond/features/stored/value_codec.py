"""The bytes of batch rows, tiles and finished values in the KV store (format 2).

Every value has a checksum under its key (`value_header`). Its body begins with the *form* in which it was written,
followed by MessagePack:

- a batch row: the first four bytes of the batch form; then its end, its segments, a column for each cell;
- a tile: the generation (4 bytes), the number of its cells (1 byte), their ids (4 bytes each); then its
  start, its size, whether it is complete, its version, its cells;
- a row of values: the CRC-32 of their names and types (4 bytes); then the batch end and the values.

A tile names its cells, so a GroupBy may get further cells while the stream goes on. From a tile with fewer or more
cells a reader takes those it knows; cells that the tile lacks are `UNKNOWN`. A batch is written anew every day, so a
batch row names the whole form, and a reader accepts no other form.

A cell id is the CRC-32 of the cell's name. If two cells of one plan have equal ids, making the plan raises an error.

Equal values give equal bytes. A format version is never changed once written anywhere: a new layout gets a new number,
and the golden files of the old ones stay.
"""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from millpond.errors import DataError, OptionError
from millpond.features.batch import BatchIr
from millpond.features.cells.cell import Cell, CellOperation, Ir
from millpond.features.partial_ir import UNKNOWN, PartialIr
from millpond.features.scalar_values import UnfitError
from millpond.features.stored.packed_cells import PackedCells
from millpond.features.stored.packed_columns import list_header
from millpond.features.stored.stored_features import from_stored, to_stored
from millpond.features.stored.value_header import DECODE_ERRORS, checked_body, unreadable, with_header, with_headers
from millpond.features.tiles import Tile
from millpond.features.types import DataType

VALUE_FORMAT_VERSION = 2

_FORM_BYTES = 4
_ID_BYTES = 4
_TILE_HEAD = 4
"""How many numbers of a tile precede its cells: start, size, complete, version."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def cell_id(name: str) -> bytes:
    """Return the four bytes by which a stored tile names a cell.

    >>> cell_id("count").hex()
    '85d94462'
    """
    return zlib.crc32(name.encode()).to_bytes(4, "big")


class TileCodec:
    """Encodes the tiles of one generation; immutable.

    Args:
        group_by: the name of the GroupBy, for errors.
        generation: eight hexadecimal digits; its bytes mark each tile.
        cells: the cell operations of an IR.

    >>> from millpond.features.cells.counts_and_sums import count_cells
    >>> codec = TileCodec("route", "00c0ffee", (count_cells(None),))
    >>> codec.decode(b"EWR", codec.encode(b"EWR", Tile(0, 300_000, ir=(3,)))).ir
    (3,)
    """

    __slots__ = ("_cells", "_generation", "_ids", "_what", "form", "packed")

    def __init__(self, group_by: str, generation: str, cells: Sequence[CellOperation]) -> None:
        self._what = f"tile of GroupBy {group_by!r}"
        self._generation = bytes.fromhex(generation)
        self._cells = tuple(cells)
        self._ids = tuple(cell_id(cell.id) for cell in cells)
        if len(set(self._ids)) < len(self._ids):
            doubles = sorted({cell.id for cell in cells if self._ids.count(cell_id(cell.id)) > 1})
            raise OptionError(
                f"GroupBy {group_by!r}: the cells {doubles} would be stored under one id; rename a column of theirs"
            )
        self.packed = PackedCells(self._cells)
        """Packs the cells of tiles that know all of them."""
        self.form = self._form(range(len(self._cells)))
        """The beginning of the body of such a tile: generation, number of cells, ids of cells."""

    def encode(self, key: bytes, tile: Tile) -> bytes:
        """Return the bytes of a tile; cells that are unknown are left out."""
        form, packed = self.pack(tile.ir)
        opening = self.opening(form, tile.start_ms, tile.size_ms, complete=tile.complete, version=tile.version)
        return with_header(VALUE_FORMAT_VERSION, opening + packed, key)

    def pack(self, ir: Ir) -> tuple[bytes, bytes]:
        """Return the form of an IR and its packed cells; cells that are unknown are left out."""
        if type(ir) is tuple:
            return self.form, self.packed.pack(ir)
        known = [place for place, cell in enumerate(ir) if cell is not UNKNOWN]
        cells = PackedCells([self._cells[place] for place in known])
        return self._form(known), cells.pack(tuple([ir[place] for place in known]))

    def unpack(self, form: bytes, packed: bytes) -> Ir:
        """Return the IR of packed cells of any form; cells of the plan that the form lacks are `UNKNOWN`.

        Raises:
            CorruptionError: the bytes are not cells of this form.
        """
        try:
            if form == self.form:
                return self.packed.unpack(packed)
            count = form[_FORM_BYTES]
            return self._of_other_cells(form, _decode(list_header(count) + packed))
        except DECODE_ERRORS as cause:
            raise unreadable(self._what, str(cause)) from cause

    @staticmethod
    def opening(form: bytes, start_ms: int, size_ms: int, *, complete: bool, version: int) -> bytes:
        """Return the part of a tile's body before its packed cells."""
        count = form[_FORM_BYTES]
        # Each None takes one byte.
        numbers = _encode([start_ms, size_ms, complete, version, *[None] * count])
        return form + numbers[: len(numbers) - count]

    def decode(self, key: bytes, data: bytes) -> Tile:
        """Return the tile that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, of another key, format or generation.
        """
        body = checked_body(VALUE_FORMAT_VERSION, data, self._what, key)
        self.check_generation(body)
        try:
            if body.startswith(self.form):
                numbers = _decode(body[len(self.form) :])
                ir: Ir = self._decoded(numbers[_TILE_HEAD:], self._cells)
            else:
                end = _FORM_BYTES + 1 + _ID_BYTES * body[_FORM_BYTES]
                numbers = _decode(body[end:])
                ir = self._of_other_cells(body[:end], numbers[_TILE_HEAD:])
            start_ms, size_ms, complete, version = numbers[:_TILE_HEAD]
            return _checked_tile(start_ms, size_ms, complete, version, ir)
        except DECODE_ERRORS as cause:
            raise unreadable(self._what, str(cause)) from cause

    def check_generation(self, body: bytes) -> None:
        """Raise `CorruptionError` unless a body, or a form, is of this generation."""
        if body[:_FORM_BYTES] != self._generation:
            raise unreadable(
                self._what,
                f"it is of generation {body[:_FORM_BYTES].hex()}, not {self._generation.hex()}; "
                "the GroupBy has changed, so its stream needs an empty checkpoint folder",
            )

    def _form(self, places: Sequence[int]) -> bytes:
        return self._generation + bytes((len(places),)) + b"".join(self._ids[place] for place in places)

    def _decoded(self, stored: Sequence[Any], cells: Sequence[CellOperation]) -> Ir:
        return tuple([cell.decode(one) for cell, one in zip(cells, stored, strict=True)])

    def _of_other_cells(self, form: bytes, cells: Sequence[Any]) -> Ir:
        """Decode the cells of a tile with another set of cells; cells of the plan that it lacks are `UNKNOWN`."""
        ids = [form[at : at + _ID_BYTES] for at in range(_FORM_BYTES + 1, len(form), _ID_BYTES)]
        stored = dict(zip(ids, cells, strict=True))
        found: list[Cell] = [
            operation.decode(stored[one]) if one in stored else UNKNOWN
            for operation, one in zip(self._cells, self._ids, strict=True)
        ]
        return PartialIr(found) if UNKNOWN in found else tuple(found)


class BatchCodec:
    """Encodes the batch rows of one form; immutable.

    Args:
        group_by: the name of the GroupBy, for errors.
        batch_form: hexadecimal digits; the first four bytes mark each row.
        cells: the cell operations of an IR.
    """

    __slots__ = ("_cells", "_form", "_what")

    def __init__(self, group_by: str, batch_form: str, cells: Sequence[CellOperation]) -> None:
        self._what = f"batch row of GroupBy {group_by!r}"
        self._form = bytes.fromhex(batch_form)[:_FORM_BYTES]
        self._cells = tuple(cells)

    def encode(self, key: bytes, batch: BatchIr) -> bytes:
        """Return the bytes of a batch IR."""
        columns = [
            _encode([operation.encode(cell) for cell in column])
            for operation, column in zip(self._cells, batch.columns, strict=True)
        ]
        body = b"".join([self._opening(batch.batch_end_ms), _encode(batch.segments), *columns])
        return with_header(VALUE_FORMAT_VERSION, body, b"batch" + key)

    def encode_packed(self, keys: Sequence[bytes], batch_end_ms: int, packed: Iterable[bytes]) -> list[bytes]:
        """Return the bytes of batch IRs, from the MessagePack of each one's segments and columns of stored cells."""
        opening = self._opening(batch_end_ms)
        return with_headers(VALUE_FORMAT_VERSION, [b"batch" + key for key in keys], [opening + one for one in packed])

    def _opening(self, batch_end_ms: int) -> bytes:
        """Return the bytes before the segments in the body of a batch IR."""
        return self._form + list_header(2 + len(self._cells)) + _encode(batch_end_ms)

    def decode(self, key: bytes, data: bytes) -> BatchIr:
        """Return the batch IR that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, of another key, format or definition.
        """
        body = checked_body(VALUE_FORMAT_VERSION, data, self._what, b"batch" + key)
        _check_form(self._what, self._form, body)
        try:
            batch_end_ms, segments, *columns = _decode(body[_FORM_BYTES:])
            _check_ascending(batch_end_ms, segments)
            return BatchIr(
                batch_end_ms,
                tuple(segments),
                tuple(
                    _decoded_column(operation, column, len(segments))
                    for operation, column in zip(self._cells, columns, strict=True)
                ),
            )
        except DECODE_ERRORS as cause:
            raise unreadable(self._what, str(cause)) from cause


class ValueCodec:
    """Encodes rows of finished values: of snapshots, and of GroupBys without aggregations; immutable.

    Args:
        group_by: the name of the GroupBy, for errors.
        names: the values' names.
        types: the values' types.

    >>> from millpond.features.types import parse_type
    >>> codec = ValueCodec("route", ("tail",), (parse_type("string"),))
    >>> codec.decode(b"EWR", codec.encode(b"EWR", ("N123",), 86_400_000))
    (86400000, ('N123',))
    """

    __slots__ = ("_form", "_group_by", "_names", "_types", "_what")

    def __init__(self, group_by: str, names: Sequence[str], types: Sequence[DataType]) -> None:
        self._group_by = group_by
        self._what = f"row of values of GroupBy {group_by!r}"
        self._names = tuple(names)
        self._types = tuple(types)
        self._form = zlib.crc32(
            "\n".join(f"{name} {type_.name}" for name, type_ in zip(names, types, strict=True)).encode()
        ).to_bytes(4, "big")

    def encode(self, key: bytes, values: Sequence[Any], batch_end_ms: int) -> bytes:
        """Return the bytes of a row of values, each of its type or None.

        Raises:
            DataError: a value does not fit its type, such as a sum of more than 38 digits.
        """
        stored = []
        for name, type_, value in zip(self._names, self._types, values, strict=True):
            try:
                stored.append(None if value is None else to_stored(type_, value))
            except UnfitError as unfit:
                raise DataError(
                    f"GroupBy {self._group_by!r}: the value of {name!r} must be of type {type_.name}, got "
                    f"{unfit.value!r}: {unfit.reason}; declare its input with fewer digits"
                ) from unfit
        return with_header(VALUE_FORMAT_VERSION, self._form + _encode([batch_end_ms, *stored]), b"values" + key)

    def decode(self, key: bytes, data: bytes) -> tuple[int, tuple[Any, ...]]:
        """Return the batch end and the values that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, of another key, format or definition.
        """
        body = checked_body(VALUE_FORMAT_VERSION, data, self._what, b"values" + key)
        _check_form(self._what, self._form, body)
        try:
            batch_end_ms, *stored = _decode(body[_FORM_BYTES:])
            _check_end(batch_end_ms)
            values = tuple(
                None if one is None else from_stored(type_, one) for type_, one in zip(self._types, stored, strict=True)
            )
        except DECODE_ERRORS as cause:
            raise unreadable(self._what, str(cause)) from cause
        return batch_end_ms, values


def _check_form(what: str, form: bytes, body: bytes) -> None:
    if body[:_FORM_BYTES] != form:
        raise unreadable(what, f"it is of form {body[:_FORM_BYTES].hex()}, not {form.hex()}; the GroupBy has changed")


def _check_end(batch_end_ms: Any) -> None:
    if type(batch_end_ms) is not int:
        raise TypeError(f"its batch end {batch_end_ms!r} is no whole number of milliseconds")


def _check_ascending(batch_end_ms: Any, segments: Any) -> None:
    _check_end(batch_end_ms)
    if type(segments) is not list:
        raise TypeError("a batch row has segments")
    last = -1
    for segment in segments:
        if type(segment) is not int or segment <= last:
            raise ValueError(f"its segments {segments[:8]} are not ascending")
        last = segment


def _decoded_column(operation: CellOperation, column: Any, length: int) -> tuple[Cell, ...]:
    if type(column) is not list or len(column) != length:
        raise ValueError(f"a column has not {length} cells")
    return tuple(map(operation.decode, column))


def _checked_tile(start_ms: Any, size_ms: Any, complete: Any, version: Any, ir: Ir) -> Tile:
    if type(start_ms) is not int or type(size_ms) is not int or type(version) is not int or type(complete) is not bool:
        raise TypeError("a tile has a start, a size, whether it is complete, and a version")
    if size_ms <= 0 or version < 0:
        raise ValueError(f"a tile of {size_ms} ms and version {version} cannot be")
    return Tile(start_ms, size_ms, complete, version, ir)
