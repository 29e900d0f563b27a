"""Measures the hit rate of a recorded cache at its present size, by the cache's own counts.

Place on the data path: part of the recording of a cache (`recording`). A simulation of W-TinyLFU misses what else
keeps keys out of a cache or removes them: a doorkeeper before it, a time to live, a batch that landed. The cache's own
counts include these. So they give the error of the simulation at the present size.
"""

from typing import Protocol

from millpond.cache.api import Bounds

_LEAST_REQUESTS = 1_000


class Counted(Protocol):
    """The counts of a cache that a recording needs, see `CacheStats`."""

    # ruff: noqa: D102 - `CacheStats` and `Cache` say what these mean
    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...
    @property
    def entries(self) -> int: ...
    @property
    def bytes(self) -> int | None: ...


class Sized(Protocol):
    """A cache with its bounds and counts: all that `OwnRate` needs."""

    @property
    def bounds(self) -> Bounds: ...
    def stats(self) -> Counted: ...


class OwnRate:
    """The hits per request since the cache has its present size.

    >>> from millpond.cache import new_cache
    >>> planes = new_cache("planes", max_entries=10)
    >>> planes.put("N101", "A320")
    >>> own = OwnRate(planes)
    >>> for number in range(2_000):
    ...     _ = planes.get("N101" if number % 4 else "N102")
    >>> own.now(planes)
    0.75
    """

    __slots__ = ("_bounds", "_hits", "_requests")

    def __init__(self, cache: Sized) -> None:
        self._begin(cache)

    def _begin(self, cache: Sized) -> None:
        stats = cache.stats()
        self._bounds = cache.bounds
        self._hits, self._requests = float(stats.hits), float(stats.hits + stats.misses)

    def now(self, cache: Sized) -> float | None:
        """Return the hit rate; None if there were too few requests since the recording began or the last resize."""
        if cache.bounds != self._bounds:
            self._begin(cache)
        stats = cache.stats()
        requests = stats.hits + stats.misses - self._requests
        return (stats.hits - self._hits) / requests if requests >= _LEAST_REQUESTS else None

    def age(self, cache: Sized) -> None:
        """Drop half of the requests and hits so far from the counts."""
        stats = cache.stats()
        self._hits += (stats.hits - self._hits) / 2
        self._requests += (stats.hits + stats.misses - self._requests) / 2
