"""Converts text, JSON and MessagePack values to the declared types of columns.

Redis has only bytes, JSON has no dates, and MessagePack has no decimals. The invariant: a converted value has the
declared type or is null. A value that does not fit is an error that names the column and the value; nothing is
guessed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

import pyarrow as pa

from millpond.errors import DataError, OptionError
from millpond.lookup.sources.json_text import shown


def readers(where: str, schema: pa.Schema) -> list[Callable[[Any], Any]]:
    """Return for each column a function that converts text or JSON values to its type.

    >>> year, built = readers("planes", pa.schema([("year", pa.int64()), ("built", pa.date32())]))
    >>> year("1999"), year(1999), year(None), built("1999-01-02")
    (1999, 1999, None, datetime.date(1999, 1, 2))
    >>> year("unknown")
    Traceback (most recent call last):
    millpond.errors.DataError: planes, column 'year': expected int64, got str 'unknown'; mend the source or declare ...
    """
    return [_Reader(where, field, _conversion(where, field)) for field in schema]


@dataclass(frozen=True, slots=True)
class _Reader:
    where: str
    field: pa.Field
    convert: Callable[[Any], Any]

    def __call__(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            return self.convert(value)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise DataError(
                f"{self.where}, column {self.field.name!r}: expected {self.field.type}, got {type(value).__name__} "
                f"{shown(value)}; mend the source or declare another type"
            ) from error


def _conversion(where: str, field: pa.Field) -> Callable[[Any], Any]:
    types, kind = pa.types, field.type
    if types.is_integer(kind):
        return _Integers.of(kind)
    if types.is_decimal(kind):
        return _Decimals(kind.precision, kind.scale)
    for is_kind, convert in (
        (types.is_boolean, _boolean),
        (types.is_floating, _floating),
        (types.is_string, _string),
        (types.is_binary, _binary),
        (types.is_date, _date),
    ):
        if is_kind(kind):
            return convert
    if types.is_timestamp(kind):
        return _aware if kind.tz else _naive
    raise OptionError(
        f"{where}, column {field.name!r}: {kind} cannot be read from text; declare a boolean, a number, a string, "
        "bytes, a date or a timestamp"
    )


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return value
    raise TypeError


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = _text(value).lower()
    if word in ("true", "1"):
        return True
    if word in ("false", "0"):
        return False
    raise ValueError


@dataclass(frozen=True, slots=True)
class _Integers:
    least: int
    greatest: int

    @classmethod
    def of(cls, kind: pa.DataType) -> "_Integers":
        signed = pa.types.is_signed_integer(kind)
        return cls(-(1 << kind.bit_width - 1) if signed else 0, (1 << kind.bit_width - signed) - 1)

    def __call__(self, value: Any) -> int:
        number = value if isinstance(value, int) and not isinstance(value, bool) else int(_text(value))
        if not self.least <= number <= self.greatest:
            raise ValueError
        return number


def _floating(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return float(_text(value))


@dataclass(frozen=True, slots=True)
class _Decimals:
    precision: int
    scale: int

    def __call__(self, value: Any) -> Decimal:
        if isinstance(value, int) and not isinstance(value, bool):
            number = Decimal(value)
        else:
            number = Decimal(repr(value) if isinstance(value, float) else _text(value))
        # Check the exponent first: a short text can be a number of a billion digits.
        if not number.is_finite() or (number and number.adjusted() >= self.precision - self.scale):
            raise ValueError
        exact = Context(prec=self.precision, traps=[InvalidOperation, Inexact])
        number.quantize(Decimal(1).scaleb(-self.scale), context=exact)
        return number


def _string(value: Any) -> str:
    return _text(value)


def _binary(value: Any) -> bytes:
    return value if isinstance(value, bytes) else _text(value).encode()


def _date(value: Any) -> date:
    return date.fromisoformat(_text(value))


def _naive(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(_text(value))
    if moment.tzinfo is not None:
        raise ValueError
    return moment


def _aware(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(_text(value))
    if moment.tzinfo is None:
        raise ValueError
    return moment.astimezone(UTC)
