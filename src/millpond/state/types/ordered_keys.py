"""The keys under which RocksDB holds the cells of keyed state: tuples to bytes, and back.

A cell's db key is

    state (2 bytes) | key group (2 bytes) | length of the key (4 bytes) | key | map key, of a map's entry

with the numbers big-endian. So the cells of a state, of one of its key groups, and of one key each lie side by side
and are found by their prefix. The length before the key prevents one key's prefix from matching another key.

A tuple is encoded as msgpack, which distinguishes values that Python finds equal (`1`, `True`, `1.0`) and needs no
schema to be read. Types that msgpack lacks are encoded as extensions. So are floats, so that every NaN is one key and
-0.0 is the same as 0.0, as Spark groups them.

Invariant: `decode_key(encode_key(key)) == key`, with the same types, and equal keys of one schema have the same
bytes.
"""

import datetime as dt
import decimal
import math
import struct
import zoneinfo
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import msgspec

from millpond.errors import CorruptionError, DataError
from millpond.state.types.arrow_values import NAN
from millpond.state.types.rows import Row

STATE_PREFIX = struct.Struct(">H")
GROUP_PREFIX = struct.Struct(">HH")
KEY_PREFIX = struct.Struct(">HHI")

_PLAIN = frozenset({int, str, bytes, bool, type(None)})
_FLOAT, _DATETIME, _DATE, _DURATION, _DECIMAL, _TIME, _TUPLE = range(1, 8)
_DOUBLE = struct.Struct(">d")
_LONG = struct.Struct(">q")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_WALL_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - for times that have no zone
_UTC = zoneinfo.ZoneInfo("UTC")  # the zone of Arrow's values; Python's own UTC is encoded the same way
_MICROSECOND = dt.timedelta(microseconds=1)

_pack = msgspec.msgpack.Encoder().encode


def encode_key(key: Row) -> bytes:
    """Encode a state's key, or a map key.

    Raises:
        DataError: an element has a type that keys cannot have.

    >>> encode_key(("ann", 1)) == encode_key(("ann", True))
    False
    """
    for item in key:
        if type(item) not in _PLAIN:
            return _pack([_plain(item) for item in key])
    return _pack(key)


def encode_keys(keys: Sequence[Row]) -> list[bytes]:
    """Encode many keys, which costs half of encoding each by itself.

    >>> encode_keys([("ann", 1), ("bob", 2.5)]) == [encode_key(("ann", 1)), encode_key(("bob", 2.5))]
    True
    """
    if _PLAIN.issuperset(map(type, chain.from_iterable(keys))):
        return list(map(_pack, keys))
    return list(map(encode_key, keys))


def decode_key(data: bytes) -> Row:
    """Decode what `encode_key` returned.

    >>> decode_key(encode_key(("ann", dt.date(2013, 1, 1), None)))
    ('ann', datetime.date(2013, 1, 1), None)
    """
    try:
        return _unpack(data)
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise CorruptionError(f"{data!r} is not a key of keyed state: {error}.") from error


def key_of(at: bytes) -> tuple[int, Row]:
    """Return the key group and the key of a cell, from its db key."""
    _, key_group, length = KEY_PREFIX.unpack_from(at)
    return key_group, decode_key(at[KEY_PREFIX.size : KEY_PREFIX.size + length])


def after(prefix: bytes) -> bytes:
    """Return the least bytes that are greater than all that begin with `prefix`, which must not be all 0xFF.

    >>> after(b"ab"), after(b"a" + bytes([255]))
    (b'ac', b'b')
    """
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes([cut[-1] + 1])


def _plain(item: Any) -> Any:
    """Return what msgpack should write for one element."""
    if type(item) in _PLAIN:
        return item
    for kind, (code, write, _) in _EXTENSIONS.items():
        if isinstance(item, kind):
            return msgspec.msgpack.Ext(code, write(item))
    if isinstance(item, int):
        return int(item)
    if isinstance(item, str):
        return str(item)
    raise DataError(
        f"{item!r} of type {type(item).__name__} cannot be part of a key of keyed state. Key by numbers, texts, bytes, "
        "dates and times."
    )


def _write_datetime(value: dt.datetime) -> bytes:
    """Encode the wall time, or the instant and its zone: two instants with one wall time stay two."""
    zone = value.tzinfo
    if zone is None:
        return _LONG.pack((value - _WALL_EPOCH) // _MICROSECOND)
    instant = _LONG.pack((value - _EPOCH) // _MICROSECOND)
    name: str | None = getattr(zone, "key", None)
    if name is not None and zone is not _UTC:
        return instant + b"Z" + name.encode()
    return instant + b"O" + _LONG.pack((value.utcoffset() or dt.timedelta(0)) // _MICROSECOND)


def _read_datetime(data: bytes) -> dt.datetime:
    since_epoch: dt.timedelta = _LONG.unpack(data[:8])[0] * _MICROSECOND
    if len(data) == _LONG.size:
        return _WALL_EPOCH + since_epoch
    if data[8:9] == b"Z":
        return (_EPOCH + since_epoch).astimezone(zoneinfo.ZoneInfo(data[9:].decode()))
    offset: dt.timedelta = _LONG.unpack(data[9:])[0] * _MICROSECOND
    return (_EPOCH + since_epoch).astimezone(dt.timezone(offset) if offset else _UTC)


def _write_decimal(value: decimal.Decimal) -> bytes:
    # With all its digits: keys of one schema have the same number of them after the point.
    return str(value.copy_abs() if value.is_zero() else value).encode()


# In the order in which types are tested: a datetime is a date as well.
_EXTENSIONS: dict[type, tuple[int, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    float: (
        _FLOAT,
        lambda value: _DOUBLE.pack(NAN if math.isnan(value) else value + 0.0),
        lambda data: NAN if math.isnan(number := _DOUBLE.unpack(data)[0]) else number,
    ),
    dt.datetime: (_DATETIME, _write_datetime, _read_datetime),
    dt.date: (
        _DATE,
        lambda value: _LONG.pack(value.toordinal()),
        lambda data: dt.date.fromordinal(_LONG.unpack(data)[0]),
    ),
    dt.timedelta: (
        _DURATION,
        lambda value: str(value // _MICROSECOND).encode(),
        lambda data: int(data) * _MICROSECOND,
    ),
    decimal.Decimal: (_DECIMAL, _write_decimal, lambda data: decimal.Decimal(data.decode())),
    dt.time: (_TIME, lambda value: value.isoformat().encode(), lambda data: dt.time.fromisoformat(data.decode())),
    tuple: (_TUPLE, encode_key, decode_key),
}
_READERS = {code: read for code, _, read in _EXTENSIONS.values()}


def _read_extension(code: int, data: memoryview) -> Any:
    return _READERS[code](bytes(data))


_unpack = msgspec.msgpack.Decoder(Row, ext_hook=_read_extension).decode
