"""CAST, and Spark's implicit conversions.

A cast that fails is null: ``CAST`` and ``TRY_CAST`` are the same here. What a cast accepts in a string, and how
it writes a number, follow Spark in ANSI mode.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from millpond.features.derivations import calendar, numbers
from millpond.features.derivations.typed import MAY_BE_NONE, Code, Failure, Faults, Typed, literal, strict
from millpond.features.derivations.types import DATE, STRING, TIMESTAMP
from millpond.features.types import DataType

_TRUE = {"t", "true", "y", "yes", "1"}
_FALSE = {"f", "false", "n", "no", "0"}


def cast(value: Typed, to: DataType) -> Typed:
    """Return `value` as the type `to`.

    Raises:
        Faults: there is no such cast.
    """
    source = value.type
    if source == to:
        return value
    if source.kind == "void":
        return literal(None, to, f"CAST(NULL AS {to.sql})")
    if value.literal and source == STRING and to in {DATE, TIMESTAMP}:
        return _written_time(value.value, to)
    made = _to_decimal(value, to) if to.kind == "decimal" else _by_rule(value, to)
    return _folded(made) if value.literal else made


def _by_rule(value: Typed, to: DataType) -> Typed:
    source = value.type
    rule = _RULES.get((source.kind, to.kind))
    if (source.kind, to.kind) == ("float", "string"):
        raise Faults(["Java versions write a float differently; cast it to DOUBLE first"])
    if rule is None:
        raise Faults([f"{source} cannot be cast to {to}"])
    failure = Failure(_not_a(to), valid=rule.valid) if rule.valid else None
    sql = rule.sql or ("TRY_CAST({0} AS %s)" if rule.valid else "CAST({0} AS %s)")
    return strict(to, sql % to.sql if "%s" in sql else sql, [value], rule.python, failure=failure)


def _written_time(text: str, to: DataType) -> Typed:
    """Return the constant date or timestamp that a text has; raise `Faults` if it has none."""
    if to == DATE:
        day = calendar.parse_date(text)
        if day is not None:
            return literal(day, DATE, f"DATE'{day.isoformat()}'")
    else:
        time = calendar.parse_timestamp(text)
        if time is not None:
            return literal(time, TIMESTAMP, f"TIMESTAMP'{time.replace(tzinfo=None).isoformat(' ')}Z'")
    raise Faults([f"{text!r} is not a {to}"])


def _folded(made: Typed) -> Typed:
    """Return the result of casting a constant. A cast that fails is left to fail at run time, with its reason."""
    code = Code()
    name = made.emit(code)
    namespace = dict(code.constants)
    exec("\n".join(code.lines), namespace)  # noqa: S102 - one cast of one constant, written by the rules below
    value = namespace[name]
    if value is None:
        return made
    return Typed(made.type, made.sql, lambda code: code.constant(value), nullable=False)


def _not_a(type_: DataType) -> str:
    return f"not {'an' if type_.kind == 'int' else 'a'} {type_}"


@dataclass(frozen=True, slots=True)
class _Rule:
    """One cast: its form in Python, the test of its result, and its form in Spark SQL if it is not a plain cast."""

    python: str | Callable[..., Any]
    valid: str = ""
    sql: str = ""


def _parse_boolean(text: str) -> bool | None:
    word = numbers.trimmed(text).lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _utf8(value: str) -> bytes:
    return value.encode()


def _parse_float(text: str) -> float | None:
    value = numbers.parse_double(text)
    return None if value is None else numbers.to_float32(value)


def _plain_decimal(value: Decimal) -> str:
    return f"{value:f}"


_IN_INT = "{v} is not None and " + numbers.INT_RANGE
_IN_LONG = "{v} is not None and " + numbers.LONG_RANGE
_VIA_DOUBLE = "CAST(CAST({0} AS DOUBLE) AS FLOAT)"


def _read(pattern: str) -> str:
    """Return the SQL of a cast of a string that accepts only what `pattern` matches."""
    braces = pattern.replace("{", "{{").replace("}", "}}")
    return f"TRY_CAST(REGEXP_EXTRACT({{0}}, '^[\\\\x00-\\\\x20\\\\x7F]*({braces})[\\\\x00-\\\\x20\\\\x7F]*$', 1) AS %s)"


_RULES: dict[tuple[str, str], _Rule] = {
    ("boolean", "int"): _Rule("int({0})"),
    ("boolean", "long"): _Rule("int({0})"),
    ("boolean", "float"): _Rule("float({0})"),
    ("boolean", "double"): _Rule("float({0})"),
    ("boolean", "string"): _Rule("'true' if {0} else 'false'"),
    ("int", "boolean"): _Rule("{0} != 0"),
    ("int", "long"): _Rule("{0}"),
    ("int", "float"): _Rule(numbers.to_float32),
    ("int", "double"): _Rule("float({0})"),
    ("int", "string"): _Rule("str({0})"),
    ("long", "boolean"): _Rule("{0} != 0"),
    ("long", "int"): _Rule("{0}", numbers.INT_RANGE),
    ("long", "float"): _Rule(lambda value: numbers.to_float32(float(value)), sql=_VIA_DOUBLE),
    ("long", "double"): _Rule("float({0})"),
    ("long", "string"): _Rule("str({0})"),
    ("float", "boolean"): _Rule("{0} != 0.0"),
    ("float", "int"): _Rule(numbers.truncate, _IN_INT),
    ("float", "long"): _Rule(numbers.truncate_long, MAY_BE_NONE),
    ("float", "double"): _Rule("{0}"),
    ("double", "boolean"): _Rule("{0} != 0.0"),
    ("double", "int"): _Rule(numbers.truncate, _IN_INT),
    ("double", "long"): _Rule(numbers.truncate_long, MAY_BE_NONE),
    ("double", "float"): _Rule(numbers.to_float32),
    ("double", "string"): _Rule(numbers.java_text),
    ("decimal", "boolean"): _Rule("bool({0})"),
    ("decimal", "int"): _Rule("int({0})", numbers.INT_RANGE),
    ("decimal", "long"): _Rule("int({0})", numbers.LONG_RANGE),
    ("decimal", "float"): _Rule(lambda value: numbers.to_float32(float(value)), sql=_VIA_DOUBLE),
    ("decimal", "double"): _Rule("float({0})"),
    ("decimal", "string"): _Rule(_plain_decimal),
    ("string", "boolean"): _Rule(_parse_boolean, MAY_BE_NONE),
    ("string", "int"): _Rule(numbers.parse_integer, _IN_INT),
    ("string", "long"): _Rule(numbers.parse_integer, _IN_LONG),
    ("string", "float"): _Rule(_parse_float, MAY_BE_NONE, "CAST(TRY_CAST({0} AS DOUBLE) AS FLOAT)"),
    ("string", "double"): _Rule(numbers.parse_double, MAY_BE_NONE),
    ("string", "binary"): _Rule(_utf8),
    ("string", "date"): _Rule(calendar.parse_date, MAY_BE_NONE, _read(calendar.DATE_PATTERN)),
    ("string", "timestamp"): _Rule(calendar.parse_timestamp, MAY_BE_NONE, _read(calendar.TIMESTAMP_PATTERN)),
    ("date", "string"): _Rule(calendar.date_text),
    ("date", "timestamp"): _Rule(calendar.midnight),
    ("timestamp", "string"): _Rule(calendar.timestamp_text),
    ("timestamp", "date"): _Rule("{0}.date()"),
    ("timestamp", "long"): _Rule(calendar.unix_seconds),
    ("timestamp", "double"): _Rule(calendar.unix_double),
}
"""Every cast except those to decimal, from kind to kind."""


def _double_to_decimal(value: float, step: Decimal, limit: Decimal) -> Decimal | None:
    return numbers.fitted(Decimal(repr(value)), step, limit) if math.isfinite(value) else None


def _string_to_decimal(text: str, step: Decimal, limit: Decimal) -> Decimal | None:
    value = numbers.parse_decimal(text)
    return None if value is None else numbers.fitted(value, step, limit)


def _integer_to_decimal(value: int, step: Decimal, limit: Decimal) -> Decimal | None:
    return numbers.fitted(Decimal(value), step, limit)


def _to_decimal(value: Typed, to: DataType) -> Typed:
    kind = value.type.kind
    if kind in {"boolean", "binary", "date", "timestamp", "array", "map"}:
        raise Faults([f"{value.type} cannot be cast to {to}"])
    extra: list[Any] = list(numbers.bounds(to.precision, to.scale))
    python: Callable[..., Decimal | None] = numbers.fitted
    if kind in {"float", "double"}:
        python = _double_to_decimal
    elif kind == "string":
        python = _string_to_decimal
    elif kind in {"int", "long"}:
        python = _integer_to_decimal
    failure = Failure(_not_a(to), valid=MAY_BE_NONE)
    sql = f"TRY_CAST({{0}} AS {to.sql})"
    return strict(to, sql, [value], python, failure=failure, extra=extra)


def coerce(value: Typed, to: DataType) -> Typed:
    """Return `value` as `to` where Spark converts implicitly: to a wider number, date to timestamp, literal to time.

    Raises:
        Faults: Spark would not convert, or only by guessing what a string means.
    """
    source = value.type
    if source == to or source.kind == "void":
        return cast(value, to)
    widens = source.is_numeric and to.is_numeric and _WIDTH[source.kind] <= _WIDTH[to.kind]
    times = {source, to} == {DATE, TIMESTAMP}
    if widens or times or (source == STRING and value.literal and to in {DATE, TIMESTAMP}):
        return cast(value, to)
    raise Faults([f"expected {to}, got {source}; write CAST(… AS {to.sql}) if that is meant"])


_WIDTH = {"int": 0, "long": 1, "decimal": 2, "float": 3, "double": 4}
