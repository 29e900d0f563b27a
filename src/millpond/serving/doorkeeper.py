"""Which keys a full cache lets in: those that were missed again and again, as far as its hits pay for them.

Place on the data path: asked when a read misses. Making an entry costs more than answering: cells are
merged, windows folded, bytes weighed, another entry evicted. For a key that never comes again all of that
is lost, and where keys are asked for uniformly that is every key. So a cache that is full makes an entry
at the third miss. W-TinyLFU, in the cache, would refuse such an entry too, but only once it is made.

Why the third: an entry near the edge of the cache stays for about as many requests as the misses that are
remembered span. A key that was missed twice in them comes about once more before it goes, which does not
pay for its entry; one that was missed three times comes several times.

An entry must also pay for itself. Making one costs about as much as a hit or two save, so a cache earns
one entry with every `_HITS_PER_ENTRY` hits. A cache that earns little still makes one in `_TRIED_ONE_IN`
of the entries that it could, so it finds out when its keys begin to come again. A cache that has room, as
after a landing, lets every key in.

Source: the doorkeeper of TinyLFU (Einziger, Friedman, Manes, 2017), here as two generations of counted keys
in place of a Bloom filter, which costs more in Python.
"""

import threading
from typing import Any

from millpond.cache import Cache

_LOOKS_ONE_IN = 16
"""How often the cache is looked at until it is full; afterwards a quarter as often."""

_LEAST_KEYS = 16
_MISSES = 3
_HITS_PER_ENTRY = 8
_TRIED_ONE_IN = 8
_FULL_SHARE = 0.9
"""Of the entries that the cache had when it last evicted one: with fewer it has room."""


class Doorkeeper:
    """Remembers the keys that were missed lately, as many as the cache has entries, and up to twice as many.

    Args:
        cache: what it lets keys into; None lets in all.
        rows: a cache of batch rows beside it, for keys that it does not let in.

    Attributes:
        looks_for_rows: whether that cache has rows of keys that the other lacks, as far as their sizes tell.

    >>> keeper = Doorkeeper(None)
    >>> keeper.admits(b"EWR")
    True
    """

    __slots__ = (
        "_asked",
        "_cache",
        "_earned",
        "_entries_when_full",
        "_evictions",
        "_former",
        "_hits",
        "_is_full",
        "_lock",
        "_looks_one_in",
        "_most",
        "_recent",
        "_refused",
        "_rows",
        "looks_for_rows",
    )

    def __init__(self, cache: Cache[bytes, Any] | None, rows: Cache[bytes, Any] | None = None) -> None:
        self._cache = cache
        self._rows = rows
        self.looks_for_rows = True
        self._lock = threading.Lock()
        self._recent: dict[bytes, int] = {}
        self._former: dict[bytes, int] = {}
        self._asked = 0
        self._looks_one_in = _LOOKS_ONE_IN
        self._most = _LEAST_KEYS
        self._is_full = False
        self._evictions = self._entries_when_full = 0
        self._hits = 0
        self._earned = 0.0
        self._refused = 0

    def admits(self, key: bytes) -> bool:
        """Tell whether an entry is to be made for a key that was missed."""
        with self._lock:
            self._asked += 1
            if not self._asked % self._looks_one_in:
                self._look()
            if not self._is_full:
                return True
            misses = self._recent.get(key, 0) + 1
            if misses + self._former.get(key, 0) >= _MISSES:
                return self._pays()
            self._recent[key] = misses
            if len(self._recent) >= self._most:
                self._former, self._recent = self._recent, {}
            return False

    def always_look_for_rows(self) -> None:
        """Have the cache of rows asked in every case: a recording of it wants to know for what."""
        self._rows, self.looks_for_rows = None, True

    def _pays(self) -> bool:
        if self._earned >= 1:
            self._earned -= 1
            return True
        self._refused += 1
        return self._refused % _TRIED_ONE_IN == 0

    def _look(self) -> None:
        if self._cache is not None:
            stats = self._cache.stats()
            if stats.evictions > self._evictions:
                self._evictions, self._entries_when_full = stats.evictions, stats.entries
            self._is_full = self._evictions > 0 and stats.entries >= _FULL_SHARE * self._entries_when_full
            self._looks_one_in = 4 * _LOOKS_ONE_IN if self._is_full else _LOOKS_ONE_IN
            self._most = max(_LEAST_KEYS, stats.entries)
            # What was earned is kept for one change of all entries, no more.
            self._earned = min(self._earned + (stats.hits - self._hits) / _HITS_PER_ENTRY, stats.entries)
            self._hits = stats.hits
            if self._rows is not None:
                self.looks_for_rows = not self._is_full or len(self._rows) > stats.entries
