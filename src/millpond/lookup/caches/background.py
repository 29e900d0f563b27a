"""The background thread in which a partial cache refreshes entries before they expire.

The invariant: **one load at a time**, so a slow source gets no more requests than it can answer. The counts of a load
are added to the metrics of the next lookup. On Spark they so reach the metrics of that lookup's task.
"""

import threading
from collections.abc import Callable

from millpond.lookup.metrics import CacheMetricGroup

_CLOSE_S = 5.0


class Background:
    """Runs one load at a time, each in a thread of its own.

    >>> background = Background("refresh")
    >>> background.run(lambda: background.loaded(3, 7))
    True
    >>> background.close()
    >>> metrics = CacheMetricGroup("planes")
    >>> background.count(metrics); metrics.stats().load_count
    3
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._counted: list[Callable[[CacheMetricGroup], None]] = []

    def is_idle(self) -> bool:
        """Return whether no load is under way."""
        return self._thread is None or not self._thread.is_alive()

    def run(self, load: Callable[[], None]) -> bool:
        """Start a load. Call it only if none is under way. Return False if the system cannot start a thread."""
        thread = threading.Thread(target=load, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def close(self) -> None:
        """Wait at most `_CLOSE_S` seconds for a load under way."""
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def loaded(self, loads: int, took_ms: int) -> None:
        """Keep the count of successful loads, and their time together, for the next `count`."""
        with self._lock:
            self._counted.append(lambda metrics: metrics.loaded(loads, took_ms))

    def failed(self, loads: int) -> None:
        """Keep the count of failed loads for the next `count`."""
        with self._lock:
            self._counted.append(lambda metrics: metrics.failed(loads))

    def count(self, metrics: CacheMetricGroup) -> None:
        """Add the loads since the last call to `metrics`."""
        if not self._counted:
            return
        with self._lock:
            counted, self._counted = self._counted, []
        for each in counted:
            each(metrics)
