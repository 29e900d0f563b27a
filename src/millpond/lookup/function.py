"""What answers a lookup: a key goes in, the rows that have it come out.

The first hop after the events: everything in this room is a `LookupFunction`, or stands before one.
A key is a tuple with one value per key column, a row a tuple with one value per declared column, so
both are immutable and can be cached as they are. The invariant: **no answer is not "no row"**. A
function that cannot say raises; it returns an empty list only where it knows that nothing matches.

`lookup_many` is the same for a whole batch, so that a database sees one query and not one per row.

Source: FLIP-221, whose `LookupFunction` has the one-key form.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

import pyarrow as pa

from millpond.errors import DataError, OptionError

Key: TypeAlias = tuple[Any, ...]
Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]


class LookupFunction(ABC):
    """Finds the rows of an external table by key. Subclass it in ten lines for a source of your own.

    `key_schema` and `row_schema` name the columns of a key and of a row, with their Arrow types.
    Opening and closing twice does no harm. A failure that passes by itself is an `UnavailableError`
    (also `ConnectionError` and `TimeoutError`), which `lookup.max-retries` tries again.

    >>> class Squares(LookupFunction):
    ...     key_schema = pa.schema([("n", pa.int64())])
    ...     row_schema = pa.schema([("square", pa.int64())])
    ...     def lookup(self, keys):
    ...         return [(keys[0] ** 2,)]
    >>> Squares().lookup_many([(2,), (3,)])
    {(2,): [(4,)], (3,): [(9,)]}
    """

    key_schema: pa.Schema
    row_schema: pa.Schema

    def open(self) -> None:  # noqa: B027 - most functions have nothing to open
        """Connect; called in the process that looks up, before the first lookup."""

    @abstractmethod
    def lookup(self, keys: Key) -> Rows:
        """The rows whose key columns equal `keys`; an empty list where there are none."""

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """The rows of every key asked for. Override it where one request can answer for many."""
        return {key: self.lookup(key) for key in keys}

    def close(self) -> None:  # noqa: B027 - most functions have nothing to close
        """Let go of connections; the function may be opened again."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PythonLookup(LookupFunction):
    """A lookup by any Python function from a key's values to an iterable of rows.

    Args:
        function: called with one positional argument per key column; returns rows as tuples in the
            order of `row_schema`. None or no rows mean that nothing matches.
        key_schema: the names and types of the key columns.
        row_schema: the names and types of the columns of a row.

    >>> countries = PythonLookup(
    ...     {"JFK": [("US",)]}.get, pa.schema([("code", pa.string())]), pa.schema([("country", pa.string())]))
    >>> countries.lookup(("JFK",)), countries.lookup(("LHR",))
    ([('US',)], [])
    """

    def __init__(
        self, function: Callable[..., Iterable[Row] | None], key_schema: pa.Schema, row_schema: pa.Schema
    ) -> None:
        self._function = function
        self.key_schema = key_schema
        self.row_schema = row_schema

    def lookup(self, keys: Key) -> Rows:
        """What the function returns for the key, checked for its width."""
        rows = self._function(*keys)
        return [] if rows is None else [self._checked(row, keys) for row in rows]

    def _checked(self, row: Row, keys: Key) -> Row:
        if isinstance(row, tuple) and len(row) == len(self.row_schema):
            return row
        name = getattr(self._function, "__qualname__", repr(self._function))
        raise DataError(
            f"lookup function {name!r}, key {keys!r}: expected rows as tuples of {len(self.row_schema)} values "
            f"({', '.join(self.row_schema.names)}), got {type(row).__name__} {row!r}; return a list of such tuples"
        )


def check_key_types(where: str, key_schema: pa.Schema) -> None:
    """Refuse key columns that have no exact equality."""
    if not len(key_schema):
        raise OptionError(f"{where}: expected at least one key column, got none")
    for field in key_schema:
        if pa.types.is_floating(field.type) or pa.types.is_nested(field.type):
            raise OptionError(
                f"{where}, key column {field.name!r}: expected a type with exact equality, such as a whole number, "
                f"a string, a date or a timestamp, got {field.type}; cast it in the source"
            )
