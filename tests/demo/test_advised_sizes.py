"""The size that the curve of the demo's cache of planes advises for a hit rate has that hit rate, on real flights."""

import gc

import pyarrow.compute as pc
import pytest

from millpond.cache.curves import advice_on, smallest_size
from millpond.cache.curves.registry import report_on
from millpond.demo.data import load
from millpond.demo.job import EVENTS_PER_SLICE
from millpond.demo.lookups import lookup_tables, write_planes, write_weather

FLIGHTS = 60_000
POINTS = 0.02


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    year, folder = load(), tmp_path_factory.mktemp("planes")
    write_planes(folder, year.planes)
    write_weather(folder, year.weather)
    return folder


@pytest.fixture(scope="module")
def batches():
    """The aircraft of the year's first flights, in micro-batches as the demo's stream has them."""
    flights = load().flights
    flights = flights.filter(pc.is_valid(flights["tailnum"])).sort_by([("time_ms", "ascending")]).slice(0, FLIGHTS)
    tails = [(tail,) for tail in flights["tailnum"].to_pylist()]
    return [tails[start : start + EVENTS_PER_SLICE] for start in range(0, len(tails), EVENTS_PER_SLICE)]


def followed(folder, batches, planes_cached, *, hit_rate_curve=False):
    """The hit rate of the cache of planes over all flights, and what its curve says."""
    with (
        lookup_tables(folder, planes_cached, hit_rate_curve=hit_rate_curve) as tables,
        tables["planes"].open() as planes,
    ):
        for batch in batches:
            planes.lookup_many(batch)
        report = None if planes.recording is None else report_on("planes", planes.recording)
        return planes.stats().hit_rate, report


def test_the_demo_with_the_advised_size_has_the_wanted_hit_rate_within_two_points(folder, batches):
    small, report = followed(folder, batches, 1_500, hit_rate_curve=True)
    gc.collect()
    assert report.present_rate() == pytest.approx(small, abs=POINTS)
    assert "too small" in [finding.verdict for finding in advice_on(report).findings]
    for part in (0.75, 0.95):
        wanted = part * report.curve.highest()
        advised = round(smallest_size(report, wanted).entries)
        had, _ = followed(folder, batches, advised)
        print(f"wanted {wanted:.3f}, advised {advised:,} planes, had {had:.3f}")
        assert had == pytest.approx(wanted, abs=POINTS)
