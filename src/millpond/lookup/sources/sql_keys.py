"""Prepares keys for a SQL query: as columns of the table's types, without the keys that no row can have.

A key that its column cannot hold (too large a number, a text with a NUL byte) has no rows. But a database
rejects a query with such a value, and so all other keys of the batch. The invariant: **a key that is left out
here could not have matched**.
"""

from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.lookup.functions.function import Key
from millpond.lookup.functions.keys import PlainKeys

Positions = npt.NDArray[np.int64]

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def key_columns(keys: Sequence[Key], key_schema: pa.Schema) -> tuple[Positions, list[pa.Array]]:
    """Return the positions of the keys that can exist, and these keys as one array per column.

    >>> positions, columns = key_columns([(5,), (1 << 70,), (7,)], pa.schema([("n", pa.int64())]))
    >>> positions.tolist(), columns[0].to_pylist()
    ([0, 2], [5, 7])
    """
    there = [place for place, key in enumerate(keys) if _fits(key, key_schema)]
    plain = PlainKeys(key_schema)
    values = list(zip(*(plain(keys[place]) for place in there), strict=True)) or [()] * len(key_schema)
    columns = [pa.array(column, field.type) for column, field in zip(values, key_schema, strict=True)]
    return np.array(there, np.int64), columns


def possible_keys(columns: Sequence[pa.Array], key_schema: pa.Schema) -> tuple[Positions, list[pa.Array]]:
    r"""Do the same for keys in columns, which have the types of the events.

    >>> positions, columns = possible_keys([pa.array(["a", "b\0"])], pa.schema([("code", pa.string())]))
    >>> positions.tolist(), columns[0].to_pylist()
    ([0], ['a'])
    """
    if any(_differs(column.type, field.type) for column, field in zip(columns, key_schema, strict=True)):
        return key_columns(list(zip(*(column.to_pylist() for column in columns), strict=True)), key_schema)
    typed = [column.cast(field.type) for column, field in zip(columns, key_schema, strict=True)]
    possible = np.ones(len(typed[0]), np.bool_)
    for column in typed:
        if pa.types.is_string(column.type):
            possible &= ~pc.match_substring(column, "\0").to_numpy(zero_copy_only=False).astype(np.bool_)
    positions = np.flatnonzero(possible)
    if len(positions) < len(possible):
        typed = [column.take(pa.array(positions)) for column in typed]
    return positions, typed


def _differs(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values must be checked one by one, because a cast could fail or change them."""
    return bool(pa.types.is_decimal(given) or pa.types.is_decimal(wanted)) and given != wanted


def _fits(key: Key, key_schema: pa.Schema) -> bool:
    return all(_value_fits(value, field.type) for value, field in zip(key, key_schema, strict=True))


def _value_fits(value: object, key_type: pa.DataType) -> bool:
    if isinstance(value, str):
        return "\0" not in value and _is_unicode(value)
    if pa.types.is_integer(key_type) and isinstance(value, (int, Decimal)):
        return value == int(value) and _LEAST <= value <= _MOST
    if pa.types.is_decimal(key_type) and isinstance(value, (int, Decimal)):
        return _scale_fits(Decimal(value), key_type.scale) and abs(value) < 10 ** (key_type.precision - key_type.scale)
    return True


def _scale_fits(value: Decimal, scale: int) -> bool:
    """Return whether the digits after the point, without trailing zeros, fit the scale."""
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - keys that are not finite were left out before
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return exponent + zeros >= -scale or not any(digits)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
