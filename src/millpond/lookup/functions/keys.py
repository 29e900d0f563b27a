"""Checks of keys: which types a key column may have, and whether requested keys have them.

Place on the data path: in front of every cache. A key of another type silently finds nothing in Python: `"7"` is not
`7`, and a timestamp without a zone differs from one with a zone. So the invariant is that **a key of the wrong type is
an error, and never a key without rows**. A key with a null is valid and matches nothing, as in SQL.

The check works per batch and column on the set of the values' classes, which costs one set operation per key. Single
values are checked only if the set has a class that is not known to fit.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from functools import partial
from numbers import Integral
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import DataError, OptionError
from millpond.lookup.functions.function import Key


def check_key_types(where: str, key_schema: pa.Schema) -> None:
    """Raise `OptionError` if there is no key column, or one of a type without exact equality."""
    if not len(key_schema):
        raise OptionError(f"{where}: expected at least one key column, got none")
    for field in key_schema:
        if pa.types.is_floating(field.type) or pa.types.is_nested(field.type):
            raise OptionError(
                f"{where}, key column {field.name!r}: expected a type with exact equality, such as a whole number, "
                f"a string, a date or a timestamp, got {field.type}; cast it in the source"
            )


class KeyCheck:
    """Checks keys against the key columns of one source.

    >>> check = KeyCheck("planes", pa.schema([("tailnum", pa.string())]))
    >>> check([("N101",), (None,), ("N102",)])
    [('N101',), ('N102',)]
    >>> check([(101,)])
    Traceback (most recent call last):
    millpond.errors.DataError: planes, key column 'tailnum': expected values of string, got int 101 in key (101,); ...
    """

    def __init__(self, where: str, key_schema: pa.Schema) -> None:
        self._where = where
        self._fields = list(key_schema)
        self._fits = [_fitting(field.type) for field in self._fields]
        self._fine: list[set[type]] = [set() for _ in self._fields]

    def __call__(self, keys: Iterable[Key]) -> list[Key]:
        """Return the distinct keys that can match something, in order. A `DataError` names a key of the wrong type."""
        try:
            distinct = list(dict.fromkeys(keys))
        except TypeError as error:
            raise DataError(f"{self._where}: expected keys as tuples of plain values, got one with {error}") from error
        for key in distinct:
            if type(key) is not tuple or len(key) != len(self._fields):
                names = ", ".join(field.name for field in self._fields)
                raise DataError(
                    f"{self._where}: expected a key as a tuple of {len(self._fields)} ({names}), got "
                    f"{type(key).__name__} {key!r}"
                )
        hopeless: set[Key] = set()
        for place, fine in enumerate(self._fine):
            if not {type(key[place]) for key in distinct} <= fine:
                self._look_closer(place, distinct, hopeless)
        return [key for key in distinct if key not in hopeless] if hopeless else distinct

    def _look_closer(self, place: int, keys: Sequence[Key], hopeless: set[Key]) -> None:
        """Raise for wrong values. Add keys with a null, or with a number that no row can have, to `hopeless`."""
        field, fits = self._fields[place], self._fits[place]
        for key in keys:
            value = key[place]
            if value is None or (isinstance(value, Decimal) and not _has_room(field.type, value)):
                hopeless.add(key)
            elif not fits(value):
                raise DataError(
                    f"{self._where}, key column {field.name!r}: expected values of {field.type}, got "
                    f"{type(value).__name__} {value!r} in key {key!r}; as it is it would match nothing: "
                    "convert it before the lookup"
                )
            elif not isinstance(value, _SEEN_ONE_BY_ONE):
                self._fine[place].add(type(value))


def repeated(keys: Sequence[Key], distinct: Sequence[Key]) -> int:
    """Return how many keys are repetitions: occurrences after the first, of keys that are in `distinct`."""
    if len(keys) == len(distinct):
        return 0
    there = set(distinct)
    return sum(key in there for key in keys) - len(distinct)


_WIDE = Context(prec=80)  # Arrow's widest decimals have 76 digits, Python's usual context 28
_SEEN_ONE_BY_ONE = (datetime, Decimal)
"""Classes whose values must be checked one by one: for a zone, or for a fraction."""


class PlainKeys:
    """Converts the values of a checked key to the types of its columns, for sources that use their bytes or text.

    Equal numbers of different types (`5`, `Decimal("5.0")`), and equal moments in different zones, have different bytes
    and text.

    >>> PlainKeys(pa.schema([("n", pa.int64()), ("price", pa.decimal128(9, 2))]))((Decimal("5.0"), 7))
    (5, Decimal('7.00'))
    """

    def __init__(self, key_schema: pa.Schema) -> None:
        self._key_schema = key_schema
        self._plain = [plain_value(field.type) for field in key_schema]

    def __reduce__(self) -> tuple[Any, ...]:
        return PlainKeys, (self._key_schema,)

    def __call__(self, key: Key) -> Key:
        """Return the key with converted values."""
        return tuple(plain(value) for plain, value in zip(self._plain, key, strict=True))


def plain_value(key_type: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that converts a checked value of a key column to the column's type."""
    if pa.types.is_integer(key_type):
        return int
    if pa.types.is_decimal(key_type):
        unit = Decimal(1).scaleb(-key_type.scale)
        # `plus` makes a negative zero positive.
        return lambda value: _WIDE.plus(
            _WIDE.quantize(value if isinstance(value, Decimal) else Decimal(int(value)), unit)
        )
    if pa.types.is_timestamp(key_type) and key_type.tz is not None:
        return lambda value: value.astimezone(UTC)
    return lambda value: value


_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = (day.toordinal() - date(1970, 1, 1).toordinal() for day in (date.min, date.max))


def python_keys(columns: Sequence[pa.Array]) -> tuple[list[int], list[Key]]:
    """Return the keys in columns as Python tuples, and their positions.

    A key with a date that Python does not have, before year 1 or after 9999, is left out: no row in Python can have it.

    >>> python_keys([pa.array([0, 3_000_000], pa.date32())])
    ([0], [(datetime.date(1970, 1, 1),)])
    """
    possible = None
    for column in columns:
        if pa.types.is_date32(column.type):
            there = pc.and_(*_between(column.cast(pa.int32()), _FIRST_DAY, _LAST_DAY))
        elif pa.types.is_timestamp(column.type):
            microseconds = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
            there = pc.and_(*_between(microseconds, _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1))
        else:
            continue
        possible = there if possible is None else pc.and_(possible, there)
    places = list(range(len(columns[0])))
    if possible is not None and not pc.all(possible, min_count=0).as_py():
        taken = pc.indices_nonzero(pc.fill_null(possible, True))
        columns, places = [column.take(taken) for column in columns], taken.to_pylist()
    return places, list(zip(*(column.to_pylist() for column in columns), strict=True))


def _between(column: pa.Array, least: int, most: int) -> tuple[pa.Array, pa.Array]:
    return pc.greater_equal(column, least), pc.less_equal(column, most)


def _has_room(key_type: pa.DataType, value: Decimal) -> bool:
    """Return whether a column of this type can hold the value exactly; True for types that are not numbers."""
    if not value.is_finite():
        return False
    if pa.types.is_integer(key_type):
        return value == int(value)
    if pa.types.is_decimal(key_type):
        return bool(_WIDE.normalize(value).as_tuple().exponent >= -key_type.scale)
    return True


def _fitting(key_type: pa.DataType) -> Callable[[Any], bool]:
    types = pa.types
    if types.is_boolean(key_type):
        return lambda value: isinstance(value, bool)
    if types.is_integer(key_type) or types.is_decimal(key_type):
        return lambda value: isinstance(value, (Integral, Decimal)) and not isinstance(value, bool)
    if types.is_timestamp(key_type):
        return lambda value: isinstance(value, datetime) and (value.tzinfo is None) == (key_type.tz is None)
    if types.is_date(key_type):
        return lambda value: isinstance(value, date) and not isinstance(value, datetime)
    for is_type, classes in _CLASSES:
        if is_type(key_type):
            return partial(_is_a, classes)
    return lambda _: True


def _is_a(expected: type, value: Any) -> bool:
    return isinstance(value, expected)


_CLASSES: list[tuple[Callable[[pa.DataType], bool], type]] = [
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_large_binary, bytes),
    (pa.types.is_fixed_size_binary, bytes),
    (pa.types.is_time, time),
    (pa.types.is_duration, timedelta),
]
