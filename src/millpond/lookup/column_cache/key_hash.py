"""Hashes of whole columns of keys, for an index that is searched a batch at a time.

The indexes of mapped tables and of column caches use it. The invariant: **equal keys have equal hashes**,
whichever side of the join they come from and however wide their numbers are. So a column is first converted to
one of two plain forms, by the type of the table's column: 64-bit integers (whole numbers, booleans, dates, times,
timestamps, durations), or bytes (strings, binary, and decimals as their shortest text).

Bytes are hashed eight at a time, for all keys of a batch together: round r takes the r-th word of every
key that is long enough. So the number of rounds grows with the longest key, and no key becomes a Python object.

Source: the mixing steps are those of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
number generators", 2014).
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.lookup.functions.keys import plain_value

Hashes: TypeAlias = npt.NDArray[np.uint64]

_STEP = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD = 8
_WORD_BITS = 64
_SIGNED, _UNSIGNED = (-(1 << 63), (1 << 63) - 1), (0, (1 << 64) - 1)
"""The least and the greatest whole number of 64 bits."""


def plain_column(column: pa.Array, key_type: pa.DataType) -> pa.Array:
    """Convert a key column to 64-bit integers or to bytes. A value that no row of `key_type` can have becomes null.

    >>> plain_column(pa.array([5, None], pa.int8()), pa.int32()).to_pylist()
    [5, None]
    >>> plain_column(pa.array([Decimal("5.0"), Decimal("5.5")]), pa.int32()).to_pylist()
    [5, None]
    >>> plain_column(pa.array([500, 5]), pa.decimal128(9, 2)).to_pylist()
    [b'500', b'5']
    """
    types = pa.types
    if types.is_decimal(key_type):
        return pa.array([_text(value) for value in column.to_pylist()], pa.large_binary())
    if types.is_integer(key_type):
        return _words(column, unsigned=types.is_uint64(key_type))
    if types.is_boolean(key_type):
        return column.cast(pa.int8()).cast(pa.int64())
    if types.is_timestamp(key_type):
        return column.cast(pa.timestamp("us", key_type.tz)).cast(pa.int64())
    if types.is_date(key_type):
        return column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
    if types.is_time(key_type):
        return column.cast(pa.time64("us")).cast(pa.int64())
    if types.is_duration(key_type):
        return column.cast(pa.duration("us")).cast(pa.int64())
    return column.cast(pa.large_binary())


def key_array(values: Sequence[Any], key_type: pa.DataType) -> pa.Array:
    """Return checked values of a key column as an array. A value that no row of `key_type` can have becomes null.

    >>> key_array([5, 1 << 70, Decimal("7.0")], pa.int32()).to_pylist()
    [5, None, 7]
    >>> key_array([Decimal("1E+9"), 7], pa.decimal128(9, 2)).to_pylist()
    [None, Decimal('7.00')]
    """
    types = pa.types
    if types.is_integer(key_type):
        kind, (least, most) = (pa.uint64(), _UNSIGNED) if types.is_uint64(key_type) else (pa.int64(), _SIGNED)
        return pa.array([int(value) if least <= value <= most else None for value in values], kind)
    if types.is_decimal(key_type):
        exact, digits = plain_value(key_type), key_type.precision - key_type.scale
        numbers = (value if isinstance(value, Decimal) else Decimal(int(value)) for value in values)
        return pa.array([exact(each) if not each or each.adjusted() < digits else None for each in numbers], key_type)
    if types.is_fixed_size_binary(key_type):
        return pa.array([value if len(value) == key_type.byte_width else None for value in values], key_type)
    return pa.array(values, key_type)


def hashes(columns: Sequence[pa.Array], seed: int = 0) -> Hashes:
    """Return one hash per row over plain columns. It is meaningless for a row with a null."""
    mixed = np.full(len(columns[0]), seed * _STEP & (1 << _WORD_BITS) - 1, np.uint64)
    for column in columns:
        if pa.types.is_int64(column.type):
            _add(mixed, integers(column).view(np.uint64))
        else:
            _add_bytes(mixed, column)
    return mixed


def integers(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the values of a plain column of integers without a copy. A null can have any value."""
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), np.int64)
    return np.frombuffer(data, np.int64, len(column), column.offset * _WORD)


def equal(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where two plain columns have equal values. A null equals nothing."""
    return cast("npt.NDArray[np.bool_]", pc.equal(one, other).fill_null(False).to_numpy(zero_copy_only=False))


def _add(mixed: Hashes, words: Hashes) -> None:
    mixed += np.uint64(_STEP)
    mixed ^= words
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_2
    mixed ^= mixed >> np.uint64(31)


def _add_bytes(mixed: Hashes, column: pa.Array) -> None:
    _, offset_buffer, data = column.buffers()
    if not len(column):
        return
    offsets = np.frombuffer(offset_buffer, np.int64, len(column) + 1, column.offset * _WORD)
    starts, lengths = offsets[:-1], np.diff(offsets)
    _add(mixed, lengths.view(np.uint64))
    first, end = int(offsets[0]), int(offsets[-1])
    if first == end or data is None:
        return
    # A copy with room after the last key, so that a whole word can be read there.
    text = np.zeros(end - first + _WORD, np.uint8)
    text[: end - first] = np.frombuffer(data, np.uint8, end - first, first)
    words = np.ndarray((end - first + 1,), np.dtype("<u8"), text.data, strides=(1,))
    read = np.flatnonzero(lengths)
    for begin in range(0, int(lengths.max()), _WORD):
        read = read[lengths[read] > begin]
        word = words[starts[read] - first + begin]
        rest = np.minimum(lengths[read] - begin, _WORD).astype(np.uint64)
        word &= np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(_WORD_BITS) - rest * np.uint64(_WORD))
        longer = mixed[read]
        _add(longer, word)
        mixed[read] = longer


def _text(value: Decimal | int | None) -> bytes | None:
    """Return a number as text, which is the same for equal numbers of different scales."""
    if value is None:
        return None
    whole = _whole_of_any_size(value)
    return (str(whole) if whole is not None else format(value, "f").rstrip("0")).encode()


def _words(column: pa.Array, *, unsigned: bool) -> pa.Array:
    """Return whole numbers as 64-bit integers. An unsigned one from 2^63 on becomes negative."""
    least, most = _UNSIGNED if unsigned else _SIGNED
    if pa.types.is_decimal(column.type):
        wholes = [None if value is None else _whole_of_any_size(value) for value in column.to_pylist()]
        kind = pa.uint64() if unsigned else pa.int64()
        column = pa.array([whole if whole is not None and least <= whole <= most else None for whole in wholes], kind)
    elif unsigned and pa.types.is_signed_integer(column.type):
        column = pc.if_else(pc.greater_equal(column, 0), column, None).cast(pa.uint64())
    elif not unsigned and pa.types.is_uint64(column.type):
        column = pc.if_else(pc.less_equal(column, pa.scalar(most, pa.uint64())), column, None)
    return column.cast(pa.int64(), safe=not unsigned)


def _whole_of_any_size(value: Decimal | int) -> int | None:
    return int(value) if value == int(value) else None
