"""A lookup table as its user declares it: a name, a source and options.

The declaration is made once, where the program is planned, checked there, and opened in every
process that looks up. The invariant: opening never changes the declaration, so that every process
opens the same table. What each process counts is added up here, in `stats`.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, cast

import pyarrow as pa

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.errors import OptionError
from millpond.lookup.cache import DefaultLookupCache
from millpond.lookup.full import FullCachingLookup, FullCachingLookupProvider
from millpond.lookup.function import LookupFunction
from millpond.lookup.keyed_table import KeyedTable
from millpond.lookup.metrics import CacheMetricGroup, LookupStats
from millpond.lookup.options import LookupOptions
from millpond.lookup.partial import PartialCachingLookup, PartialCachingLookupProvider
from millpond.lookup.retry import Retries
from millpond.lookup.scan import LookupScan
from millpond.lookup.trigger import PeriodicCacheReloadTrigger
from millpond.metrics import NO_METRICS, Recorder


class LookupTable:
    """An external table to look rows up in, and how it is cached.

    - Key: the values of the source's key columns.
    - Capacity and freshness: as the `lookup.partial-cache.*` or `lookup.full-cache.*` options say.
    - Concurrent miss: one request to the source per key and process.

    Args:
        name: what statistics and messages call it.
        source: a `LookupFunction` for the modes NONE and PARTIAL, a `LookupScan` for FULL.
        options: by the names of FLIP-221, or parsed.
        recorder: where its metrics go.

    Raises:
        OptionError: an option is wrong, or the source cannot do what the mode needs.

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
        source: LookupFunction | LookupScan,
        options: Mapping[str, Any] | LookupOptions | None = None,
        recorder: Recorder = NO_METRICS,
    ) -> None:
        self.name = name
        self.source = source
        self.options = LookupOptions.parse({} if options is None else options)
        self._recorder = recorder
        self._opened: list[PartialCachingLookup | FullCachingLookup] = []
        self._elsewhere: list[tuple[Callable[[], LookupStats], Callable[[], None]]] = []
        self._closed = LookupStats()
        kind = LookupScan if self.options.mode == "FULL" else LookupFunction
        if not isinstance(source, kind):
            raise OptionError(
                f"lookup table {name!r}, lookup.cache = {self.options.mode}: expected a {kind.__name__} as its source, "
                f"got {type(source).__name__}; give one, or choose another lookup.cache"
            )

    @property
    def key_schema(self) -> pa.Schema:
        """The key columns and their types."""
        return self.source.key_schema

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of a row and their types."""
        return self.source.row_schema

    def open(
        self, clock: Clock = monotonic_ms, on_swap: Callable[[KeyedTable], None] | None = None
    ) -> PartialCachingLookup | FullCachingLookup:
        """Open the table in this process, caches and all; close it, or the table."""
        lookup = self.lookup_function(clock, on_swap)
        lookup.open()
        self._opened.append(lookup)
        return lookup

    def lookup_function(
        self, clock: Clock = monotonic_ms, on_swap: Callable[[KeyedTable], None] | None = None
    ) -> PartialCachingLookup | FullCachingLookup:
        """The source with its cache before it, not yet open; `on_swap` gets every full table before it is used."""
        metrics = CacheMetricGroup(self.name, self._recorder)
        retries = Retries(self.options.max_retries)
        if self.options.mode == "FULL":
            full = FullCachingLookupProvider.of(cast("LookupScan", self.source), self._trigger())
            return full.create_lookup_function(metrics, retries, clock, on_swap)
        cache = self._cache(clock) if self.options.mode == "PARTIAL" else None
        partial = PartialCachingLookupProvider.of(cast("LookupFunction", self.source), cache)
        return partial.create_lookup_function(metrics, retries, clock)

    def watch(self, stats: Callable[[], LookupStats], close: Callable[[], None]) -> None:
        """Add what is counted elsewhere to `stats`; `close` is called when the table closes."""
        self._elsewhere.append((stats, close))

    def reload(self) -> None:
        """Load a full table again now; a failure is counted, warned of, and keeps the last good table."""
        for lookup in self._opened:
            if isinstance(lookup, FullCachingLookup):
                lookup.trigger_reload()

    def close(self) -> None:
        """Close whatever was opened of this table; what it counted stays in `stats`."""
        self._closed = self.stats().since(LookupStats())
        opened, elsewhere = self._opened, self._elsewhere
        self._opened, self._elsewhere = [], []
        for lookup in opened:
            lookup.close()
        for _, close in elsewhere:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stats(self) -> LookupStats:
        """The sums over everything that was opened or is watched."""
        here = [lookup.stats() for lookup in self._opened]
        return sum([*here, *(stats() for stats, _ in self._elsewhere)], self._closed)

    def __getstate__(self) -> dict[str, Any]:
        """The declaration alone, for another process."""
        return {**self.__dict__, "_recorder": NO_METRICS, "_opened": [], "_elsewhere": []}

    def _cache(self, clock: Clock) -> DefaultLookupCache:
        return DefaultLookupCache(
            max_rows=self.options.max_rows,
            expire_after_access_ms=self.options.expire_after_access_ms,
            expire_after_write_ms=self.options.expire_after_write_ms,
            cache_missing_key=self.options.cache_missing_key,
            clock=clock,
        )

    def _trigger(self) -> PeriodicCacheReloadTrigger | None:
        interval_ms = self.options.reload_interval_ms
        return None if interval_ms is None else PeriodicCacheReloadTrigger(interval_ms, self.options.schedule_mode)
