"""What lookups count in many processes, summed on the driver by a Spark accumulator.

Beside the lookup join. Counters add up. Levels (how much a cache holds) do not: of each cache the
latest counts, and a cache that is not heard of for longer than a process is kept idle has ended.
The invariant: Spark takes what a task added once the task has succeeded, so counters are exact for
tasks that succeeded; a task that ran twice, in two actions or for a stage that was repeated, did look
up twice.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from millpond.cache.curves import CacheReport
from millpond.cache.curves.telling import EncodedReport, heard
from millpond.lookup import LookupStats

WORKER_IDLE_MS = 60_000
"""How long Spark keeps a Python worker that has nothing to do."""


@dataclass(frozen=True)
class Level:
    """What one cache held at a time, for how long after it may be silent and live on, and its hit-rate curves."""

    at_ms: int
    idle_ms: int
    records: int | None
    bytes: int | None
    report: EncodedReport | None = None


@dataclass(frozen=True)
class Counted:
    """Counters, and the levels of caches by their ids."""

    stats: LookupStats = field(default_factory=LookupStats)
    levels: Mapping[str, Level] = field(default_factory=dict)

    def __add__(self, other: "Counted") -> "Counted":
        levels = dict(self.levels)
        for cache, level in other.levels.items():
            if cache not in levels or levels[cache].at_ms <= level.at_ms:
                levels[cache] = level
        return Counted(self.stats + other.stats, levels)

    def total(self) -> LookupStats:
        """The counters, with the levels of the caches that live as far as is known.

        >>> ended, alive = Level(0, 60_000, 5, 50), Level(70_000, 60_000, 3, 30)
        >>> Counted(levels={"a": ended, "b": alive}).total().num_cached_record
        3
        """
        held = [LookupStats(num_cached_record=level.records, num_cached_bytes=level.bytes) for level in self._alive()]
        return sum(held, self.stats)

    def reports(self) -> list[CacheReport]:
        """The hit-rate curves of the caches that live and are recorded."""
        return heard(level.report for level in self._alive())

    def _alive(self) -> list[Level]:
        now_ms = max((level.at_ms for level in self.levels.values()), default=0)
        return [level for level in self.levels.values() if now_ms - level.at_ms <= level.idle_ms]


class SummedCounts:
    """How Spark adds up what the workers counted."""

    def zero(self, _: Counted) -> Counted:
        """Nothing."""
        return Counted()

    def addInPlace(self, one: Counted, other: Counted) -> Counted:  # noqa: N802 - Spark's name
        """Both."""
        return one + other


def level_now(stats: LookupStats, idle_ms: int, report: EncodedReport | None = None) -> Level:
    """What a cache of this process holds now."""
    now_ms = time.time_ns() // 1_000_000  # noqa: TID251 - levels of many processes are compared by the wall clock
    return Level(now_ms, idle_ms, stats.num_cached_record, stats.num_cached_bytes, report)
