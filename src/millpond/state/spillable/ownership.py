"""Whose thread works on a backend: from the first use of a version to its commit one alone, in between whoever asks.

A backend belongs to one thread at a time, as every backend does. But its key groups may be moved by another backend's
thread while it rests. So a lock is held by whoever has it: taken once a version, not once a record.

Invariant: key groups move only in the thread that holds the lock.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Ownership:
    """Of one backend.

    Args:
        rested: called when a version is over, before others may have the backend.
    """

    def __init__(self, rested: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._rested = rested
        self._taken = False

    def take(self) -> None:
        """Begin to work on the state: from here to the end of the version nobody else moves key groups."""
        if not self._taken:
            self._lock.acquire()
            self._taken = True

    def rest(self) -> None:
        """The version is over: others may move key groups until the next one begins with a maintenance run."""
        self._rested()
        self._taken = False
        self._lock.release()

    @contextmanager
    def at_work(self, *, rests: bool = False) -> Iterator[None]:
        """Work on the state, in a version or between two; `rests`, where that ends the version."""
        had_it = self._taken
        self.take()
        try:
            yield
        except BaseException:
            # A version that was open is open still.
            if not had_it:
                self.rest()
            raise
        if rests or not had_it:
            self.rest()

    @contextmanager
    def borrowed(self) -> Iterator[bool]:
        """Whether another backend's thread may work on the state meanwhile: it is at rest, and stays so until then."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self._lock.release()
