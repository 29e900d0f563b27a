"""The size of the batch cache: how it is said, and that the estimate of bytes is of the right order."""

import pytest

from millpond.cache import deep_size
from millpond.errors import OptionError
from millpond.serving.batch_cache import CachedBatch, batch_cache, parse_cache_size, sizes_by_name

from .world import BATCH_END_MS, ROUTE_PLAN


@pytest.mark.parametrize(
    ("size", "parsed"),
    [
        (0, (0, None)),
        ("10000", (10_000, None)),
        ("50MB", (None, 50_000_000)),
        ("50 mb", (None, 50_000_000)),
        ("64MiB", (None, 64 << 20)),
        ("2GB", (None, 2_000_000_000)),
        ("100B", (None, 100)),
    ],
)
def test_a_size_is_entries_or_bytes_with_a_unit(size, parsed):
    assert parse_cache_size("route", size) == parsed


@pytest.mark.parametrize("size", ["50 cows", "-1", -1, "1.5MB", "", True, None, "50M"])
def test_any_other_size_is_refused_and_names_the_group_by(size):
    with pytest.raises(OptionError, match="fetcher_cache_size of GroupBy 'route'"):
        parse_cache_size("route", size)


def test_a_size_for_a_group_by_that_is_not_served_is_refused():
    with pytest.raises(OptionError, match=r"\['rute'\]"):
        sizes_by_name({"rute": 10}, ["route"])


@pytest.mark.parametrize("events", [1, 50, 2_000])
def test_the_estimate_of_an_entrys_bytes_is_within_a_factor_of_two(events):
    ir = ROUTE_PLAN.batch_ir(
        [(BATCH_END_MS - number * 1_234_567 - 1, (number * 0.37,)) for number in range(events)], BATCH_END_MS
    )
    cache = batch_cache("route", "1GB")
    key = ("route.batch.0.1", b"x" * 20, BATCH_END_MS, 1)
    cache.put(key, CachedBatch(ir, len(ROUTE_PLAN.encode_batch(key[1], ir))))
    real = deep_size(key, (ir.batch_end_ms, ir.segments, ir.columns))
    assert real / 2 < cache.stats().bytes < real * 2
