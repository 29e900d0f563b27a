"""A cache for several threads: one lock around another cache, and single flight.

The invariant: the lock is held for lookups and changes, never while a loader runs. So a slow load
delays only the callers that want its key. `on_evict` runs under the lock, so an evicted value is
written back before anybody can load the key again.

If a key is put or invalidated while it is being loaded, the waiting callers get the loaded value, but
it is not cached: it may be older than the change.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Generic

from millpond.cache.api import MISSING, Bounds, Cache, CacheStats, K, Missing, Policy, V
from millpond.cache.flights import Flight, Flights
from millpond.cache.loading import reentry


class _Load(Flight, Generic[V]):
    """A load of one key. Holds its value or its error once it is done."""

    __slots__ = ("error", "value")

    def __init__(self) -> None:
        super().__init__()
        self.value: V | Missing = MISSING
        self.error: BaseException | None = None


class SharedCache(Cache[K, V]):
    """The cache that `new_cache(..., shared=True)` makes; its behaviour is documented there."""

    __slots__ = ("_failures", "_flights", "_inner", "_joined", "_loads", "_lock")

    def __init__(self, inner: Cache[K, V]) -> None:
        super().__init__(inner.name)
        self._inner = inner
        self._flights: Flights[K, _Load[V]] = Flights(partial(reentry, inner.name))
        self._loads = self._failures = self._joined = 0
        self._lock = threading.RLock()

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of `key`."""
        with self._lock:
            return self._inner.get(key, default)

    def get_present(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of the cached keys among `keys`, as of one moment."""
        with self._lock:
            return self._inner.get_present(keys)

    def peek(self, key: K, default: Any = None) -> Any:
        """Return the value of `key` without changing the order or the counters."""
        with self._lock:
            return self._inner.peek(key, default)

    def put(self, key: K, value: V) -> None:
        """Cache `value`; a load of the key that is under way does not replace it."""
        with self._lock:
            self._flights.forget(key)
            self._inner.put(key, value)

    def invalidate(self, key: K) -> None:
        """Remove `key`."""
        with self._lock:
            self._flights.forget(key)
            self._inner.invalidate(key)

    def clear(self) -> None:
        """Remove every key."""
        with self._lock:
            self._flights.forget_all()
            self._inner.clear()

    def get_or_load(self, key: K, loader: Callable[[K], V]) -> V:
        """Return the value of `key`; on a miss, one of the threads that want it loads it."""
        with self._lock:
            value: V | Missing = self._inner.get(key, MISSING)
            if value is not MISSING:
                return value
            under_way = self._flights.get(key)
            if under_way is None:
                load: _Load[V] = _Load()
                self._flights.start((key,), load)
                self._loads += 1
            else:
                self._flights.wait_for(key, under_way)
                self._joined += 1
        return self._load(key, load, loader) if under_way is None else self._wait(under_way)

    def _wait(self, load: _Load[V]) -> V:
        try:
            load.done.wait()
        finally:
            with self._lock:
                self._flights.waited()
        if load.error is not None:
            raise load.error
        assert load.value is not MISSING  # noqa: S101 - set before `done`, which we waited for
        return load.value

    def _load(self, key: K, load: _Load[V], loader: Callable[[K], V]) -> V:
        try:
            load.value = loader(key)
            with self._lock:
                if self._flights.end((key,), load):
                    self._inner.put(key, load.value)
        except BaseException as error:
            load.error = error
            with self._lock:
                self._flights.end((key,), load)
                self._failures += 1
            raise
        finally:
            load.done.set()
        return load.value

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over a copy of the entries, coldest first."""
        with self._lock:
            return self._inner.items()

    def stats(self) -> CacheStats:
        """Return the counters and sizes as of one moment."""
        with self._lock:
            counted = self._inner.stats()
            return replace(
                counted,
                hits=counted.hits + self._joined,
                misses=counted.misses - self._joined,
                loads=self._loads,
                load_failures=self._failures,
            )

    def __len__(self) -> int:
        with self._lock:
            return len(self._inner)

    @property
    def policy(self) -> Policy:
        """The rule that chooses the entries to evict."""
        return self._inner.policy

    @property
    def bounds(self) -> Bounds:
        """The limits of this cache."""
        return self._inner.bounds

    def resize(self, bounds: Bounds) -> None:
        """Change the limits, and evict entries until the cache fits them."""
        with self._lock:
            self._inner.resize(bounds)

    def weigh(self, key: K, value: V) -> int:
        """Return the bytes of an entry."""
        return self._inner.weigh(key, value)

    def lay_around(self, layer: Callable[[Cache[K, V]], Cache[K, V]]) -> None:
        """Replace the cache under the lock by `layer(cache)`, a wrapper around it."""
        with self._lock:
            self._inner = layer(self._inner)
