"""Maps a key to its key group, and a key group to its shard.

A *key group* is the unit in which state moves. Their number (the maximum parallelism) is chosen at an operator's first
start and never changes. A *shard* is a contiguous range of key groups, on which one task works. So a key never changes
its key group, and rescaling only moves whole key groups between shards.

The hash is Spark's `xxhash64` (seed 42, the columns chained, a null leaves the hash unchanged). So the JVM can compute
it for a million rows and Python for a single key, with the same result.

Source of the idea: Flink's key groups (FLINK-3755).
"""

import datetime as dt
import decimal
import math
import struct
from collections.abc import Sequence

import pyarrow as pa
import xxhash

from millpond.errors import OptionError

_SEED = 42
_MIN_PARALLELISM = 128
# Key groups are 16-bit numbers, as in Flink: at most 32,768 of them.
_MAX_SHARDS = (1 << 15) * 2 // 3
_DECIMAL_AS_LONG_PRECISION = 18
_ANY_DECIMAL = decimal.Context(prec=76)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1)


def max_parallelism(shards: int) -> int:
    """Return the number of key groups of an operator that is first started with this many shards.

    It is 128, or the smallest power of two above that which is at least one and a half times `shards`, as Flink
    chooses it.

    >>> max_parallelism(2), max_parallelism(100)
    (128, 256)
    """
    if not 1 <= shards <= _MAX_SHARDS:
        raise OptionError(f"shards is {shards}; an operator has from 1 to {_MAX_SHARDS} of them.")
    wanted = _MIN_PARALLELISM
    while 2 * wanted < 3 * shards:
        wanted *= 2
    return wanted


def shard_of(key_group: int, shards: int, parallelism: int) -> int:
    """Return the shard, from 0, that holds a key group.

    >>> [shard_of(key_group, shards=3, parallelism=8) for key_group in range(8)]
    [0, 0, 0, 1, 1, 1, 2, 2]
    """
    return key_group * shards // parallelism


def key_groups_of(shard: int, shards: int, parallelism: int) -> range:
    """Return the key groups of a shard: the inverse of `shard_of`.

    >>> key_groups_of(1, shards=3, parallelism=8)
    range(3, 6)
    """
    return range(-(-shard * parallelism // shards), -(-(shard + 1) * parallelism // shards))


def key_hash(key: Sequence[object], types: Sequence[pa.DataType]) -> int:
    """Return Spark's `xxhash64` of a key's columns, as an unsigned 64-bit integer.

    >>> key_hash(("abc",), [pa.string()]) == 1423657621850124518
    True
    """
    value = _SEED
    for column, kind in zip(key, types, strict=True):
        if column is not None:
            value = xxhash.xxh64_intdigest(_hashed_bytes(column, kind), value)
    return value


def key_group_of(key: Sequence[object], types: Sequence[pa.DataType], parallelism: int) -> int:
    """Return the key group of a key: its hash, as a signed number, modulo the maximum parallelism."""
    value = key_hash(key, types)
    return (value - (1 << 64) if value >> 63 else value) % parallelism


def _hashed_bytes(column: object, kind: pa.DataType) -> bytes:
    """Return the bytes that Spark hashes for one value: 4 or 8 for numbers, else the value's own."""
    if isinstance(column, str):
        return column.encode()
    if isinstance(column, bytes | bytearray | memoryview):
        return bytes(column)
    if isinstance(column, bool):
        return struct.pack("<i", column)
    if isinstance(column, int):
        return struct.pack("<q" if pa.types.is_int64(kind) else "<i", column)
    if isinstance(column, float):
        # NaNs are one key, and so are both zeros, as in Spark.
        number = math.nan if math.isnan(column) else column + 0.0
        return struct.pack("<f" if pa.types.is_float32(kind) else "<d", number)
    if isinstance(column, dt.datetime):
        aware = column if column.tzinfo else column.replace(tzinfo=dt.UTC)
        return struct.pack("<q", (aware - _EPOCH) // dt.timedelta(microseconds=1))
    if isinstance(column, dt.date):
        return struct.pack("<i", (column - _EPOCH_DAY).days)
    if isinstance(column, decimal.Decimal):
        return _decimal_bytes(column, kind)
    if isinstance(column, dt.timedelta):
        return struct.pack("<q", column // dt.timedelta(microseconds=1))
    raise OptionError(f"a key of type {type(column).__name__} ({kind}) has no key group; key by atomic columns.")


def _decimal_bytes(column: decimal.Decimal, kind: pa.DataType) -> bytes:
    unscaled = int(column.scaleb(kind.scale, _ANY_DECIMAL))
    if kind.precision <= _DECIMAL_AS_LONG_PRECISION:
        return struct.pack("<q", unscaled)
    magnitude = unscaled if unscaled >= 0 else ~unscaled
    return unscaled.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)
