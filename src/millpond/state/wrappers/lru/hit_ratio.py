"""The gauge of FLIP-325, `stateCacheHitRatio`: the share of reads that hit, over a second or more.

The cache only counts. The gauge reads the counters and the clock when it is asked, so a read of state reads no clock.
The ratio is that of the reads since the gauge last read the counters, at least a second before. The cache asks at every
commit, and every so many records in between.

Source: FLIP-325; Flink's meters, which read their counters in the same way.
"""

from collections.abc import Callable

from millpond.cache.api import Clock
from millpond.metrics.recorder import Recorder

GAUGE = "stateCacheHitRatio"
"""The name of the gauge, as in FLIP-325."""

REQUESTS = "millpond_state_cache_requests_total"
"""The counter of reads of state, by result: `hit` or `miss`."""

_PERIOD_MS = 1_000


class HitRatio:
    """The hit ratio of the last period of a second or more that had reads.

    Args:
        counters: returns hits and misses so far.
        clock: returns monotonic milliseconds.

    >>> now, counters = [0], [0, 0]
    >>> ratio = HitRatio(lambda: tuple(counters), lambda: now[0])
    >>> counters[:] = [3, 1]
    >>> now[0] = 1_000
    >>> ratio.value()
    0.75
    """

    def __init__(self, counters: Callable[[], tuple[int, int]], clock: Clock) -> None:
        self._counters = counters
        self._clock = clock
        self._since_ms = clock()
        self._counted = counters()
        self._recorded = self._counted
        self._value: float | None = None

    def value(self) -> float | None:
        """Return the ratio, from 0 to 1; None before the first second that had reads has passed."""
        now_ms = self._clock()
        if self._is_due(now_ms):
            hits, misses = (now - before for now, before in zip(self._counters(), self._counted, strict=True))
            self._counted = self._counters()
            self._since_ms = now_ms
            if hits + misses:
                self._value = hits / (hits + misses)
        return self._value

    def _is_due(self, now_ms: int) -> bool:
        return now_ms - self._since_ms >= _PERIOD_MS

    def record_if_due(self, recorder: Recorder) -> None:
        """Report to the recorder if a second has passed since the ratio was last computed."""
        if self._is_due(self._clock()):
            self.record(recorder)

    def record(self, recorder: Recorder) -> None:
        """Report the ratio, once there is one, and the hits and misses since the last report."""
        (hits, misses), (old_hits, old_misses) = self._counters(), self._recorded
        self._recorded = hits, misses
        recorder.count(REQUESTS, hits - old_hits, result="hit")
        recorder.count(REQUESTS, misses - old_misses, result="miss")
        value = self.value()
        if value is not None:
            recorder.gauge(GAUGE, value)
