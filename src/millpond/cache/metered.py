"""The cache with all features: a limit in bytes, expiry, and a choice of eviction order.

The invariant: after every call `_values`, `_weights`, the eviction order and the expiry know the
same keys, the sum of the weights is `_bytes`, and both bounds hold. To keep it, every entry comes in
through `put` and leaves through `_remove`.

Every call begins by removing expired entries. So no caller sees one, and none takes the room of a
live entry. `expiry` explains why this is cheap.

Reads are reported to the eviction order many at a time. In between, other code runs, and the data of the order falls
out of the processor's caches. Reported one by one, each read would load it again. All pending reads are reported before
any other call to the order. So the order's state is the same as if each read were reported at once.
"""

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, cast

from millpond.cache.api import (
    MISSING,
    Bounds,
    Cache,
    CacheStats,
    Cause,
    Clock,
    EvictionListener,
    K,
    Policy,
    V,
    Weigher,
)
from millpond.cache.best_window import BestWindow
from millpond.cache.bounds import checked_bounds
from millpond.cache.expiry import Expiry
from millpond.cache.loading import Loads
from millpond.cache.order import EvictionOrder, LruOrder
from millpond.cache.tinylfu import TinyLfuOrder
from millpond.cache.weight import deep_size
from millpond.errors import OptionError

_READS_TOGETHER = 64
"""At this number of pending reads, or more, the eviction order is told of all of them."""


class MeteredCache(Cache[K, V]):
    """The cache that `new_cache` makes when the plain LRU does not suffice; its behaviour is documented there."""

    __slots__ = (
        "_bytes",
        "_evictions",
        "_expirations",
        "_expiry",
        "_hits",
        "_loads",
        "_max_bytes",
        "_max_entries",
        "_misses",
        "_on_evict",
        "_order",
        "_policy",
        "_reads",
        "_values",
        "_weigher",
        "_weights",
    )

    def __init__(
        self,
        name: str,
        *,
        max_entries: int | None,
        max_bytes: int | None,
        weigher: Weigher[K, V] | None,
        policy: Policy,
        expire_after_access_ms: int | None,
        expire_after_write_ms: int | None,
        on_evict: EvictionListener[K, V] | None,
        clock: Clock,
    ) -> None:
        super().__init__(name)
        self._bound(max_entries, max_bytes, weigher)
        self._policy: Policy = policy
        order: EvictionOrder[K] = (
            LruOrder() if policy == "lru" else TinyLfuOrder(max_entries, max_bytes, windows=BestWindow())
        )
        expires = expire_after_access_ms is not None or expire_after_write_ms is not None
        expiry = Expiry[K](expire_after_access_ms, expire_after_write_ms, clock) if expires else None
        self._set_up(order, expiry, on_evict)

    def _bound(self, max_entries: int | None, max_bytes: int | None, weigher: Weigher[K, V] | None) -> None:
        self._max_entries: float = inf if max_entries is None else max_entries
        self._max_bytes: float = inf if max_bytes is None else max_bytes
        self._weigher = deep_size if weigher is None and max_bytes is not None else weigher

    def _set_up(
        self, order: EvictionOrder[K], expiry: Expiry[K] | None, on_evict: EvictionListener[K, V] | None
    ) -> None:
        self._order = order
        self._reads: list[K] = []
        self._expiry = expiry
        self._on_evict = on_evict
        self._loads: Loads[K, V] = Loads(self.name)
        self._values: dict[K, V] = {}
        self._weights: dict[K, int] = {}
        self._bytes = self._hits = self._misses = self._evictions = self._expirations = 0

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of `key`, and count this as a use."""
        expiry = self._expiry
        now_ms = 0 if expiry is None else self._sweep(expiry)
        value = self._values.get(key, MISSING)
        if value is MISSING:
            self._misses += 1
            return default
        self._hits += 1
        reads = self._reads
        reads.append(key)
        if len(reads) >= _READS_TOGETHER:
            self._tell_reads()
        if expiry is not None:
            expiry.read(key, now_ms)
        return value

    def get_present(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of the cached keys among `keys`; the clock is read once for all of them."""
        expiry, values = self._expiry, self._values
        now_ms = 0 if expiry is None else self._sweep(expiry)
        asked = keys if isinstance(keys, list) else list(keys)
        present = [key for key in asked if key in values]
        self._hits += len(present)
        self._misses += len(asked) - len(present)
        self._reads += present
        if len(self._reads) >= _READS_TOGETHER:
            self._tell_reads()
        if expiry is not None:
            for key in present:
                expiry.read(key, now_ms)
        return {key: values[key] for key in present}

    def peek(self, key: K, default: Any = None) -> Any:
        """Return the value of `key` without changing the order or the counters."""
        if self._expiry is not None:
            self._sweep(self._expiry)
        return self._values.get(key, default)

    def put(self, key: K, value: V) -> None:
        """Cache `value`, then evict entries, possibly this one, until the bounds hold."""
        self._tell_reads()
        expiry = self._expiry
        now_ms = 0 if expiry is None else self._sweep(expiry)
        weight = 0 if self._weigher is None else self._weigher(key, value)
        if weight > self._max_bytes:
            self._refuse(key, value)
            return
        if key in self._values:
            self._bytes += weight - self._weights[key]
            self._order.replaced(key, weight)
        else:
            self._bytes += weight
            self._order.added(key, weight)
        self._values[key] = value
        self._weights[key] = weight
        if expiry is not None:
            expiry.wrote(key, now_ms)
        self._keep_within_bounds()

    def _keep_within_bounds(self) -> None:
        while len(self._values) > self._max_entries or self._bytes > self._max_bytes:
            self._evict(self._order.victim(), "size")

    def _refuse(self, key: K, value: V) -> None:
        """Reject an entry that is heavier than the whole cache, without evicting the others for it."""
        if self._on_evict is not None:
            self._on_evict(key, value, "size")
        self._evictions += 1
        self.invalidate(key)

    def _sweep(self, expiry: Expiry[K]) -> int:
        """Remove the expired entries and return the present time."""
        now_ms = expiry.now_ms()
        if now_ms >= expiry.earliest_ms:
            for key in expiry.due(now_ms):
                self._evict(key, "expired")
        return now_ms

    def _evict(self, key: K, cause: Cause) -> None:
        if self._on_evict is not None:
            self._on_evict(key, self._values[key], cause)
        self._remove(key)
        if cause == "expired":
            self._expirations += 1
        else:
            self._evictions += 1

    def _tell_reads(self) -> None:
        """Report the pending reads to the eviction order."""
        reads = self._reads
        if reads:
            self._reads = []
            self._order.read_all(reads)

    def _remove(self, key: K) -> None:
        self._tell_reads()
        del self._values[key]
        self._bytes -= self._weights.pop(key)
        self._order.removed(key)
        if self._expiry is not None:
            self._expiry.forget(key)

    def invalidate(self, key: K) -> None:
        """Remove `key`."""
        if key in self._values:
            self._remove(key)

    def clear(self) -> None:
        """Remove every key. The frequencies that W-TinyLFU has counted remain."""
        for key in list(self._values):
            self._remove(key)

    def get_or_load(self, key: K, loader: Callable[[K], V]) -> V:
        """Return the value of `key`, loading it on a miss."""
        value = self.get(key, MISSING)
        if value is not MISSING:
            return cast("V", value)
        loaded = self._loads.run(key, loader)
        self.put(key, loaded)
        return loaded

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over a copy of the entries, coldest first."""
        if self._expiry is not None:
            self._sweep(self._expiry)
        self._tell_reads()
        return iter([(key, self._values[key]) for key in self._order.keys()])  # noqa: SIM118 - a policy is no dict

    def stats(self) -> CacheStats:
        """Return the counters and the sizes."""
        if self._expiry is not None:
            self._sweep(self._expiry)
        return CacheStats(
            hits=self._hits,
            misses=self._misses,
            loads=self._loads.tried,
            load_failures=self._loads.failed,
            evictions=self._evictions,
            expirations=self._expirations,
            entries=len(self._values),
            bytes=None if self._weigher is None else self._bytes,
        )

    @property
    def policy(self) -> Policy:
        """The rule that chooses the entries to evict."""
        return self._policy

    @property
    def bounds(self) -> Bounds:
        """The limits on entries and bytes."""
        return Bounds(*(None if bound is inf else int(bound) for bound in (self._max_entries, self._max_bytes)))

    def resize(self, bounds: Bounds) -> None:
        """Change the limits, and evict entries in the policy's order until they hold."""
        checked_bounds(self.name, bounds)
        if bounds.max_bytes is not None and self._weigher is None:
            raise OptionError(
                f"cache {self.name!r} weighs nothing: it takes no max_bytes, got {bounds}; make it with max_bytes, or "
                "give max_entries"
            )
        self._tell_reads()
        self._max_entries = inf if bounds.max_entries is None else bounds.max_entries
        self._max_bytes = inf if bounds.max_bytes is None else bounds.max_bytes
        self._order.resize(bounds.max_entries, bounds.max_bytes)
        self._keep_within_bounds()

    def weigh(self, key: K, value: V) -> int:
        """Return the bytes of an entry by the weigher, or an estimate if there is none."""
        return deep_size(key, value) if self._weigher is None else self._weigher(key, value)

    def __len__(self) -> int:
        if self._expiry is not None:
            self._sweep(self._expiry)
        return len(self._values)
