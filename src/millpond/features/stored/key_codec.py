"""The bytes of a GroupBy's keys in the KV store.

Keys are typed: each part begins with a byte that names its type, so ``1``, ``True``, ``1.0`` and
``"1"`` are four keys. Parts have a fixed length or state their length, so no two keys run together. Equal
keys give equal bytes (``-0.0`` is ``0.0``).

No key begins with a byte of 0x80 or more: those are left to rows that belong to no key.

A format version is never changed once written anywhere: a new layout gets a new number, and the golden
files of the old ones stay.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from millpond.errors import DataError
from millpond.features.definitions import Field
from millpond.features.scalar_values import LONG_MAX, LONG_MIN, UnfitError
from millpond.features.types import DataType, parse_type

KEY_FORMAT_VERSION = 1

_DOUBLE = struct.Struct(">cd")
_FLOAT = struct.Struct(">f")
_LONG = struct.Struct(">cq")
_LENGTH = struct.Struct(">cI")
_pack_length = _LENGTH.pack
_FALSE, _TRUE = b"\x01", b"\x02"


def _encode_boolean(value: bool) -> bytes:
    return _TRUE if value else _FALSE


def _encode_long(value: int) -> bytes:
    return _LONG.pack(b"\x03", value)


def _encode_string(value: str) -> bytes:
    text = value.encode()
    return _pack_length(b"\x05", len(text)) + text


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

    __slots__ = ("_columns", "_fields", "_group_by", "_named", "_names", "_parts")

    def __init__(self, group_by: str, fields: tuple[Field, ...]) -> None:
        self._group_by = group_by
        self._fields = fields
        self._names = tuple(field.name for field in fields)
        types = [parse_type(field.type) for field in fields]
        self._parts = tuple(map(_part_encoder, types))
        self._columns = tuple(map(_column_encoder, types, self._parts))
        self._named = tuple(zip(self._names, self._parts, strict=True))

    def encode(self, key: Mapping[str, Any] | Sequence[Any]) -> bytes | None:
        """Return the bytes of a key, given by name or in declared order; None if a part is None.

        Raises:
            DataError: a part is missing, unknown or not of its type; 64 bits are too few for a long; a
                double is not a number.
        """
        if type(key) is list and len(key) == len(self._parts):
            try:
                return b"".join([encode(value) for encode, value in zip(self._parts, key, strict=True)])
            except UnfitError:
                pass  # it also handles a part that is None
        return self.encode_named(key) if isinstance(key, dict) else self._encoded(self._ordered(key))

    def encode_named(self, key: Mapping[str, Any]) -> bytes | None:
        """Return the bytes of a key that is given by name; None if a part is None.

        Raises:
            DataError: as `encode`; or the key is no mapping.
        """
        if type(key) is dict and len(key) == len(self._named):
            try:
                parts = []
                for name, encode in self._named:
                    value = key[name]
                    if value is None:
                        break
                    parts.append(encode(value))
                else:
                    return b"".join(parts)
            except (KeyError, UnfitError):
                pass  # the general way below reports what is wrong
        if not isinstance(key, Mapping):
            is_row = isinstance(key, list | tuple) and len(key) == len(self._names)
            named = dict(zip(self._names, key, strict=True)) if is_row else f"{{{self._names[0]!r}: value}}"
            raise DataError(
                f"GroupBy {self._group_by!r}: keys are {key!r}; expected a mapping from the names "
                f"{list(self._names)} to values, such as {named}"
            )
        return self._encoded(self._ordered(key))

    def _encoded(self, values: Sequence[Any]) -> bytes | None:
        encoded = b""
        lacks_part = False
        for position, (value, encode) in enumerate(zip(values, self._parts, strict=True)):
            if value is None:
                lacks_part = True
                continue
            try:
                encoded += encode(value)
            except UnfitError as cause:
                raise self._unfit(position, value, cause.reason) from cause
        return None if lacks_part else encoded

    def encode_many(self, keys: Sequence[Mapping[str, Any]]) -> list[bytes | None]:
        """Return the bytes of many keys, each as from `encode_named`.

        Raises:
            DataError: as `encode_named`.
        """
        if set(map(type, keys)) == {dict} and set(map(len, keys)) == {len(self._names)}:
            try:
                columns = [[key[name] for key in keys] for name in self._names]
            except KeyError:
                pass  # encoding key by key reports what is wrong
            else:
                return self.encode_columns(columns)
        return [self.encode_named(key) for key in keys]

    def encode_columns(self, columns: Sequence[Sequence[Any]]) -> list[bytes | None]:
        """Return the bytes of many keys, given as one column for each part; None for a key with a None in it.

        Raises:
            DataError: a part is not of its declared type.
        """
        encoded: list[list[bytes | None]] = []
        for position, (values, encode) in enumerate(zip(columns, self._columns, strict=True)):
            try:
                encoded.append(encode(values))
            except UnfitError as cause:
                raise self._unfit(position, cause.value, cause.reason) from cause
        if len(encoded) == 1:
            return encoded[0]
        return [None if None in parts else b"".join(parts) for parts in zip(*encoded, strict=True)]

    def _ordered(self, key: Mapping[str, Any] | Sequence[Any]) -> Sequence[Any]:
        if isinstance(key, Mapping):
            if len(key) == len(self._names) and all(name in key for name in self._names):
                return [key[name] for name in self._names]
            given: Any = tuple(key)
        elif isinstance(key, Sequence) and not isinstance(key, str | bytes) and len(key) == len(self._names):
            return key
        else:
            given = key
        raise DataError(f"GroupBy {self._group_by!r}: a key has the parts {self._names}, got {given!r}")

    def _unfit(self, position: int, value: object, reason: str) -> DataError:
        return unfit_key(self._group_by, self._fields[position], UnfitError(value, reason))


def unfit_key(group_by: str, field: Field, unfit: UnfitError) -> DataError:
    """Return the error for a part of a key that is not as declared.

    Args:
        group_by: the name in errors.
        field: the part.
        unfit: its value, and why it does not fit.
    """
    return DataError(
        f"GroupBy {group_by!r}: key part {field.name!r} must be of type {field.type} or None, "
        f"got {unfit.value!r}: {unfit.reason}; convert it before it is used as a key"
    )


def _part_encoder(type_: DataType) -> Callable[[Any], bytes]:
    """Return the function that checks and encodes one part; texts, longs and doubles have functions of their own."""
    if type_.kind == "string":
        return _string_part
    if type_.kind == "long":
        return _long_part
    if type_.kind in ("float", "double"):
        return _float_part if type_.kind == "float" else _double_part
    encode, inward = _ENCODERS[type_.kind], type_.inward
    return lambda value: encode(inward([value])[0])


def _column_encoder(type_: DataType, encode: Callable[[Any], bytes]) -> Callable[[Sequence[Any]], list[bytes | None]]:
    """Return the function that encodes one part of many keys. Texts and longs are encoded by loops in C."""

    def encode_column(values: Sequence[Any]) -> list[bytes | None]:
        return [None if value is None else encode(value) for value in values]

    def encode_strings(values: Sequence[Any]) -> list[bytes | None]:
        if set(map(type, values)) != {str}:
            return encode_column(values)
        try:
            texts = list(map(str.encode, values))
        except UnicodeEncodeError:
            return encode_column(values)  # which names the faulty text
        heads = {size: _pack_length(b"\x05", size) for size in set(map(len, texts))}
        return [heads[len(text)] + text for text in texts]

    def encode_longs(values: Sequence[Any]) -> list[bytes | None]:
        if set(map(type, values)) != {int}:
            return encode_column(values)
        try:
            return list(map(_LONG.pack, repeat(b"\x03"), values))
        except struct.error:
            return encode_column(values)  # which names the faulty number

    return {"string": encode_strings, "long": encode_longs}.get(type_.kind, encode_column)


def _string_part(value: Any) -> bytes:
    if type(value) is not str:
        raise UnfitError(value, f"it is of type {type(value).__name__}")
    try:
        return _encode_string(value)
    except UnicodeEncodeError as cause:
        raise UnfitError(value, str(cause)) from cause


def _long_part(value: Any) -> bytes:
    if type(value) is not int:
        raise UnfitError(value, f"it is of type {type(value).__name__}")
    if not LONG_MIN <= value <= LONG_MAX:
        raise UnfitError(value, "it does not fit into 64 bits")
    return _encode_long(value)


def _double_part(value: Any) -> bytes:
    # An int is not accepted as a double: 1 and 1.0 are two keys.
    if type(value) is not float:
        raise UnfitError(value, f"it is of type {type(value).__name__}")
    if value != value:  # noqa: PLR0124 - only NaN differs from itself
        raise UnfitError(value, "NaN equals nothing, so nothing can be found under it")
    return _DOUBLE.pack(b"\x04", value + 0.0)


def _float_part(value: Any) -> bytes:
    encoded = _double_part(value)
    try:
        rounded = _FLOAT.unpack(_FLOAT.pack(value))[0]
    except OverflowError as cause:
        raise UnfitError(value, "it is too large for a float of 32 bits") from cause
    return encoded if rounded == value else _double_part(rounded)
