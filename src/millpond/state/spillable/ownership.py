"""The lock of a backend: held by one thread from the first use of a version to its commit, free between versions.

Every backend belongs to one thread at a time. While a backend rests between two versions, another backend's thread may
move its key groups. So the thread that works on it holds a lock, which is acquired once per version and not once per
record.

Invariant: key groups move only in the thread that holds the lock.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Ownership:
    """The lock of one backend.

    Args:
        rested: called when a version ends, before the lock is released.
    """

    def __init__(self, rested: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._rested = rested
        self._taken = False

    def take(self) -> None:
        """Acquire the lock, if this version has not yet: until the version ends, no other thread moves key groups."""
        if not self._taken:
            self._lock.acquire()
            self._taken = True

    def rest(self) -> None:
        """End the version and release the lock: other threads may move key groups until the next version begins."""
        self._rested()
        self._taken = False
        self._lock.release()

    @contextmanager
    def at_work(self, *, rests: bool = False) -> Iterator[None]:
        """Hold the lock, within a version or between two. With `rests`, end the version afterwards."""
        had_it = self._taken
        self.take()
        try:
            yield
        except BaseException:
            # A version that was open before stays open.
            if not had_it:
                self.rest()
            raise
        if rests or not had_it:
            self.rest()

    @contextmanager
    def borrowed(self) -> Iterator[bool]:
        """Try to hold the lock for another backend's thread. Yield whether it was free, so the backend rests."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self._lock.release()
