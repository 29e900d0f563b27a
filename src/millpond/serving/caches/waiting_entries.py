"""Entries that were made for full caches and wait to be put into them.

Place on the data path: between a read that made an entry and the caches. Putting an entry into a full cache costs
several times a hit: the entry is weighed, the eviction order changes, another entry is evicted. A fetch makes entries
for keys that it missed, so it already takes longer than others, and its keys are often admitted to several caches at
once. So its entries wait for a fetch that misses nothing. This moves work from the slowest fetches to the fastest ones.

Invariant: a waiting entry is only late. A fetch that asks for its key meanwhile misses it and reads the store.
"""

from collections import deque
from collections.abc import Callable

MOST_WAITING = 16
"""How many entries may wait. If there is one more, the oldest is put at once: perhaps every fetch misses something."""


class WaitingEntries:
    """The waiting entries of one fetcher; safe to use from several threads.

    Attributes:
        puts: the functions that put one entry each, oldest first. Empty if nothing waits.

    >>> waiting, cache = WaitingEntries(), {}
    >>> waiting.add(lambda: cache.update(EWR=1))
    >>> cache
    {}
    >>> waiting.put_all()
    >>> cache
    {'EWR': 1}
    """

    __slots__ = ("puts",)

    def __init__(self) -> None:
        self.puts: deque[Callable[[], None]] = deque()

    def add(self, put: Callable[[], None]) -> None:
        """Add the function that puts one entry."""
        self.puts.append(put)
        if len(self.puts) > MOST_WAITING:
            self._put_oldest()

    def put_all(self) -> None:
        """Put every entry."""
        while self.puts:
            self._put_oldest()

    def _put_oldest(self) -> None:
        try:
            put = self.puts.popleft()
        except IndexError:
            return  # another thread took it
        put()
