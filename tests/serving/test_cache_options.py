"""How large caches are: definitions say, the fetcher's arguments override, the budget caps; weights are real."""

import sys
import tracemalloc
from dataclasses import replace

import pytest

from millpond.errors import OptionError
from millpond.features import HOUR_MS, MINUTE_MS, compile_group_by
from millpond.kv import RedisStore
from millpond.serving import Fetcher
from millpond.serving.caches.batch_rows import BatchRow
from millpond.serving.caches.doorkeeper import Doorkeeper
from millpond.serving.groups.cache_options import DEFAULT_BYTES, CacheBound, bounds_of, parse_cache_size

from .world import AIRCRAFT_PLAN, BATCH_END_MS, PLANS, ROUTE, ROUTE_PLAN, Stream, WatchedStore, upload


def bounds(**options):
    return bounds_of(PLANS, **options)


def test_caching_is_off_until_asked_for():
    assert all(one.batch.is_off and one.tiles.is_off for one in bounds().values())


def test_enabled_without_a_size_each_cache_gets_50_mb():
    enabled = compile_group_by(replace(ROUTE, enable_fetcher_caching=True))
    (found,) = bounds_of([enabled]).values()
    assert found.batch == found.tiles == CacheBound(max_bytes=DEFAULT_BYTES)


def test_a_declared_size_asks_for_its_cache_and_an_argument_overrides_it():
    sized = compile_group_by(replace(ROUTE, fetcher_cache_size="100MB", fetcher_tile_cache_size=10_000))
    (found,) = bounds_of([sized]).values()
    assert (found.batch.max_bytes, found.tiles.entries) == (100_000_000, 10_000)
    (overridden,) = bounds_of([sized], fetcher_cache_size={"route": 7}, enable_fetcher_caching=False).values()
    assert overridden.batch.entries == 7
    assert overridden.tiles.is_off


def test_a_budget_gives_each_its_share_and_says_so(caplog):
    found = bounds(enable_fetcher_caching=True, fetcher_cache_size={"route": "100MB"}, cache_budget="100MB")
    assert found["route"].batch.max_bytes == 40_000_000
    assert found["route"].tiles.max_bytes == found["aircraft"].tiles.max_bytes == 20_000_000
    assert "each gets 40 % of" in caplog.text


@pytest.mark.parametrize(("budget", "share"), [("1MB", "0.5 %"), ("199900KB", "100 %"), ("20KB", "0.01 %")])
def test_a_share_is_told_with_a_digit_that_is_not_0(caplog, budget, share):
    bounds(enable_fetcher_caching=True, cache_budget=budget)
    assert f"each gets {share} of" in caplog.text


@pytest.mark.parametrize("size", ["50 M", "-1", "many", True, 1.5])
def test_a_malformed_size_is_refused_with_what_it_may_be(size):
    with pytest.raises(OptionError, match="64MiB"):
        parse_cache_size("fetcher_cache_size", size)


def test_a_size_for_an_unknown_group_by_is_refused_with_the_nearest():
    with pytest.raises(OptionError, match="did you mean 'route'"):
        Fetcher(WatchedStore(), PLANS, fetcher_cache_size={"rout": 5})


@pytest.mark.parametrize("option", [{"steps": ["tiles"]}, {"stale": "maybe"}, {"tail_freshness_ms": -1}])
def test_a_wrong_option_is_named(option):
    with pytest.raises(OptionError, match=next(iter(option))):
        Fetcher(WatchedStore(), PLANS, **option)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_the_weights_are_within_a_fifth_of_what_entries_take(plan):
    store = WatchedStore()
    keys = [(f"A{number}", "UA") if plan is ROUTE_PLAN else (f"N{number}",) for number in range(300)]

    def events(number):
        inputs = (float(number) + 0.1, f"N{number}") if plan is ROUTE_PLAN else (float(number) + 0.1,)
        return [(BATCH_END_MS - (step * 7 + number % 5) * HOUR_MS - 1, inputs) for step in range(3 + number % 40)] + [
            (BATCH_END_MS + step * 9 * MINUTE_MS, inputs) for step in range(number % 30)
        ]

    upload(store, plan, {key: events(number) for number, key in enumerate(keys)})
    stream = Stream(store, plan)
    for number, key in enumerate(keys):
        stream.add(key, [event for event in events(number) if event[0] >= BATCH_END_MS])
    stream.close(BATCH_END_MS + 5 * HOUR_MS)
    now_ms = BATCH_END_MS + 5 * HOUR_MS + 1
    fetcher = Fetcher(store, [plan], enable_fetcher_caching=True)
    names = [field.name for field in plan.group_by.keys]
    asked = [dict(zip(names, key, strict=True)) for key in keys]
    fetcher.fetch(plan.name, asked[0], now_ms)
    tracemalloc.start()
    before = sum(cache.bytes for cache in fetcher.stats().caches.values())
    for one in asked[1:]:
        fetcher.fetch(plan.name, one, now_ms)
    store.asked.clear()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    weighed = sum(cache.bytes for cache in fetcher.stats().caches.values()) - before
    assert 0.8 < weighed / grown < 1.2, f"{weighed} bytes weighed, {grown} taken ({sys.version})"


def full_cache(hits):
    """A cache that is full and has so many hits, and its doorkeeper."""
    fetcher = Fetcher(WatchedStore(), [AIRCRAFT_PLAN], fetcher_cache_size=10)
    cache = fetcher.groups[0].batch_cache
    keeper = Doorkeeper(cache)
    for number in range(30):
        cache.put(b"%d" % number, BatchRow(None, None))
    (kept, _), *_ = cache.items()
    for _ in range(hits):
        cache.get(kept)
    for number in range(32):
        keeper.admits(b"key %d" % number)
    return keeper, cache


def test_a_full_cache_lets_in_only_keys_that_were_missed_twice_before():
    keeper, _ = full_cache(hits=100)
    assert [keeper.admits(b"new") for _ in range(3)] == [False, False, True]


def test_a_cache_that_has_room_again_lets_every_key_in():
    keeper, cache = full_cache(hits=100)
    for key, _ in list(cache.items()):
        cache.invalidate(key)
    admitted = [keeper.admits(b"new %d" % number) for number in range(200)]
    assert not admitted[0]
    assert all(admitted[64:])


def test_a_full_cache_makes_as_many_entries_as_its_hits_pay_for():
    keeper, _ = full_cache(hits=24)
    keys = [b"new %d" % number for number in range(7)]
    assert not any(keeper.admits(key) for key in keys * 2)
    assert [keeper.admits(key) for key in keys] == [True] * 3 + [False] * 4


def test_a_full_cache_without_hits_still_tries_some_keys():
    keeper, _ = full_cache(hits=0)
    assert not keeper.admits(b"new")
    assert not keeper.admits(b"new")
    assert [keeper.admits(b"new") for _ in range(16)].count(True) == 2


@pytest.mark.parametrize(
    "store",
    [
        RedisStore("redis://one", read_from="replicas", replicas="two:6379"),
        RedisStore("redis+cluster://one:7000", read_from="replicas"),
    ],
    ids=["one server", "cluster"],
)
def test_what_may_lag_behind_is_not_cached(store):
    # A row that a replica does not have yet would be cached as absent until the next batch lands.
    with pytest.raises(OptionError, match=r"reads from replicas, and the GroupBys \['route', 'aircraft'\] are cached"):
        Fetcher(store, PLANS, enable_fetcher_caching=True)
    Fetcher(store, PLANS, enable_fetcher_caching=False)
