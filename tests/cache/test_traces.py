"""Real traces: our LRU hits exactly as often as any true LRU, and W-TinyLFU more often."""

import lzma
import sys
from array import array
from itertools import islice
from pathlib import Path

import pytest

from millpond.cache import new_cache

ORM_BUSY_TRUE_LRU = {500: 0.6928, 1_000: 0.7878, 2_000: 0.8139, 5_000: 0.8546}
WEB07_TRUE_LRU = {500: 0.4558, 1_000: 0.5041, 2_000: 0.5550, 5_000: 0.6267}


@pytest.fixture(scope="module")
def web07():
    return read_trace("web07.trace.xz")


def read_trace(name):
    for parent in Path(__file__).parents:
        path = parent / "shared" / "traces" / name
        if path.exists():
            keys = array("I", lzma.decompress(path.read_bytes()))
            if sys.byteorder == "little":
                keys.byteswap()
            return keys
    pytest.skip(f"{name} is not beside this checkout (shared/traces)")
    return None


def hit_rate(keys, **options):
    cache = new_cache("trace", **options)
    for key in keys:
        if cache.get(key) is None:
            cache.put(key, True)
    return cache.stats().hit_rate


@pytest.mark.parametrize(("size", "expected"), WEB07_TRUE_LRU.items())
def test_lru_reproduces_the_true_hit_rate_of_web07(web07, size, expected):
    assert round(hit_rate(web07, max_entries=size), 4) == expected


def test_lru_by_bytes_of_one_each_is_lru_by_entries(web07):
    by_bytes = hit_rate(web07, max_bytes=500, weigher=lambda _key, _value: 1)
    assert round(by_bytes, 4) == WEB07_TRUE_LRU[500]


@pytest.mark.parametrize("size", [500, 1_000])
def test_w_tinylfu_beats_lru_on_web07_at_small_sizes(web07, size):
    assert hit_rate(web07, max_entries=size, policy="w-tinylfu") > WEB07_TRUE_LRU[size] + 0.02


@pytest.mark.parametrize("size", [2_000, 5_000])
def test_w_tinylfu_is_about_as_good_as_lru_where_nearly_all_fits(web07, size):
    assert hit_rate(web07, max_entries=size, policy="w-tinylfu") > WEB07_TRUE_LRU[size] - 0.005


@pytest.mark.soak  # `test_best_window` says in short which window each load gets
@pytest.mark.parametrize(("size", "gain"), [(500, 0.005), (1_000, -0.01), (2_000, 0.002), (5_000, 0.005)])
def test_w_tinylfu_holds_its_own_on_a_trace_where_recency_rules(size, gain):
    keys = read_trace("orm-busy.trace.xz")
    assert hit_rate(keys, max_entries=size, policy="w-tinylfu") > ORM_BUSY_TRUE_LRU[size] + gain


def test_a_scan_does_not_flush_w_tinylfu_as_it_flushes_lru():
    popular = list(range(80))
    keys = popular * 20 + list(range(1_000, 3_000)) + popular
    rates = {}
    for policy in ("lru", "w-tinylfu"):
        cache = new_cache("scan", max_entries=100, policy=policy)
        for key in keys[: -len(popular)]:
            if cache.get(key) is None:
                cache.put(key, True)
        rates[policy] = sum(cache.get(key) is not None for key in islice(keys, len(keys) - len(popular), None))
    assert rates["lru"] == 0
    assert rates["w-tinylfu"] > 30
