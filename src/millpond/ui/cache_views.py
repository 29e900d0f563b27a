"""Makes the page's document of the caches from the metric families of a process's exporter.

Place on the data path: beside it. The families of processes that share a port are summed up by cache, so the page shows
the same whichever process answers.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from millpond.cache.curves.advice import advice_on
from millpond.cache.curves.report import CacheReport
from millpond.metrics.families import Family
from millpond.ui.views import Caches, CacheView, HitRateCurve

SHOWN = 100
"""The largest number of caches in one answer."""

_FIELDS = {
    ("millpond_cache_requests_total", "hit"): "hits",
    ("millpond_cache_requests_total", "miss"): "misses",
    ("millpond_cache_evictions_total", "size"): "evictions",
    ("millpond_cache_evictions_total", "age"): "expirations",
    ("millpond_cache_entries", ""): "entries",
    ("millpond_cache_bytes", ""): "bytes",
    ("millpond_lookup_requests_total", "hit"): "hits",
    ("millpond_lookup_requests_total", "miss"): "misses",
    ("millpond_lookup_cached_records", ""): "entries",
    ("millpond_lookup_cached_bytes", ""): "bytes",
    ("millpond_keyed_cache_requests_total", "hit"): "hits",
    ("millpond_keyed_cache_requests_total", "miss"): "misses",
    ("millpond_state_cache_requests_total", "hit"): "hits",
    ("millpond_state_cache_requests_total", "miss"): "misses",
}
"""The field of a cache view, by metric and the value of its label `result` or `cause`."""

_NAMES = {"cache": "", "table": "lookup ", "operator": "state of "}
"""The labels that name a cache, each with the prefix of the shown name."""


class Bounds(msgspec.Struct, frozen=True):
    """The limits of a cache; None means no limit of that kind."""

    max_entries: int | None = None
    max_bytes: int | None = None


def cache_views(
    families: Iterable[Family],
    bounds: Mapping[str, Bounds],
    search: str = "",
    reports: Iterable[CacheReport] = (),
) -> Caches:
    """Return the caches whose names contain `search`, most misses first. `reports` adds their curves and advice."""
    recorded = {report.name: report for report in reports}
    found: dict[str, dict[str, float]] = {}
    for one in families:
        for sample in one.samples:
            field = _FIELDS.get((one.name, sample.labels.get("result") or sample.labels.get("cause") or ""))
            if field is not None:
                fields = found.setdefault(_name(sample.labels), {})
                fields[field] = fields.get(field, 0) + sample.value
    counted = [
        CacheView(
            name=name,
            **({"hits": 0.0, "misses": 0.0} | fields),  # type: ignore[arg-type]
            **_bounds(bounds.get(name)),
            **_recorded(recorded.get(name)),
        )
        for name, fields in found.items()
        if search.lower() in name.lower()
    ]
    counted.sort(key=lambda cache: (-cache.misses, cache.name))
    return Caches(counted[:SHOWN], len(counted))


def _name(labels: Mapping[str, str]) -> str:
    for label, before in _NAMES.items():
        if label in labels:
            return before + labels[label]
    return "keyed state"


def _bounds(bounds: Bounds | None) -> dict[str, Any]:
    return {} if bounds is None else msgspec.structs.asdict(bounds)


def _recorded(report: CacheReport | None) -> dict[str, Any]:
    if report is None or not report.curve.points:
        return {}
    in_bytes = report.max_bytes is not None
    points = report.curve.points
    curve = HitRateCurve(
        unit="bytes" if in_bytes else "entries",
        sizes=[point.bytes if in_bytes else point.entries for point in points],
        lines={policy: [point.hit_rate for point in curve.points] for policy, curve in report.curves.items()},
        present=report.max_bytes if in_bytes else report.present,
    )
    return {"curve": curve, "advice": [finding.text for finding in advice_on(report).findings]}
