"""The plain LRU: a number of entries, one thread, nothing else.

The hot path of the keyed state, so it owes little: one hash look-up and one relinking per `get`,
no node object, no clock, no indirection. The invariant: `_entries` runs from the entry used
longest ago to the one used last.

CPython's `OrderedDict` is the whole structure: a hash table threaded by a doubly linked list, both
in C. A `dict` would be faster per write, but finds its oldest key by walking over the deleted ones.
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
    """What `new_cache(name, max_entries=n)` makes; see there."""

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
        """The value of `key`, which becomes the last used."""
        entries = self._entries
        if key in entries:
            entries.move_to_end(key)
            self._hits += 1
            return entries[key]
        self._misses += 1
        return default

    def peek(self, key: K, default: Any = None) -> Any:
        """The value of `key`, leaving order and counters alone."""
        return self._entries.get(key, default)

    def put(self, key: K, value: V) -> None:
        """Cache `value`; the entry used longest ago goes if there is one too many."""
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
        """Forget `key`."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Forget every key."""
        self._entries.clear()

    def get_or_load(self, key: K, loader: Callable[[K], V]) -> V:
        """The value of `key`, loaded on a miss."""
        value = self.get(key, MISSING)
        if value is not MISSING:
            return cast("V", value)
        loaded = self._loads.run(key, loader)
        self.put(key, loaded)
        return loaded

    def items(self) -> Iterator[tuple[K, V]]:
        """A copy of what is cached, the entry used longest ago first."""
        return iter(list(self._entries.items()))

    def stats(self) -> CacheStats:
        """The counters and the number of entries; nothing is weighed."""
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
        """LRU."""
        return "lru"

    @property
    def bounds(self) -> Bounds:
        """A number of entries."""
        return Bounds(self._max_entries)

    def resize(self, bounds: Bounds) -> None:
        """Hold another number of entries; those used longest ago go if they are too many."""
        checked_bounds(self.name, bounds)
        if bounds.max_entries is None or bounds.max_bytes is not None:
            raise OptionError(
                f"cache {self.name!r} weighs nothing: it takes max_entries and no max_bytes, got {bounds}; give "
                "max_entries, or make it with max_bytes"
            )
        self._max_entries = bounds.max_entries
        self._evict()

    def weigh(self, key: K, value: V) -> int:
        """An estimate: nothing is weighed here."""
        return deep_size(key, value)

    def __len__(self) -> int:
        return len(self._entries)
