"""Single flight: which keys are being loaded, and by which thread, so that no other thread loads them too.

A flight is one load, of one key or of several. It belongs to the thread that makes it, and other threads wait for it.

Invariant: no thread waits for a load that waits for that thread. A loader that needs its own result would wait for
ever. This is found before waiting, not by a time-out. In one thread, the key is already being loaded by the thread
itself. In several threads there is a cycle: thread A waits for a load of thread B, which waits for a load of A. So each
flight knows its owner, and each waiting thread its flight. The chain of flights and owners ends at a working thread, or
leads back to the thread that wants to wait. A thread that loads several keys must finish its own load before it waits
for others.

The trade-off: cycles through two different caches are not found.

Source: the single flight of Go's groupcache; the wait-for graph of Holt, "Some deadlock properties of computer systems"
(1972), which is a chain here, since a thread waits for one flight at most.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from millpond.cache.api import K
from millpond.errors import OptionError

NOBODY = 0
"""The owner of a load that no calling thread makes. Waiting for such a load cannot close a cycle."""


class Flight:
    """One load under way. Its result is available once `done` is set."""

    __slots__ = ("done", "owner")

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.done = threading.Event()


F = TypeVar("F", bound=Flight)


class Flights(Generic[K, F]):
    """The loads under way of one cache, by key. Every method needs the cache's lock.

    Args:
        refusal: makes the error for a thread that would wait for a key for ever.
    """

    __slots__ = ("_refusal", "_under_way", "_waiting")

    def __init__(self, refusal: Callable[[K], OptionError]) -> None:
        self._refusal = refusal
        self._under_way: dict[K, F] = {}
        self._waiting: dict[int, F] = {}

    def __bool__(self) -> bool:
        """Whether any load is under way."""
        return bool(self._under_way)

    def get(self, key: K) -> F | None:
        """Return the flight that loads the key, or None."""
        return self._under_way.get(key)

    def start(self, keys: Iterable[K], flight: F) -> None:
        """Register `flight` as the load of the keys."""
        self._under_way.update(dict.fromkeys(keys, flight))

    def forget(self, key: K) -> None:
        """Keep the result of the key's flight, if any, from being cached: it may be older than a later change."""
        self._under_way.pop(key, None)

    def forget_all(self) -> None:
        """Keep the results of all flights from being cached."""
        self._under_way.clear()

    def end(self, keys: Iterable[K], flight: F) -> list[K]:
        """End a flight. Return the keys that may be cached: those not forgotten meanwhile."""
        current = [key for key in keys if self._under_way.get(key) is flight]
        for key in current:
            del self._under_way[key]
        return current

    def wait_for(self, key: K, flight: F) -> None:
        """Register that this thread waits for `flight`, or raise the `refusal` if that would never end."""
        me = threading.get_ident()
        ahead: F | None = flight
        while ahead is not None and not ahead.done.is_set():
            if ahead.owner == me:
                raise self._refusal(key)
            ahead = self._waiting.get(ahead.owner)
        self._waiting[me] = flight

    def waited(self) -> None:
        """Register that this thread has stopped waiting."""
        self._waiting.pop(threading.get_ident(), None)
