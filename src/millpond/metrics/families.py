"""Metrics in the form of Prometheus: families of samples, and their text.

Place on the data path: beside it, between the code that counts and an exporter. Names, labels and text are made only
when an exporter asks for them.

Source: Prometheus, "Exposition formats", text format 0.0.4.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from millpond.metrics.vocabulary import METRICS, Kind

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Sample(NamedTuple):
    """One number of a family: the suffix of its name, its labels, its value."""

    suffix: str
    labels: dict[str, str]
    value: float


class Family(NamedTuple):
    """All samples of one metric."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample]


def family(name: str, samples: Iterable[Sample]) -> Family:
    """Make the family of a metric of the vocabulary."""
    metric = METRICS[name]
    return Family(name, metric.kind, metric.help, list(samples))


def level(name: str, value: float) -> Family:
    """Make the family of a metric that is one number."""
    return family(name, [Sample("", {}, value)])


def histogram(
    labels: Mapping[str, str], bounds: Sequence[float], counts: Sequence[float], seconds: float
) -> list[Sample]:
    """Make the samples of a histogram.

    Args:
        labels: the labels of all samples.
        bounds: the upper bound of each bucket except the last.
        counts: the number of values in each bucket.
        seconds: the sum of all values.
    """
    totals = list(accumulate(counts))
    buckets = [
        Sample("_bucket", {**labels, "le": bound}, total)
        for bound, total in zip([*map(str, bounds), "+Inf"], totals, strict=True)
    ]
    return [*buckets, Sample("_sum", dict(labels), seconds), Sample("_count", dict(labels), totals[-1])]


def of_processes(families_of: Mapping[str, Sequence[Family]]) -> list[Family]:
    """Merge the families of several processes. Each sample gets the label `process`."""
    merged: dict[str, Family] = {}
    for process, families in families_of.items():
        for one in families:
            into = merged.setdefault(one.name, one._replace(samples=[]))
            into.samples.extend(
                Sample(sample.suffix, {**sample.labels, "process": process}, sample.value) for sample in one.samples
            )
    return list(merged.values())


def prometheus_text(families: Iterable[Family]) -> str:
    """Return the text that Prometheus reads.

    >>> print(prometheus_text([level("millpond_http_connections", 3)]), end="")
    # HELP millpond_http_connections Connections that are open now.
    # TYPE millpond_http_connections gauge
    millpond_http_connections 3
    """
    lines: list[str] = []
    for one in families:
        lines.append(_head(one.name, one.kind, one.help))
        lines += [f"{one.name}{sample.suffix}{_labels(sample.labels)} {sample.value}" for sample in one.samples]
    return "".join(f"{line}\n" for line in lines)


@cache
def _head(name: str, kind: Kind, text: str) -> str:
    """Return the lines before the samples of a family; there are as many families as the vocabulary has metrics."""
    return f"# HELP {name} {text.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}"


def _labels(labels: Mapping[str, str]) -> str:
    written = ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])
    return f"{{{written}}}" if written else ""


def _escaped(value: str) -> str:
    # `translate` takes much longer than these searches, and almost no value needs it.
    return value.translate(_ESCAPES) if "\\" in value or '"' in value or "\n" in value else value
