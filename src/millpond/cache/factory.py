"""Makes a cache: checks its options and picks the cheapest class that supports them."""

from millpond.cache.api import Cache, Clock, EvictionListener, K, Policy, V, Weigher, monotonic_ms
from millpond.cache.bounds import checked_limits, checked_policy
from millpond.cache.metered import MeteredCache
from millpond.cache.plain import PlainLru
from millpond.cache.shared import SharedCache


def new_cache(
    name: str,
    *,
    max_entries: int | None = None,
    max_bytes: int | None = None,
    weigher: Weigher[K, V] | None = None,
    policy: Policy = "lru",
    expire_after_access_ms: int | None = None,
    expire_after_write_ms: int | None = None,
    on_evict: EvictionListener[K, V] | None = None,
    clock: Clock = monotonic_ms,
    shared: bool = False,
) -> Cache[K, V]:
    """Make a bounded map from hashable keys to values, of the cheapest class that supports the options.

    - Key: anything hashable. Keys that are equal in Python (`1`, `True`, `1.0`) are one key, so
      callers with typed keys must encode them first.
    - Capacity: `max_entries` entries, `max_bytes` bytes, or both. The `weigher` counts the bytes, by
      default `deep_size`. An entry heavier than `max_bytes` is not kept.
    - Freshness: an entry expires `expire_after_write_ms` after it was put and `expire_after_access_ms`
      after it was last put or got, by `clock`.
    - Concurrent miss: with `shared=True` every method is thread-safe, and `get_or_load` runs one
      loader per key while the others wait for its result. Otherwise the cache belongs to one thread.

    `policy` chooses the entry to evict: `"lru"` the one used longest ago, `"w-tinylfu"` the one used
    least often (see `tinylfu`). `on_evict(key, value, cause)` is called before an entry is evicted
    (`"size"`, also if it was never admitted) or expires (`"expired"`). If it raises, the entry stays
    and the error reaches the caller. It is not called for an entry that the caller replaces,
    invalidates or clears. It must not call the cache.

    Args:
        name: the cache's name in statistics and messages.
        max_entries: the largest number of entries; 0 keeps nothing.
        max_bytes: the largest number of bytes.
        weigher: returns the bytes of a key and its value; used for `stats` even without `max_bytes`.
        policy: `"lru"` or `"w-tinylfu"`.
        expire_after_access_ms: age since the last put or get at which an entry expires.
        expire_after_write_ms: age since the last put at which an entry expires.
        on_evict: called before every eviction and expiration.
        clock: monotonic milliseconds.
        shared: whether several threads use this cache.

    Raises:
        OptionError: no limit of any kind, one that is negative or not a whole number, or an unknown policy.

    >>> from millpond.cache import MISSING
    >>> planes = new_cache("planes", max_entries=2)
    >>> planes.put("N101", "A320"); planes.put("N102", None); planes.put("N103", "B738")
    >>> planes.get("N101", MISSING), planes.get("N102", MISSING)
    (MISSING, None)
    >>> planes.get_or_load("N104", lambda key: f"loaded {key}")
    'loaded N104'
    >>> planes.stats().hits, planes.stats().misses, planes.stats().evictions, len(planes)
    (1, 2, 2, 2)
    """
    checked_policy(name, policy)
    limits = {
        "max_entries": (max_entries, 0),
        "max_bytes": (max_bytes, 0),
        "expire_after_access_ms": (expire_after_access_ms, 1),
        "expire_after_write_ms": (expire_after_write_ms, 1),
    }
    checked_limits(name, limits)
    cache: Cache[K, V]
    only_entries = [limit for limit, (value, _) in limits.items() if value is not None] == ["max_entries"]
    if only_entries and max_entries is not None and weigher is None and policy == "lru":
        cache = PlainLru(name, max_entries=max_entries, on_evict=on_evict)
    else:
        cache = MeteredCache(
            name,
            max_entries=max_entries,
            max_bytes=max_bytes,
            weigher=weigher,
            policy=policy,
            expire_after_access_ms=expire_after_access_ms,
            expire_after_write_ms=expire_after_write_ms,
            on_evict=on_evict,
            clock=clock,
        )
    return SharedCache(cache) if shared else cache
