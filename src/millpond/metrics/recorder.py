"""The recorder: the interface through which Millpond's parts report what they counted.

It is beside the data path and never on it. The code that counts sums a batch in plain integers and records
the sums once, so a recorder costs nothing per record. Invariant: **labels are bounded**. The metric's name says
what is measured. The label `result` says how it ended (one of `RESULTS`). The only other label is `name`, the
cache or table that the user named. Keys, counts and error texts are never labels.

Names follow Prometheus: base units (seconds, bytes), and counters end in `_total`. No ratio is stored, since hits
and misses give it for any span of time. Trade-off: a recorder takes no histograms. A distribution is recorded as
two counters, its sum and its count.

Source: the naming rules of Prometheus and OpenTelemetry's semantic conventions.
"""

import threading
from collections.abc import Mapping
from typing import Literal, Protocol, get_args

from millpond.errors import OptionError

Result = Literal["ok", "hit", "miss", "failure", "eviction", "expiration", "dropped", "unchanged"]
"""How a counted thing ended."""

RESULTS: frozenset[str] = frozenset(get_args(Result))
"""All values of the label `result`."""


class Recorder(Protocol):
    """Takes sums and levels. Implementations are thread-safe."""

    def count(self, metric: str, amount: float = 1, *, name: str = "", result: Result = "ok") -> None:
        """Add `amount` (never negative) to the counter `metric`, which ends in `_total`."""

    def gauge(self, metric: str, value: float, *, name: str = "") -> None:
        """Set the level of `metric`, in base units, to `value`."""


class NullRecorder:
    """Records nothing. It is the default recorder everywhere.

    >>> NO_METRICS.count("millpond_cache_requests_total", 3, name="planes", result="hit")
    """

    def count(self, metric: str, amount: float = 1, *, name: str = "", result: Result = "ok") -> None:
        """Do nothing."""

    def gauge(self, metric: str, value: float, *, name: str = "") -> None:
        """Do nothing."""


NO_METRICS = NullRecorder()
"""The default recorder, which records nothing."""


class MemoryRecorder:
    """Keeps the sums in this process, for tests and for a summary at the end of a run.

    It is stricter than exporters: a counter without `_total`, a negative amount or an unknown result is an
    `OptionError`, so that a test finds it.

    >>> recorder = MemoryRecorder()
    >>> recorder.count("millpond_cache_requests_total", 3, name="planes", result="hit")
    >>> recorder.total("millpond_cache_requests_total", name="planes", result="hit")
    3
    """

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str, str], float] = {}
        self._levels: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def count(self, metric: str, amount: float = 1, *, name: str = "", result: Result = "ok") -> None:
        """Add `amount` to a counter."""
        if not metric.endswith("_total"):
            raise OptionError(f"counter {metric!r}: expected a name that ends in '_total'; rename it or use gauge()")
        if amount < 0:
            raise OptionError(
                f"counter {metric!r}: expected an amount of 0 or more, got {amount}; use gauge() for levels"
            )
        if result not in RESULTS:
            raise OptionError(f"counter {metric!r}: expected a result among {sorted(RESULTS)}, got {result!r}")
        key = (metric, name, result)
        with self._lock:
            self._totals[key] = self._totals.get(key, 0) + amount

    def gauge(self, metric: str, value: float, *, name: str = "") -> None:
        """Set a level."""
        if metric.endswith("_total"):
            raise OptionError(f"gauge {metric!r}: names that end in '_total' are counters; rename it or use count()")
        with self._lock:
            self._levels[metric, name] = value

    def total(self, metric: str, *, name: str = "", result: Result = "ok") -> float:
        """Return the sum so far; 0 if nothing was counted."""
        return self._totals.get((metric, name, result), 0)

    def level(self, metric: str, *, name: str = "") -> float | None:
        """Return the last level, or None if none was set."""
        return self._levels.get((metric, name))

    def totals(self) -> Mapping[tuple[str, str, str], float]:
        """Return a copy of all sums, by (metric, name, result)."""
        with self._lock:
            return dict(self._totals)
