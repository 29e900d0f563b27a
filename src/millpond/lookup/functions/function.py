"""The interface of lookup functions: from a key to the rows that have it.

It is the central interface of `lookup`: everything there implements it, is a cache in front of it, or serves one of
the two. A key is a tuple with one value per key column, and a row is a tuple with one value per declared column. Both
are immutable and can be cached as they are. The invariant: **a missing answer is not an empty one**. A function
returns an empty list only if it knows that nothing matches; if it cannot tell, it raises.

`lookup_many` answers a whole batch, so that a database gets one query instead of one per row.

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
    """Finds the rows of an external table by key. Subclass it for your own source, in about ten lines.

    `key_schema` and `row_schema` name the columns of a key and of a row, with their Arrow types.
    Opening and closing twice must do no harm. Raise an `UnavailableError`, `ConnectionError` or `TimeoutError` for a
    failure that may pass by itself; these are tried again up to `lookup.max-retries` times.

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
        """Return the rows whose key columns equal `keys`; an empty list if there are none."""

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key. Keys without rows may be left out.

        Override it if one request can answer for many keys.
        """
        return {key: self.lookup(key) for key in keys}

    @property
    def batched(self) -> bool:
        """Whether one request can answer for many keys, that is, whether `lookup_many` is overridden."""
        return type(self).lookup_many is not LookupFunction.lookup_many

    def close(self) -> None:  # noqa: B027 - most functions have nothing to close
        """Close the connections. The function may be opened again."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return type(self).__qualname__
