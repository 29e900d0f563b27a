"""A cache that reports its requests to a watcher.

It wraps the cache to be watched, so a cache that is not watched pays nothing. There are two watchers: one records
hit-rate curves (`recording`), the other writes traces (`trace`).

A watcher says for which hashes of keys, and after how many writes, it wants to be called. So most requests cost a hash
and a comparison, and most writes a countdown.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from millpond.cache.api import Bounds, Cache, CacheStats, K, Policy, V


class Watcher(Protocol):
    """Receives a cache's requests. It is called within each call of the cache, under the cache's lock if it has one.

    Attributes:
        limit: a key is wanted if `hash((key,))` is below this. It changes only within calls.
        requests: the number of requests. The cache adds those since the last call before it calls again.
    """

    limit: int
    requests: float

    def use(self, spread: int) -> None:
        """Record a request for a wanted key, given by its hash."""

    def asked_many(self, keys: Sequence[Hashable]) -> None:
        """Record a request for several keys at once: all are looked up before the missing ones are put."""

    def wrote(self, key: Hashable, value: Any, weigh: Callable[[Any, Any], int]) -> int:
        """Record a put; `weigh` returns the entry's bytes. Return after how many more writes to call again."""


class WatchedCache(Cache[K, V]):
    """A cache with a watcher. Every call goes on to the cache within."""

    __slots__ = ("_asked", "_get", "_inner", "_limit", "_until_told", "_watcher", "_weigh", "_wrote")

    def __init__(self, inner: Cache[K, V], watcher: Watcher) -> None:
        super().__init__(inner.name)
        self._inner = inner
        self._get = inner.get
        self._watcher = watcher
        self._limit = watcher.limit
        self._asked = 0
        self._wrote = watcher.wrote
        self._weigh = inner.weigh
        self._until_told = 1

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of `key`."""
        # Nothing of the watcher is touched for most keys: that would cost more than the hash.
        self._asked += 1
        spread = hash((key,))
        if spread < self._limit:
            self._tell(spread)
        return self._get(key, default)

    def _tell(self, spread: int) -> None:
        watcher = self._watcher
        watcher.requests += self._asked
        self._asked = 0
        watcher.use(spread)
        self._limit = watcher.limit

    def get_present(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of the cached keys among `keys`."""
        if not isinstance(keys, list):
            keys = list(keys)
        self._watcher.asked_many(keys)
        self._limit = self._watcher.limit
        return self._inner.get_present(keys)

    def peek(self, key: K, default: Any = None) -> Any:
        """Return the value of `key` without counting a use or telling the watcher."""
        return self._inner.peek(key, default)

    def put(self, key: K, value: V) -> None:
        """Cache `value`."""
        self._inner.put(key, value)
        self._until_told -= 1
        if not self._until_told:
            self._until_told = self._wrote(key, value, self._weigh)

    def invalidate(self, key: K) -> None:
        """Remove `key`."""
        self._inner.invalidate(key)

    def clear(self) -> None:
        """Remove every key."""
        self._inner.clear()

    def get_or_load(self, key: K, loader: Callable[[K], V]) -> V:
        """Return the value of `key`, loading it on a miss."""
        self._asked += 1
        spread = hash((key,))
        if spread < self._limit:
            self._tell(spread)
        value = self._inner.get_or_load(key, loader)
        self._until_told -= 1
        if not self._until_told:
            self._until_told = self._wrote(key, value, self._weigh)
        return value

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over a copy of the entries, coldest first."""
        return self._inner.items()

    def stats(self) -> CacheStats:
        """Return the counters and the present sizes."""
        return self._inner.stats()

    @property
    def policy(self) -> Policy:
        """The rule that chooses the entries to evict."""
        return self._inner.policy

    @property
    def bounds(self) -> Bounds:
        """The limits of this cache."""
        return self._inner.bounds

    def resize(self, bounds: Bounds) -> None:
        """Change the limits."""
        self._inner.resize(bounds)

    def weigh(self, key: K, value: V) -> int:
        """Return the bytes of an entry."""
        return self._inner.weigh(key, value)

    def __len__(self) -> int:
        return len(self._inner)
