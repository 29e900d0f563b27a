"""A lookup cache around any Python function, without a table and without Spark.

It gives the function the cache, single flight, retries and metrics of a lookup table. The invariant: a cached result
is what the function returned, and an exception is never cached. None is cached as a missing key, which is distinct
from "not cached".
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
    """Decorate a plain or coroutine function so that its results are cached.

    - Key: the arguments as they are passed, as for `functools.lru_cache`. They must be hashable.
    - Capacity and freshness: those of the `DefaultLookupCache`, or of the given `cache`.
    - Concurrent miss: one caller runs the function, and the others wait for its result or exception.

    Args:
        cache: the cache to use instead of a `DefaultLookupCache`, for this function alone.
        retries: how an `UnavailableError`, `ConnectionError` or `TimeoutError` is tried again; by default never.
        recorder: receives the metrics, under the function's name.
        limits: the arguments of `DefaultLookupCache`, such as `max_rows`, `max_bytes`, `expire_after_access_ms`,
            `expire_after_write_ms` and `cache_missing_key`. At least one limit is needed.

    Raises:
        OptionError: no limit is given, or limits are given together with `cache`.

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
    if cache is None:
        DefaultLookupCache(**limits)  # raises for wrong limits, before a function is decorated

    def wrap(function: Callable[P, R]) -> "CachedFunction[P, R]":
        # Each function needs a cache of its own: the key has only the arguments.
        remembers = DefaultLookupCache(**limits) if cache is None else cache
        return CachedFunction(function, remembers, Retries(0) if retries is None else retries, recorder)

    return wrap


class CachedFunction(Generic[P, R]):
    """A function with a cache, made by `cached`. Call it like the function; await it if that is a coroutine."""

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
        """Return the function's result, from the cache if it is there."""
        key = _Arguments.key(args, kwargs)
        if isinstance(self._lookup, AsyncPartialCachingLookup):
            return cast("R", _awaited(self._lookup, key))
        return cast("R", _returned(self._lookup.lookup(key)))

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Remove the cached result for these arguments."""
        self._lookup.invalidate([_Arguments.key(args, kwargs)])

    def stats(self) -> LookupStats:
        """Return the counters so far."""
        return self._metrics.stats()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind it as a method. The object is the first argument, and so part of the key."""
        return self if instance is None else MethodType(self, instance)


class _Arguments(NamedTuple):
    """The value of the only key column: the arguments of a call."""

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
