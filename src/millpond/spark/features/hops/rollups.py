"""The rollups of a hop table: days merged into one hop for each key, beside the files of these days.

Place on the data path: inside the tasks of a hop table, which read a rollup instead of the files of its days.

A batch is cut only in the tails of its windows (`millpond.features.batch`). Each window holds the days between two
tails whole, or none of them. So a batch needs only their merge:

    before │ 30d tail │ 4 │ 4 │ 4 │ 4 │ 4 │ 1 │ 7d tail │1│1│1│1│ 1d tail │ end

A day with hops smaller than a day is a rollup of its own, from the day's end on. Of n other days between two cuts,
about the square root of n make a rollup. That size needs the fewest files: the rollups, and single days at both ends.

Invariant: each day is in at most one rollup, so rollups are at most as large as the files of the days. The days keep
their files. So a day with late events is collected anew alone, and a rollup that a cut reaches is dropped.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

from millpond.features import GroupByPlan
from millpond.features.hops import KEPT_DAYS_MS, Hops
from millpond.features.windows import DAY_MS


class Rollup(NamedTuple):
    """Some days, from one midnight UTC to another, in milliseconds."""

    start_ms: int
    end_ms: int

    @property
    def days(self) -> range:
        """The starts of its days."""
        return range(self.start_ms, self.end_ms, DAY_MS)


class Rollups:
    """The rollups of a history; immutable.

    Args:
        plan: the plan of the GroupBy.
        hops: the hops of the history.

    Attributes:
        kept: the rollups to keep, in the order of time. Some may have cuts inside.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> count = Aggregation("count", windows=("1d", "30d"))
    >>> plan = compile_group_by(GroupBy("visits", (Field("user", "long"),), (), (count,)))
    >>> rollups = Rollups(plan, Hops([DAY_MS, 30 * DAY_MS], 32 * DAY_MS))
    >>> [(rollup.start_ms // DAY_MS, rollup.end_ms // DAY_MS) for rollup in rollups.kept]
    [(4, 8), (8, 12), (12, 16), (16, 20), (20, 24), (24, 28), (31, 32)]
    >>> rollups.is_cut(rollups.kept[0]), rollups.is_cut(rollups.kept[-1])
    (False, True)
    """

    def __init__(self, plan: GroupByPlan, hops: Hops) -> None:
        self._hops = hops
        self._cuts = [hops.end_ms + offset_ms for offset_ms in plan.timeline(hops.end_ms).cuts_ms]
        self.kept = tuple(sorted([*self._days(), *self._several_days()]))

    def is_cut(self, rollup: Rollup) -> bool:
        """Return whether a window of the batch may begin inside a rollup."""
        return bisect_right(self._cuts, rollup.start_ms) < bisect_left(self._cuts, rollup.end_ms)

    def _days(self) -> Iterator[Rollup]:
        """Yield the days that have smaller hops."""
        for day in range(self._hops.first_ms, self._hops.end_ms - DAY_MS + 1, DAY_MS):
            if self._hops.last_size(day) < DAY_MS:
                yield Rollup(day, day + DAY_MS)

    def _several_days(self) -> Iterator[Rollup]:
        """Yield the rollups of days that have no smaller hops."""
        # Days that may still get late events would change their rollup each time.
        end_ms = self._hops.end_ms - KEPT_DAYS_MS
        cuts = [cut for cut in self._cuts if self._hops.first_ms < cut < end_ms]
        for begin, end in pairwise([self._hops.first_ms, *cuts, end_ms]):
            first = -(-begin // DAY_MS) * DAY_MS
            days = [day for day in range(first, end - DAY_MS + 1, DAY_MS) if self._hops.last_size(day) == DAY_MS]
            # A power of two seldom changes where batches end at different hours.
            size_ms = DAY_MS << max(isqrt(len(days)).bit_length() - 1, 0)
            for day in days:
                if size_ms > DAY_MS and day % size_ms == 0 and day + size_ms <= days[-1] + DAY_MS:
                    yield Rollup(day, day + size_ms)
