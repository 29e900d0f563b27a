"""The types of derivations, and the types of operations on two of them.

They are those of columns (`features.types`), and void, the type of a bare NULL. The rules for decimals are Spark's
(`DecimalPrecision`): a result that would need more than 38 digits loses digits after the point, but keeps six of
them.
"""

import re

from millpond.features.types import DECIMAL_DIGITS, DataType, parse_type

_KEPT_SCALE = 6
_INTEGER_DIGITS = {"int": 10, "long": 20}
_DEFAULT_DECIMAL = re.compile(r"\bdecimal\b(?!\()")
_DECIMAL_WITHOUT_SCALE = re.compile(r"\bdecimal\((\d+)\)")

BOOLEAN = parse_type("boolean")
INT = parse_type("int")
LONG = parse_type("long")
FLOAT = parse_type("float")
DOUBLE = parse_type("double")
STRING = parse_type("string")
BINARY = parse_type("binary")
DATE = parse_type("date")
TIMESTAMP = parse_type("timestamp")
VOID = DataType("void", "void")
"""The type of a bare NULL. It takes the type of the values beside it."""


def decimal_of(precision: int, scale: int) -> DataType:
    """Return a decimal of `precision` digits, `scale` of them after the point."""
    return parse_type(f"decimal({precision},{scale})")


def parse_spark_type(text: str) -> DataType:
    """Return the type that `text` names in Spark's notation.

    Raises:
        OptionError: there is no such type.

    >>> parse_spark_type("MAP<STRING, BIGINT>").name, parse_spark_type("decimal").name
    ('map<string,long>', 'decimal(10,0)')
    """
    plain = text.strip().lower().replace("bigint", "long")
    plain = _DECIMAL_WITHOUT_SCALE.sub(r"decimal(\1,0)", _DEFAULT_DECIMAL.sub("decimal(10,0)", plain))
    return parse_type(plain)


def as_decimal(type_: DataType) -> DataType:
    """Return the decimal that holds every value of an integral or decimal type."""
    return type_ if type_.kind == "decimal" else decimal_of(_INTEGER_DIGITS[type_.kind], 0)


def common_type(left: DataType, right: DataType) -> DataType | None:
    """Return the type that holds both without loss of range, or None if there is none.

    It is Spark's common type in ANSI mode. Strings and numbers have none: a cast must say what is meant.
    Two decimals that together need more than 38 digits have none either, because Spark would round them.

    >>> [str(common_type(INT, other)) for other in (LONG, FLOAT, decimal_of(5, 2), STRING)]
    ['long', 'double', 'decimal(12,2)', 'None']
    """
    if right in (left, VOID):
        return left
    if left == VOID:
        return right
    kinds = {left.kind, right.kind}
    if kinds == {"date", "timestamp"}:
        return TIMESTAMP
    if not (left.is_numeric and right.is_numeric):
        return None
    if left.is_integral and right.is_integral:
        return LONG
    if left.is_floating or right.is_floating:
        return DOUBLE
    left, right = as_decimal(left), as_decimal(right)
    scale = max(left.scale, right.scale)
    precision = max(left.precision - left.scale, right.precision - right.scale) + scale
    return decimal_of(precision, scale) if precision <= DECIMAL_DIGITS else None


def sum_type(left: DataType, right: DataType) -> DataType:
    """Return the decimal type of a sum or difference of decimals."""
    scale = max(left.scale, right.scale)
    return _bounded(max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale)


def product_type(left: DataType, right: DataType) -> DataType:
    """Return the decimal type of a product of decimals."""
    return _bounded(left.precision + right.precision + 1, left.scale + right.scale)


def quotient_type(left: DataType, right: DataType) -> DataType:
    """Return the decimal type of a quotient of decimals."""
    scale = max(_KEPT_SCALE, left.scale + right.precision + 1)
    return _bounded(left.precision - left.scale + right.scale + scale, scale)


def remainder_type(left: DataType, right: DataType) -> DataType:
    """Return the decimal type of the remainder of a division of decimals."""
    scale = max(left.scale, right.scale)
    return _bounded(min(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def _bounded(precision: int, scale: int) -> DataType:
    if precision <= DECIMAL_DIGITS:
        return decimal_of(precision, scale)
    return decimal_of(DECIMAL_DIGITS, max(DECIMAL_DIGITS - (precision - scale), min(scale, _KEPT_SCALE)))
