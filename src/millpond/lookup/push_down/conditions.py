"""Conditions on the rows of a table, in a form that every kind of source understands.

A condition is a triple such as `("country", "=", "US")`, and all conditions of a list must hold, as in
Parquet readers. The invariant: a condition means the same wherever it is checked, in a database, in a file
reader, or by Millpond on the row. As in SQL, a null fulfils no condition, not even `!=`.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import DataError, OptionError
from millpond.lookup.functions.function import Key, Row
from millpond.suggestions import hint

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">=", "in", "not in"]
COMPARE: dict[Operator, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Python's comparison operators by symbol. They work for SQLAlchemy and Arrow expressions too, which overload them."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One column compared with a constant."""

    column: str
    operator: Operator
    value: Any

    def holds(self, value: Any) -> bool:
        """Return whether a value fulfils the condition.

        >>> Condition("year", ">=", 2000).holds(2013), Condition("year", "!=", 2000).holds(None)
        (True, False)
        """
        if value is None:
            return False
        try:
            if self.operator == "in":
                return value in self.value
            if self.operator == "not in":
                return value not in self.value
            return bool(COMPARE[self.operator](value, self.value))
        except TypeError as error:
            raise DataError(
                f"condition on column {self.column!r}: {type(value).__name__} {value!r} cannot be compared with "
                f"{type(self.value).__name__} {self.value!r}; give a value of the column's type"
            ) from error

    def arrow(self) -> pc.Expression:
        """Return the condition as an Arrow expression."""
        field = pc.field(self.column)
        if self.operator in ("in", "not in") and not self.value:
            # Arrow takes an empty list for one of nulls, which no column compares with.
            return pc.scalar(False) if self.operator == "in" else field.is_valid()
        if self.operator == "in":
            return field.isin(list(self.value))
        if self.operator == "not in":
            return ~field.isin(list(self.value)) & field.is_valid()
        return COMPARE[self.operator](field, self.value)


Conditions: TypeAlias = tuple[Condition, ...]


def conditions(where: str, given: Iterable[Sequence[Any]], columns: Sequence[str]) -> Conditions:
    """Check triples and return them as conditions. One `OptionError` lists every mistake.

    >>> conditions("planes", [("year", ">", 2000)], ["tailnum", "year"])
    (Condition(column='year', operator='>', value=2000),)
    """
    problems: list[str] = []
    parsed: list[Condition] = []
    for triple in given:
        if isinstance(triple, str) or len(triple) != 3:  # noqa: PLR2004 - the length of a triple
            problems.append(f"expected a triple such as ('year', '>', 2000), got {triple!r}")
            continue
        column, word, value = triple
        word = "=" if word == "==" else " ".join(str(word).lower().split())
        if column not in columns:
            problems.append(f"there is no column {column!r}; {hint(column, columns)}")
        if word not in get_args(Operator):
            problems.append(f"{triple!r}: expected one of {' '.join(get_args(Operator))}, got {word!r}")
        elif word in ("in", "not in") and (isinstance(value, str) or not isinstance(value, Iterable)):
            problems.append(f"{triple!r}: expected a list of values after {word!r}, got {value!r}")
        elif word in ("in", "not in"):
            value = tuple(value)
        if value is None or (isinstance(value, tuple) and None in value):
            problems.append(f"{triple!r}: nothing equals a null; leave the condition out")
        parsed.append(Condition(str(column), cast("Operator", word), value))
    if problems:
        raise OptionError("\n- ".join([f"{where}, conditions:", *problems]))
    return tuple(parsed)


def arrow_filter(given: Conditions) -> pc.Expression | None:
    """Return all conditions as one Arrow expression; None if there are none."""
    expression: pc.Expression | None = None
    for condition in given:
        expression = condition.arrow() if expression is None else expression & condition.arrow()
    return expression


class RowFilter:
    """Checks conditions on rows and selects their columns, for a source that cannot.

    >>> pick = RowFilter(pa.schema([("n", pa.int64())]), pa.schema([("a", pa.int64()), ("b", pa.int64())]),
    ...                  ["b"], conditions("t", [("a", ">", 1)], ["n", "a", "b"]))
    >>> pick((7,), [(1, 10), (2, 20)])
    [(20,)]
    """

    def __init__(self, key_schema: pa.Schema, row_schema: pa.Schema, columns: Sequence[str], given: Conditions) -> None:
        names = row_schema.names
        self._picked = [names.index(name) for name in columns]
        self._whole = list(columns) == names
        on_row = [condition for condition in given if condition.column in names]
        on_key = [condition for condition in given if condition.column not in names]
        self._on_row = [(names.index(condition.column), condition) for condition in on_row]
        self._on_key = [(key_schema.names.index(condition.column), condition) for condition in on_key]

    def __call__(self, key: Key, rows: Iterable[Row]) -> list[Row]:
        """Return the rows of a key that fulfil the conditions, with the selected columns."""
        if not all(condition.holds(key[place]) for place, condition in self._on_key):
            return []
        kept = [row for row in rows if all(condition.holds(row[place]) for place, condition in self._on_row)]
        return kept if self._whole else [tuple(row[place] for place in self._picked) for row in kept]
