"""One lock around a cache, and single flight: the form for several threads.

The invariant: the lock is held for look-ups and changes, never while a loader runs, so a slow load
stops only those who want its key. `on_evict` runs under the lock: an evicted value is written back
before anybody can load the key again.

A load whose key is put or invalidated meanwhile is given to those who wait for it and not cached:
it may be older than what the caller knows.
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
    """A load of one key, and its value or error once it is done."""

    __slots__ = ("error", "value")

    def __init__(self) -> None:
        super().__init__()
        self.value: V | Missing = MISSING
        self.error: BaseException | None = None


class SharedCache(Cache[K, V]):
    """What `new_cache(..., shared=True)` makes; see there."""

    __slots__ = ("_failures", "_flights", "_inner", "_joined", "_loads", "_lock")

    def __init__(self, inner: Cache[K, V]) -> None:
        super().__init__(inner.name)
        self._inner = inner
        self._flights: Flights[K, _Load[V]] = Flights(partial(reentry, inner.name))
        self._loads = self._failures = self._joined = 0
        self._lock = threading.RLock()

    def get(self, key: K, default: Any = None) -> Any:
        """The value of `key`."""
        with self._lock:
            return self._inner.get(key, default)

    def get_present(self, keys: Iterable[K]) -> dict[K, V]:
        """The values of those keys that are cached, all of one moment."""
        with self._lock:
            return self._inner.get_present(keys)

    def peek(self, key: K, default: Any = None) -> Any:
        """The value of `key`, leaving order and counters alone."""
        with self._lock:
            return self._inner.peek(key, default)

    def put(self, key: K, value: V) -> None:
        """Cache `value`; a load of the key that is under way will not replace it."""
        with self._lock:
            self._flights.forget(key)
            self._inner.put(key, value)

    def invalidate(self, key: K) -> None:
        """Forget `key`."""
        with self._lock:
            self._flights.forget(key)
            self._inner.invalidate(key)

    def clear(self) -> None:
        """Forget every key."""
        with self._lock:
            self._flights.forget_all()
            self._inner.clear()

    def get_or_load(self, key: K, loader: Callable[[K], V]) -> V:
        """The value of `key`, loaded on a miss by one of the threads that want it."""
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
        """A copy of what is cached, coldest first."""
        with self._lock:
            return self._inner.items()

    def stats(self) -> CacheStats:
        """The counters and sizes of one moment."""
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
        """What goes for want of room."""
        return self._inner.policy

    @property
    def bounds(self) -> Bounds:
        """The most that it holds."""
        return self._inner.bounds

    def resize(self, bounds: Bounds) -> None:
        """Change the bounds; what no longer fits goes."""
        with self._lock:
            self._inner.resize(bounds)

    def weigh(self, key: K, value: V) -> int:
        """The bytes of an entry."""
        return self._inner.weigh(key, value)

    def lay_around(self, layer: Callable[[Cache[K, V]], Cache[K, V]]) -> None:
        """Put a layer around the cache under the lock: it is called in place of that cache from now on."""
        with self._lock:
            self._inner = layer(self._inner)
