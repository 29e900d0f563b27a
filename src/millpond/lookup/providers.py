"""How a table says what it is looked up with: a function, with or without a cache, or a scan and a trigger.

A provider is a declaration: it can be made anywhere and pickled, and is opened where rows are looked up.
Give one to `LookupTable` in place of a source where the options do not say enough: a cache of your own,
a trigger of your own.

Source: FLIP-221, the five `…LookupProvider` interfaces.
"""

from dataclasses import dataclass
from typing import Self, TypeAlias

from millpond.lookup.caches.cache import LookupCache
from millpond.lookup.caches.full import OnReloadFailure
from millpond.lookup.functions.async_function import AsyncLookupFunction
from millpond.lookup.functions.function import LookupFunction
from millpond.lookup.reload.scan import LookupScan
from millpond.lookup.reload.trigger import CacheReloadTrigger


@dataclass(frozen=True)
class LookupFunctionProvider:
    """A lookup function without a cache."""

    function: LookupFunction

    @classmethod
    def of(cls, function: LookupFunction) -> Self:
        """The provider of a function."""
        return cls(function)


@dataclass(frozen=True)
class AsyncLookupFunctionProvider:
    """An asynchronous lookup function without a cache."""

    function: AsyncLookupFunction

    @classmethod
    def of(cls, function: AsyncLookupFunction) -> Self:
        """The provider of a function."""
        return cls(function)


@dataclass(frozen=True)
class PartialCachingLookupProvider:
    """A lookup function, and the cache that stands before it."""

    function: LookupFunction
    cache: LookupCache

    @classmethod
    def of(cls, function: LookupFunction, cache: LookupCache) -> Self:
        """The provider of both."""
        return cls(function, cache)


@dataclass(frozen=True)
class PartialCachingAsyncLookupProvider:
    """An asynchronous lookup function, and the cache that stands before it."""

    function: AsyncLookupFunction
    cache: LookupCache

    @classmethod
    def of(cls, function: AsyncLookupFunction, cache: LookupCache) -> Self:
        """The provider of both."""
        return cls(function, cache)


@dataclass(frozen=True)
class FullCachingLookupProvider:
    """A scan of the whole table, and the trigger that says when to scan again (None: never).

    `on_reload_failure` and `allow_empty_reload` are as in `FullCachingLookup`.
    """

    scan: LookupScan
    trigger: CacheReloadTrigger | None
    on_reload_failure: OnReloadFailure = "keep"
    allow_empty_reload: bool = False

    @classmethod
    def of(cls, scan: LookupScan, trigger: CacheReloadTrigger | None) -> Self:
        """The provider of both."""
        return cls(scan, trigger)


LookupProvider: TypeAlias = (
    LookupFunctionProvider
    | AsyncLookupFunctionProvider
    | PartialCachingLookupProvider
    | PartialCachingAsyncLookupProvider
    | FullCachingLookupProvider
)
