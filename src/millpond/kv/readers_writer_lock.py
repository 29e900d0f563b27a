"""A readers-writer lock: either any number of threads hold it shared, or one thread holds it exclusively.

Place on the data path: around every transaction of an LMDB environment. The memory map is resized, closed, or left
behind by a fork only while no transaction is open.

Invariant: between `acquire_exclusive` and `release_exclusive` no thread holds the lock shared.

Idea: acquiring shared takes two steps and no mutex. A reader announces itself, then checks whether a writer has
announced itself, and steps back if so. A writer announces itself, then checks for readers. Whichever comes first, one
of the two sees the other (Dekker's algorithm; the interpreter keeps the order). With a mutex taken by every read, busy
readers would starve a writer for minutes.

Trade-off: a thread must not acquire the lock shared twice. New readers wait while a writer waits or holds the lock, so
the second acquisition could deadlock. And readers are known by their threads, so the first release would end both.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ReadersWriterLock:
    """A readers-writer lock that prefers writers; not reentrant.

    >>> lock = ReadersWriterLock()
    >>> with lock.shared():
    ...     pass
    >>> with lock.exclusive():
    ...     lock.is_exclusive
    True
    """

    def __init__(self) -> None:
        self.is_exclusive = False
        self._sharing: set[int] = set()
        self._writer = threading.Lock()
        self._left = threading.Event()
        self._released = threading.Event()
        self._released.set()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock shared; waits while a writer waits or holds it."""
        me = self.acquire_shared()
        try:
            yield
        finally:
            self.release_shared(me)

    def acquire_shared(self) -> int:
        """Acquire the lock shared, without the cost of a context manager. Pass the result to `release_shared`."""
        me = threading.get_ident()
        self._sharing.add(me)
        while self.is_exclusive:
            self.release_shared(me)
            self._released.wait()
            self._sharing.add(me)
        return me

    def release_shared(self, me: int) -> None:
        """Release a shared hold."""
        self._sharing.discard(me)
        if self.is_exclusive:
            self._left.set()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock exclusively; waits until no thread holds it shared."""
        self.acquire_exclusive()
        try:
            yield
        finally:
            self.release_exclusive()

    def acquire_exclusive(self) -> None:
        """Keep new readers out, wait until none is left, and acquire exclusively. `release_exclusive` must follow."""
        self._writer.acquire()
        self._released.clear()
        self.is_exclusive = True
        while True:
            self._left.clear()
            if not self._sharing:
                return
            self._left.wait()

    def run_if_idle(self, act: Callable[[], object]) -> bool:
        """Call `act` with the lock held exclusively, if no thread holds it. Return whether it was called.

        It never waits and uses no event, so a finalizer may call it: in a thread that holds the lock, or that was
        interrupted inside an event. Readers that come meanwhile spin, so `act` must be short.
        """
        if not self._writer.acquire(blocking=False):
            return False
        self.is_exclusive = True
        try:
            if self._sharing:
                return False
            act()
            return True
        finally:
            self.is_exclusive = False
            self._writer.release()

    def release_exclusive(self) -> None:
        """Release the exclusive hold."""
        self.is_exclusive = False
        self._released.set()
        self._writer.release()
