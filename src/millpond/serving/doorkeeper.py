"""Which keys a full cache lets in: those that were missed before.

Place on the data path: asked when a read misses. Making an entry costs more than answering: cells are
merged, windows folded, bytes weighed, another entry evicted. For a key that never comes again all of that
is lost, and where keys are asked for uniformly that is every key. So a cache that is full makes an entry
at the second miss. W-TinyLFU, in the cache, would refuse such an entry too, but only once it is made.

Source: the doorkeeper of TinyLFU (Einziger, Friedman, Manes, 2017), here as two generations of keys in
place of a Bloom filter, which costs more in Python.
"""

import threading
from typing import Any

from millpond.cache import Cache

_LOOKS_ONE_IN = 16
_LEAST_KEYS = 16


class Doorkeeper:
    """Remembers the keys that were missed lately, as many as the cache has entries, and up to twice as many.

    >>> keeper = Doorkeeper(None)
    >>> keeper.admits(b"EWR")
    True
    """

    __slots__ = ("_asked", "_cache", "_former", "_is_full", "_lock", "_most", "_recent")

    def __init__(self, cache: Cache[bytes, Any] | None) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._recent: set[bytes] = set()
        self._former: set[bytes] = set()
        self._asked = 0
        self._most = _LEAST_KEYS
        self._is_full = False

    def admits(self, key: bytes) -> bool:
        """Tell whether an entry is to be made for a key that was missed."""
        with self._lock:
            self._asked += 1
            if not self._asked % _LOOKS_ONE_IN:
                self._look()
            if not self._is_full or key in self._recent or key in self._former:
                return True
            self._recent.add(key)
            if len(self._recent) >= self._most:
                self._former, self._recent = self._recent, set()
            return False

    def _look(self) -> None:
        if self._cache is not None:
            stats = self._cache.stats()
            self._is_full = stats.evictions > 0
            self._most = max(_LEAST_KEYS, stats.entries)
