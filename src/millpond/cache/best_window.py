"""Finds the best size of W-TinyLFU's window by simulating several sizes at once.

A load with much recency needs a large window, one with stable frequencies a small one, and a load can change. A hill
climber [1] compares the hit rates before and after it changed the window. But the hit rate of a real load also changes
by itself, often by more than the window changes it, and then the climber follows noise.

So all sizes are compared on the same requests. For each share in `WINDOWS` there is a miniature of the cache with that
window. It has a sixteenth of the entries, but at least `_LEAST_SMALL` and at most `_MOST_SMALL`, and sees the same
share of the keys [2]. The miniature with the most recent hits sets the window. After each choice, earlier hits are
multiplied by `_FADING`.

The miniatures cost more than the rest of W-TinyLFU. So after choices that confirm the present window they *rest*: they
see no keys for as long as before a choice, once for every two confirmations in a row, and at most `_MOST_RESTS` times.
A load that keeps changing is watched nearly all the time, and one that does not a quarter of it. A change after a long
rest is noticed that much later.

A cache of fewer than `_LEAST_ENTRIES` entries keeps its window, because its miniature would be too small to compare.

1. Einziger, Eytan, Friedman, Manes: "Adaptive software cache management" (Middleware 2018), which Caffeine follows.
2. Waldspurger, Saemundsson, Ahmad, Park: "Cache modeling and optimization using miniature simulations" (ATC 2017),
   which chooses the parameters of policies this way.
"""

from typing import Final

from millpond.cache.miniature import LEAST_HASH, Miniature, limit_of

WINDOWS: Final = (0.05, 0.2, 0.5, 0.9)
"""The window shares that are tried."""

_SHARE = 1 / 16
_LEAST_SMALL, _MOST_SMALL = 64, 1_024
_LEAST_ENTRIES = 256
_FADING = 0.7
_GROWN = 2
_CONFIRMATIONS_A_REST = 2
_MOST_RESTS = 3


class BestWindow:
    """Tries window shares on a sample of the keys. A W-TinyLFU cache asks it for its own share.

    Attributes:
        limit: hashes below this are in the sample; none while the miniatures rest.

    >>> windows = BestWindow()
    >>> windows.choose(1_000) is None
    True
    >>> for key in range(100_000):
    ...     if (spread := hash((key % 950,))) < windows.limit:
    ...         windows.use(spread)
    >>> windows.choose(1_000) in WINDOWS
    True
    """

    __slots__ = ("_best", "_confirmed", "_entries", "_hits", "_rests", "_sampled", "_small", "limit")

    def __init__(self) -> None:
        self.limit = self._sampled = LEAST_HASH
        self._entries = 0
        self._best: int | None = None
        self._confirmed = 0
        self._rests = 0
        self._small: list[Miniature] = []
        self._hits: list[float] = []

    def use(self, spread: int) -> None:
        """Record a request for a sampled key, given by its hash."""
        hits = self._hits
        for place, small in enumerate(self._small):
            hits[place] += small.use(spread)

    def choose(self, entries: int) -> float | None:
        """Return the best recent share for a cache of `entries` entries; None if too little is known."""
        if entries < _LEAST_ENTRIES:
            return None
        if not self._entries / _GROWN <= entries <= self._entries * _GROWN:
            self._start(entries)
            return None
        if self._rests:
            self._rests -= 1
            if not self._rests:
                self.limit = self._sampled
            return None
        best = max(range(len(WINDOWS)), key=self._hits.__getitem__)
        self._hits = [hits * _FADING for hits in self._hits]
        self._confirmed = self._confirmed + 1 if best == self._best else 0
        self._rests = min(_MOST_RESTS, self._confirmed // _CONFIRMATIONS_A_REST)
        if self._rests:
            self.limit = LEAST_HASH
        self._best = best
        return WINDOWS[best]

    def _start(self, entries: int) -> None:
        small = min(_MOST_SMALL, max(_LEAST_SMALL, round(entries * _SHARE)))
        self._entries = entries
        self._best, self._confirmed, self._rests = None, 0, 0
        self.limit = self._sampled = limit_of(small / entries)
        self._small = [Miniature(small, window) for window in WINDOWS]
        self._hits = [0.0] * len(WINDOWS)
