"""Bytes: how keys, batch IRs and tiles lie in the KV store.

Keys are typed: each part begins with a byte that names its type, so ``1``, ``True``, ``1.0`` and
``"1"`` are four keys, and None is a fifth. Parts are of fixed length or say their length, so no two
keys run together. Equal keys give equal bytes (``-0.0`` is ``0.0``).

Values begin with a header of nine bytes: the format version, the first four bytes of the definition's
hash, and the CRC-32 of what follows. A value of another format, of another definition or with a bit
out of place is refused before any of it is believed. The body is MessagePack, the cells of an IR by
column, for in CPython decoding costs what creating objects costs. Sums that are exact fixed-point
numbers are written as mantissa and shift with no trailing zeros, which makes them small and makes
equal IRs give equal bytes.

A format version is never changed once written anywhere: a new layout gets a new number, and the golden
files of the old ones stay.
"""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from millpond.errors import CorruptionError, DataError
from millpond.features.batch import BatchIr
from millpond.features.definitions import Field
from millpond.features.operations import CellKind, Ir
from millpond.features.scalar_values import LONG_MAX, LONG_MIN
from millpond.features.tiles import Tile

KEY_FORMAT_VERSION = 1
VALUE_FORMAT_VERSION = 1

_HEADER = struct.Struct(">BII")
_DOUBLE = struct.Struct(">cd")
_LONG = struct.Struct(">cq")
_LENGTH = struct.Struct(">cI")
_NONE, _FALSE, _TRUE = b"\x00", b"\x01", b"\x02"


def _encode_boolean(value: bool) -> bytes:
    return _TRUE if value else _FALSE


def _encode_long(value: int) -> bytes:
    return _LONG.pack(b"\x03", value)


def _encode_double(value: float) -> bytes:
    return _DOUBLE.pack(b"\x04", value + 0.0)


def _encode_string(value: str) -> bytes:
    text = value.encode()
    return _LENGTH.pack(b"\x05", len(text)) + text


_KEY_ENCODERS: dict[str, tuple[type, Callable[[Any], bytes]]] = {
    "boolean": (bool, _encode_boolean),
    "double": (float, _encode_double),
    "long": (int, _encode_long),
    "string": (str, _encode_string),
}


class KeyCodec:
    """Encodes the keys of one GroupBy; immutable.

    >>> codec = KeyCodec("route", (Field("origin", "string"), Field("carrier", "string")))
    >>> codec.encode({"carrier": "UA", "origin": "JFK"}) == codec.encode(("JFK", "UA"))
    True
    """

    __slots__ = ("_fields", "_group_by", "_names", "_parts")

    def __init__(self, group_by: str, fields: tuple[Field, ...]) -> None:
        self._group_by = group_by
        self._fields = fields
        self._names = tuple(field.name for field in fields)
        self._parts = tuple(_KEY_ENCODERS[field.type] for field in fields)

    def encode(self, key: Mapping[str, Any] | Sequence[Any]) -> bytes:
        """Give the bytes of a key, given by name or in declared order.

        Raises:
            DataError: a part is missing, unknown or not of its type; 64 bits are too few for a long; a
                double is not a number.
        """
        values = self._ordered(key)
        encoded = []
        for position, (value, (expected, encode)) in enumerate(zip(values, self._parts, strict=True)):
            if type(value) is expected:
                try:
                    encoded.append(encode(value))
                except (struct.error, UnicodeEncodeError) as cause:
                    raise self._unfit(position, value, str(cause)) from cause
                if value != value:  # noqa: PLR0124 - only NaN differs from itself
                    raise self._unfit(position, value, "NaN equals nothing, so nothing can be found under it")
            elif value is None:
                encoded.append(_NONE)
            else:
                raise self._unfit(position, value, f"it is of type {type(value).__name__}")
        return b"".join(encoded)

    def _ordered(self, key: Mapping[str, Any] | Sequence[Any]) -> Sequence[Any]:
        if isinstance(key, Mapping):
            if len(key) == len(self._names) and all(name in key for name in self._names):
                return [key[name] for name in self._names]
            given: Any = tuple(key)
        elif not isinstance(key, str | bytes) and len(key) == len(self._names):
            return key
        else:
            given = key
        raise DataError(f"GroupBy {self._group_by!r}: a key has the parts {self._names}, got {given!r}")

    def _unfit(self, position: int, value: object, reason: str) -> DataError:
        field = self._fields[position]
        return DataError(
            f"GroupBy {self._group_by!r}: key part {field.name!r} must be of type {field.type} or None, "
            f"got {value!r}: {reason}; convert it before it is used as a key"
        )


class _BatchBody(msgspec.Struct, array_like=True, frozen=True):
    batch_end_ms: int
    segments: tuple[int, ...]
    columns: list[list[Any]]


class _TileBody(msgspec.Struct, array_like=True, frozen=True):
    start_ms: int
    size_ms: int
    complete: bool
    version: int
    columns: list[list[Any]]


_encoder = msgspec.msgpack.Encoder()
_batch_decoder = msgspec.msgpack.Decoder(_BatchBody)
_tile_decoder = msgspec.msgpack.Decoder(_TileBody)


class IrCodec:
    """Encodes the batch IRs and tiles of one definition; immutable.

    Args:
        group_by: the name of the GroupBy, for errors.
        definition_hash: the hash of its definition, in hexadecimal; its first four bytes mark each value.
        cells: the kind and the input's type of each cell of an IR.

    >>> codec = IrCodec("route", "00c0ffee", (("count", None),))
    >>> codec.decode_tile(codec.encode_tile(Tile(0, ir=(3,)))).ir
    (3,)
    """

    __slots__ = ("_columns", "_definition", "_group_by")

    def __init__(self, group_by: str, definition_hash: str, cells: tuple[tuple[CellKind, str | None], ...]) -> None:
        self._group_by = group_by
        self._definition = int(definition_hash[:8], 16)
        self._columns = tuple(_column_codec(kind, input_type) for kind, input_type in cells)

    def encode_batch(self, batch: BatchIr) -> bytes:
        """Give the bytes of a batch IR; equal IRs give equal bytes."""
        return self._sealed(_BatchBody(batch.batch_end_ms, batch.segments, self._to_columns(batch.suffixes)))

    def decode_batch(self, data: bytes) -> BatchIr:
        """Give the batch IR that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, or of another format or definition.
        """
        body = self._opened(data, _batch_decoder, "batch IR")
        suffixes = self._to_irs(body.columns, "batch IR")
        if len(suffixes) != len(body.segments):
            raise self._corrupt("batch IR", f"{len(body.segments)} segments but {len(suffixes)} IRs")
        return BatchIr(body.batch_end_ms, body.segments, suffixes)

    def encode_tile(self, tile: Tile) -> bytes:
        """Give the bytes of a tile; equal tiles give equal bytes."""
        columns = self._to_columns((tile.ir,))
        return self._sealed(_TileBody(tile.start_ms, tile.size_ms, tile.complete, tile.version, columns))

    def decode_tile(self, data: bytes) -> Tile:
        """Give the tile that bytes hold.

        Raises:
            CorruptionError: the bytes are torn or altered, or of another format or definition.
        """
        body = self._opened(data, _tile_decoder, "tile")
        irs = self._to_irs(body.columns, "tile")
        if len(irs) != 1:
            raise self._corrupt("tile", f"expected one IR, got {len(irs)}")
        return Tile(body.start_ms, body.size_ms, body.complete, body.version, irs[0])

    def _sealed(self, body: msgspec.Struct) -> bytes:
        encoded = _encoder.encode(body)
        return _HEADER.pack(VALUE_FORMAT_VERSION, self._definition, zlib.crc32(encoded)) + encoded

    def _opened(self, data: bytes, decoder: msgspec.msgpack.Decoder[Any], what: str) -> Any:
        if len(data) < _HEADER.size:
            raise self._corrupt(what, f"{len(data)} bytes are shorter than the header of {_HEADER.size}")
        version, definition, checksum = _HEADER.unpack_from(data)
        if version != VALUE_FORMAT_VERSION:
            raise self._corrupt(what, f"format version {version}, this Millpond reads {VALUE_FORMAT_VERSION}")
        if definition != self._definition:
            raise self._corrupt(
                what, f"written under definition {definition:08x}, not {self._definition:08x}; the GroupBy has changed"
            )
        body = memoryview(data)[_HEADER.size :]
        if zlib.crc32(body) != checksum:
            raise self._corrupt(what, "its checksum does not fit")
        try:
            return decoder.decode(body)
        except msgspec.MsgspecError as cause:
            raise self._corrupt(what, str(cause)) from cause

    def _to_columns(self, irs: Sequence[Ir]) -> list[list[Any]]:
        if not irs:
            return [[] for _ in self._columns]
        return [encode(cells) for (encode, _), cells in zip(self._columns, zip(*irs, strict=True), strict=True)]

    def _to_irs(self, columns: list[list[Any]], what: str) -> tuple[Ir, ...]:
        try:
            return tuple(
                zip(*[decode(cells) for (_, decode), cells in zip(self._columns, columns, strict=True)], strict=True)
            )
        except (ValueError, TypeError) as cause:
            raise self._corrupt(what, f"its columns do not fit the cells of the GroupBy: {cause}") from cause

    def _corrupt(self, what: str, reason: str) -> CorruptionError:
        return CorruptionError(
            f"GroupBy {self._group_by!r}: a stored {what} cannot be read: {reason}; "
            "upload the batch again, and restart the stream from it"
        )


def _column_codec(
    kind: CellKind, input_type: str | None
) -> tuple[Callable[[Sequence[Any]], list[Any]], Callable[[list[Any]], list[Any]]]:
    if kind != "sum":
        return list, _as_is
    if input_type == "double":
        return _encode_fixed_points, _decode_fixed_points
    return _encode_whole_numbers, _decode_whole_numbers


def _as_is(cells: list[Any]) -> list[Any]:
    return cells


def _encode_whole_numbers(cells: Sequence[int]) -> list[int | bytes]:
    return [_encode_int(cell) for cell in cells]


def _decode_whole_numbers(cells: list[Any]) -> list[int]:
    return [_decode_int(cell) for cell in cells]


def _encode_fixed_points(cells: Sequence[int]) -> list[int | bytes]:
    """Write each number as mantissa, shift, mantissa, shift, …; the mantissas are odd, or 0."""
    flat: list[int | bytes] = []
    for cell in cells:
        shift = (cell & -cell).bit_length() - 1 if cell else 0
        flat += (_encode_int(cell >> shift), shift)
    return flat


def _decode_fixed_points(flat: list[Any]) -> list[int]:
    return [_decode_int(mantissa) << shift for mantissa, shift in zip(flat[::2], flat[1::2], strict=True)]


def _encode_int(number: int) -> int | bytes:
    """Leave a number of 64 bits as it is; write a larger one as big-endian bytes."""
    if LONG_MIN <= number <= LONG_MAX:
        return number
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _decode_int(stored: int | bytes) -> int:
    return int.from_bytes(stored, "big", signed=True) if isinstance(stored, bytes) else stored
