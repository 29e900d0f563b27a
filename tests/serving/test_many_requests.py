"""Many requests in one call: equal to each alone, one call of the store, and each failure for itself."""

import msgspec
import pytest

from millpond.errors import DataError, UnavailableError
from millpond.features import HOUR_MS, MINUTE_MS, Join, JoinPart, stream_dataset
from millpond.kv import PartlyReadError, Put
from millpond.serving import Fetcher, FetchRequest
from millpond.serving.groups.served_group import STEPS

from .world import (
    BATCH_END_MS,
    EWR,
    NOON_MS,
    PLANS,
    ROUTE,
    ROUTE_PLAN,
    Clock,
    Stream,
    WatchedStore,
    read_directly,
    small_world,
    upload,
)

ROUTES = [{"origin": f"A{number}", "carrier": "UA"} for number in range(6)]


def world_of_routes(store):
    """A batch of all routes, and a stream: each has an open tile, and every other one more before it."""
    info = upload(
        store,
        ROUTE_PLAN,
        {tuple(one.values()): [(BATCH_END_MS - HOUR_MS, (float(place), "N1"))] for place, one in enumerate(ROUTES)},
    )
    stream = Stream(store, ROUTE_PLAN)
    for place, one in enumerate(ROUTES):
        key = tuple(one.values())
        stream.add(key, [(BATCH_END_MS + MINUTE_MS, (1.0, "N2"))])
        if place:
            stream.add(key, [(NOON_MS - MINUTE_MS * (1 + 5 * (place % 2)), (2.0, None))])
        if place > 2:
            stream.add(key, [(NOON_MS, (3.0, "N3"))])
    stream.close(NOON_MS - 10 * MINUTE_MS)
    return info, stream


def requests_of(routes, at=NOON_MS + 1):
    return [FetchRequest("route", keys, at) for keys in routes]


def test_many_cached_keys_are_answered_as_each_alone_and_counted_alike():
    store = WatchedStore()
    info, stream = world_of_routes(store)
    many, single = (
        Fetcher(store, PLANS, enable_fetcher_caching=True, now=lambda: NOON_MS + 1) for _ in ("many", "single")
    )
    for _ in range(4):
        answers = many.fetch_many(requests_of(ROUTES))
        assert answers == [single.fetch("route", keys) for keys in ROUTES]
        expected = [read_directly(store, ROUTE_PLAN, info, keys, NOON_MS + 1) for keys in ROUTES]
        assert [answer.features for answer in answers] == expected
    stream.add(tuple(ROUTES[1].values()), [(BATCH_END_MS + 2 * MINUTE_MS, (50.0, "N9"))])  # late: amends a closed tile
    answers = many.fetch_many(requests_of(ROUTES))
    assert answers == [single.fetch("route", keys) for keys in ROUTES]
    assert answers[1].features == read_directly(store, ROUTE_PLAN, info, ROUTES[1], NOON_MS + 1)
    counts, expected = (msgspec.structs.asdict(fetcher.stats()) for fetcher in (many, single))
    for count in ("requests", "present", "null", "batch_gets", "stream_gets", "rows_read", "bytes_read", "tiles_read"):
        assert counts[count] == expected[count], count
    for count in ("batch_gets_saved", "tiles_saved"):
        assert counts[count] == expected[count] > 0, count
    for name, cache in counts["caches"].items():
        assert (cache.hits, cache.misses) == (expected["caches"][name].hits, expected["caches"][name].misses)


def test_many_keys_of_which_some_are_cached_are_one_call():
    store = WatchedStore()
    info, _ = world_of_routes(store)
    fetcher = Fetcher(store, PLANS, enable_fetcher_caching=True, now=lambda: NOON_MS + 1)
    fetcher.fetch_many(requests_of(ROUTES[:3]))
    store.asked.clear()
    before = fetcher.stats()
    answers = fetcher.fetch_many(requests_of(ROUTES))
    after = fetcher.stats()
    assert len(store.asked) == after.kv_calls - before.kv_calls == 1
    assert [get.dataset for get in store.asked[0]].count(info.batch_dataset) == 3
    assert [one.features for one in answers] == [
        read_directly(store, ROUTE_PLAN, info, keys, NOON_MS + 1) for keys in ROUTES
    ]
    assert after.requests - before.requests == len(ROUTES)


PAIR = Join(
    "pair",
    parts=(
        JoinPart(ROUTE, prefix="one"),
        JoinPart(ROUTE, key_mapping={"other": "origin", "carrier": "carrier"}, prefix="two"),
    ),
)


def pairs_of(routes, features=None):
    """Requests that have the first route in common, as of one user and many candidates."""
    first = routes[0]["origin"]
    return [
        FetchRequest(
            "pair", {"origin": first, "carrier": one["carrier"], "other": one["origin"]}, NOON_MS + 1, None, features
        )
        for one in routes
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"enable_fetcher_caching": True},
        {"fetcher_tile_cache_size": 3, "fetcher_cache_size": 3},
        {"enable_fetcher_caching": True, "steps": STEPS[:3]},
        {"enable_fetcher_caching": True, "tail_freshness_ms": 1_000},
        {},
    ],
    ids=["cached", "tiny", "without moved start", "recent tails", "uncached"],
)
@pytest.mark.parametrize("features", [None, ("two_count", "one_count_1d", "two_tail_last2_7d")], ids=["all", "some"])
def test_many_requests_of_a_join_are_answered_as_each_alone_in_one_call(options, features):
    store = WatchedStore()
    info, stream = world_of_routes(store)
    clock = Clock()
    many, single, explained = (
        Fetcher(store, [PAIR], now=lambda: NOON_MS + 1, clock=clock, **options) for _ in ("many", "single", "explained")
    )
    requests = pairs_of([*ROUTES, ROUTES[3]], features)
    for number in range(4):
        calls = many.stats().kv_calls
        answers = many.fetch_many(requests)
        assert number == 0 or many.stats().kv_calls - calls <= 1
        alone = [single.fetch("pair", one.keys, one.at, features=one.features) for one in requests]
        longest = [explained.fetch("pair", one.keys, one.at, features=one.features, explain=True) for one in requests]
        assert answers == alone == [msgspec.structs.replace(one, explain=None) for one in longest]
        for one, answer in zip(requests, answers, strict=True):
            keys = {"origin": one.keys["other"], "carrier": one.keys["carrier"]}
            expected = read_directly(store, ROUTE_PLAN, info, keys, NOON_MS + 1)
            assert answer.features["two_count"] == expected["count"]
        lists = [answer.features["two_tail_last2_7d"] for answer in answers]
        lists[3].append("the caller's own")
        assert lists[-1] != lists[3]
        clock.now_ms += 1_001
        stream.add(tuple(ROUTES[number].values()), [(NOON_MS, (7.0, "N8"))])
    counts, expected = (msgspec.structs.asdict(fetcher.stats()) for fetcher in (many, single))
    for count in ("requests", "present", "null", "unavailable"):
        assert counts[count] == expected[count], count


def test_tails_of_many_keys_may_be_as_old_as_is_allowed():
    store, clock = WatchedStore(), Clock()
    _, stream = world_of_routes(store)
    fetcher = Fetcher(
        store, PLANS, enable_fetcher_caching=True, tail_freshness_ms=500, now=lambda: NOON_MS + 1, clock=clock
    )
    for _ in range(2):
        before = fetcher.fetch_many(requests_of(ROUTES))
    clock.now_ms += 501
    assert fetcher.fetch_many(requests_of(ROUTES)) == before
    store.asked.clear()
    stream.add(tuple(ROUTES[2].values()), [(NOON_MS, (1.0, "N1"))])
    assert fetcher.fetch_many(requests_of(ROUTES)) == before
    assert [fetcher.fetch("route", keys) for keys in ROUTES] == before
    assert store.asked == []
    clock.now_ms += 501
    after = fetcher.fetch_many(requests_of(ROUTES))
    assert after[2].features["count"] == before[2].features["count"] + 1
    assert [one for place, one in enumerate(after) if place != 2] == [*before[:2], *before[3:]]
    assert len(store.asked) == 1


def test_many_requests_of_which_a_key_is_unknown_to_the_batch_take_a_second_call_at_most():
    store = WatchedStore()
    world_of_routes(store)
    fetcher = Fetcher(store, [PAIR], enable_fetcher_caching=True, now=lambda: NOON_MS + 1)
    nobody = {"origin": "XXX", "carrier": "UA"}
    fetcher.fetch_many(pairs_of(ROUTES))
    store.asked.clear()
    first, second = (fetcher.fetch_many(pairs_of([*ROUTES, nobody])) for _ in range(2))
    assert first == second
    assert (first[-1].features["two_count"], first[-1].features["one_count"]) == (None, first[0].features["one_count"])
    assert len(store.asked) == 3
    assert {get.dataset for get in store.asked[1]} == {"serving_info"}


@pytest.mark.parametrize("count", [1, 2])
def test_the_features_of_a_request_may_be_a_list(count):
    store, _, _ = small_world()
    fetcher = Fetcher(store, PLANS, now=lambda: NOON_MS)
    requests = [FetchRequest("route", EWR, features=["count_1h", "count_1d"])] * count
    assert fetcher.fetch_many(requests) == [fetcher.fetch("route", EWR, features=("count_1h", "count_1d"))] * count


def test_a_time_that_is_no_whole_number_is_refused_among_many_keys_too():
    store = WatchedStore()
    world_of_routes(store)
    fetcher = Fetcher(store, PLANS, enable_fetcher_caching=True, now=lambda: NOON_MS + 1)
    fetcher.fetch_many(requests_of(ROUTES))
    odd = FetchRequest("route", ROUTES[1], float(NOON_MS))
    with pytest.raises(DataError, match="whole milliseconds"):
        fetcher.fetch_many([FetchRequest("route", ROUTES[0], NOON_MS), odd])


def test_of_many_cached_keys_those_whose_server_fails_are_unavailable_and_the_others_answered():
    class Partly(WatchedStore):
        away = b""

        def get_many(self, gets):
            rows = super().get_many(gets)
            if any(get.key == self.away for get in gets):
                failure = UnavailableError("one server is away")
                raise PartlyReadError(
                    [failure if get.key == self.away else found for get, found in zip(gets, rows, strict=True)]
                )
            return rows

    store = Partly()
    world_of_routes(store)
    fetcher = Fetcher(store, PLANS, enable_fetcher_caching=True, now=lambda: NOON_MS + 1)
    expected = fetcher.fetch_many(requests_of(ROUTES[:5]))
    store.away = ROUTE_PLAN.encode_key(ROUTES[2])
    answers = fetcher.fetch_many(requests_of(ROUTES[:5]))
    assert [answer for place, answer in enumerate(answers) if place != 2] == [*expected[:2], *expected[3:]]
    assert answers[2].features == {}
    assert "one server is away" in answers[2].errors["route"]
    store.away = ROUTE_PLAN.encode_key(ROUTES[5])
    answers = fetcher.fetch_many(requests_of(ROUTES))
    assert answers[:5] == expected
    assert "one server is away" in answers[5].errors["route"]


def test_of_many_cached_keys_a_torn_tail_is_named_and_the_others_answered():
    store = WatchedStore()
    world_of_routes(store)
    fetcher = Fetcher(store, PLANS, enable_fetcher_caching=True, now=lambda: NOON_MS + 1)
    expected = fetcher.fetch_many(requests_of(ROUTES))
    torn = Put(ROUTE_PLAN.encode_key(ROUTES[4]), b"\x02torn bytes", NOON_MS)
    store.put_many(stream_dataset("route", ROUTE_PLAN.generation), [torn])
    answers = fetcher.fetch_many(requests_of(ROUTES))
    assert [answers[:4], answers[5:]] == [expected[:4], expected[5:]]
    assert answers[4].features == {}
    assert "cannot be read" in answers[4].errors["route"]
