"""The hit rate over time: hits and misses, minute by minute.

The sums since the start hide what a cache does at present: one bad hour hardly changes the hit rate of a week.
The invariant: at most `MINUTES` entries, whatever the traffic; a minute without a lookup has none. Hits and
misses are kept instead of their ratio, so that minutes, or processes, can be added up.
"""

from collections import OrderedDict
from dataclasses import dataclass

from millpond.cache.api import Clock

MINUTES = 60
_MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class HitRate:
    """The hits and misses of one minute, which began `age_ms` ago.

    >>> HitRate(age_ms=30_000, hits=3, misses=1).rate
    0.75
    """

    age_ms: int
    hits: int
    misses: int

    @property
    def rate(self) -> float:
        """Hits per key looked up."""
        return self.hits / (self.hits + self.misses)


class HitHistory:
    """The hits and misses of the last hour. Not thread-safe: the caller needs a lock.

    >>> now_ms = 0
    >>> history = HitHistory(lambda: now_ms)
    >>> history.add(1, 3)
    >>> now_ms = 70_000
    >>> history.add(3, 1)
    >>> [(minute.age_ms, minute.rate) for minute in history.rates()]
    [(70000, 0.25), (10000, 0.75)]
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._minutes: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def add(self, hits: int, misses: int) -> None:
        """Count hits and misses of the present minute."""
        if not hits and not misses:
            return
        minute = self._clock() // _MINUTE_MS
        old_hits, old_misses = self._minutes.get(minute, (0, 0))
        self._minutes[minute] = old_hits + hits, old_misses + misses
        self._trim(minute)

    def rates(self) -> list[HitRate]:
        """Return the minutes that had a lookup, oldest first."""
        now_ms = self._clock()
        self._trim(now_ms // _MINUTE_MS)
        return [HitRate(now_ms - minute * _MINUTE_MS, hits, misses) for minute, (hits, misses) in self._minutes.items()]

    def _trim(self, minute: int) -> None:
        while self._minutes and next(iter(self._minutes)) <= minute - MINUTES:
            self._minutes.popitem(last=False)
