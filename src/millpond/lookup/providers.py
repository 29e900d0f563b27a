"""Providers declare how a table is looked up: a function with or without a cache, or a scan and a trigger.

A provider is only a declaration: it can be made anywhere and pickled, and is opened where rows are looked up.
Give one to `LookupTable` instead of a source for what the options cannot express: your own cache or trigger.

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
        """Make a provider of a function."""
        return cls(function)


@dataclass(frozen=True)
class AsyncLookupFunctionProvider:
    """An asynchronous lookup function without a cache."""

    function: AsyncLookupFunction

    @classmethod
    def of(cls, function: AsyncLookupFunction) -> Self:
        """Make a provider of a function."""
        return cls(function)


@dataclass(frozen=True)
class PartialCachingLookupProvider:
    """A lookup function, and the cache in front of it."""

    function: LookupFunction
    cache: LookupCache

    @classmethod
    def of(cls, function: LookupFunction, cache: LookupCache) -> Self:
        """Make a provider of both."""
        return cls(function, cache)


@dataclass(frozen=True)
class PartialCachingAsyncLookupProvider:
    """An asynchronous lookup function, and the cache in front of it."""

    function: AsyncLookupFunction
    cache: LookupCache

    @classmethod
    def of(cls, function: AsyncLookupFunction, cache: LookupCache) -> Self:
        """Make a provider of both."""
        return cls(function, cache)


@dataclass(frozen=True)
class FullCachingLookupProvider:
    """A scan of the whole table, and the trigger of further scans (None: never).

    `on_reload_failure` and `allow_empty_reload` are as in `FullCachingLookup`.
    """

    scan: LookupScan
    trigger: CacheReloadTrigger | None
    on_reload_failure: OnReloadFailure = "keep"
    allow_empty_reload: bool = False

    @classmethod
    def of(cls, scan: LookupScan, trigger: CacheReloadTrigger | None) -> Self:
        """Make a provider of both."""
        return cls(scan, trigger)


LookupProvider: TypeAlias = (
    LookupFunctionProvider
    | AsyncLookupFunctionProvider
    | PartialCachingLookupProvider
    | PartialCachingAsyncLookupProvider
    | FullCachingLookupProvider
)
