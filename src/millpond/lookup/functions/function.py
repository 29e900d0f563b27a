"""What answers a lookup: a key goes in, the rows that have it come out.

The first hop after the events: everything in this room is a `LookupFunction`, or stands before one.
A key is a tuple with one value per key column, a row a tuple with one value per declared column, so
both are immutable and can be cached as they are. The invariant: **no answer is not "no row"**. A
function that cannot say raises; it returns an empty list only where it knows that nothing matches.

`lookup_many` is the same for a whole batch, so that a database sees one query and not one per row.

Source: FLIP-221, whose `LookupFunction` has the one-key form.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

import pyarrow as pa

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
        """The rows of every key; those without rows may be left out.

        Override it where one request can answer for many.
        """
        return {key: self.lookup(key) for key in keys}

    @property
    def batched(self) -> bool:
        """Whether one request answers for many keys: whether `lookup_many` is the function's own."""
        return type(self).lookup_many is not LookupFunction.lookup_many

    def close(self) -> None:  # noqa: B027 - most functions have nothing to close
        """Let go of connections; the function may be opened again."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return type(self).__qualname__
