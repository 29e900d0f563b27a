"""A small cache of keys that other executors own: the near cache.

It keeps the hottest keys where their events are, so that they are not asked for in every batch. A key is one of them
if it is asked for twice within a short time (`doorkeeper`), and if its owner had it in its cache by then. The near
cache has an eighth of the table's limits, and the executor's own keys have the rest. The invariant: **a row is never
older here than it may be at its owner**. A row brings its age along, and what the owner does not cache is not cached
here. A key that is old enough to be refreshed counts as expired, so that its owner hears of it.

The trade-off: a key is asked for once more before it is kept. In return, most keys that are asked for are never copied
into this cache, and none of them pushes out a hotter one.

Source: Hazelcast's near cache; the hot cache of groupcache.
"""

import threading
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.lookup import LookupTable
from millpond.lookup.column_cache.cache import ColumnCache, ColumnCacheLimits
from millpond.lookup.column_cache.chunks import Rows
from millpond.lookup.column_cache.hashed_keys import HashedKeys
from millpond.spark.lookup.shared.doorkeeper import Doorkeeper

Positions = npt.NDArray[np.int64]

NEAR_SHARE = 8
"""The near cache has one part of the limits in so many."""

_LEAST_SPAN = 2_048
"""The least number of keys to remember that were not there."""


def divided(table: LookupTable) -> tuple[LookupTable, ColumnCacheLimits | None]:
    """Divide a table's cache: the part for keys that an executor owns, and the limits of the near cache.

    A table whose rows are not cached in columns has no near cache.
    """
    limits = table.limits
    if not table.in_columns:
        return table, None
    parts = [None if each is None else each // NEAR_SHARE for each in (limits.max_rows, limits.max_bytes)]
    rests = [
        None if each is None else each - (part or 0)
        for each, part in zip((limits.max_rows, limits.max_bytes), parts, strict=True)
    ]
    near = replace(limits, max_rows=parts[0], max_bytes=parts[1], refresh_after_write_ms=None, stale_if_error_ms=0)
    if limits.refresh_after_write_ms is not None:
        near = replace(near, expire_after_write_ms=limits.refresh_after_write_ms, expiry_jitter_ms=0)
    return table.limited(*rests), near


@dataclass(frozen=True, slots=True)
class Nearby:
    """What the near cache knows of some keys.

    Attributes:
        there: the positions of the keys that are there.
        rows: their rows; None if there are none.
        again: which keys are not there, and were asked for lately. They are worth a `put`.
        invalidations: the number of invalidations so far.
    """

    there: Positions
    rows: Rows | None
    again: npt.NDArray[np.bool_]
    invalidations: int


class NearCache:
    """A cache of rows of other executors; thread-safe. The limits are `divided`."""

    def __init__(self, limits: ColumnCacheLimits, clock: Clock = monotonic_ms) -> None:
        self._cache = ColumnCache(limits, clock)
        self._doorkeeper = Doorkeeper(_LEAST_SPAN)
        self._lock = threading.Lock()
        self._invalidations = 0

    def find(self, keys: HashedKeys) -> Nearby:
        """Look up keys, and remember those that are not there."""
        with self._lock:
            slots = self._cache.find(keys)
            there = np.flatnonzero(slots >= 0)
            again = slots < 0
            again[again] = self._doorkeeper.note(keys.hashes[again])
            # The hottest keys are asked for again before as many others as half of this cache could keep.
            if self._doorkeeper.span < len(self._cache) // 4:
                self._doorkeeper = Doorkeeper(len(self._cache) // 2)
            return Nearby(there, self._cache.rows(slots[there]), again, self._invalidations)

    def put(self, keys: HashedKeys, rows: Rows, ages_ms: Positions, invalidations: int) -> None:
        """Cache the rows of keys that were not there in `find`, unless keys were invalidated since."""
        with self._lock:
            if invalidations == self._invalidations:
                self._cache.put(keys, rows, ages_ms)

    def invalidate(self, keys: HashedKeys | None) -> None:
        """Remove keys; None removes all."""
        with self._lock:
            self._invalidations += 1
            if keys is None:
                self._cache.clear()
            else:
                self._cache.invalidate(keys)

    def size(self) -> tuple[int, int]:
        """Return the numbers of entries and bytes."""
        with self._lock:
            return len(self._cache), self._cache.nbytes + self._doorkeeper.nbytes
