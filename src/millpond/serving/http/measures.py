"""Counts and durations of the service's calls.

Place on the data path: beside it. A call adds to one bucket and one sum. Names, labels and text are made only when
`/metrics` is asked for.

Invariant: labels are bounded. A path label is the path of a route, never text that a caller wrote.
"""

from bisect import bisect_left
from itertools import repeat

from millpond.metrics.families import Family, Sample, family, histogram, level

BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the histogram of call durations."""

_METHODS = frozenset({"GET", "HEAD", "POST"})


class CallMeasures:
    """Counts and durations of the calls of one process; for one thread. Methods that no route has count as "other".

    >>> from millpond.metrics.families import prometheus_text
    >>> measures = CallMeasures()
    >>> measures.add("/health", "GET", 200, 0.004)
    >>> print(prometheus_text(measures.families(in_flight=0, connections=1)).splitlines()[2])
    millpond_http_requests_total{path="/health",method="GET",status="200"} 1
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str, int], list[float]] = {}

    def add(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a call that ended."""
        key = (path, method if method in _METHODS else "other", status)
        counted = self._calls.get(key)
        if counted is None:
            counted = self._calls[key] = [0] * (len(BUCKETS_SECONDS) + 1) + [0.0]
        counted[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        counted[-1] += seconds

    def families(self, *, in_flight: int, connections: int) -> list[Family]:
        """Return all that was counted, and how many calls and connections are open at present."""
        requests, by_path = [], dict[str, list[float]]()
        for (path, method, status), counted in sorted(self._calls.items()):
            labels = {"path": path, "method": method, "status": str(status)}
            requests.append(Sample("", labels, sum(counted[:-1])))
            by_path[path] = [one + other for one, other in zip(by_path.get(path, repeat(0)), counted, strict=False)]
        durations = [
            sample
            for path, (*buckets, seconds) in by_path.items()
            for sample in histogram({"path": path}, BUCKETS_SECONDS, buckets, seconds)
        ]
        return [
            family("millpond_http_requests_total", requests),
            family("millpond_http_request_duration_seconds", durations),
            level("millpond_http_calls_in_flight", in_flight),
            level("millpond_http_connections", connections),
        ]
