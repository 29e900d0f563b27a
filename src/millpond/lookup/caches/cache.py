"""The cache in front of a lookup function: its interface, and the default implementation.

The invariant: **None means not cached, an empty list is a cached missing key**. Only answers of the
source are put here, so a failure can never look like a missing key.

The capacity is counted in keys, although the option is called `max-rows`. Flink's code does the same.

Source: FLIP-221, `LookupCache` and `DefaultLookupCache`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from millpond.cache import Cache, monotonic_ms, new_cache
from millpond.cache.api import Clock, Policy
from millpond.cache.curves import record, recordings_of
from millpond.cache.curves.recording import Recording
from millpond.cache.steady_clock import SteadyClock
from millpond.errors import DataError
from millpond.lookup.caches.entry_bytes import entry_weigher
from millpond.lookup.functions.function import Key, Row, Rows
from millpond.lookup.metrics import CacheMetricGroup


class LookupCache(Protocol):
    """A map from keys to their rows. Implementations are thread-safe, and picklable for use on Spark.

    Your own cache needs these six methods and no base class.
    """

    def open(self, metrics: CacheMetricGroup) -> None:
        """Prepare the cache for use, and register its sizes with `metrics`."""

    def get_if_present(self, key: Key) -> Rows | None:
        """Return the cached rows, an empty list for a cached missing key, or None if the key is not cached."""

    def put(self, key: Key, rows: Rows) -> Rows | None:
        """Cache the rows of a key. Return the rows cached before, or None."""

    def invalidate(self, key: Key) -> None:
        """Remove a key."""

    def size(self) -> int:
        """Return the number of cached keys, including missing keys."""

    def close(self) -> None:
        """Remove everything. The cache may be opened again."""


@runtime_checkable
class FindsPresent(Protocol):
    """A `LookupCache` that finds a batch of keys faster than one key at a time."""

    def find_present(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of the cached keys among `keys`."""
        ...


@runtime_checkable
class KnowsAges(Protocol):
    """A `LookupCache` that knows the ages of its entries."""

    def due(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of the cached keys that are old enough to be refreshed."""
        ...

    def find_stale(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of those keys that are present, stale or not. Counts no use."""
        ...


def find_present(cache: LookupCache | None, keys: Sequence[Key]) -> dict[Key, Rows]:
    """Return the rows of the cached keys among `keys`."""
    if cache is None:
        return {}
    if isinstance(cache, FindsPresent):
        return cache.find_present(keys)
    found = ((key, cache.get_if_present(key)) for key in keys)
    return {key: rows for key, rows in found if rows is not None}


def forget_missing(cache: LookupCache | None, keys: Sequence[Key]) -> None:
    """Remove those keys that are cached without rows.

    >>> cache = DefaultLookupCache(max_rows=100)
    >>> cache.put(("N101",), [("A320",)]); cache.put(("N102",), [])
    >>> forget_missing(cache, [("N101",), ("N102",)])
    >>> find_present(cache, [("N101",), ("N102",)])
    {('N101',): [('A320',)]}
    """
    if cache is not None:
        for key, rows in find_present(cache, keys).items():
            if not rows:
                cache.invalidate(key)


class DefaultLookupCache:
    """A bounded, thread-safe `LookupCache`.

    - Key: the tuple of key values.
    - Capacity: `max_rows` keys (a key with several rows is one), or `max_bytes` estimated bytes.
    - Freshness: a key expires `expire_after_write_ms` after its load from the source, or `expire_after_access_ms`
      after its last use. `refresh_after_write_ms` after its load it is due for a refresh, which the lookup around the
      cache makes.
    - Concurrent miss: the lookup around the cache lets one of the callers ask the source.

    Rows are copied on the way in and out, so callers cannot change the cached rows. Unpickling gives an empty cache
    with the same limits.

    Args:
        max_rows: the largest number of keys.
        max_bytes: the largest number of bytes.
        policy: the entries to evict: `"lru"` the least recently used, `"w-tinylfu"` the least frequently used.
        expire_after_access_ms: age since the last use at which a key expires.
        expire_after_write_ms: age since its load at which a key expires.
        cache_missing_key: whether to cache that a key has no rows.
        refresh_after_write_ms: age since its load at which a key is loaded again.
        stale_if_error_ms: time after `expire_after_write_ms` for which a key is still kept for `find_stale`.
        expiry_jitter_ms: the most by which a key may expire before `expire_after_write_ms`; fixed for each key.
        hit_rate_curve: whether to record the hit rates at other sizes, see `millpond.cache.curves`.
        clock: monotonic milliseconds.

    Attributes:
        recording: the recording of the hit-rate curve; None if there is none.

    Raises:
        OptionError: no limit of any kind, or an invalid one.

    >>> cache = DefaultLookupCache(max_rows=100)
    >>> cache.put(("N101",), [("A320",)]); cache.put(("N102",), [])
    >>> cache.get_if_present(("N101",)), cache.get_if_present(("N102",)), cache.get_if_present(("N103",))
    ([('A320',)], [], None)
    """

    def __init__(
        self,
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        policy: Policy = "lru",
        expire_after_access_ms: int | None = None,
        expire_after_write_ms: int | None = None,
        cache_missing_key: bool = True,
        refresh_after_write_ms: int | None = None,
        stale_if_error_ms: int = 0,
        expiry_jitter_ms: int = 0,
        hit_rate_curve: bool = False,
        clock: Clock = monotonic_ms,
    ) -> None:
        self._settings: dict[str, Any] = {
            "max_rows": max_rows,
            "max_bytes": max_bytes,
            "policy": policy,
            "expire_after_access_ms": expire_after_access_ms,
            "expire_after_write_ms": expire_after_write_ms,
            "cache_missing_key": cache_missing_key,
            "refresh_after_write_ms": refresh_after_write_ms,
            "stale_if_error_ms": stale_if_error_ms,
            "expiry_jitter_ms": expiry_jitter_ms,
            "hit_rate_curve": hit_rate_curve,
            "clock": clock,
        }
        self._cache_missing_key = cache_missing_key
        self._clock = SteadyClock(clock)
        self._expire_ms, self._refresh_ms = expire_after_write_ms, refresh_after_write_ms
        self._stale_ms, self._jitter_ms = stale_if_error_ms, expiry_jitter_ms
        self._written_ms: dict[Key, int] | None = None
        if refresh_after_write_ms is not None or stale_if_error_ms or expiry_jitter_ms:
            self._written_ms = {}
        expiries = (expire_after_access_ms is not None) + (expire_after_write_ms is not None)
        self._cache: Cache[Key, tuple[Row, ...]] = new_cache(
            "lookup",
            max_entries=max_rows,
            max_bytes=max_bytes,
            policy=policy,
            weigher=entry_weigher(expiries + (self._written_ms is not None), policy),
            expire_after_access_ms=expire_after_access_ms,
            expire_after_write_ms=None if expire_after_write_ms is None else expire_after_write_ms + stale_if_error_ms,
            on_evict=None if self._written_ms is None else self._forget_age,
            clock=clock,
            shared=True,
        )
        self.recording: Recording | None = None
        if hit_rate_curve:
            (self.recording,) = recordings_of([record(self._cache)]).values()

    def __getstate__(self) -> dict[str, Any]:
        """Return only the settings: another process gets an empty cache with the same limits."""
        return self._settings

    def __setstate__(self, settings: dict[str, Any]) -> None:
        self.__init__(**settings)  # type: ignore[misc]  # unpickling starts from an empty instance

    def open(self, metrics: CacheMetricGroup) -> None:
        """Register numCachedRecord and numCachedBytes."""
        metrics.sizes(self.size, lambda: self._cache.stats().bytes)

    def get_if_present(self, key: Key) -> Rows | None:
        """Return the cached rows, an empty list for a cached missing key, or None if the key is not cached."""
        return self.find_present([key]).get(key)

    def find_present(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of the cached keys among `keys`, as `get_if_present` would for each."""
        found = self._cache.get_present(keys)
        fresh: Iterable[Key] = found
        if self._written_ms is not None and self._expire_ms is not None:
            # Not before the cache was asked, which counts what is asked and records it for the curve.
            fresh = self._fresh(found, self._written_ms, self._expire_ms)
        return {key: list(found[key]) for key in fresh}

    def find_stale(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of those keys that are present, stale or not. Counts no use."""
        there = ((key, self._cache.peek(key)) for key in keys)
        return {key: list(rows) for key, rows in there if rows is not None}

    def due(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of the cached keys that are old enough to be refreshed."""
        if self._refresh_ms is None or self._written_ms is None:
            return []
        latest_ms = self._clock() - self._refresh_ms
        return [key for key in keys if self._written_ms.get(key, latest_ms + 1) <= latest_ms]

    def _fresh(self, keys: Iterable[Key], written_ms: dict[Key, int], expire_ms: int) -> list[Key]:
        latest_ms, jitter_ms = self._clock() - expire_ms, self._jitter_ms + 1
        return [key for key in keys if written_ms.get(key, latest_ms) - hash(key) % jitter_ms > latest_ms]

    def _forget_age(self, key: Key, *_: object) -> None:
        if self._written_ms is not None:
            self._written_ms.pop(key, None)

    def put(self, key: Key, rows: Rows) -> Rows | None:
        """Cache a copy of the rows; a missing key only with `cache_missing_key`.

        Raises:
            DataError: the key is not a tuple, or the rows are not a list or tuple.
        """
        if not isinstance(key, tuple) or not isinstance(rows, (list, tuple)):
            raise DataError(
                f"lookup cache: expected a key as a tuple and its rows as a list, empty for a missing key, got key "
                f"{key!r} and {type(rows).__name__} {rows!r}"
            )
        before = self._cache.peek(key)
        if rows or self._cache_missing_key:
            if self._written_ms is not None:
                self._written_ms[key] = self._clock()
            self._cache.put(key, tuple(rows))
        else:
            self.invalidate(key)
        return None if before is None else list(before)

    def invalidate(self, key: Key) -> None:
        """Remove a key."""
        self._cache.invalidate(key)
        self._forget_age(key)

    def size(self) -> int:
        """Return the number of cached keys, including missing and stale ones."""
        return len(self._cache)

    def close(self) -> None:
        """Remove everything."""
        self._cache.clear()
        if self._written_ms is not None:
            self._written_ms.clear()
