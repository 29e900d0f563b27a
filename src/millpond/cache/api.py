"""The bounded map of the house: its contract, and the choice of the form that fulfils it.

Under the keyed state, the lookup tables and the fetcher lies one `Cache`. The invariant to hold in
mind: **a cache is never part of correctness**. After every call it is within its bounds, holds no
expired entry, and what it forgot it told to `on_evict`; a program that runs with a cache of size 0
gives the same answers.

Three forms share this contract, and construction picks one, so that nobody pays for what they did
not ask for: `plain` (LRU by entries, nothing else: the hot path of the keyed state), `metered`
(bytes, expiry, W-TinyLFU) and `shared` (one lock around either, and single flight). The trade-off
is that calling `Cache` gives an object of a subclass, as `pathlib.Path` does; `Cache` itself has no
entries and no code.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Literal, TypeAlias, TypeVar, overload

from millpond.errors import OptionError

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return self.value


MISSING: Final = Missing.MISSING
"""Stands for "not cached", since None is a value like any other."""

Policy: TypeAlias = Literal["lru", "w-tinylfu"]
Cause: TypeAlias = Literal["size", "expired"]
Weigher: TypeAlias = Callable[[K, V], int]
EvictionListener: TypeAlias = Callable[[K, V, Cause], None]
Clock: TypeAlias = Callable[[], int]


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes back; its zero means nothing."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache did since it was made, and what it holds now.

    `hits` and `misses` count `get` and `get_or_load`; a caller that waits for another's load
    counts a hit. `loads` are the calls of a loader, `load_failures` those of them that raised.
    `evictions` are entries that went for want of room, `expirations` those that went for their age.
    `bytes` is None where nothing is weighed.
    """

    hits: int
    misses: int
    loads: int
    load_failures: int
    evictions: int
    expirations: int
    entries: int
    bytes: int | None

    @property
    def hit_rate(self) -> float:
        """Hits per request, 0.0 before the first request."""
        requests = self.hits + self.misses
        return self.hits / requests if requests else 0.0


class Cache(Generic[K, V]):
    """A bounded map from hashable keys to values.

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

    >>> planes = Cache("planes", max_entries=2)
    >>> planes.put("N101", "A320"); planes.put("N102", None); planes.put("N103", "B738")
    >>> planes.get("N101", MISSING), planes.get("N102", MISSING)
    (MISSING, None)
    >>> planes.get_or_load("N104", lambda key: f"loaded {key}")
    'loaded N104'
    >>> planes.stats().hits, planes.stats().misses, planes.stats().evictions, len(planes)
    (1, 2, 2, 2)
    """

    __slots__ = ("name",)

    name: str

    def __new__(
        cls,
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
    ) -> "Cache[K, V]":
        """Check the options and make the smallest form that fulfils them."""
        from millpond.cache.metered import MeteredCache
        from millpond.cache.plain import PlainLru
        from millpond.cache.shared import SharedCache

        limits = {
            "max_entries": max_entries,
            "max_bytes": max_bytes,
            "expire_after_access_ms": expire_after_access_ms,
            "expire_after_write_ms": expire_after_write_ms,
        }
        _check(name, policy, limits)
        cache: Cache[K, V]
        only_entries = [limit for limit, value in limits.items() if value is not None] == ["max_entries"]
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

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: object = None) -> object:
        """The value of `key`, which counts as its use; `default` where it is not cached."""
        raise NotImplementedError

    def get_present(self, keys: Iterable[K]) -> dict[K, V]:
        """The values of those keys that are cached, as `get` for each in turn."""
        found = ((key, self.get(key, MISSING)) for key in keys)
        return {key: value for key, value in found if value is not MISSING}

    @overload
    def peek(self, key: K) -> V | None: ...
    @overload
    def peek(self, key: K, default: D) -> V | D: ...
    def peek(self, key: K, default: object = None) -> object:
        """As `get`, but neither a use nor in the statistics."""
        raise NotImplementedError

    def put(self, key: K, value: V) -> None:
        """Cache `value` under `key`, in place of what was there."""
        raise NotImplementedError

    def invalidate(self, key: K) -> None:
        """Forget `key`; a load of it that is under way will not be cached."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget every key, as `invalidate` does."""
        raise NotImplementedError

    def get_or_load(self, key: K, loader: Callable[[K], V]) -> V:
        """The value of `key`; on a miss, what `loader(key)` returns, which is then cached.

        What the loader raises is raised here, to every caller that waited for it, and never cached.

        Raises:
            OptionError: the loader asks, directly or through another thread's load, for the key
                that it is loading, which could never end.
        """
        raise NotImplementedError

    def items(self) -> Iterator[tuple[K, V]]:
        """What is cached now, coldest first; a copy, so the cache may change meanwhile."""
        raise NotImplementedError

    def stats(self) -> CacheStats:
        """The counters and the sizes now."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __bool__(self) -> bool:
        """A cache is a thing, true even when it is empty."""
        return True


def _check(name: str, policy: str, limits: dict[str, int | None]) -> None:
    if policy not in ("lru", "w-tinylfu"):
        raise OptionError(f"cache {name!r}, policy: expected 'lru' or 'w-tinylfu', got {policy!r}")
    if all(limit is None for limit in limits.values()):
        raise OptionError(f"cache {name!r} has no bound and would grow for ever: give one of {', '.join(limits)}")
    for option, limit in limits.items():
        least = 0 if option in ("max_entries", "max_bytes") else 1
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < least):
            raise OptionError(f"cache {name!r}, {option}: expected a whole number of at least {least}, got {limit!r}")
