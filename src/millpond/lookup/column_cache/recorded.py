"""A column cache as a recording of hit-rate curves knows it."""

from typing import NoReturn

from millpond.cache.api import Bounds, CacheStats, Policy
from millpond.errors import OptionError
from millpond.lookup.column_cache.cache import ColumnCache


class RecordedColumns:
    """What `Recording` asks a cache for. A column cache belongs to a Spark process and keeps its size.

    It is asked under the lock of the lookup around the cache, and by others without: so it takes no lock.

    Args:
        cache: the cache.

    Attributes:
        hits, misses: keys that were found, and those that were not.
    """

    name = "lookup"

    def __init__(self, cache: ColumnCache) -> None:
        self._cache = cache
        self.hits = self.misses = 0

    @property
    def bounds(self) -> Bounds:
        """Keys and bytes."""
        return Bounds(self._cache.limits.max_rows, self._cache.limits.max_bytes)

    @property
    def policy(self) -> Policy:
        """What goes for want of room."""
        return self._cache.limits.policy

    def stats(self) -> CacheStats:
        """The counts, and what the cache holds; nobody asks for the others."""
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
        """Refused.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            f"lookup cache on Spark: it keeps the size that it was opened with, got {bounds}; set "
            "lookup.partial-cache.max-rows or lookup.partial-cache.max-bytes, and start the query anew"
        )
