"""What the service counts of its calls, and the Prometheus text of that and of what the fetcher counts.

Place on the data path: beside it. A call adds to one bucket and one sum. Names, labels and
text are made only when `/metrics` is asked for. This file is the only one that knows their vocabulary.

Invariant: labels are bounded. A path is that of a route and never what a caller wrote; `process` is the
number of a worker.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from typing import Any, Literal

import msgspec

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The upper bounds of the histogram of call durations."""

_METHODS = frozenset({"GET", "HEAD", "POST"})
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Sample(msgspec.Struct, frozen=True):
    """One number of a family: what follows its name, its labels, its value."""

    suffix: str
    labels: dict[str, str]
    value: float


class Family(msgspec.Struct, frozen=True):
    """All numbers of one name."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: list[Sample]


class CallMeasures:
    """Counts and durations of the calls of one process; for one thread. Methods that no route has are counted as one.

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
        """All that was counted, and how much is open now."""
        requests, by_path = [], dict[str, list[float]]()
        for (path, method, status), counted in sorted(self._calls.items()):
            labels = {"path": path, "method": method, "status": str(status)}
            requests.append(Sample("", labels, sum(counted[:-1])))
            by_path[path] = [one + other for one, other in zip(by_path.get(path, repeat(0)), counted, strict=False)]
        durations = [
            sample
            for path, (*buckets, seconds) in by_path.items()
            for sample in _histogram({"path": path}, BUCKETS_SECONDS, buckets, seconds)
        ]
        return [
            Family("millpond_http_requests_total", "counter", "Calls answered, by route, method and status.", requests),
            Family("millpond_http_request_duration_seconds", "histogram", "How long calls took.", durations),
            _one("millpond_http_calls_in_flight", "Fetches that run now.", in_flight),
            _one("millpond_http_connections", "Connections that are open now.", connections),
        ]


def fetcher_families(stats: msgspec.Struct) -> list[Family]:
    """What a fetcher counts, as its statistics name it.

    A whole number is a counter, but for bytes, which are a gauge. `caches` and `freshness` are by name,
    `latencies` are histograms by what was timed.
    """
    counted: Mapping[str, Any] = msgspec.to_builtins(stats)
    families = []
    for name, value in counted.items():
        if name.endswith("_bytes"):
            families.append(_one(f"millpond_fetcher_{name}", f"The fetcher's {_words(name)}.", value))
        elif isinstance(value, int):
            samples = [Sample("", {}, value)]
            families.append(
                Family(f"millpond_fetcher_{name}_total", "counter", f"The fetcher's {_words(name)}.", samples)
            )
    families += _by_name("cache", "The caches'", counted.get("caches", {}))
    families += _by_name("served", "What is served:", counted.get("freshness", {}))
    latencies: Mapping[str, Mapping[str, Any]] = counted.get("latencies", {})
    durations = [
        sample
        for name, timed in latencies.items()
        for sample in _histogram({"name": name}, timed["bounds_seconds"], timed["counts"], timed["seconds"])
    ]
    if durations:
        families.append(Family("millpond_fetcher_duration_seconds", "histogram", "How long it took.", durations))
    return families


def _by_name(what: str, text: str, named: Mapping[str, Mapping[str, Any]]) -> list[Family]:
    """A gauge for each number that something with a name has; ages become seconds."""
    families = []
    for field in dict.fromkeys(field for numbers in named.values() for field in numbers):
        unit = 1_000 if field.endswith("_ms") else 1
        samples = [
            Sample("", {"name": name}, numbers[field] / unit if unit > 1 else int(numbers[field]))
            for name, numbers in named.items()
            if isinstance(numbers.get(field), int)
        ]
        if samples:
            metric = f"{field.removesuffix('_ms')}_seconds" if unit > 1 else field
            families.append(Family(f"millpond_fetcher_{what}_{metric}", "gauge", f"{text} {_words(metric)}.", samples))
    return families


def _histogram(
    labels: Mapping[str, str], bounds: Sequence[float], counts: Sequence[float], seconds: float
) -> list[Sample]:
    """The samples of a histogram, from what fell into each bucket."""
    totals = list(accumulate(counts))
    buckets = [
        Sample("_bucket", {**labels, "le": bound}, total)
        for bound, total in zip([*map(str, bounds), "+Inf"], totals, strict=True)
    ]
    return [*buckets, Sample("_sum", dict(labels), seconds), Sample("_count", dict(labels), totals[-1])]


def of_processes(families_of: Mapping[str, Sequence[Family]]) -> list[Family]:
    """The families of several processes as one list, each sample with the label `process`."""
    merged: dict[str, Family] = {}
    for process, families in families_of.items():
        for family in families:
            into = merged.setdefault(family.name, msgspec.structs.replace(family, samples=[]))
            into.samples.extend(
                Sample(sample.suffix, {**sample.labels, "process": process}, sample.value) for sample in family.samples
            )
    return list(merged.values())


def prometheus_text(families: Iterable[Family]) -> str:
    """The text that Prometheus reads."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
        lines += [f"{family.name}{sample.suffix}{_labels(sample.labels)} {sample.value}" for sample in family.samples]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    written = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{written}}}" if written else ""


def _one(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, [Sample("", {}, value)])


def _words(name: str) -> str:
    return name.replace("_", " ")
