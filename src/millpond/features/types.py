"""The types of columns and features: their names, and how values are converted at the edge.

A type is written as text: ``boolean``, ``int``, ``long``, ``float``, ``double``, ``string``,
``binary``, ``date``, ``timestamp``, ``decimal(p,s)``, ``array<T>`` and ``map<string,T>`` (keys may
also be ``int`` or ``long``). `parse_type` parses it once. The resulting `DataType` knows the Arrow type
and Spark's name, and converts whole columns of values between the edge and the inside of cells
(``scalar_values``).

A column's elements are scalars. A feature's type may nest deeper: a sum over a map, by a bucket, is a
``map<string,map<string,long>>``.

As a Python value, a feature of type ``long`` is an exact whole number of any size (a sum of longs may
need more than 64 bits). A typed column has 64: Spark and Arrow refuse a larger one. Declare the input
``decimal(19,0)`` if sums may be larger; they have 38 digits then.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from types import NoneType
from typing import TYPE_CHECKING, Any

from millpond.errors import OptionError
from millpond.features.scalar_values import SCALAR_FORMS, ScalarForm, UnfitError, decimal_form
from millpond.suggestions import Aliases, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

SCALARS = (*SCALAR_FORMS, "decimal")
"""The kinds of scalar types."""

MAP_KEYS = ("string", "int", "long")
"""The types that keys of a map may have."""

TYPE_ALIASES: Aliases = {
    "bool": ("boolean",),
    **dict.fromkeys(("byte", "short", "tinyint", "smallint", "int8", "int16", "int32", "integer"), ("int", "long")),
    **dict.fromkeys(("int", "bigint", "int64"), ("long",)),
    **dict.fromkeys(("real", "float32"), ("float", "double")),
    **dict.fromkeys(("number", "float64"), ("double",)),
    **dict.fromkeys(("dec", "decimal", "numeric"), ("decimal(38,0)",)),
    **dict.fromkeys(("str", "text", "char", "varchar", "utf8"), ("string",)),
    **dict.fromkeys(("bytes", "bytea", "blob"), ("binary",)),
    **dict.fromkeys(("datetime", "time", "timestamp_ntz", "timestamptz"), ("timestamp",)),
    **dict.fromkeys(("list", "array"), ("array<string>",)),
    **dict.fromkeys(("dict", "map"), ("map<string,double>",)),
}
"""The names of these types in other systems."""

DECIMAL_DIGITS = 38
"""The most digits of a decimal, in Spark and Arrow as here."""

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,4})\s*,\s*(\d{1,4})\s*\)")
_SPARK = {"long": "bigint"}
_NUMBERS = frozenset({"boolean", "int", "long", "float", "double", "decimal"})


@dataclass(frozen=True, slots=True)
class DataType:
    """A type, parsed from its text by `parse_type`.

    Args:
        name: its text in canonical form, without spaces.
        kind: one of `SCALARS`, ``array`` or ``map``.
        precision: a decimal's digits, else 0.
        scale: a decimal's digits after the point, else 0.
        key: a map's type of keys, else None.
        element: the type of an array's elements or a map's values, else None.
    """

    name: str
    kind: str
    precision: int = 0
    scale: int = 0
    key: "DataType | None" = None
    element: "DataType | None" = None

    @property
    def is_number(self) -> bool:
        """Whether values can be added; a boolean True counts as 1."""
        return self.kind in _NUMBERS

    def __str__(self) -> str:
        return self.name

    @property
    def is_integral(self) -> bool:
        """Whether it is int or long."""
        return self.kind in ("int", "long")

    @property
    def is_floating(self) -> bool:
        """Whether it is float or double."""
        return self.kind in ("float", "double")

    @property
    def is_numeric(self) -> bool:
        """Whether SQL arithmetic takes it: as `is_number`, without booleans."""
        return self.kind in _NUMBERS and self.kind != "boolean"

    @property
    def is_ordered(self) -> bool:
        """Whether its values have an order."""
        return self.kind not in ("array", "map")

    @property
    def scalar(self) -> "DataType":
        """The type itself; for an array or map, the type of its elements."""
        return self if self.element is None else self.element.scalar

    @property
    def form(self) -> ScalarForm:
        """The forms of the values of a scalar type; not for arrays and maps."""
        return decimal_form(self.precision, self.scale) if self.kind == "decimal" else SCALAR_FORMS[self.kind]

    @property
    def sql(self) -> str:
        """The type as Spark SQL writes it in a cast.

        >>> parse_type("map<string,array<decimal(10,2)>>").sql
        'MAP<STRING,ARRAY<DECIMAL(10,2)>>'
        """
        return self.spark_name.upper()

    @property
    def spark_name(self) -> str:
        """The type as Spark's DDL names it.

        >>> parse_type("map<string,long>").spark_name
        'map<string,bigint>'
        """
        if self.kind == "array" and self.element is not None:
            return f"array<{self.element.spark_name}>"
        if self.key is not None and self.element is not None:
            return f"map<{self.key.spark_name},{self.element.spark_name}>"
        return _SPARK.get(self.name, self.name)

    def arrow(self) -> "pa.DataType":
        """Return the Arrow type; timestamps are microseconds UTC.

        >>> parse_type("array<date>").arrow()
        ListType(list<item: date32[day]>)
        """
        import pyarrow as pa

        if self.kind == "array" and self.element is not None:
            return pa.list_(self.element.arrow())
        if self.key is not None and self.element is not None:
            return pa.map_(self.key.arrow(), self.element.arrow())
        if self.kind == "decimal":
            return pa.decimal128(self.precision, self.scale)
        return {
            "boolean": pa.bool_(),
            "int": pa.int32(),
            "long": pa.int64(),
            "float": pa.float32(),
            "double": pa.float64(),
            "string": pa.string(),
            "binary": pa.binary(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us", tz="UTC"),
        }[self.kind]

    def inward(self, values: Sequence[Any]) -> Sequence[Any]:
        """Convert a column of edge values, none of them None, to what cells hold.

        Null elements of arrays and maps stay None.

        Raises:
            UnfitError: a value is not of this type.

        >>> parse_type("map<string,double>").inward([{"a": 1}])
        [{'a': 1.0}]
        """
        if self.element is not None:
            if self.key is not None:
                return _inward_maps(self.key, self.element, values)
            return _inward_arrays(self.element, values)
        form = self.form
        if not set(map(type, values)) <= form.accepted:
            wrong = next(value for value in values if type(value) not in form.accepted)
            raise UnfitError(wrong, f"it is of type {type(wrong).__name__}")
        return form.inward(values)

    def outward(self, value: Any) -> Any:
        """Convert one value of cells, or None, to an edge value.

        >>> parse_type("date").outward(1)
        datetime.date(1970, 1, 2)
        """
        if value is None:
            return None
        if self.element is not None:
            if self.kind == "array":
                return [self.element.outward(element) for element in value]
            return {key: self.element.outward(element) for key, element in value.items()}
        convert = self.form.outward
        return value if convert is None else convert(value)


def parse_type(text: str) -> DataType:
    """Parse a type from its text.

    Raises:
        OptionError: the text is not a type; the error has the nearest one.

    >>> parse_type("decimal(10, 2)").name, parse_type("map<string, long>").element.name
    ('decimal(10,2)', 'long')
    """
    if not isinstance(text, str):
        raise OptionError(f"a type is written as text, as in 'long' or 'array<double>', got {text!r}")
    return _parsed(text.strip())


@lru_cache(maxsize=1024)
def _parsed(text: str) -> DataType:
    if text in SCALAR_FORMS:
        return DataType(text, text)
    if match := _DECIMAL.fullmatch(text):
        return _decimal(int(match[1]), int(match[2]))
    if text.startswith("array<") and text.endswith(">"):
        element = _parsed(text[6:-1].strip())
        return DataType(f"array<{element.name}>", "array", element=element)
    if text.startswith("map<") and text.endswith(">"):
        key, comma, value = text[4:-1].partition(",")
        if comma and key.strip() in MAP_KEYS:
            element = _parsed(value.strip())
            return DataType(f"map<{key.strip()},{element.name}>", "map", key=_parsed(key.strip()), element=element)
        raise OptionError(f"type {text!r}: keys of a map are of type {', '.join(MAP_KEYS)}; write map<string,T>")
    known = (*SCALAR_FORMS, "decimal(38,0)", "array<string>", "map<string,double>")
    raise OptionError(
        f"type {text!r} is none of {', '.join(SCALAR_FORMS)}, decimal(p,s), array<T>, map<string,T>"
        f"{did_you_mean(text, known, TYPE_ALIASES)}"
    )


def _decimal(precision: int, scale: int) -> DataType:
    if not (1 <= precision <= DECIMAL_DIGITS and scale <= precision):
        raise OptionError(
            f"type decimal({precision},{scale}): a decimal has 1 to {DECIMAL_DIGITS} digits, and no more of them "
            "after the point; write decimal(p,s) with s <= p"
        )
    return DataType(f"decimal({precision},{scale})", "decimal", precision, scale)


def _elements_inward(element: DataType, elements: Sequence[Any]) -> list[Any]:
    """Convert elements, any of which may be None."""
    present = [value for value in elements if value is not None]
    converted = element.inward(present)
    if len(present) == len(elements):
        return list(converted)
    following = iter(converted)
    return [None if value is None else next(following) for value in elements]


def _inward_arrays(element: DataType, values: Sequence[Any]) -> list[list[Any]]:
    _refuse_others(values, (list,), "a list")
    converted = iter(_elements_inward(element, list(chain.from_iterable(values))))
    return [[next(converted) for _ in value] for value in values]


def _inward_maps(key: DataType, element: DataType, values: Sequence[Any]) -> list[dict[Any, Any]]:
    _refuse_others(values, (dict,), "a dict")
    keys = list(chain.from_iterable(values))
    if NoneType in set(map(type, keys)):
        raise UnfitError(next(value for value in values if None in value), "a key is None")
    key.inward(keys)
    elements = list(chain.from_iterable(value.values() for value in values))
    converted = iter(_elements_inward(element, elements))
    return [{name: next(converted) for name in value} for value in values]


def _refuse_others(values: Sequence[Any], accepted: tuple[type, ...], expected: str) -> None:
    if not set(map(type, values)) <= set(accepted):
        wrong = next(value for value in values if type(value) not in accepted)
        raise UnfitError(wrong, f"it is of type {type(wrong).__name__}, not {expected}")
