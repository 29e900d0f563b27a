"""What a recorder hears of a heap that spills: what is where, and what was moved since it was last told.

To know what is where, all key groups must be counted, and the files asked. So it is told once a second, at a commit or
a look, and when the backend is closed; as `stateCacheHitRatio` is.
"""

from collections.abc import Callable

from millpond.metrics import NO_METRICS, Recorder
from millpond.state.spillable.census import SpillStats

_EVERY_NS = 1_000_000_000


class SpillMetrics:
    """Tells one backend's.

    Args:
        stats: counts them.
        clock_ns: monotonic nanoseconds.
    """

    def __init__(self, stats: Callable[[], SpillStats], clock_ns: Callable[[], int]) -> None:
        self._stats = stats
        self._clock_ns = clock_ns
        self._recorder: Recorder = NO_METRICS
        self._due_ns = 0
        self._told: dict[str, tuple[int, float]] = {}

    def report_to(self, recorder: Recorder) -> None:
        """Have a recorder hear of all that comes, from the next commit or look on."""
        self._recorder = recorder
        self._due_ns = self._clock_ns()

    def tell_if_due(self) -> None:
        """Tell, if a second has passed."""
        if self._recorder is not NO_METRICS:
            now_ns = self._clock_ns()
            if now_ns >= self._due_ns:
                self._due_ns = now_ns + _EVERY_NS
                self.tell()

    def tell(self) -> None:
        """Tell now."""
        if self._recorder is NO_METRICS:
            return
        stats = self._stats()
        for name, groups, held in (
            ("heap", stats.heap_groups, stats.heap_bytes),
            ("disk", stats.disk_groups, stats.disk_bytes),
        ):
            self._recorder.gauge("millpond_spillable_key_groups", groups, name=name)
            self._recorder.gauge("millpond_spillable_bytes", held, name=name)
        for name, moves, seconds in (
            ("spill", stats.spills, stats.spill_seconds),
            ("load", stats.loads, stats.load_seconds),
        ):
            moved, spent = self._told.get(name, (0, 0.0))
            self._recorder.count("millpond_spillable_moves_total", moves - moved, name=name)
            self._recorder.count("millpond_spillable_seconds_total", seconds - spent, name=name)
            self._told[name] = (moves, seconds)
