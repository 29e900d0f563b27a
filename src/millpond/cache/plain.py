"""The plain LRU cache: a limit on entries, for one thread, and nothing else.

It lies on the hot path of keyed state. So a `get` costs one hash lookup and one relinking, without
node objects, a clock or an inner cache. The invariant: `_entries` is ordered from the least to the
most recently used entry.

CPython's `OrderedDict` is the whole structure: a hash table and a doubly linked list, both in C.
A `dict` would write faster, but would find its oldest key only by walking over deleted slots.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, cast

from millpond.cache.api import MISSING, Bounds, Cache, CacheStats, EvictionListener, K, Policy, V
from millpond.cache.bounds import checked_bounds
from millpond.cache.loading import Loads
from millpond.cache.weight import deep_size
from millpond.errors import OptionError


class PlainLru(Cache[K, V]):
    """The cache that `new_cache(name, max_entries=n)` makes; its behaviour is documented there."""

    __slots__ = (
        "_entries",
        "_evictions",
        "_hits",
        "_loads",
        "_max_entries",
        "_misses",
        "_on_evict",
    )

    def __init__(self, name: str, *, max_entries: int, on_evict: EvictionListener[K, V] | None = None) -> None:
        super().__init__(name)
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._max_entries = max_entries
        self._on_evict = on_evict
        self._loads: Loads[K, V] = Loads(self.name)
        self._hits = self._misses = self._evictions = 0

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of `key`, which becomes the most recently used."""
        entries = self._entries
        if key in entries:
            entries.move_to_end(key)
            self._hits += 1
            return entries[key]
        self._misses += 1
        return default

    def peek(self, key: K, default: Any = None) -> Any:
        """Return the value of `key` without changing the order or the counters."""
        return self._entries.get(key, default)

    def put(self, key: K, value: V) -> None:
        """Cache `value`; evict the least recently used entry if the cache is over its limit."""
        entries = self._entries
        entries[key] = value
        entries.move_to_end(key)
        if len(entries) > self._max_entries:
            self._evict()

    def _evict(self) -> None:
        entries = self._entries
        while len(entries) > self._max_entries:
            if self._on_evict is None:
                entries.popitem(last=False)
            else:
                key = next(iter(entries))
                self._on_evict(key, entries[key], "size")
                del entries[key]
            self._evictions += 1

    def invalidate(self, key: K) -> None:
        """Remove `key`."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove every key."""
        self._entries.clear()

    def get_or_load(self, key: K, loader: Callable[[K], V]) -> V:
        """Return the value of `key`, loading it on a miss."""
        value = self.get(key, MISSING)
        if value is not MISSING:
            return cast("V", value)
        loaded = self._loads.run(key, loader)
        self.put(key, loaded)
        return loaded

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over a copy of the entries, least recently used first."""
        return iter(list(self._entries.items()))

    def stats(self) -> CacheStats:
        """Return the counters and the number of entries; entries are not weighed."""
        return CacheStats(
            hits=self._hits,
            misses=self._misses,
            loads=self._loads.tried,
            load_failures=self._loads.failed,
            evictions=self._evictions,
            expirations=0,
            entries=len(self._entries),
            bytes=None,
        )

    @property
    def policy(self) -> Policy:
        """Always `"lru"`."""
        return "lru"

    @property
    def bounds(self) -> Bounds:
        """The limit on entries."""
        return Bounds(self._max_entries)

    def resize(self, bounds: Bounds) -> None:
        """Change the limit on entries, and evict the least recently used above it."""
        checked_bounds(self.name, bounds)
        if bounds.max_entries is None or bounds.max_bytes is not None:
            raise OptionError(
                f"cache {self.name!r} weighs nothing: it takes max_entries and no max_bytes, got {bounds}; give "
                "max_entries, or make it with max_bytes"
            )
        self._max_entries = bounds.max_entries
        self._evict()

    def weigh(self, key: K, value: V) -> int:
        """Return an estimate of an entry's bytes; this cache does not weigh entries."""
        return deep_size(key, value)

    def __len__(self) -> int:
        return len(self._entries)
