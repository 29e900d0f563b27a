"""A lookup table as its user declares it: a name, a source and options.

The declaration is made and checked once, in the process that plans the program, and opened in every
process that looks up rows. The invariant: opening never changes the declaration, so every process
opens the same table. `stats` adds up the counters of all processes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import pyarrow as pa

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.errors import OptionError
from millpond.lookup.caches.async_partial import AsyncPartialCachingLookup
from millpond.lookup.caches.blocking import BlockingLookup
from millpond.lookup.caches.cache import DefaultLookupCache
from millpond.lookup.caches.full import FullCachingLookup
from millpond.lookup.caches.full_home import FullHome
from millpond.lookup.caches.partial import PartialCachingLookup
from millpond.lookup.caches.partial_columns import ColumnCachingLookup
from millpond.lookup.column_cache.cache import ColumnCache, ColumnCacheLimits
from millpond.lookup.functions.async_function import AsyncLookupFunction
from millpond.lookup.functions.function import Key, LookupFunction
from millpond.lookup.functions.keys import KeyCheck
from millpond.lookup.functions.retry import Retries
from millpond.lookup.metrics import CacheMetricGroup, LookupStats
from millpond.lookup.options import LookupOptions, Mode
from millpond.lookup.providers import (
    AsyncLookupFunctionProvider,
    FullCachingLookupProvider,
    LookupFunctionProvider,
    LookupProvider,
    PartialCachingAsyncLookupProvider,
    PartialCachingLookupProvider,
)
from millpond.lookup.push_down.conditions import Conditions, conditions
from millpond.lookup.push_down.narrowed import narrowed, narrowed_scan
from millpond.lookup.reload.scan import LookupScan
from millpond.lookup.reload.timed import TimedCacheReloadTrigger
from millpond.lookup.reload.trigger import CacheReloadTrigger, PeriodicCacheReloadTrigger
from millpond.metrics import NO_METRICS, Recorder

LookupSource: TypeAlias = LookupFunction | AsyncLookupFunction | LookupScan
OpenLookup: TypeAlias = PartialCachingLookup | BlockingLookup | FullCachingLookup


class LookupTable:
    """An external table to look up rows in, and how it is cached.

    - Key: the values of the source's key columns.
    - Capacity and freshness: set by the `lookup.partial-cache.*` or `lookup.full-cache.*` options.
    - Concurrent miss: one request to the source per key and process.

    Args:
        name: the table's name in statistics and messages.
        source: a `LookupFunction` or `AsyncLookupFunction` for the modes NONE and PARTIAL, a
            `LookupScan` for FULL. Or a provider, which also declares the caching.
        options: a mapping with the names of FLIP-221, or parsed options.
        recorder: receives its metrics.

    Raises:
        OptionError: an option is wrong, or the source does not support the mode.

    >>> from millpond.lookup import PythonLookup
    >>> source = PythonLookup(lambda code: [(code.lower(),)], pa.schema([("code", pa.string())]),
    ...                       pa.schema([("lower", pa.string())]))
    >>> table = LookupTable("codes", source, {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 10})
    >>> with table.open() as codes:
    ...     codes.lookup(("JFK",)), codes.lookup(("JFK",))
    ([('jfk',)], [('jfk',)])
    >>> table.stats().hit_count, table.stats().miss_count
    (1, 1)
    """

    def __init__(
        self,
        name: str,
        source: LookupSource | LookupProvider,
        options: Mapping[str, Any] | LookupOptions | None = None,
        recorder: Recorder = NO_METRICS,
    ) -> None:
        self.name = name
        self.options = LookupOptions.parse({} if options is None else options)
        self._recorder = recorder
        self._opened: list[OpenLookup | ColumnCachingLookup | AsyncPartialCachingLookup] = []
        self._elsewhere: list[_Elsewhere] = []
        self._closed = LookupStats()
        if isinstance(source, LookupProvider):
            self._provider: LookupProvider = source
            self.options = _as_provided(name, source, self.options)
        else:
            self._provider = _provider(name, source, self.options)
        if isinstance(self.source, AsyncLookupFunction):
            _refuse_freshness_options(name, self.options)
        else:
            _refuse_async_options(name, self.options)

    @property
    def source(self) -> LookupSource:
        """The function or scan that the rows come from."""
        provider = self._provider
        return provider.scan if isinstance(provider, FullCachingLookupProvider) else provider.function

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns and their types."""
        return self.source.key_schema

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of a row and their types."""
        return self.source.row_schema

    def select(self, columns: Sequence[str] | None = None, where: Iterable[Sequence[Any]] = ()) -> "LookupTable":
        """Return the table with fewer columns and rows. The rest is not cached, nor sent if the source can omit it.

        Args:
            columns: the columns of a row; None means all.
            where: conditions that must all hold, such as `[("country", "=", "US"), ("year", ">=", 2000)]`,
                with `=`, `!=`, `<`, `<=`, `>`, `>=`, `in` and `not in`. A null fulfils none.

        Returns:
            A new table with its own statistics.

        Raises:
            OptionError: a column does not exist, or a condition is malformed.
        """
        there = list(dict.fromkeys([*self.key_schema.names, *self.row_schema.names]))
        given = conditions(f"lookup table {self.name!r}", where, there)
        narrow = copy(self)
        # Copying, like pickling, leaves out the recorder. The statistics begin at zero.
        provider = _narrowed(self._provider, columns, given)
        narrow.__dict__.update(_recorder=self._recorder, _closed=LookupStats(), _provider=provider)
        return narrow

    def open(
        self,
        clock: Clock = monotonic_ms,
        *,
        home: FullHome | None = None,
        columns: Sequence[str] | None = None,
    ) -> OpenLookup:
        """Open the table with its cache in this process. Close the result, or the table.

        With `columns` it opens `select(columns)`, but counts, reloads and closes it with this table. A full table is
        stored in `home`, by default for this process alone.
        """
        narrow = self if columns is None else self.select(columns)
        lookup = narrow.lookup_function(clock, home)
        lookup.open()
        self._opened.append(lookup)
        return lookup

    def lookup_function(self, clock: Clock = monotonic_ms, home: FullHome | None = None) -> OpenLookup:
        """Return the source with its cache, not opened yet. A full table will be stored in `home`."""
        provider = self._provider
        metrics, retries = self._metrics(clock), Retries(self.options.max_retries)
        if isinstance(provider, FullCachingLookupProvider):
            return FullCachingLookup(
                provider.scan,
                self._trigger(provider),
                metrics,
                retries,
                clock,
                home=home,
                on_reload_failure=provider.on_reload_failure,
                allow_empty_reload=provider.allow_empty_reload,
            )
        if isinstance(provider, AsyncLookupFunctionProvider | PartialCachingAsyncLookupProvider):
            return BlockingLookup(self.async_lookup_function(clock))
        return PartialCachingLookup(provider.function, self._cache(clock), metrics, retries, clock)

    def open_in_columns(self, clock: Clock = monotonic_ms) -> ColumnCachingLookup | OpenLookup:
        """Open the table for batches of keys in Arrow, otherwise like `open`.

        If `in_columns` is false, as with a full table, a provided cache or an asynchronous source, the result looks
        up rows as Python tuples.
        """
        if not self.in_columns:
            return self.open(clock)
        assert isinstance(self._provider, LookupFunctionProvider)  # noqa: S101 - `in_columns` says so
        cache = ColumnCache(self.limits, clock) if self.options.mode == "PARTIAL" else None
        metrics, retries = self._metrics(clock), Retries(self.options.max_retries)
        lookup = ColumnCachingLookup(
            self._provider.function, cache, metrics, retries, clock, hit_rate_curve=self.options.hit_rate_curve
        )
        lookup.open()
        self._opened.append(lookup)
        return lookup

    @property
    def in_columns(self) -> bool:
        """Whether `open_in_columns` keeps the rows of a batch in columns, as with a `LookupFunction` as its source."""
        return isinstance(self._provider, LookupFunctionProvider)

    async def open_async(self, clock: Clock = monotonic_ms) -> AsyncPartialCachingLookup:
        """Open the table in this event loop. The caller must close the result.

        Raises:
            OptionError: the source is not an `AsyncLookupFunction`.
        """
        lookup = self.async_lookup_function(clock)
        await lookup.open()
        self._opened.append(lookup)
        return lookup

    def async_lookup_function(self, clock: Clock = monotonic_ms) -> AsyncPartialCachingLookup:
        """Return the asynchronous source with its cache, not opened yet."""
        if not isinstance(self.source, AsyncLookupFunction):
            raise OptionError(
                f"lookup table {self.name!r}: expected an AsyncLookupFunction as its source, got {self.source!r}; use "
                "open(), or make it asynchronous with ThreadedLookup"
            )
        return AsyncPartialCachingLookup(
            self.source,
            self._cache(clock),
            self._metrics(clock),
            Retries(self.options.max_retries),
            clock,
            capacity=self.options.async_capacity,
            timeout_ms=self.options.async_timeout_ms,
        )

    def watch(
        self,
        stats: Callable[[], LookupStats],
        close: Callable[[], None],
        invalidate: Callable[[Sequence[Key] | None], None] | None = None,
    ) -> None:
        """Add the counters of another process to `stats`; `close` and `invalidate` are called with the table's own."""
        self._elsewhere.append(_Elsewhere(stats, close, invalidate))

    def invalidate(self, keys: Sequence[Key] | None = None) -> None:
        """Remove keys whose rows have changed from the caches; None removes all keys.

        This reaches every cache of this table in this process. With `lookup.partial-cache.invalidation` it also reaches
        those on Spark, for the partitions that begin after the call. The result of a load under way is not cached. A
        lookup from `open_async` is not reached: its owner must invalidate it in its event loop.

        Raises:
            DataError: a key is not of the declared types.
            OptionError: the table is fully cached, or joined on Spark without that option.
        """
        if self.options.mode == "FULL":
            raise OptionError(
                f"lookup table {self.name!r}: a table that is cached in full has no keys to forget; use reload()"
            )
        if self.options.mode == "NONE":
            return
        checked = None
        if keys is not None:
            checked = KeyCheck(f"lookup table {self.name!r}, invalidate", self.key_schema)(keys)
        for lookup in self._opened:
            if not isinstance(lookup, AsyncPartialCachingLookup | FullCachingLookup):
                lookup.invalidate(checked)
        for elsewhere in self._elsewhere:
            if elsewhere.invalidate is None:
                raise OptionError(
                    f"lookup table {self.name!r}: its caches on Spark are not told of what is invalidated; set "
                    "lookup.partial-cache.invalidation to true"
                )
            elsewhere.invalidate(checked)

    def share(self, of: int) -> "LookupTable":
        """Return the declaration for one of `of` processes that divide the keys, with its cache limits divided too."""
        if of == 1 or not self.divisible:
            return self
        max_rows, max_bytes = (
            None if limit is None else -(-limit // of) for limit in (self.options.max_rows, self.options.max_bytes)
        )
        return self.limited(max_rows, max_bytes)

    def limited(self, max_rows: int | None, max_bytes: int | None) -> "LookupTable":
        """Return the declaration with other sizes of its partial cache."""
        part = copy(self)
        part.options = replace(self.options, max_rows=max_rows, max_bytes=max_bytes)
        return part

    @property
    def limits(self) -> ColumnCacheLimits:
        """The limits of its partial cache, by its options."""
        return ColumnCacheLimits(
            max_rows=self.options.max_rows,
            max_bytes=self.options.max_bytes,
            policy="lru" if self.options.policy == "LRU" else "w-tinylfu",
            expire_after_access_ms=self.options.expire_after_access_ms,
            expire_after_write_ms=self.options.expire_after_write_ms,
            cache_missing_key=self.options.cache_missing_key,
            refresh_after_write_ms=self.options.refresh_after_write_ms,
            stale_if_error_ms=self.options.stale_if_error_ms,
            expiry_jitter_ms=self.options.expiry_jitter_ms,
        )

    @property
    def divisible(self) -> bool:
        """Whether `share` can divide its cache. It cannot divide a provided one."""
        return getattr(self._provider, "cache", None) is None

    def reload(self) -> None:
        """Reload a full table. A failure is counted and warned of, and the last good table stays.

        With `on_reload_failure="fail"` the failure is raised, and later lookups fail too.
        """
        for lookup in self._opened:
            if isinstance(lookup, FullCachingLookup):
                lookup.reload()

    def advance_watermark(self, watermark_ms: int) -> None:
        """Set the watermark that the reload trigger of a full table sees: the query's last, in ms since 1970 UTC."""
        for lookup in self._opened:
            if isinstance(lookup, FullCachingLookup):
                lookup.advance_watermark(watermark_ms)

    def close(self) -> None:
        """Close everything that was opened of this table. Its counters stay in `stats`.

        A lookup from `open_async` is not closed: its owner must close it in its event loop.
        """
        self._closed = self.stats().since(LookupStats())
        opened, elsewhere = self._opened, self._elsewhere
        self._opened, self._elsewhere = [], []
        with ExitStack() as closing:
            # Each is closed, whatever the others raise.
            for each in reversed(elsewhere):
                closing.callback(each.close)
            for lookup in reversed(opened):
                if not isinstance(lookup, AsyncPartialCachingLookup):
                    closing.callback(lookup.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stats(self) -> LookupStats:
        """Return the sums over everything that was opened here, and over what `watch` added."""
        here = [lookup.stats() for lookup in self._opened]
        return sum([*here, *(each.stats() for each in self._elsewhere)], self._closed)

    def __getstate__(self) -> dict[str, Any]:
        """Return only the declaration, for another process."""
        return {**self.__dict__, "_recorder": NO_METRICS, "_opened": [], "_elsewhere": []}

    def _metrics(self, clock: Clock) -> CacheMetricGroup:
        return CacheMetricGroup(self.name, self._recorder, clock)

    def _cache(self, clock: Clock) -> Any:
        """Return the provider's cache, or a new one by the options; None without a cache."""
        provided = getattr(self._provider, "cache", None)
        if provided is not None or self.options.mode != "PARTIAL":
            return provided
        return DefaultLookupCache(**asdict(self.limits), hit_rate_curve=self.options.hit_rate_curve, clock=clock)

    def _trigger(self, provider: FullCachingLookupProvider) -> CacheReloadTrigger | None:
        """Return a trigger of one opening's own: the provider's, or a copy if that is in use, or one by the options."""
        if provider.trigger is None:
            return _trigger(self.options)
        in_use = any(isinstance(lookup, FullCachingLookup) and lookup.is_open for lookup in self._opened)
        return deepcopy(provider.trigger) if in_use else provider.trigger


@dataclass(frozen=True)
class _Elsewhere:
    """The functions by which a table reaches the caches in other processes."""

    stats: Callable[[], LookupStats]
    close: Callable[[], None]
    invalidate: Callable[[Sequence[Key] | None], None] | None


def _provider(name: str, source: LookupSource, options: LookupOptions) -> LookupProvider:
    """Return the provider of a source. Each opening makes a new cache or trigger by the options."""
    if options.mode == "FULL":
        if callable(getattr(source, "scan", None)):
            return FullCachingLookupProvider.of(cast("LookupScan", source), None)
    elif isinstance(source, LookupFunction):
        return LookupFunctionProvider.of(source)
    elif isinstance(source, AsyncLookupFunction):
        return AsyncLookupFunctionProvider.of(source)
    kind = "LookupScan" if options.mode == "FULL" else "LookupFunction"
    raise OptionError(
        f"lookup table {name!r}, lookup.cache = {options.mode}: expected a {kind} as its source, "
        f"got {type(source).__name__}; give one, or choose another lookup.cache"
    )


def _as_provided(name: str, provider: LookupProvider, options: LookupOptions) -> LookupOptions:
    """Return the options with the mode of the provider."""
    mode: Mode = "NONE"
    if isinstance(provider, FullCachingLookupProvider):
        mode = "FULL"
    elif isinstance(provider, PartialCachingLookupProvider | PartialCachingAsyncLookupProvider):
        mode = "PARTIAL"
    if options.mode != "NONE":
        raise OptionError(
            f"lookup table {name!r}: a {type(provider).__name__} says itself how it is cached, so lookup.cache = "
            f"{options.mode} and its options have no effect; remove them, or give the source without the provider"
        )
    return replace(options, mode=mode)


def _refuse_async_options(name: str, options: LookupOptions) -> None:
    defaults = LookupOptions()
    if (options.async_capacity, options.async_timeout_ms) != (defaults.async_capacity, defaults.async_timeout_ms):
        raise OptionError(
            f"lookup table {name!r}: table.exec.async-lookup.* has no effect on a source that is not asynchronous; "
            "remove it, or make the source asynchronous with ThreadedLookup"
        )


def _refuse_freshness_options(name: str, options: LookupOptions) -> None:
    if options.refresh_after_write_ms is not None or options.stale_if_error_ms:
        raise OptionError(
            f"lookup table {name!r}: lookup.partial-cache.refresh-after-write and stale-if-error have no effect on an "
            "asynchronous source; remove them, or give a LookupFunction"
        )


def _narrowed(provider: LookupProvider, columns: Sequence[str] | None, given: Conditions) -> LookupProvider:
    """Return the provider of a narrowed source, with its own cache and trigger."""
    if isinstance(provider, FullCachingLookupProvider):
        scan = narrowed_scan(provider.scan, columns, given)
        return replace(provider, scan=scan, trigger=deepcopy(provider.trigger))
    if isinstance(provider, LookupFunctionProvider):
        return replace(provider, function=narrowed(provider.function, columns, given))
    if isinstance(provider, AsyncLookupFunctionProvider):
        return replace(provider, function=narrowed(provider.function, columns, given))
    if isinstance(provider, PartialCachingLookupProvider):
        function = narrowed(provider.function, columns, given)
        return replace(provider, function=function, cache=deepcopy(provider.cache))
    async_function = narrowed(provider.function, columns, given)
    return replace(provider, function=async_function, cache=deepcopy(provider.cache))


def _trigger(options: LookupOptions) -> CacheReloadTrigger | None:
    if options.reload_time is not None:
        return TimedCacheReloadTrigger(options.reload_time, options.reload_interval_days)
    if options.reload_interval_ms is not None:
        return PeriodicCacheReloadTrigger(options.reload_interval_ms, options.schedule_mode)
    return None
