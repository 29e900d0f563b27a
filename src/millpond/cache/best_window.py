"""How large the window of W-TinyLFU is best, found by trying all sizes at once.

Where recency rules, a large window is best, and where frequency rules a small one. Which rules depends on the load and
changes. A hill climber [1] compares the hit rates of two periods, before and after it changed the window. But a real
load changes its hit rate by itself, often by more than the window does, and then the climber follows noise.

Here the sizes are compared on the same requests. For each of `WINDOWS` there is a miniature of the cache, with that
window and a sixteenth of the entries, that is asked for a sixteenth of the keys [2]. The one that hit most lately says
how large the window is. What was counted before a choice counts `_FADING` after it.

A cache of less than `_LEAST_ENTRIES` entries keeps its window: a miniature of it would be too small to tell.

1. Einziger, Eytan, Friedman, Manes: "Adaptive software cache management" (Middleware 2018), which Caffeine follows.
2. Waldspurger, Saemundsson, Ahmad, Park: "Cache modeling and optimization using miniature simulations" (ATC 2017),
   which chooses parameters of policies so.
"""

from typing import Final

from millpond.cache.miniature import LEAST_HASH, Miniature, limit_of

WINDOWS: Final = (0.05, 0.2, 0.5, 0.9)
"""The shares that are tried."""

_SHARE = 1 / 16
_LEAST_SMALL, _MOST_SMALL = 64, 1_024
_LEAST_ENTRIES = 256
_FADING = 0.7
_GROWN = 2


class BestWindow:
    """Tries windows on a sample of the keys; what a cache of W-TinyLFU asks for the share of its own.

    Attributes:
        limit: the hashes below this are sampled.

    >>> windows = BestWindow()
    >>> windows.choose(1_000) is None
    True
    >>> for key in range(100_000):
    ...     if (spread := hash((key % 950,))) < windows.limit:
    ...         windows.use(spread)
    >>> windows.choose(1_000) in WINDOWS
    True
    """

    __slots__ = ("_entries", "_hits", "_small", "limit")

    def __init__(self) -> None:
        self.limit = LEAST_HASH
        self._entries = 0
        self._small: list[Miniature] = []
        self._hits: list[float] = []

    def use(self, spread: int) -> None:
        """A sampled key is asked for, given by its hash."""
        hits = self._hits
        for place, small in enumerate(self._small):
            hits[place] += small.use(spread)

    def choose(self, entries: int) -> float | None:
        """The best share lately for a cache of so many entries; None where there is nothing to go by yet."""
        if entries < _LEAST_ENTRIES:
            return None
        if not self._entries / _GROWN <= entries <= self._entries * _GROWN:
            self._start(entries)
            return None
        best = max(range(len(WINDOWS)), key=self._hits.__getitem__)
        self._hits = [hits * _FADING for hits in self._hits]
        return WINDOWS[best]

    def _start(self, entries: int) -> None:
        small = min(_MOST_SMALL, max(_LEAST_SMALL, round(entries * _SHARE)))
        self._entries = entries
        self.limit = limit_of(small / entries)
        self._small = [Miniature(small, window) for window in WINDOWS]
        self._hits = [0.0] * len(WINDOWS)
