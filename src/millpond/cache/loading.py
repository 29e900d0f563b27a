"""What happens on a miss: one load per key, seen by everyone who asked for it.

The invariant: a result is told exactly once to each caller that waited for it, and a failure is
told like a value but never kept. A loader that needs its own result would wait for ever; that is
found before waiting, not by a time-out. In one thread it is a key that is already being loaded. In
several it is a circle: thread A waits for a load of thread B, which waits for a load of A. So each
`Flight` knows its owner, each waiting thread its flight, and following the two from the flight we
want to join either ends at a running thread or comes back to us.

The trade-off: circles through two different caches are not seen.

Source: the single flight of Go's groupcache; the wait-for graph of Holt, "Some deadlock properties
of computer systems" (1972), which is a chain here, since a thread waits for one flight at most.
"""

import threading
from collections.abc import Callable
from typing import Generic

from millpond.cache.api import MISSING, K, Missing, V
from millpond.errors import OptionError


class Loads(Generic[K, V]):
    """The loads of a cache that belongs to one thread: counted, and never nested for one key."""

    __slots__ = ("_name", "_running", "failed", "tried")

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: set[K] = set()
        self.tried = 0
        self.failed = 0

    def run(self, key: K, loader: Callable[[K], V]) -> V:
        """What the loader returns or raises; an `OptionError` if it is asked for its own key."""
        if key in self._running:
            raise _reentry(self._name, key)
        self._running.add(key)
        self.tried += 1
        try:
            return loader(key)
        except BaseException:
            self.failed += 1
            raise
        finally:
            self._running.discard(key)


class Flight(Generic[V]):
    """One load under way, and its result once `done` is set."""

    __slots__ = ("done", "error", "owner", "value")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.done = threading.Event()
        self.value: V | Missing = MISSING
        self.error: BaseException | None = None


class Flights(Generic[K, V]):
    """The loads under way in a cache that several threads use. Every method needs the cache's lock."""

    __slots__ = ("_name", "_under_way", "_waiting", "failed", "joined", "tried")

    def __init__(self, name: str) -> None:
        self._name = name
        self._under_way: dict[K, Flight[V]] = {}
        self._waiting: dict[int, Flight[V]] = {}
        self.tried = 0
        self.failed = 0
        self.joined = 0

    def join(self, key: K) -> Flight[V] | None:
        """The flight for `key` to wait for, or None: then the caller starts one."""
        flight = self._under_way.get(key)
        if flight is None:
            return None
        me = threading.get_ident()
        ahead: Flight[V] | None = flight
        while ahead is not None and not ahead.done.is_set():
            if ahead.owner == me:
                raise _reentry(self._name, key)
            ahead = self._waiting.get(ahead.owner)
        self._waiting[me] = flight
        self.joined += 1
        return flight

    def joined_until(self, flight: Flight[V]) -> None:
        """This thread no longer waits for `flight`."""
        if self._waiting.get(threading.get_ident()) is flight:
            del self._waiting[threading.get_ident()]

    def start(self, key: K) -> Flight[V]:
        """A new flight, owned by this thread."""
        flight: Flight[V] = Flight(threading.get_ident())
        self._under_way[key] = flight
        self.tried += 1
        return flight

    def is_current(self, key: K, flight: Flight[V]) -> bool:
        """Whether nothing was put or invalidated under `key` since the flight started."""
        return self._under_way.get(key) is flight

    def detach(self, key: K) -> None:
        """Let the flight for `key`, if any, end without being cached."""
        self._under_way.pop(key, None)

    def detach_all(self) -> None:
        """Let every flight end without being cached."""
        self._under_way.clear()

    def land(self, key: K, flight: Flight[V]) -> None:
        """The flight is over; its value or error reaches whoever waits."""
        if self._under_way.get(key) is flight:
            del self._under_way[key]
        if flight.error is not None:
            self.failed += 1
        flight.done.set()


def _reentry(name: str, key: object) -> OptionError:
    return OptionError(
        f"cache {name!r}: the loader of key {key!r} needs that key while it is loading it, which would wait "
        "for itself for ever; let the loader get what it needs from outside the cache"
    )
