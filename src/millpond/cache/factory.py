"""Makes a cache: checks its options and picks the form that fulfils them."""

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
    """Make a bounded map from hashable keys to values, in the smallest form that fulfils the options.

    - Key: anything hashable; keys that are equal in Python (`1`, `True`, `1.0`) are one key, so
      typed keys are encoded before they come here.
    - Capacity: `max_entries` entries and/or `max_bytes` bytes as the `weigher` counts them, by
      default `deep_size`. An entry heavier than `max_bytes` is not kept.
    - Freshness: an entry goes `expire_after_write_ms` after it was put and `expire_after_access_ms`
      after it was last put or got, by `clock`.
    - Concurrent miss: with `shared=True` every method is thread-safe and `get_or_load` runs one
      loader per key while the others wait for its result. Without, the cache belongs to one thread.

    `policy` chooses what goes for want of room: `"lru"` the entry used longest ago, `"w-tinylfu"`
    what is used least often, see `tinylfu`. `on_evict(key, value, cause)` is called for what goes
    for want of room (`"size"`, also when it never got in) or for age (`"expired"`), before it goes:
    if it raises, the entry stays and the error reaches the caller. What the caller replaces,
    invalidates or clears is not an eviction. The listener must not call the cache.

    Args:
        name: what statistics and messages call this cache.
        max_entries: how many entries at most; 0 keeps nothing.
        max_bytes: how many bytes at most.
        weigher: the weight in bytes of a key and its value; also without `max_bytes`, for `stats`.
        policy: `"lru"` or `"w-tinylfu"`.
        expire_after_access_ms: age since the last put or get at which an entry goes.
        expire_after_write_ms: age since the last put at which an entry goes.
        on_evict: told of every eviction.
        clock: monotonic milliseconds.
        shared: whether several threads use this cache.

    Raises:
        OptionError: no bound of any kind, a negative one, or an unknown policy.

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
