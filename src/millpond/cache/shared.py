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
from typing import Any

from millpond.cache.api import MISSING, Cache, CacheStats, K, Missing, V
from millpond.cache.loading import Flight, Flights


class SharedCache(Cache[K, V]):
    """What `new_cache(..., shared=True)` makes; see there."""

    __slots__ = ("_flights", "_inner", "_lock")

    def __init__(self, inner: Cache[K, V]) -> None:
        super().__init__(inner.name)
        self._inner = inner
        self._flights: Flights[K, V] = Flights(inner.name)
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
            self._flights.detach(key)
            self._inner.put(key, value)

    def invalidate(self, key: K) -> None:
        """Forget `key`."""
        with self._lock:
            self._flights.detach(key)
            self._inner.invalidate(key)

    def clear(self) -> None:
        """Forget every key."""
        with self._lock:
            self._flights.detach_all()
            self._inner.clear()

    def get_or_load(self, key: K, loader: Callable[[K], V]) -> V:
        """The value of `key`, loaded on a miss by one of the threads that want it."""
        with self._lock:
            value: V | Missing = self._inner.get(key, MISSING)
            if value is not MISSING:
                return value
            joined = self._flights.join(key)
            flight = joined or self._flights.start(key)
        if joined is not None:
            return self._wait(joined)
        return self._load(key, flight, loader)

    def _wait(self, flight: Flight[V]) -> V:
        try:
            flight.done.wait()
        finally:
            with self._lock:
                self._flights.joined_until(flight)
        if flight.error is not None:
            raise flight.error
        assert flight.value is not MISSING  # noqa: S101 - set before `done`, which we waited for
        return flight.value

    def _load(self, key: K, flight: Flight[V], loader: Callable[[K], V]) -> V:
        try:
            flight.value = loader(key)
            with self._lock:
                if self._flights.is_current(key, flight):
                    self._inner.put(key, flight.value)
        except BaseException as error:
            flight.error = error
            raise
        finally:
            with self._lock:
                self._flights.land(key, flight)
        return flight.value

    def items(self) -> Iterator[tuple[K, V]]:
        """A copy of what is cached, coldest first."""
        with self._lock:
            return self._inner.items()

    def stats(self) -> CacheStats:
        """The counters and sizes of one moment."""
        with self._lock:
            counted, flights = self._inner.stats(), self._flights
            return replace(
                counted,
                hits=counted.hits + flights.joined,
                misses=counted.misses - flights.joined,
                loads=flights.tried,
                load_failures=flights.failed,
            )

    def __len__(self) -> int:
        with self._lock:
            return len(self._inner)
