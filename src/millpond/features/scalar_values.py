"""Scalar values at the edge and inside cells: checked, and converted in both directions.

At the edge a value is a plain Python object: a ``datetime.date``, a ``decimal.Decimal``. Inside cells
it has the one form that merges and encodes fastest:

| type            | edge                    | inside                                  |
|-----------------|-------------------------|-----------------------------------------|
| boolean         | bool                    | bool                                    |
| int, long       | int                     | int of 32 or 64 bits                    |
| float           | float or int            | float, rounded to 32 bits               |
| double          | float or int            | float                                   |
| string, binary  | str, bytes              | the same                                |
| date            | date                    | int: days since 1970-01-01              |
| timestamp       | datetime with time zone | int: microseconds since 1970-01-01 UTC  |
| decimal(p,s)    | Decimal                 | int: the value times 10**s              |

The inside forms of a type have an order, which is that of their canonical bytes (big-endian for numbers,
UTF-8 for text). NaN and infinities are refused, and ``-0.0`` becomes ``0.0``, so equal values have
equal bytes. A whole column is converted at a time, in C loops where Python has them.
"""

import math
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, NoReturn

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
"""The least and the greatest value of an int."""

LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1
"""The least and the greatest value of a long."""

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY_MIN, _DAY_MAX = date.min.toordinal() - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY
_MICROSECOND_MIN = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_MICROSECOND_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_EXACT = Context(prec=80)

YEARS = {"date": (_DAY_MIN, _DAY_MAX), "timestamp": (_MICROSECOND_MIN, _MICROSECOND_MAX)}
"""The least and the greatest inside value of dates and timestamps: those of the years 1 and 9999."""

OUTSIDE_YEARS = "it is not between the years 1 and 9999 in UTC"
"""Why a date or timestamp that Spark and Arrow can hold is refused."""


class UnfitError(Exception):
    """A value is not of its type; the caller adds the name of the column and raises a DataError."""

    def __init__(self, value: object, reason: str) -> None:
        super().__init__(value, reason)
        self.value = value
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ScalarForm:
    """The forms of the values of one scalar type at the edge and inside cells.

    Args:
        accepted: the exact Python types that are accepted at the edge.
        inward: converts a column of non-null edge values of the accepted types; raises `UnfitError`.
        outward: converts one inside value back; None where both are the same.
        inside: the exact Python type inside cells.
        check: raises ValueError for a value of that Python type which this type cannot hold.
    """

    accepted: frozenset[type]
    inward: Callable[[Sequence[Any]], Sequence[Any]]
    outward: Callable[[Any], Any] | None
    inside: type
    check: Callable[[Any], None] | None

    def checked(self, value: Any) -> Any:
        """Return a stored inside value, or raise TypeError or ValueError if it cannot be one."""
        if type(value) is not self.inside:
            raise TypeError(f"expected {self.inside.__name__}, found {type(value).__name__}")
        if self.check is not None:
            self.check(value)
        return value


def _as_is(values: Sequence[Any]) -> Sequence[Any]:
    return values


def _first(values: Sequence[Any], is_wrong: Callable[[Any], bool], reason: str) -> NoReturn:
    raise UnfitError(next(value for value in values if is_wrong(value)), reason)


def _inward_ints(least: int, greatest: int, bits: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def inward(values: Sequence[int]) -> Sequence[int]:
        if values and not (least <= min(values) and max(values) <= greatest):
            _first(values, lambda value: not least <= value <= greatest, f"it does not fit into {bits} bits")
        return values

    return inward


_inward_longs = _inward_ints(LONG_MIN, LONG_MAX, 64)


def _inward_doubles(values: Sequence[float]) -> Sequence[float]:
    _inward_longs([value for value in values if type(value) is int])
    # Adding 0.0 turns whole numbers into doubles, and -0.0 into 0.0, so that equal IRs have equal bytes.
    doubles = [value + 0.0 for value in values]
    if not all(map(math.isfinite, doubles)):
        _first(doubles, lambda value: not math.isfinite(value), "it is not finite; say None where there is no value")
    return doubles


def _inward_floats(values: Sequence[float]) -> Sequence[float]:
    rounded = [value + 0.0 for value in array("f", _inward_doubles(values))]
    if not all(map(math.isfinite, rounded)):
        position = next(number for number, value in enumerate(rounded) if not math.isfinite(value))
        raise UnfitError(values[position], "it is too large for a float of 32 bits; declare the column double")
    return rounded


def _inward_strings(values: Sequence[str]) -> Sequence[str]:
    if not "".join(values).isascii():
        for value in values:
            try:
                value.encode()
            except UnicodeEncodeError as cause:
                raise UnfitError(value, f"it is no valid Unicode text ({cause.reason})") from cause
    return values


def _inward_dates(values: Sequence[date]) -> Sequence[int]:
    return [value.toordinal() - _EPOCH_DAY for value in values]


def _inward_timestamps(values: Sequence[datetime]) -> Sequence[int]:
    try:
        microseconds = [(value - _EPOCH) // _MICROSECOND for value in values]
    except TypeError:
        _first(values, lambda value: value.utcoffset() is None, "it has no time zone; say value.replace(tzinfo=UTC)")
    for value, found in zip(values, microseconds, strict=True):
        if not _MICROSECOND_MIN <= found <= _MICROSECOND_MAX:
            raise UnfitError(value, OUTSIDE_YEARS)
    return microseconds


def _inward_decimals(precision: int, scale: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    def unscaled(value: Decimal) -> int:
        if not value.is_finite():
            raise UnfitError(value, "it is not finite; say None where there is no value")
        if not value:
            return 0
        # Digits far outside of the type's range would make the exact ratio below as long as the exponent is large.
        if value.adjusted() >= precision - scale:
            raise UnfitError(value, f"it has more than {precision - scale} digits before the point")
        if value.adjusted() < -scale:
            raise UnfitError(value, f"it has more than {scale} digits after the point; round it first")
        numerator, denominator = value.as_integer_ratio()
        factor: int = 10**scale
        whole, rest = divmod(numerator * factor, denominator)
        if rest:
            raise UnfitError(value, f"it has more than {scale} digits after the point; round it first")
        return whole

    def inward(values: Sequence[Decimal]) -> Sequence[int]:
        return [unscaled(value) for value in values]

    return inward


def _outward_date(days: int) -> date:
    return date.fromordinal(days + _EPOCH_DAY)


def _outward_timestamp(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _within(least: int, greatest: int) -> Callable[[int], None]:
    def check(value: int) -> None:
        if not least <= value <= greatest:
            raise ValueError(f"{value} is not between {least} and {greatest}")

    return check


def _check_finite(value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not finite")


def _form(
    accepted: Collection[type],
    inward: Callable[[Sequence[Any]], Sequence[Any]] = _as_is,
    outward: Callable[[Any], Any] | None = None,
    inside: type = int,
    check: Callable[[Any], None] | None = None,
) -> ScalarForm:
    return ScalarForm(frozenset(accepted), inward, outward, inside, check)


SCALAR_FORMS: dict[str, ScalarForm] = {
    "boolean": _form({bool}, inside=bool),
    "int": _form({int}, _inward_ints(INT_MIN, INT_MAX, 32), check=_within(INT_MIN, INT_MAX)),
    "long": _form({int}, _inward_longs, check=_within(LONG_MIN, LONG_MAX)),
    "float": _form({float, int}, _inward_floats, inside=float, check=_check_finite),
    "double": _form({float, int}, _inward_doubles, inside=float, check=_check_finite),
    "string": _form({str}, _inward_strings, inside=str),
    "binary": _form({bytes}, inside=bytes),
    "date": _form({date}, _inward_dates, _outward_date, check=_within(*YEARS["date"])),
    "timestamp": _form({datetime}, _inward_timestamps, _outward_timestamp, check=_within(*YEARS["timestamp"])),
}
"""The scalar types without parameters; `decimal_form` makes the form of a decimal."""


@lru_cache(maxsize=256)
def decimal_form(precision: int, scale: int) -> ScalarForm:
    """Return the form of decimals with ``precision`` digits, of which ``scale`` are after the point.

    >>> form = decimal_form(5, 2)
    >>> form.inward([Decimal("12.5")]), form.outward(1250)
    ([1250], Decimal('12.50'))
    """
    limit = 10**precision - 1

    def outward(unscaled: int) -> Decimal:
        return Decimal(unscaled).scaleb(-scale, _EXACT)

    return _form({Decimal}, _inward_decimals(precision, scale), outward, check=_within(-limit, limit))
