"""The Arrow types of PostgreSQL's types, and how keys are sent.

Keys are sent as one binary array per column, built from Arrow's buffers without a Python object per key. The
invariant: **a key column is compared in its own type**, so that its index is used. Only the key is cast, never
the column.

A type that Arrow or Spark does not have (uuid, inet, json, enums) is read as text. In some types, several texts
stand for one value (`{"a":1}` and `{"a": 1}`). A key column of such a type is read back and compared as text, like
in Spark's join and in a fully cached table.

Source: PostgreSQL, `array_send` and the `*_recv` functions of the types.
"""

import ipaddress
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import OptionError

_ARRAY_HEADER = np.dtype([("dimensions", ">i4"), ("nulls", ">i4"), ("type", ">u4"), ("size", ">i4"), ("first", ">i4")])
_LENGTH = 4
_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = _DAYS_TO_2000 * 86_400_000_000
_DAY_US = 86_400_000_000
_NUMERIC_SCALE = 18
_MOST_DIGITS = 38
_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"

ReadBack = Literal["never", "refuse", "compare"]


@dataclass(frozen=True, slots=True)
class SqlType:
    """How one column is read, and compared with keys.

    Attributes:
        arrow: its Arrow type.
        read: the SQL expression that reads it, with `{}` for the column's name.
        oid: the type that `read` has, which every answer is checked against.
        key: the array type of its keys, or "" if it cannot be a key.
        key_expression: the SQL expression that converts a key, in place of `{}`, before it is compared.
        read_back: whether a row's key is compared with the requested one. `"never"`: the database calls only equal
            keys equal. `"refuse"`: another form is an error, because keys would be missed. `"compare"`: another form
            is another key, whose row is dropped.
    """

    arrow: pa.DataType
    read: str
    oid: int
    key: str = ""
    key_expression: str = "{}"
    read_back: ReadBack = "never"


@dataclass(frozen=True, slots=True)
class CatalogColumn:
    """A column in the database's catalog. A domain is replaced by its base type."""

    name: str
    type_name: str
    type_sql: str
    modifier: int
    kind: str
    element: str | None
    deterministic: bool


_PLAIN: dict[str, tuple[pa.DataType, int, str]] = {
    "bool": (pa.bool_(), 16, "bool"),
    "int2": (pa.int64(), 21, "int8"),
    "int4": (pa.int64(), 23, "int8"),
    "int8": (pa.int64(), 20, "int8"),
    "float4": (pa.float64(), 700, ""),
    "float8": (pa.float64(), 701, ""),
    "text": (pa.string(), 25, "text"),
    "varchar": (pa.string(), 1043, "text"),
    "bpchar": (pa.string(), 1042, "bpchar"),
    "name": (pa.string(), 19, "text"),
    "bytea": (pa.binary(), 17, "bytea"),
    "date": (pa.date32(), 1082, "date"),
    "timestamp": (pa.timestamp("us"), 1114, "timestamp"),
    "timestamptz": (pa.timestamp("us", "UTC"), 1184, "timestamptz"),
    "time": (pa.time64("us"), 1083, "time"),
    "interval": (pa.duration("us"), 1186, "interval"),
}
_TEXT_OID, _NUMERIC_OID = 25, 1700
_ELEMENT_OIDS = {
    "bool": 16, "bytea": 17, "int8": 20, "text": 25, "bpchar": 1042, "date": 1082, "time": 1083, "timestamp": 1114,
    "timestamptz": 1184, "interval": 1186,
}  # fmt: skip
ARRAY_OIDS = {
    "bool": 1000, "bytea": 1001, "int8": 1016, "text": 1009, "bpchar": 1014, "date": 1182, "time": 1183,
    "timestamp": 1115, "timestamptz": 1185, "interval": 1187,
}  # fmt: skip
_ARRAYS_OF = {
    "bool": 1000, "int2": 1005, "int4": 1007, "int8": 1016, "float4": 1021, "float8": 1022, "text": 1009,
    "varchar": 1015, "date": 1182, "timestamp": 1115, "timestamptz": 1185,
}  # fmt: skip

ARRAY_ELEMENTS = {array: _PLAIN[element][1] for element, array in _ARRAYS_OF.items()}
"""The OID of the elements of an array type, by its own OID."""


def sql_type(where: str, column: CatalogColumn) -> SqlType:
    """Return how a column is read and compared. An `OptionError` names a column of an unsupported type."""
    name = column.type_name
    if column.kind == "e":
        # The cast would fail for a value that is not a label. So such a value becomes null and matches nothing.
        named = column.type_sql.replace("'", "''")
        labels = f"select enumlabel::text from pg_enum where enumtypid = '{named}'::regtype"
        return SqlType(
            pa.string(), "{}::text", _TEXT_OID, "text", f"case when {{}} in ({labels}) then {{}}::{column.type_sql} end"
        )
    if column.element in _ARRAYS_OF:
        return SqlType(pa.list_(_PLAIN[column.element][0]), "{}", _ARRAYS_OF[column.element])
    if name in _PLAIN:
        arrow, oid, key = _PLAIN[name]
        read_back: ReadBack = "refuse" if name == "bpchar" or not column.deterministic else "never"
        return SqlType(arrow, "{}", oid, key, read_back=read_back)
    if name == "numeric":
        return SqlType(_decimal(where, column), "{}", _NUMERIC_OID, "text", "{}::numeric")
    if name == "citext":
        return SqlType(pa.string(), "{}::text", _TEXT_OID, "text", f"{{}}::{column.type_sql}", "refuse")
    if name == "uuid":
        return SqlType(pa.string(), "{}::text", _TEXT_OID, "text", "{}::uuid")
    if name in ("inet", "cidr"):
        # A cast to text would append /32 to an address.
        shown = "case when {} is not null then format('%%s', {}) end"
        return SqlType(pa.string(), shown, _TEXT_OID, "text", f"{{}}::{name}", "compare")
    if name == "jsonb":
        return SqlType(pa.string(), "{}::text", _TEXT_OID, "text", "{}::jsonb", "compare")
    if name == "json":
        return SqlType(pa.string(), "{}::text", _TEXT_OID)
    raise OptionError(
        f"{where}, column {column.name!r}: SQL type {column.type_sql} has no Arrow type here; look up through a view "
        "that casts it to a number, a boolean, text, bytes, a date or a timestamp"
    )


def _decimal(where: str, column: CatalogColumn) -> pa.DataType:
    if column.modifier < 0:
        # Spark reads a numeric without a scale like this. A value that does not fit is an error when it is read.
        return pa.decimal128(_MOST_DIGITS, _NUMERIC_SCALE)
    precision, scale = column.modifier - _LENGTH >> 16 & 0xFFFF, column.modifier - _LENGTH & 0x7FF
    if precision > _MOST_DIGITS or scale > precision:
        raise OptionError(
            f"{where}, column {column.name!r}: numeric({precision}, {scale}) has no Arrow type here, at most "
            f"{_MOST_DIGITS} digits have; look up through a view that casts it"
        )
    return pa.decimal128(precision, scale)


_MOMENTS = {
    "date": (pa.int32(), -2_440_588, 2_145_042_905),
    "timestamp": (pa.int64(), -210_866_803_200_000_000, (1 << 63) - 1),
    "timestamptz": (pa.int64(), -210_866_803_200_000_000, (1 << 63) - 1),
}
"""The first and last moment that the type has, 4713 BC at the earliest, as Arrow counts it."""


def possible(column: pa.Array, type_name: str) -> npt.NDArray[np.bool_] | None:
    """Return which keys are valid values of the type, since the database would reject the others; None means all."""
    if type_name == "uuid":
        matched: npt.NDArray[np.bool_] = pc.match_substring_regex(column, _UUID).to_numpy(zero_copy_only=False)
        return matched
    if type_name in _MOMENTS:
        counted, first, last = _MOMENTS[type_name]
        moments = column.cast(counted).to_numpy()
        there: npt.NDArray[np.bool_] = (moments >= first) & (moments <= last)
        return there
    if type_name in _READERS:
        return np.fromiter((_reads(_READERS[type_name], text) for text in column.to_pylist()), np.bool_, len(column))
    return None


def _read_json(text: str) -> None:
    value = json.loads(text, parse_constant=_refuse, parse_float=_read_number)
    # PostgreSQL's text, and so its jsonb, cannot hold NUL. It writes other characters as they are.
    if _ESCAPED.search(text):
        _refuse(value)


def _read_number(text: str) -> None:
    """Refuse an exponent, which the database never writes, and which may be too large for it."""
    if "e" in text.lower():
        _refuse(text)


def _refuse(value: Any) -> None:
    raise ValueError(value)


def _read_address(text: str) -> None:
    ipaddress.ip_interface(text)
    _read_prefix(text)


def _read_network(text: str) -> None:
    ipaddress.ip_network(text)
    _read_prefix(text)


def _read_prefix(text: str) -> None:
    """Refuse what Python reads and PostgreSQL does not: a mask in place of the number of bits, and a zone."""
    if not _PREFIX.search(text) or "%" in text:
        _refuse(text)


_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\u(?:0000|d)", re.IGNORECASE)
"""An escaped NUL or surrogate: after an even number of backslashes, which stand for themselves."""

_PREFIX = re.compile(r"^[^/]*(?:/(?:0|[1-9][0-9]*))?$")

_READERS: dict[str, Callable[[str], Any]] = {
    "inet": _read_address,
    "cidr": _read_network,
    "jsonb": _read_json,
}


def _reads(read: Callable[[str], Any], text: str) -> bool:
    try:
        read(text)
    except (ValueError, RecursionError):
        return False
    return True


def array_bytes(column: pa.Array, key: str) -> bytes:
    """Encode a column of keys without nulls as a binary array of PostgreSQL."""
    header = np.array([(1, 0, _ELEMENT_OIDS[key], len(column), 1)], _ARRAY_HEADER)
    if not len(column):
        return np.array([(0, 0, _ELEMENT_OIDS[key])], [("d", ">i4"), ("n", ">i4"), ("t", ">u4")]).tobytes()
    if key in ("text", "bpchar", "bytea"):
        return header.tobytes() + _texts(column.cast(pa.string()) if pa.types.is_decimal(column.type) else column)
    values, kind = _fixed(column, key)
    elements = np.empty(len(column), np.dtype([("length", ">i4"), ("value", kind)]))
    elements["length"] = np.dtype(kind).itemsize
    if key == "interval":
        elements["value"]["us"], elements["value"]["days"], elements["value"]["months"] = values, 0, 0
    else:
        elements["value"] = values
    return header.tobytes() + elements.tobytes()


_INTERVAL = [("us", ">i8"), ("days", ">i4"), ("months", ">i4")]


def _fixed(column: pa.Array, key: str) -> tuple[npt.NDArray[Any], Any]:
    match key:
        case "bool":
            return column.cast(pa.int8()).to_numpy(), ">i1"
        case "int8":
            return column.to_numpy(), ">i8"
        case "date":
            return column.cast(pa.int32()).to_numpy() - _DAYS_TO_2000, ">i4"
        case "timestamp" | "timestamptz":
            return column.cast(pa.int64()).to_numpy() - _MICROSECONDS_TO_2000, ">i8"
        case "interval":
            return column.cast(pa.int64()).to_numpy(), _INTERVAL
    return column.cast(pa.int64()).to_numpy(), ">i8"


def _texts(column: pa.Array) -> bytes:
    """Encode every value after its length. All values are moved together."""
    large = column.cast(pa.large_binary())
    _, offset_buffer, data = large.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, len(large) + 1, large.offset * 8)
    lengths, first, end = np.diff(offsets), int(offsets[0]), int(offsets[-1])
    written = np.empty(len(large) * _LENGTH + end - first, np.uint8)
    numbers = np.arange(len(large))
    at = offsets[:-1] - first + numbers * _LENGTH
    written[(at[:, None] + np.arange(_LENGTH)).ravel()] = lengths.astype(">i4").view(np.uint8)
    if end > first:
        places = np.arange(end - first) + np.repeat((numbers + 1) * _LENGTH, lengths)
        written[places] = np.frombuffer(data, np.uint8, end - first, first)
    return written.tobytes()
