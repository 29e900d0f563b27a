"""The interface of asynchronous lookup functions, which do not block a thread while they wait.

The contract is that of `LookupFunction`, for sources with an asyncio client. The cache in front of the
function limits the number of requests under way.

`ThreadedLookup` turns any `LookupFunction` into an asynchronous one by using threads, for sources without an
asyncio client.

Source: FLIP-221, `AsyncLookupFunction`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from millpond.errors import OptionError
from millpond.lookup.functions.function import Key, LookupFunction, Rows

T = TypeVar("T")


class AsyncLookupFunction(ABC):
    """Finds the rows of an external table by key, as coroutines.

    `key_schema` and `row_schema` name the columns of a key and of a row, with their Arrow types. The same
    failures are tried again as for a `LookupFunction`.

    >>> class Squares(AsyncLookupFunction):
    ...     key_schema = pa.schema([("n", pa.int64())])
    ...     row_schema = pa.schema([("square", pa.int64())])
    ...     async def lookup(self, keys):
    ...         return [(keys[0] ** 2,)]
    >>> asyncio.run(Squares().lookup_many([(2,), (3,)]))
    {(2,): [(4,)], (3,): [(9,)]}
    """

    key_schema: pa.Schema
    row_schema: pa.Schema

    async def open(self) -> None:  # noqa: B027 - most functions have nothing to open
        """Connect; called in the event loop that looks up, before the first lookup."""

    @abstractmethod
    async def lookup(self, keys: Key) -> Rows:
        """Return the rows whose key columns equal `keys`; an empty list if there are none."""

    async def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key. Keys without rows may be left out.

        Override it if one request can answer for many keys.
        """
        return dict(zip(keys, await asyncio.gather(*map(self.lookup, keys)), strict=True))

    @property
    def batched(self) -> bool:
        """Whether one request can answer for many keys, that is, whether `lookup_many` is overridden."""
        return type(self).lookup_many is not AsyncLookupFunction.lookup_many

    async def close(self) -> None:  # noqa: B027 - most functions have nothing to close
        """Close the connections. The function may be opened again."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return type(self).__qualname__


class ThreadedLookup(AsyncLookupFunction):
    """Turns any thread-safe `LookupFunction` into an asynchronous one.

    Args:
        function: the function to call, such as any source of Millpond.
        threads: the number of threads, and so of requests under way at once.

    >>> from millpond.lookup import PythonLookup
    >>> codes = PythonLookup(lambda code: [(code.lower(),)], pa.schema([("code", pa.string())]),
    ...                      pa.schema([("lower", pa.string())]))
    >>> async def look():
    ...     async with ThreadedLookup(codes, threads=2) as lookup:
    ...         return await lookup.lookup(("JFK",))
    >>> asyncio.run(look())
    [('jfk',)]
    """

    def __init__(self, function: LookupFunction, threads: int = 8) -> None:
        if threads < 1:
            raise OptionError(f"ThreadedLookup of {function!r}, threads: expected at least 1, got {threads}")
        self._function = function
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None

    @property
    def key_schema(self) -> pa.Schema:
        """The function's key columns."""
        return self._function.key_schema

    @property
    def row_schema(self) -> pa.Schema:
        """The function's row columns."""
        return self._function.row_schema

    @property
    def batched(self) -> bool:
        """Whether the function is batched."""
        return self._function.batched

    def __getstate__(self) -> dict[str, object]:
        """Return everything but the threads, for another process."""
        return {**self.__dict__, "_pool": None}

    async def open(self) -> None:
        """Start the threads and open the function in one of them."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "millpond-lookup")
        await self._run(self._function.open)

    async def lookup(self, keys: Key) -> Rows:
        """Return the rows of one key."""
        return await self._run(lambda: self._function.lookup(keys))

    async def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key."""
        return await self._run(lambda: self._function.lookup_many(keys))

    async def close(self) -> None:
        """Close the function and stop the threads, without waiting for a request under way."""
        if self._pool is not None:
            await self._run(self._function.close)
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    async def _run(self, call: Callable[[], T]) -> T:
        if self._pool is None:
            raise OptionError(f"ThreadedLookup of {self._function!r} is not open; call open(), or use `async with`")
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def __repr__(self) -> str:
        return f"ThreadedLookup({self._function!r})"
