"""Single flight: who is loading which key right now, so that nobody else does.

A flight is one load, of one key or of several, and belongs to the thread that makes it. Other threads wait for it. What
becomes of its keys is told to each that waits, once.

Invariant: nobody waits for something that waits for them. A loader that needs its own result would wait for ever; that
is found before waiting, not by a time-out. In one thread it is a key that is already being loaded. In several it is a
circle: thread A waits for a load of thread B, which waits for a load of A. So each flight knows its owner, and each
waiting thread its flight. Following the two from the flight that we want to wait for ends at a working thread, or
comes back to us. A load of several keys must be made to its end before its thread waits for others'.

The trade-off: circles through two different caches are not seen.

Source: the single flight of Go's groupcache; the wait-for graph of Holt, "Some deadlock properties of computer systems"
(1972), which is a chain here, since a thread waits for one flight at most.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from millpond.cache.api import K
from millpond.errors import OptionError

NOBODY = 0
"""The owner of a load that no caller makes: nobody who waits for it keeps it waiting."""


class Flight:
    """One load under way. What came of it is there once `done` is set."""

    __slots__ = ("done", "owner")

    def __init__(self) -> None:
        self.owner = threading.get_ident()
        self.done = threading.Event()


F = TypeVar("F", bound=Flight)


class Flights(Generic[K, F]):
    """The loads under way of one cache, by key. Every method needs the cache's lock.

    Args:
        refusal: the error for whoever would wait for a key for ever.
    """

    __slots__ = ("_refusal", "_under_way", "_waiting")

    def __init__(self, refusal: Callable[[K], OptionError]) -> None:
        self._refusal = refusal
        self._under_way: dict[K, F] = {}
        self._waiting: dict[int, F] = {}

    def __bool__(self) -> bool:
        """Whether anything is under way."""
        return bool(self._under_way)

    def get(self, key: K) -> F | None:
        """The flight that loads the key."""
        return self._under_way.get(key)

    def start(self, keys: Iterable[K], flight: F) -> None:
        """From now on `flight` loads the keys."""
        self._under_way.update(dict.fromkeys(keys, flight))

    def forget(self, key: K) -> None:
        """Let the flight for the key, if any, end without being cached: it may be older than what is known by now."""
        self._under_way.pop(key, None)

    def forget_all(self) -> None:
        """Let every flight end without being cached."""
        self._under_way.clear()

    def end(self, keys: Iterable[K], flight: F) -> list[K]:
        """The flight is over; the keys that may be cached, as nobody forgot them meanwhile."""
        current = [key for key in keys if self._under_way.get(key) is flight]
        for key in current:
            del self._under_way[key]
        return current

    def wait_for(self, key: K, flight: F) -> None:
        """This thread is about to wait for `flight`; refused if that would never end."""
        me = threading.get_ident()
        ahead: F | None = flight
        while ahead is not None and not ahead.done.is_set():
            if ahead.owner == me:
                raise self._refusal(key)
            ahead = self._waiting.get(ahead.owner)
        self._waiting[me] = flight

    def waited(self) -> None:
        """This thread no longer waits."""
        self._waiting.pop(threading.get_ident(), None)
