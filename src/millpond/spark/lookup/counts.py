"""The counters of lookups in many processes, summed on the driver by a Spark accumulator.

Counters add up. Levels (how much a cache holds) do not: of each cache the latest level counts. A cache that has
not reported for longer than an idle process lives counts as ended. The invariant: Spark adds a task's counters when
the task has succeeded. So they are exact for successful tasks. A task that runs twice, in two actions or a repeated
stage, counts twice, since it looks up twice.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from millpond.cache.curves import CacheReport
from millpond.cache.curves.telling import EncodedReport, heard
from millpond.lookup import LookupStats

WORKER_IDLE_MS = 60_000
"""How long Spark keeps an idle Python worker."""


@dataclass(frozen=True)
class Level:
    """What one cache held at `at_ms`, how long it may be silent and still count as alive, and its hit-rate curves."""

    at_ms: int
    idle_ms: int
    records: int | None
    bytes: int | None
    report: EncodedReport | None = None


@dataclass(frozen=True)
class Counted:
    """Counters, and the levels of caches by the caches' ids."""

    stats: LookupStats = field(default_factory=LookupStats)
    levels: Mapping[str, Level] = field(default_factory=dict)

    def __add__(self, other: "Counted") -> "Counted":
        levels = dict(self.levels)
        for cache, level in other.levels.items():
            if cache not in levels or levels[cache].at_ms <= level.at_ms:
                levels[cache] = level
        return Counted(self.stats + other.stats, levels)

    def total(self) -> LookupStats:
        """Return the counters, with the sum of the levels of live caches.

        >>> ended, alive = Level(0, 60_000, 5, 50), Level(70_000, 60_000, 3, 30)
        >>> Counted(levels={"a": ended, "b": alive}).total().num_cached_record
        3
        """
        held = [LookupStats(num_cached_record=level.records, num_cached_bytes=level.bytes) for level in self._alive()]
        return sum(held, self.stats)

    def reports(self) -> list[CacheReport]:
        """Return the hit-rate curves of the live caches that are recorded."""
        return heard(level.report for level in self._alive())

    def _alive(self) -> list[Level]:
        now_ms = max((level.at_ms for level in self.levels.values()), default=0)
        return [level for level in self.levels.values() if now_ms - level.at_ms <= level.idle_ms]


class SummedCounts:
    """Spark's accumulator parameter for `Counted`."""

    def zero(self, _: Counted) -> Counted:
        """Return the empty counters."""
        return Counted()

    def addInPlace(self, one: Counted, other: Counted) -> Counted:  # noqa: N802 - Spark's name
        """Return the sum of both."""
        return one + other


def level_now(stats: LookupStats, idle_ms: int, report: EncodedReport | None = None) -> Level:
    """Return the present level of a cache of this process."""
    now_ms = time.time_ns() // 1_000_000  # noqa: TID251 - levels of many processes are compared by the wall clock
    return Level(now_ms, idle_ms, stats.num_cached_record, stats.num_cached_bytes, report)
