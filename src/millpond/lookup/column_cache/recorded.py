"""Adapts a column cache to what a recording of hit-rate curves needs."""

from typing import NoReturn

from millpond.cache.api import Bounds, CacheStats, Policy
from millpond.errors import OptionError
from millpond.lookup.column_cache.cache import ColumnCache


class RecordedColumns:
    """The attributes and methods that `Recording` needs of a cache. A column cache keeps its size.

    It takes no lock: it is called both under the lock of the lookup around the cache, and by other threads without it.

    Args:
        cache: the cache.

    Attributes:
        hits, misses: the numbers of keys found and not found.
    """

    name = "lookup"

    def __init__(self, cache: ColumnCache) -> None:
        self._cache = cache
        self.hits = self.misses = 0

    @property
    def bounds(self) -> Bounds:
        """The limits in keys and bytes."""
        return Bounds(self._cache.limits.max_rows, self._cache.limits.max_bytes)

    @property
    def policy(self) -> Policy:
        """The rule that chooses the entries to evict."""
        return self._cache.limits.policy

    def stats(self) -> CacheStats:
        """Return hits, misses and sizes. The other counters are 0, since no recording reads them."""
        entries, held_bytes = self._cache.held()
        return CacheStats(
            hits=self.hits,
            misses=self.misses,
            loads=0,
            load_failures=0,
            evictions=0,
            expirations=0,
            entries=entries,
            bytes=held_bytes,
        )

    def resize(self, bounds: Bounds) -> NoReturn:
        """Raise an error: this cache cannot be resized.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            f"lookup cache on Spark: it keeps the size that it was opened with, got {bounds}; set "
            "lookup.partial-cache.max-rows or lookup.partial-cache.max-bytes, and start the query anew"
        )
