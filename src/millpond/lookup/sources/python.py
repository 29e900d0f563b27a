"""A Python function, plain or a coroutine, as a lookup source."""

from collections.abc import Awaitable, Callable, Iterable

import pyarrow as pa

from millpond.lookup.functions.async_function import AsyncLookupFunction
from millpond.lookup.functions.function import Key, LookupFunction, Row, Rows


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
        """Return the function's rows for the key."""
        rows = self._function(*keys)
        return [] if rows is None else list(rows)

    def __repr__(self) -> str:
        return f"PythonLookup({getattr(self._function, '__qualname__', self._function)})"


class AsyncPythonLookup(AsyncLookupFunction):
    """A lookup by a coroutine function. At most as many calls run at a time as the table's capacity allows.

    >>> import asyncio
    >>> async def country(code):
    ...     return [("US",)] if code == "JFK" else None
    >>> countries = AsyncPythonLookup(
    ...     country, pa.schema([("code", pa.string())]), pa.schema([("country", pa.string())]))
    >>> asyncio.run(countries.lookup(("JFK",)))
    [('US',)]
    """

    def __init__(
        self, function: Callable[..., Awaitable[Iterable[Row] | None]], key_schema: pa.Schema, row_schema: pa.Schema
    ) -> None:
        self._function = function
        self.key_schema = key_schema
        self.row_schema = row_schema

    async def lookup(self, keys: Key) -> Rows:
        """Return the coroutine's rows for the key."""
        rows = await self._function(*keys)
        return [] if rows is None else list(rows)

    def __repr__(self) -> str:
        return f"AsyncPythonLookup({getattr(self._function, '__qualname__', self._function)})"
