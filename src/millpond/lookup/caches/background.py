"""The thread in which a partial cache loads entries again before they expire.

Beside a partial caching lookup. The invariant: **one load at a time**, so a slow source is not asked more often
than it answers. What a load counts is told to the next caller, whose metrics go where its lookup is counted: on
Spark, with its task.
"""

import threading
from collections.abc import Callable

from millpond.lookup.metrics import CacheMetricGroup

_CLOSE_S = 5.0


class Background:
    """Runs one load at a time, in a thread that ends with it.

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
        """Whether no load is under way."""
        return self._thread is None or not self._thread.is_alive()

    def run(self, load: Callable[[], None]) -> bool:
        """Run a load; only where none is under way. False where the system gives no thread for it."""
        thread = threading.Thread(target=load, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def close(self) -> None:
        """Wait for the load that is under way, if any, for a few seconds."""
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def loaded(self, loads: int, took_ms: int) -> None:
        """Loads that succeeded, to be counted by the next caller."""
        with self._lock:
            self._counted.append(lambda metrics: metrics.loaded(loads, took_ms))

    def failed(self, loads: int) -> None:
        """Loads that failed, to be counted by the next caller."""
        with self._lock:
            self._counted.append(lambda metrics: metrics.failed(loads))

    def count(self, metrics: CacheMetricGroup) -> None:
        """Count what was loaded since the last call."""
        if not self._counted:
            return
        with self._lock:
            counted, self._counted = self._counted, []
        for each in counted:
            each(metrics)
