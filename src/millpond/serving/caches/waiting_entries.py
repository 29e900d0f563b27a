"""Entries for full caches, which wait to be made and put.

Place on the data path: between a read and the caches. Making an entry and putting it into a full cache costs more than
a hit: tiles are merged, the entry is weighed, the eviction order changes, another entry is evicted. A fetch caches keys
that it missed, so it already takes longer than others, and its keys are often admitted to several caches at once.
So their entries wait for fetches that miss nothing, each of which makes those of a few keys. This moves work from the
slowest fetches to the fastest ones. All waiting entries at once would make a fast fetch a slow one.

Invariant: a waiting entry is only late. A fetch that asks for its key meanwhile misses it and reads the store.
"""

from collections import deque
from collections.abc import Callable

MOST_WAITING = 16
"""The entries of how many keys may wait. If there is one more, the oldest are put at once."""

AT_ONCE = 2
"""The entries of how many keys are put after a fetch that misses nothing."""

CROWDED = 8
"""If more than this number of keys wait, every fetch puts the entries of one: perhaps each of them misses something."""


class WaitingEntries:
    """The waiting entries of one fetcher; safe to use from several threads.

    Attributes:
        puts: the functions that make and put the entries of one key each, oldest first. Empty if nothing waits.

    >>> waiting, cache = WaitingEntries(), {}
    >>> waiting.add(lambda: cache.update(EWR=1))
    >>> cache
    {}
    >>> waiting.put_some(1)
    >>> cache
    {'EWR': 1}
    """

    __slots__ = ("puts",)

    def __init__(self) -> None:
        self.puts: deque[Callable[[], None]] = deque()

    def add(self, put: Callable[[], None]) -> None:
        """Add the function that makes and puts the entries of one key."""
        self.puts.append(put)
        if len(self.puts) > MOST_WAITING:
            self._put_oldest()

    def put_after_fetch(self, *, misses_nothing: bool) -> None:
        """Put the entries of `AT_ONCE` keys after a fetch that misses nothing; if many wait, of one after any fetch."""
        if misses_nothing:
            self.put_some(AT_ONCE)
        elif len(self.puts) > CROWDED:
            self._put_oldest()

    def put_some(self, most: int) -> None:
        """Put the entries of at most this number of keys; after a call with several requests, one for each."""
        for _ in range(min(most, len(self.puts))):
            self._put_oldest()

    def _put_oldest(self) -> None:
        try:
            put = self.puts.popleft()
        except IndexError:
            return  # another thread took it
        put()
