"""Decides which keys a full cache admits: keys that were missed several times, as many as its hits pay for.

Place on the data path: asked when a read misses. Making an entry costs more than answering: cells are merged, bases
computed, bytes weighed, another entry evicted. For a key that is never requested again, this work is wasted. If
requests are spread uniformly over many keys, that is almost every key. So a full cache admits a key at its third
miss. W-TinyLFU, inside the cache, would reject such an entry too, but only after it is made.

Why the third miss: an entry that is soon to be evicted stays for about as many requests as the remembered misses
span. A key that was missed twice in that span is requested about once more before its eviction, which does not pay
for the entry. A key that was missed three times is requested several times more.

Hits must also pay for new entries. Making one costs about as much as one or two hits save, so a cache may make one
entry for every `_HITS_PER_ENTRY` hits. A cache with few hits still makes one in `_TRIED_ONE_IN` of the entries it
could make, so that it notices when its keys begin to repeat. A cache that has room, as after a landing, admits
every key.

Source: the doorkeeper of TinyLFU (Einziger, Friedman, Manes, 2017). It is implemented here as two generations of
counted keys in place of a Bloom filter, which costs more in Python.
"""

import threading
from typing import Any

from millpond.cache import Cache

_LOOKS_ONE_IN = 16
"""The statistics of the cache are read at one in this many misses; once it is full, a quarter as often."""

_LEAST_KEYS = 16
_MISSES = 3
_HITS_PER_ENTRY = 8
_TRIED_ONE_IN = 8
_FULL_SHARE = 0.9
"""The cache has room if it has fewer than this share of the entries it had when it last evicted one."""


class Doorkeeper:
    """Remembers the keys that were missed recently: between one and two times as many as the cache has entries.

    Args:
        cache: the cache whose keys it admits; None admits every key.
        rows: a cache of batch rows beside it, which may have rows of keys that `cache` does not admit.

    Attributes:
        is_full: whether the cache had no room when its statistics were last read.
        looks_for_rows: whether to look for the batch row of a key that is not admitted: whether `rows` probably has
            keys that `cache` lacks, judged by their numbers of entries.

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
        "_lock",
        "_looks_one_in",
        "_most",
        "_recent",
        "_refused",
        "_rows",
        "is_full",
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
        self.is_full = False
        self._evictions = self._entries_when_full = 0
        self._hits = 0
        self._earned = 0.0
        self._refused = 0

    def admits(self, key: bytes) -> bool:
        """Return whether to make an entry for a key that was missed."""
        with self._lock:
            self._asked += 1
            if not self._asked % self._looks_one_in:
                self._look()
            if not self.is_full:
                return True
            misses = self._recent.get(key, 0) + 1
            if misses + self._former.get(key, 0) >= _MISSES:
                return self._pays()
            self._recent[key] = misses
            if len(self._recent) >= self._most:
                self._former, self._recent = self._recent, {}
            return False

    def always_look_for_rows(self) -> None:
        """Set `looks_for_rows` for good: a recording of the cache of rows needs to see every key."""
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
            self.is_full = self._evictions > 0 and stats.entries >= _FULL_SHARE * self._entries_when_full
            self._looks_one_in = 4 * _LOOKS_ONE_IN if self.is_full else _LOOKS_ONE_IN
            self._most = max(_LEAST_KEYS, stats.entries)
            # Credit is limited to one replacement of all entries.
            self._earned = min(self._earned + (stats.hits - self._hits) / _HITS_PER_ENTRY, stats.entries)
            self._hits = stats.hits
            if self._rows is not None:
                self.looks_for_rows = not self.is_full or len(self._rows) > stats.entries
