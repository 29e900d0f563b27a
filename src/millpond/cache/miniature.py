"""A small W-TinyLFU cache without values, which simulates a large one.

A cache with a hundredth of the entries that sees only a hundredth of the keys has about the hit rate of the large
cache. Keys are given as hashes, and the sample consists of the hashes below a limit.

Source: Waldspurger, Saemundsson, Ahmad, Park: "Cache modeling and optimization using miniature simulations" (ATC 2017).
"""

from collections.abc import Sequence
from typing import Final

from millpond.cache.tinylfu import TinyLfuOrder

LEAST_HASH: Final = -(1 << 63)
"""No hash is below this limit."""

EVERY_HASH: Final = 1 << 63
"""Every hash is below this limit."""

HASHES: Final = 1 << 64


def limit_of(share: float) -> int:
    """Return the limit below which this share of all hashes lies.

    >>> limit_of(0.5)
    0
    """
    return LEAST_HASH + int(share * HASHES)


class Miniature:
    """One small cache of hashes.

    Args:
        max_entries: the largest number of keys.
        window: the window's share of the entries; None is the default of `TinyLfuOrder`.

    >>> small = Miniature(2)
    >>> [small.use(key) for key in (1, 2, 1)]
    [False, False, True]
    """

    __slots__ = ("_entries", "_max_entries", "_order")

    def __init__(self, max_entries: int, window: float | None = None) -> None:
        self._max_entries = max_entries
        self._order: TinyLfuOrder[int] = TinyLfuOrder(max_entries, None, window)
        self._entries = 0

    def use(self, key: int) -> bool:
        """Request a key and cache it on a miss. Return whether it was a hit."""
        order = self._order
        if key in order:
            order.read(key)
            return True
        order.added(key, 0)
        self._entries += 1
        while self._entries > self._max_entries:
            order.removed(order.victim())
            self._entries -= 1
        return False

    def use_together(self, keys: Sequence[int]) -> int:
        """Look up all keys, then cache the missing ones. Return the number of hits.

        >>> small = Miniature(2)
        >>> small.use_together([1, 2]), small.use_together([3, 1, 2])
        (0, 2)
        """
        order = self._order
        present = [key for key in keys if key in order]
        for key in present:
            order.read(key)
        if len(present) < len(keys):
            there = set(present)
            for key in keys:
                if key not in there:
                    self.use(key)
        return len(present)
