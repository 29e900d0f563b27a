"""What the page says of caches whose hit-rate curves are recorded, and of others."""

import pytest

from millpond.cache.curves import CacheReport, HitRateCurve, Point
from millpond.metrics.families import Sample, family
from millpond.ui.cache_views import cache_views

CURVES = {
    "lru": HitRateCurve((Point(100, 10_000, 0.2), Point(1_000, 100_000, 0.9))),
    "w-tinylfu": HitRateCurve((Point(100, 10_000, 0.5), Point(1_000, 100_000, 0.9))),
}
FAMILIES = [
    family(
        "millpond_cache_requests_total",
        [Sample("", {"cache": name, "result": "hit"}, 7) for name in ("planes", "routes")],
    )
]


def report(max_entries, max_bytes):
    return CacheReport("planes", "lru", max_entries, max_bytes, 100, 100, 10_000, 5_000, 0.2, CURVES)


@pytest.mark.parametrize(
    ("bounds", "unit", "sizes", "present"),
    [((100, None), "entries", [100, 1_000], 100), ((None, 10_000), "bytes", [10_000, 100_000], 10_000)],
)
def test_a_recorded_cache_has_its_curves_in_the_unit_of_its_bound_and_its_advice(bounds, unit, sizes, present):
    planes, routes = cache_views(FAMILIES, {}, reports=[report(*bounds)]).caches
    assert (planes.curve.unit, planes.curve.sizes, planes.curve.present) == (unit, sizes, present)
    assert planes.curve.lines == {"lru": [0.2, 0.9], "w-tinylfu": [0.5, 0.9]}
    assert [text.split(":")[0] for text in planes.advice] == [
        "Too small",
        "The policy 'w-tinylfu' would hit 50.0 % at this size, 'lru' hits 20.0 %.",
    ]
    assert routes.curve is routes.advice is None


def test_a_cache_of_which_nothing_was_asked_yet_shows_no_curve():
    empty = CacheReport("planes", "lru", 100, None, 100, 0, None, 0, 0.0, {})
    assert cache_views(FAMILIES, {}, reports=[empty]).caches[0].curve is None
