"""A lookup cache around any Python function, without a table and without Spark.

The same cache, single flight, retries and metrics as a lookup table has, for whatever a function returns.
The invariant: what the function returned is returned again, and what it raised is never remembered.
None is remembered as a missing key, apart from what is there.
"""

import inspect
from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast

import pyarrow as pa

from millpond.errors import OptionError
from millpond.lookup.caches.async_partial import AsyncPartialCachingLookup
from millpond.lookup.caches.cache import DefaultLookupCache, LookupCache
from millpond.lookup.caches.partial import PartialCachingLookup
from millpond.lookup.functions.async_function import AsyncLookupFunction
from millpond.lookup.functions.function import Key, LookupFunction, Rows
from millpond.lookup.functions.retry import Retries
from millpond.lookup.metrics import CacheMetricGroup, LookupStats
from millpond.metrics import NO_METRICS, Recorder

P = ParamSpec("P")
R = TypeVar("R")

_ARGUMENTS = pa.schema([("arguments", pa.null())])
_RESULT = pa.schema([("result", pa.null())])


def cached(
    *,
    cache: LookupCache | None = None,
    retries: Retries | None = None,
    recorder: Recorder = NO_METRICS,
    **limits: Any,
) -> "Callable[[Callable[P, R]], CachedFunction[P, R]]":
    """Let a function, plain or a coroutine, remember what it returned.

    - Key: the arguments as they are written, which must be hashable, as for `functools.lru_cache`.
    - Capacity and freshness: those of the `DefaultLookupCache`, or of the cache that is given.
    - Concurrent miss: one caller runs the function, the others wait for what it returns or raises.

    Args:
        cache: what remembers, instead of a `DefaultLookupCache`.
        retries: how an `UnavailableError`, `ConnectionError` or `TimeoutError` is tried again; by default never.
        recorder: where the metrics go, under the function's name.
        limits: those of `DefaultLookupCache`: `max_rows`, `max_bytes`, `expire_after_access_ms`,
            `expire_after_write_ms`, `cache_missing_key`. At least one limit is needed.

    Raises:
        OptionError: no limit, or limits beside a cache.

    >>> @cached(max_rows=1_000, expire_after_write_ms=60_000)
    ... def country(code):
    ...     print("asked for", code)
    ...     return {"JFK": "US"}.get(code)
    >>> country("JFK"), country("JFK"), country("XXX"), country("XXX")
    asked for JFK
    asked for XXX
    ('US', 'US', None, None)
    >>> country.stats().hit_rate
    0.5
    """
    if cache is not None and limits:
        raise OptionError(f"cached: {', '.join(limits)} have no effect on a cache that is given; set its own limits")
    remembers = DefaultLookupCache(**limits) if cache is None else cache

    def wrap(function: Callable[P, R]) -> "CachedFunction[P, R]":
        return CachedFunction(function, remembers, Retries(0) if retries is None else retries, recorder)

    return wrap


class CachedFunction(Generic[P, R]):
    """What `cached` makes: called as the function is, awaited if that is a coroutine function."""

    def __init__(
        self, function: Callable[P, R], cache: LookupCache, retries: Retries, recorder: Recorder = NO_METRICS
    ) -> None:
        update_wrapper(self, function)
        metrics = CacheMetricGroup(getattr(function, "__qualname__", repr(function)), recorder)
        cache.open(metrics)
        self._metrics = metrics
        self._lookup: PartialCachingLookup | AsyncPartialCachingLookup
        if inspect.iscoroutinefunction(function):
            self._lookup = AsyncPartialCachingLookup(_AsyncCall(function), cache, metrics, retries)
        else:
            self._lookup = PartialCachingLookup(_Call(function), cache, metrics, retries)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the function returns, from the cache if it is there."""
        key = _Arguments.key(args, kwargs)
        if isinstance(self._lookup, AsyncPartialCachingLookup):
            return cast("R", _awaited(self._lookup, key))
        return cast("R", _returned(self._lookup.lookup(key)))

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Forget what the function returned for these arguments."""
        self._lookup.invalidate([_Arguments.key(args, kwargs)])

    def stats(self) -> LookupStats:
        """What was counted so far."""
        return self._metrics.stats()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: the object it is called on is the first argument, and part of the key."""
        return self if instance is None else MethodType(self, instance)


class _Arguments(NamedTuple):
    """The one key column: what the function was called with."""

    positional: tuple[Any, ...]
    named: tuple[tuple[str, Any], ...]

    @classmethod
    def key(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        return (cls(args, tuple(sorted(kwargs.items()))),)


class _Call(LookupFunction):
    key_schema, row_schema = _ARGUMENTS, _RESULT

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def lookup(self, keys: Key) -> Rows:
        (arguments,) = keys
        return _row(self._function(*arguments.positional, **dict(arguments.named)))

    def __repr__(self) -> str:
        return "cached function"


class _AsyncCall(AsyncLookupFunction):
    key_schema, row_schema = _ARGUMENTS, _RESULT

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    async def lookup(self, keys: Key) -> Rows:
        (arguments,) = keys
        return _row(await self._function(*arguments.positional, **dict(arguments.named)))

    def __repr__(self) -> str:
        return "cached function"


def _row(returned: Any) -> Rows:
    return [] if returned is None else [(returned,)]


def _returned(rows: Rows) -> Any:
    return rows[0][0] if rows else None


async def _awaited(lookup: AsyncPartialCachingLookup, key: Key) -> Any:
    return _returned(await lookup.lookup(key))
