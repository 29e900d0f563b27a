"""A gate that lets any number of users through, or shuts until one has what it needs alone.

Place on the data path: around every transaction of an LMDB environment, so that the map can be resized,
closed, or left behind by a fork only while no transaction is open.

Invariant: between `shut` and `reopen` nobody is inside.

Idea: entering is two steps that need no lock: say that you are inside, then look whether the gate is
shut (and step back if it is). Shutting is the same in the other order: shut, then look who is inside.
Whichever comes first, one of the two sees the other (Dekker's algorithm; the interpreter keeps the
order). A lock taken by every read would starve the one who shuts, under busy readers, for minutes.

Trade-off: users that come while it is shut wait; so do not enter twice in one thread.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Many inside, or one alone.

    >>> gate = Gate()
    >>> with gate.shared():
    ...     pass
    >>> with gate.alone():
    ...     gate.is_shut
    True
    """

    def __init__(self) -> None:
        self.is_shut = False
        self._inside: set[int] = set()
        self._one_alone = threading.Lock()
        self._left = threading.Event()
        self._reopened = threading.Event()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Be inside with others; waits while the gate is shut."""
        me = self.enter()
        try:
            yield
        finally:
            self.leave(me)

    def enter(self) -> int:
        """Go inside; `leave` must follow, with what this returns. The same as `shared`, for hot paths."""
        me = threading.get_ident()
        self._inside.add(me)
        while self.is_shut:
            self.leave(me)
            self._reopened.wait()
            self._inside.add(me)
        return me

    def leave(self, me: int) -> None:
        """Go outside again."""
        self._inside.discard(me)
        if self.is_shut:
            self._left.set()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be inside alone: waits until all others have left."""
        self.shut()
        try:
            yield
        finally:
            self.reopen()

    def shut(self) -> None:
        """Shut the gate and wait until nobody is inside; `reopen` must follow."""
        self._one_alone.acquire()
        self._reopened.clear()
        self.is_shut = True
        while True:
            self._left.clear()
            if not self._inside:
                return
            self._left.wait()

    def reopen(self) -> None:
        """Let the others in again."""
        self.is_shut = False
        self._reopened.set()
        self._one_alone.release()
