"""The types of columns and of derivations, and how two of them meet.

The types are boolean, int (32 bits), long (64 bits), float (32 bits), double, string, binary, date, timestamp
(microseconds, UTC), decimal(p,s), and arrays and maps of them. Spark's other spellings (``bigint``, ``integer``)
are read too. The rules for decimals are Spark's (`DecimalPrecision`): a result that would need more than 38
digits gives up digits after the point, but keeps six of them.
"""

import re
from dataclasses import dataclass

from millpond.errors import OptionError

MAX_DIGITS = 38
_KEPT_SCALE = 6

_SQL_NAMES = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "void": "VOID",
}
_SPELLINGS = {name: name for name in _SQL_NAMES if name != "void"} | {"bigint": "long", "integer": "int"}
_DECIMAL = re.compile(r"(?:decimal|numeric)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")
_INTEGER_DIGITS = {"int": 10, "long": 20}


@dataclass(frozen=True, slots=True)
class SqlType:
    """A column's type. Make one with `parse_type`.

    >>> parse_type("map<string,array<decimal(10,2)>>").sql
    'MAP<STRING, ARRAY<DECIMAL(10,2)>>'
    """

    kind: str
    precision: int = 0
    scale: int = 0
    key: "SqlType | None" = None
    element: "SqlType | None" = None

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.kind == "array":
            return f"array<{self.element}>"
        if self.kind == "map":
            return f"map<{self.key},{self.element}>"
        return self.kind

    @property
    def sql(self) -> str:
        """The type as Spark SQL writes it."""
        if self.kind == "decimal":
            return f"DECIMAL({self.precision},{self.scale})"
        if self.kind == "array" and self.element:
            return f"ARRAY<{self.element.sql}>"
        if self.kind == "map" and self.key and self.element:
            return f"MAP<{self.key.sql}, {self.element.sql}>"
        return _SQL_NAMES[self.kind]

    @property
    def is_integral(self) -> bool:
        """Whether it is int or long."""
        return self.kind in {"int", "long"}

    @property
    def is_floating(self) -> bool:
        """Whether it is float or double."""
        return self.kind in {"float", "double"}

    @property
    def is_numeric(self) -> bool:
        """Whether arithmetic takes it."""
        return self.is_integral or self.is_floating or self.kind == "decimal"

    @property
    def is_ordered(self) -> bool:
        """Whether two values of it can be compared."""
        return self.kind not in {"array", "map"}


BOOLEAN = SqlType("boolean")
INT = SqlType("int")
LONG = SqlType("long")
FLOAT = SqlType("float")
DOUBLE = SqlType("double")
STRING = SqlType("string")
BINARY = SqlType("binary")
DATE = SqlType("date")
TIMESTAMP = SqlType("timestamp")
VOID = SqlType("void")
"""The type of a bare NULL. It becomes whatever stands beside it."""


def decimal_of(precision: int, scale: int) -> SqlType:
    """A decimal of `precision` digits, `scale` of them after the point."""
    return SqlType("decimal", precision, scale)


def parse_type(text: str) -> SqlType:
    """The type that `text` names.

    Raises:
        OptionError: there is no such type.

    >>> str(parse_type("decimal(10, 2)")), str(parse_type("BIGINT")), str(parse_type("array<string>"))
    ('decimal(10,2)', 'long', 'array<string>')
    """
    plain = text.strip().lower()
    if plain in _SPELLINGS:
        return SqlType(_SPELLINGS[plain])
    if found := _DECIMAL.fullmatch(plain):
        precision, scale = int(found[1] or 10), int(found[2] or 0)
        if not 1 <= precision <= MAX_DIGITS or scale > precision:
            raise OptionError(f"type {text!r}: a decimal has 1 to {MAX_DIGITS} digits, and not more after the point")
        return decimal_of(precision, scale)
    if plain.startswith("array<") and plain.endswith(">"):
        return SqlType("array", element=parse_type(plain[6:-1]))
    if plain.startswith("map<") and plain.endswith(">"):
        key, _, element = plain[4:-1].partition(",") if not plain.startswith("map<decimal(") else _split_decimal(plain)
        key_type = parse_type(key)
        if not key_type.is_ordered:
            raise OptionError(f"type {text!r}: the key of a map must be a scalar, got {key_type}")
        return SqlType("map", key=key_type, element=parse_type(element))
    raise OptionError(
        f"type {text!r} is unknown; expected {', '.join(sorted(set(_SPELLINGS.values())))}, decimal(p,s), "
        "array<type> or map<type,type>"
    )


def _split_decimal(plain: str) -> tuple[str, str, str]:
    """The parts of a map whose key is a decimal: its first comma belongs to the decimal."""
    key, parenthesis, rest = plain[4:-1].partition(")")
    return key + parenthesis, ",", rest.lstrip().removeprefix(",")


def as_decimal(type_: SqlType) -> SqlType:
    """The decimal that holds every value of an integral or decimal type."""
    return type_ if type_.kind == "decimal" else decimal_of(_INTEGER_DIGITS[type_.kind], 0)


def common_type(left: SqlType, right: SqlType) -> SqlType | None:
    """The type that holds both without loss of range, or None if there is none.

    It is Spark's common type in ANSI mode. Strings and numbers have none: a cast says what is meant.
    Two decimals that together need more than 38 digits have none either, as Spark would round there.

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
    return decimal_of(precision, scale) if precision <= MAX_DIGITS else None


def sum_type(left: SqlType, right: SqlType) -> SqlType:
    """The decimal type of a sum or difference of decimals."""
    scale = max(left.scale, right.scale)
    return _bounded(max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale)


def product_type(left: SqlType, right: SqlType) -> SqlType:
    """The decimal type of a product of decimals."""
    return _bounded(left.precision + right.precision + 1, left.scale + right.scale)


def quotient_type(left: SqlType, right: SqlType) -> SqlType:
    """The decimal type of a quotient of decimals."""
    scale = max(_KEPT_SCALE, left.scale + right.precision + 1)
    return _bounded(left.precision - left.scale + right.scale + scale, scale)


def remainder_type(left: SqlType, right: SqlType) -> SqlType:
    """The decimal type of the remainder of a division of decimals."""
    scale = max(left.scale, right.scale)
    return _bounded(min(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def _bounded(precision: int, scale: int) -> SqlType:
    if precision <= MAX_DIGITS:
        return decimal_of(precision, scale)
    return decimal_of(MAX_DIGITS, max(MAX_DIGITS - (precision - scale), min(scale, _KEPT_SCALE)))
