"""A column's name and type.

The types are Spark's: boolean, int, long, float, double, string, binary, date, timestamp, decimals,
and arrays and maps of these. A map's keys are texts or whole numbers. Nothing nests deeper: an
aggregation reaches one level into a value, and no further.
"""

import re
from dataclasses import dataclass

from millpond.errors import OptionError
from millpond.features.definitions.faults import listed, nearest

SCALAR_TYPES = ("boolean", "int", "long", "float", "double", "string", "binary", "date", "timestamp")
"""The types that take no parameters."""

MAP_KEY_TYPES = ("string", "int", "long")

MAX_PRECISION = 38
"""The digits of the longest decimal, as in Spark."""

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_EXAMPLES = (*SCALAR_TYPES, "decimal(10,2)", "array<string>", "map<string,double>")


@dataclass(frozen=True, slots=True)
class FieldType:
    """A type in its parts.

    Args:
        kind: a scalar type's name, or ``decimal``, ``array``, ``map``.
        precision: the digits of a decimal, 1 to 38.
        scale: the digits of a decimal behind its point.
        element: the type of an array's elements or of a map's values.
        key: the type of a map's keys.

    >>> parse_type("map<string,double>").element
    FieldType(kind='double', precision=0, scale=0, element=None, key=None)
    """

    kind: str
    precision: int = 0
    scale: int = 0
    element: "FieldType | None" = None
    key: "FieldType | None" = None

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.kind == "array":
            return f"array<{self.element}>"
        return f"map<{self.key},{self.element}>" if self.kind == "map" else self.kind


def parse_type(text: str) -> FieldType:
    """Read a type as a definition writes it; blanks do not count.

    Raises:
        OptionError: it is none of the types, with the nearest one.

    >>> str(parse_type("map<string, decimal(10, 2)>"))
    'map<string,decimal(10,2)>'
    """
    parsed = _parsed("".join(text.split())) if isinstance(text, str) else None
    if parsed is None:
        raise OptionError(f"type {text!r} is none of {listed(_EXAMPLES)}; did you mean {nearest(text, _EXAMPLES)!r}?")
    return parsed


def _parsed(text: str) -> FieldType | None:
    if text.startswith("array<") and text.endswith(">"):
        element = _scalar(text[len("array<") : -1])
        return None if element is None else FieldType("array", element=element)
    if text.startswith("map<") and text.endswith(">"):
        key, _, value = text[len("map<") : -1].partition(",")
        element = _scalar(value)
        return (
            None
            if element is None or key not in MAP_KEY_TYPES
            else FieldType("map", element=element, key=FieldType(key))
        )
    return _scalar(text)


def _scalar(text: str) -> FieldType | None:
    if text in SCALAR_TYPES:
        return FieldType(text)
    decimal = _DECIMAL.fullmatch(text)
    if decimal is None:
        return None
    precision, scale = int(decimal[1]), int(decimal[2])
    return FieldType("decimal", precision, scale) if 0 < precision <= MAX_PRECISION and scale <= precision else None


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name and its type.

    The types are ``boolean``, ``int``, ``long``, ``float``, ``double``, ``string``, ``binary``,
    ``date``, ``timestamp``, ``decimal(p,s)``, ``array<T>`` and ``map<K,T>`` with a scalar ``T`` and
    ``K`` one of ``string``, ``int``, ``long``.

    Raises:
        OptionError: the name is empty or the type unknown.

    >>> Field("origin", "string")
    Field(name='origin', type='string')
    """

    name: str
    type: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"a field's name must be a text of at least one letter, got {self.name!r}")
        try:
            parsed = parse_type(self.type)
        except OptionError as error:
            raise OptionError(f"field {self.name!r}: {error}") from None
        object.__setattr__(self, "type", str(parsed))

    @property
    def parsed(self) -> FieldType:
        """The type in its parts."""
        return parse_type(self.type)
