"""A readers-writer lock: any number of threads share it, or one has it alone.

Place on the data path: around every transaction of an LMDB environment, so that the map can be resized,
closed, or left behind by a fork only while no transaction is open.

Invariant: between `acquire_exclusive` and `release_exclusive` nobody shares it.

Idea: sharing is two steps that need no lock: say that you share it, then look whether a thread wants it
alone (and step back if one does). Taking it alone is the same in the other order: say so, then look who shares it.
Whichever comes first, one of the two sees the other (Dekker's algorithm; the interpreter keeps the
order). A mutex taken by every read would starve the one who wants it alone, under busy readers, for minutes.

Trade-off: threads that come while one has it alone wait; so do not share it twice in one thread.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ReadersWriterLock:
    """Shared by many, or held by one.

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

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Share it with others; waits while a thread has it alone."""
        me = self.acquire_shared()
        try:
            yield
        finally:
            self.release_shared(me)

    def acquire_shared(self) -> int:
        """Share it; `release_shared` must follow, with what this returns. The same as `shared`, for hot paths."""
        me = threading.get_ident()
        self._sharing.add(me)
        while self.is_exclusive:
            self.release_shared(me)
            self._released.wait()
            self._sharing.add(me)
        return me

    def release_shared(self, me: int) -> None:
        """Share it no longer."""
        self._sharing.discard(me)
        if self.is_exclusive:
            self._left.set()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Have it alone: waits until nobody shares it."""
        self.acquire_exclusive()
        try:
            yield
        finally:
            self.release_exclusive()

    def acquire_exclusive(self) -> None:
        """Keep others out and wait until nobody shares it; `release_exclusive` must follow."""
        self._writer.acquire()
        self._released.clear()
        self.is_exclusive = True
        while True:
            self._left.clear()
            if not self._sharing:
                return
            self._left.wait()

    def release_exclusive(self) -> None:
        """Let the others have it again."""
        self.is_exclusive = False
        self._released.set()
        self._writer.release()
