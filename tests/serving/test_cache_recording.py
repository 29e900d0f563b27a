"""A fetcher records its caches where it is asked to, and its budget follows the curves."""

from millpond.cache.curves.registry import recordings_of
from millpond.cache.curves.trace import read_trace
from millpond.serving import Fetcher
from millpond.serving.caches.batch_rows import BatchRow
from millpond.serving.groups.cache_options import CacheBound

from .world import EWR, NOON_MS, PLANS, ROUTE_PLAN, small_world


def caches(fetcher):
    return [cache for group in fetcher.groups for cache in (group.batch_cache, group.tile_cache) if cache is not None]


def test_a_fetcher_records_nothing_until_it_is_asked_to():
    store, *_ = small_world()
    fetcher = Fetcher(store, PLANS, enable_fetcher_caching=True)
    fetcher.fetch("route", EWR, NOON_MS)
    assert recordings_of(caches(fetcher)) == {}


def test_every_cache_of_a_fetcher_is_recorded_and_answers_are_the_same():
    store, *_ = small_world()
    plain = Fetcher(store, PLANS, enable_fetcher_caching=True)
    with Fetcher(store, PLANS, enable_fetcher_caching=True, hit_rate_curves=True) as fetcher:
        for _ in range(3):
            assert fetcher.fetch("route", EWR, NOON_MS) == plain.fetch("route", EWR, NOON_MS)
        found = recordings_of(caches(fetcher))
        assert len(found) == len(caches(fetcher)) == 4
        assert sum(one.requests for one in found.values()) > 0


def test_a_budget_with_curves_is_split_by_them_and_not_by_fixed_shares():
    store, *_ = small_world()
    with Fetcher(store, PLANS, enable_fetcher_caching=True, hit_rate_curves=True, cache_budget="4MB") as fetcher:
        assert {cache.bounds.max_bytes for cache in caches(fetcher)} == {1_000_000}
        assert set(fetcher.cache_bounds.values()) == {CacheBound(max_bytes=1_000_000)}
        busy = fetcher.groups[0].batch_cache
        for number in range(60_000):
            key = b"%d" % (number % 6_000)
            if busy.get(key) is None:
                busy.put(key, BatchRow(None, None))
        fetcher._budget.apply()
        sizes = [cache.bounds.max_bytes for cache in caches(fetcher)]
        assert busy.bounds.max_bytes == max(sizes) > 2_000_000
        assert sum(sizes) <= 4_000_000
        assert sizes == [fetcher.cache_bounds[cache.name].max_bytes for cache in caches(fetcher)]


def test_the_keys_of_each_cache_are_written_to_a_trace(tmp_path):
    store, *_ = small_world()
    for _ in range(2):
        with Fetcher(store, [ROUTE_PLAN], enable_fetcher_caching=True, cache_traces=tmp_path) as fetcher:
            for _ in range(5):
                fetcher.fetch("route", EWR, NOON_MS)
    written = {path.name: read_trace(path) for path in tmp_path.iterdir()}
    assert set(written) == {
        "route.batch.trace",
        "route.batch-2.trace",
        "route.tiles.trace",
        "route.tiles-2.trace",
    }
    assert len(written["route.tiles.trace"]) >= 5
