"""Reports the metrics of a heap that spills: how much state is on the heap and on disk, and how much was moved.

The sizes need a count over all key groups and the files. So they are reported at most once a second, at a commit or in
a maintenance run, and when the backend is closed; `stateCacheHitRatio` is reported likewise. The moves are counted
anyway, and are reported at every commit too.
"""

from collections.abc import Callable

from millpond.metrics import NO_METRICS, Recorder
from millpond.state.spillable.migrator import Migrator
from millpond.state.spillable.statistics import SpillStats

MOVES = "millpond_spillable_moves_total"
"""The counter of key groups that were moved, by name: `spill` or `load`."""

_EVERY_NS = 1_000_000_000


class SpillMetrics:
    """Reports the metrics of one backend: moves as the migrator counts them, and sizes."""

    def __init__(self, migrator: Migrator, stats: Callable[[], SpillStats], clock_ns: Callable[[], int]) -> None:
        self._migrator = migrator
        self._stats = stats
        self._clock_ns = clock_ns
        self._recorder: Recorder = NO_METRICS
        self._due_ns = 0
        self._told: dict[str, tuple[int, int]] = {}

    def report_to(self, recorder: Recorder) -> None:
        """Report to a recorder, from the next commit or maintenance run on."""
        self._recorder = recorder
        self._due_ns = self._clock_ns()

    def tell_if_due(self) -> None:
        """Report sizes and moves, if a second has passed since the last report."""
        if self._recorder is not NO_METRICS:
            now_ns = self._clock_ns()
            if now_ns >= self._due_ns:
                self._due_ns = now_ns + _EVERY_NS
                self.tell()

    def tell(self) -> None:
        """Report sizes and moves."""
        if self._recorder is NO_METRICS:
            return
        stats = self._stats()
        for name, groups, held in (
            ("heap", stats.heap_groups, stats.heap_bytes),
            ("disk", stats.disk_groups, stats.disk_bytes),
        ):
            self._recorder.gauge("millpond_spillable_key_groups", groups, name=name)
            self._recorder.gauge("millpond_spillable_bytes", held, name=name)
        self.tell_moves()

    def tell_moves(self) -> None:
        """Report the moves since the last report of moves."""
        migrator = self._migrator
        for name, moves, spent_ns in (
            ("spill", migrator.spills, migrator.spill_ns),
            ("load", migrator.loads, migrator.load_ns),
        ):
            told_moves, told_ns = self._told.get(name, (0, 0))
            self._recorder.count(MOVES, moves - told_moves, name=name)
            self._recorder.count("millpond_spillable_seconds_total", (spent_ns - told_ns) / 1e9, name=name)
            self._told[name] = (moves, spent_ns)
