"""Sums up every metric for the page, to few numbers, however many GroupBys, caches, tables and processes there are.

Place on the data path: beside it, between the metric families of an exporter and the view *Overview*. Only labels with
few values are kept, such as the result or the phase.
"""

from collections.abc import Iterable

from millpond.metrics.families import Family

KEPT_LABELS = frozenset({"result", "state", "kind", "phase", "cause", "status", "place", "direction", "le"})
"""The labels that are kept. Samples are summed over all others."""

_GREATEST = "_age_seconds"
"""The suffix of metrics whose greatest value is shown instead of the sum."""


def totals(families: Iterable[Family]) -> dict[str, dict[str, float]]:
    """Sum up samples by metric name and kept labels.

    >>> from millpond.metrics.families import Sample, family
    >>> hits = family("millpond_cache_requests_total", [
    ...     Sample("", {"cache": "route.batch", "result": "hit"}, 3), Sample("", {"cache": "b", "result": "hit"}, 4)])
    >>> totals([hits])
    {'millpond_cache_requests_total': {'result=hit': 7}}
    """
    found: dict[str, dict[str, float]] = {}
    for one in families:
        takes_greatest = is_greatest(one.name)
        for sample in one.samples:
            of = found.setdefault(one.name + sample.suffix, {})
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()) if name in KEPT_LABELS)
            before = of.get(labels, 0)
            of[labels] = max(before, sample.value) if takes_greatest else before + sample.value
    return found


def is_greatest(name: str) -> bool:
    """Return whether a metric's greatest sample is shown instead of the sum."""
    return name.endswith(_GREATEST)
