"""Bytes: how the keys of a GroupBy lie in the KV store.

Keys are typed: each part begins with a byte that names its type, so ``1``, ``True``, ``1.0`` and
``"1"`` are four keys. Parts are of fixed length or say their length, so no two keys run together. Equal
keys give equal bytes (``-0.0`` is ``0.0``), and an int and a long of one value are one key.

No key begins with a byte of 0x80 or more: those are left to rows that belong to no key.

A format version is never changed once written anywhere: a new layout gets a new number, and the golden
files of the old ones stay.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millpond.errors import DataError
from millpond.features.definitions import Field, FieldType
from millpond.features.types import LONG_MAX, LONG_MIN, value_converter

KEY_FORMAT_VERSION = 1

_DOUBLE = struct.Struct(">cd")
_LONG = struct.Struct(">cq")
_LENGTH = struct.Struct(">cI")
_FALSE, _TRUE = b"\x01", b"\x02"


def _encode_boolean(value: bool) -> bytes:
    return _TRUE if value else _FALSE


def _encode_long(value: int) -> bytes:
    return _LONG.pack(b"\x03", value)


def _encode_double(value: float) -> bytes:
    return _DOUBLE.pack(b"\x04", value + 0.0)


def _encode_string(value: str) -> bytes:
    text = value.encode()
    return _LENGTH.pack(b"\x05", len(text)) + text


def _encode_binary(value: bytes) -> bytes:
    return _LENGTH.pack(b"\x06", len(value)) + value


def _encode_date(days: int) -> bytes:
    return _LONG.pack(b"\x07", days)


def _encode_timestamp(microseconds: int) -> bytes:
    return _LONG.pack(b"\x08", microseconds)


def _encode_decimal(unscaled: int) -> bytes:
    # 17 bytes hold 38 digits and a sign.
    return b"\x09" + unscaled.to_bytes(17, "big", signed=True)


_ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "boolean": _encode_boolean,
    "int": _encode_long,
    "long": _encode_long,
    "float": _encode_double,
    "double": _encode_double,
    "string": _encode_string,
    "binary": _encode_binary,
    "date": _encode_date,
    "timestamp": _encode_timestamp,
    "decimal": _encode_decimal,
}


class KeyCodec:
    """Encodes the keys of one GroupBy; immutable.

    >>> codec = KeyCodec("route", (Field("origin", "string"), Field("carrier", "string")))
    >>> codec.encode({"carrier": "UA", "origin": "JFK"}) == codec.encode(("JFK", "UA"))
    True
    >>> codec.encode(("JFK", None)) is None
    True
    """

    __slots__ = ("_fields", "_group_by", "_names", "_parts")

    def __init__(self, group_by: str, fields: tuple[Field, ...]) -> None:
        self._group_by = group_by
        self._fields = fields
        self._names = tuple(field.name for field in fields)
        self._parts = tuple(_part_encoder(field.parsed) for field in fields)

    def encode(self, key: Mapping[str, Any] | Sequence[Any]) -> bytes | None:
        """Give the bytes of a key, given by name or in declared order; None if a part is None.

        Raises:
            DataError: a part is missing, unknown or not of its type; 64 bits are too few for a long; a
                double is not a number.
        """
        values = self._ordered(key)
        encoded = b""
        lacks_part = False
        for position, (value, encode) in enumerate(zip(values, self._parts, strict=True)):
            if value is None:
                lacks_part = True
                continue
            try:
                encoded += encode(value)
            except (TypeError, ValueError) as cause:
                raise self._unfit(position, value, str(cause)) from cause
        return None if lacks_part else encoded

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


def _part_encoder(field_type: FieldType) -> Callable[[Any], bytes]:
    """Give the function that checks and encodes one part; a long, a double and a text go the short way."""
    encode = _ENCODERS[field_type.kind]
    if field_type.kind == "string":
        return _string_part
    if field_type.kind == "long":
        return _long_part
    to_cell = value_converter(field_type)
    return lambda value: encode(to_cell(value))


def _string_part(value: Any) -> bytes:
    if type(value) is not str:
        raise TypeError(f"it is of type {type(value).__name__}")
    return _encode_string(value)


def _long_part(value: Any) -> bytes:
    if type(value) is not int:
        raise TypeError(f"it is of type {type(value).__name__}")
    if not LONG_MIN <= value <= LONG_MAX:
        raise ValueError("it does not fit into 64 bits")
    return _encode_long(value)
