"""The fetcher gives what the plan gives on directly read data; caches, uploads and failures never change that."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError, DataError, OptionError, UnavailableError
from millpond.features import DAY_MS, HOUR_MS, MINUTE_MS, Aggregation, GroupBy, Tile, compile_group_by
from millpond.kv import Get, LmdbStore, MemoryStore, Put
from millpond.serving import Fetcher, FetchRequest

from .world import (
    AIRCRAFT_PLAN,
    BATCH_END_MS,
    EWR,
    JFK,
    NOBODY,
    PLANS,
    ROUTE,
    ROUTE_PLAN,
    Clock,
    FailingStore,
    read_directly,
    small_world,
    stream,
    upload,
)

NOON_MS = BATCH_END_MS + 12 * HOUR_MS
SIZES = [0, 1, 3, 10_000, "2KB", "50MB"]


def route(keys, query_ms=NOON_MS):
    return FetchRequest("route", keys, query_ms)


EVENTS = st.dictionaries(
    st.sampled_from([("EWR", "UA"), ("JFK", "B6"), ("LGA", "DL")]),
    st.lists(
        st.tuples(
            st.integers(-40 * 24 * 12, 2 * 24 * 12).map(lambda step: BATCH_END_MS + step * 5 * MINUTE_MS + 17),
            st.tuples(st.none() | st.integers(-50, 500).map(float)),
        ),
        max_size=12,
    ),
)
QUERIES = st.lists(
    st.tuples(
        st.sampled_from([EWR, JFK, NOBODY, {"carrier": "DL", "origin": "LGA"}]),
        st.integers(0, 2 * 24 * 12).map(lambda step: BATCH_END_MS + step * 5 * MINUTE_MS),
    ),
    max_size=12,
)


@pytest.mark.parametrize("size", SIZES)
@given(events=EVENTS, queries=QUERIES, cuts=st.lists(st.integers(0, 12), max_size=3))
@settings(max_examples=40, deadline=None)
def test_a_fetch_equals_the_plan_on_directly_read_data_with_any_cache(size, events, queries, cuts):
    store = MemoryStore()
    info = upload(store, ROUTE_PLAN, events)
    stream(store, ROUTE_PLAN, events)
    fetcher = Fetcher(store, PLANS, fetcher_cache_size=size)
    requests = [route(keys, query_ms) for keys, query_ms in queries]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(requests)), len(requests)]
    responses = [response for first, last in pairwise(bounds) for response in fetcher.fetch_many(requests[first:last])]
    assert [response.errors for response in responses] == [{}] * len(requests)
    assert [response.features for response in responses] == [
        read_directly(store, ROUTE_PLAN, info, keys, query_ms) for keys, query_ms in queries
    ]
    assert [(response.keys, response.batch_end_ms) for response in responses] == [
        (keys, BATCH_END_MS) for keys, _ in queries
    ]


@given(
    landings=st.lists(
        st.tuples(st.sampled_from([BATCH_END_MS, BATCH_END_MS + DAY_MS]), EVENTS, st.booleans()), min_size=1, max_size=4
    ),
    size=st.sampled_from(SIZES),
)
@settings(max_examples=40, deadline=None)
def test_every_landing_is_seen_after_a_refresh_and_dropping_old_batches_does_no_harm(landings, size):
    store, old = MemoryStore(), []
    clock = Clock()
    fetcher = Fetcher(store, PLANS, fetcher_cache_size=size, clock=clock)
    for landing_ms, (batch_end_ms, events, drop) in enumerate(landings):
        info = upload(store, ROUTE_PLAN, events, batch_end_ms, landing_ms)
        if drop:
            for dataset in old:
                store.drop(dataset)
        old.append(info.batch_dataset)
        clock.now_ms += 8_000
        requests = [route(keys, BATCH_END_MS + DAY_MS) for keys in (EWR, NOBODY, JFK)]
        assert [response.features for response in fetcher.fetch_many(requests)] == [
            read_directly(store, ROUTE_PLAN, info, request.keys, request.at) for request in requests
        ]


def test_answers_come_in_the_order_of_the_requests_over_several_group_bys():
    store, _ = small_world()
    upload(store, AIRCRAFT_PLAN, {("N101",): [(BATCH_END_MS - HOUR_MS, (30.0,))]})
    requests = [
        route(EWR),
        FetchRequest("aircraft", {"tail": "N101"}, NOON_MS),
        route(NOBODY),
        route(EWR, NOON_MS + DAY_MS),
        route(EWR),
    ]
    responses = Fetcher(store, PLANS).fetch_many(requests)
    assert [(response.name, response.keys) for response in responses] == [
        (request.name, request.keys) for request in requests
    ]
    assert responses[1].features == {"dep_delay_sum_1d": 30.0}
    assert responses[0] == responses[4] != responses[3]


def test_no_requests_ask_the_store_for_nothing():
    store, _ = small_world()
    fetcher = Fetcher(store, PLANS)
    assert fetcher.fetch_many([]) == []
    assert fetcher.stats().batch_gets == fetcher.stats().stream_gets == 0


def test_a_key_without_data_has_all_features_and_each_is_none():
    store, _ = small_world()
    response = Fetcher(store, PLANS).fetch_many([route(NOBODY)])[0]
    assert response.features == dict.fromkeys(ROUTE_PLAN.feature_names)
    assert response.errors == {}


def test_everything_uncached_is_one_call_to_the_store():
    store, _ = small_world()
    upload(store, AIRCRAFT_PLAN, {})
    fetcher = Fetcher(store, PLANS)
    fetcher.refresh()
    before = fetcher.stats()
    fetcher.fetch_many(
        [route(EWR), FetchRequest("aircraft", {"tail": "N1"}, NOON_MS), route(JFK), route(EWR, NOON_MS + 1)]
    )
    after = fetcher.stats()
    assert after.kv_calls - before.kv_calls == 1
    assert after.batch_gets - before.batch_gets == 3
    assert after.stream_gets - before.stream_gets == 3
    assert after.requests == 4


def test_with_a_warm_cache_no_batch_row_is_asked_for_and_an_absent_one_is_cached_too():
    store, _ = small_world()
    fetcher = Fetcher(store, PLANS, fetcher_cache_size=100, clock=Clock())
    cold = fetcher.fetch_many([route(EWR), route(NOBODY)])
    before = fetcher.stats()
    warm = fetcher.fetch_many([route(EWR), route(NOBODY)])
    after = fetcher.stats()
    assert warm == cold
    assert after.batch_gets == before.batch_gets == 2
    assert after.info_gets == before.info_gets
    assert after.stream_gets == before.stream_gets + 2
    assert (after.caches["route"].hits, after.caches["route"].misses) == (2, 2)


def test_without_a_cache_every_fetch_asks_for_the_batch_row():
    store, _ = small_world()
    fetcher = Fetcher(store, PLANS)
    for _ in range(3):
        fetcher.fetch_many([route(EWR)])
    assert fetcher.stats().batch_gets == 3
    assert fetcher.stats().caches["route"].entries == 0


def test_the_cache_can_be_sized_for_one_group_by_alone():
    store, _ = small_world()
    upload(store, AIRCRAFT_PLAN, {})
    fetcher = Fetcher(store, PLANS, fetcher_cache_size={"route": "1MB"})
    for _ in range(2):
        fetcher.fetch_many([route(EWR), FetchRequest("aircraft", {"tail": "N1"}, NOON_MS)])
    caches = fetcher.stats().caches
    assert (caches["route"].hits, caches["aircraft"].hits) == (1, 0)


@pytest.mark.parametrize("batch_end_ms", [BATCH_END_MS, BATCH_END_MS + DAY_MS])
def test_a_new_upload_is_seen_once_the_serving_info_is_refreshed_though_all_is_cached(batch_end_ms):
    store, _ = small_world()
    clock = Clock()
    fetcher = Fetcher(store, PLANS, fetcher_cache_size="1MB", clock=clock)
    query_ms = BATCH_END_MS + DAY_MS
    before = fetcher.fetch_many([route(JFK, query_ms)])[0]
    info = upload(
        store, ROUTE_PLAN, {("JFK", "B6"): [(BATCH_END_MS - HOUR_MS, (99.0,))] * 2}, batch_end_ms, landing_ms=2
    )
    clock.now_ms = 7_999
    assert fetcher.fetch_many([route(JFK, query_ms)])[0] == before
    clock.now_ms = 8_000
    after = fetcher.fetch_many([route(JFK, query_ms)])[0]
    assert after.features == read_directly(store, ROUTE_PLAN, info, JFK, query_ms) != before.features
    assert after.batch_end_ms == batch_end_ms


def test_a_batch_that_was_dropped_under_a_fetcher_is_not_taken_for_no_data():
    store, old = small_world()
    fetcher = Fetcher(store, PLANS, clock=Clock())
    fetcher.refresh()
    info = upload(store, ROUTE_PLAN, {("JFK", "B6"): [(BATCH_END_MS - HOUR_MS, (99.0,))]}, landing_ms=2)
    store.drop(old.batch_dataset)
    response = fetcher.fetch_many([route(JFK)])[0]
    assert response.features == read_directly(store, ROUTE_PLAN, info, JFK, NOON_MS)
    assert response.features["count"] == 1


def test_batches_that_are_replaced_faster_than_they_can_be_read_end_in_a_typed_error():
    class Restless(MemoryStore):
        landing_ms = 10

        def get_many(self, gets):
            Restless.landing_ms += 1
            upload(self, ROUTE_PLAN, {}, landing_ms=Restless.landing_ms)
            return super().get_many(gets)

    store = Restless()
    upload(store, ROUTE_PLAN, {})
    with pytest.raises(UnavailableError, match="batch of route was replaced 3 times"):
        Fetcher(store, PLANS).fetch_many([route(EWR)])


def test_a_failing_store_is_a_typed_error_and_is_not_remembered_as_no_data():
    store = FailingStore()
    upload(store, ROUTE_PLAN, {("JFK", "B6"): [(BATCH_END_MS - HOUR_MS, (5.0,))]})
    fetcher = Fetcher(store, PLANS, fetcher_cache_size=100, clock=Clock())
    for prepare in (lambda: None, fetcher.refresh):
        prepare()
        store.failing = True
        with pytest.raises(UnavailableError, match="the store is away"):
            fetcher.fetch_many([route(JFK)])
        store.failing = False
    assert fetcher.fetch_many([route(JFK)])[0].features["count"] == 1


def test_a_group_by_that_was_never_uploaded_says_so_and_the_others_are_answered():
    store, _ = small_world()
    aircraft, ewr = Fetcher(store, PLANS).fetch_many([FetchRequest("aircraft", {"tail": "N1"}, NOON_MS), route(EWR)])
    assert aircraft.features == {}
    assert aircraft.batch_end_ms is None
    assert "'aircraft': no batch has been uploaded" in aircraft.errors["aircraft"]
    assert ewr.errors == {}


def test_a_batch_of_another_definition_is_refused():
    store, _ = small_world()
    changed = compile_group_by(GroupBy("route", ROUTE.keys, ROUTE.inputs, (Aggregation("count", windows=("2h",)),)))
    response = Fetcher(store, [changed]).fetch_many([route(EWR)])[0]
    assert response.features == {}
    assert f"under definition {ROUTE_PLAN.definition_hash}" in response.errors["route"]
    assert f"serves definition {changed.definition_hash}" in response.errors["route"]


def test_a_query_before_the_batch_end_is_refused_and_names_both_times():
    store, _ = small_world()
    early, fine = Fetcher(store, PLANS).fetch_many([route(EWR, BATCH_END_MS - 1), route(EWR)])
    assert early.features == {}
    assert f"query_ms {BATCH_END_MS - 1} is before the batch end {BATCH_END_MS}" in early.errors["route"]
    assert fine.errors == {}


def test_features_that_a_batch_is_too_old_for_are_left_out_and_named():
    store, info = small_world()
    fetcher = Fetcher(store, PLANS)
    query_ms = BATCH_END_MS + 2 * DAY_MS
    assert fetcher.fetch_many([route(EWR, query_ms)])[0].errors == {}
    late_ms = query_ms + 6 * HOUR_MS
    response = fetcher.fetch_many([route(EWR, late_ms)])[0]
    assert set(response.errors) == set(ROUTE_PLAN.stale_features(late_ms, BATCH_END_MS)) == {"dep_delay_average_7d"}
    exact = read_directly(store, ROUTE_PLAN, info, EWR, late_ms)
    del exact["dep_delay_average_7d"]
    assert response.features == exact
    assert "the batch ends 54 hours before query_ms" in response.errors["dep_delay_average_7d"]
    assert fetcher.stats().errors == 1


@pytest.mark.parametrize("dataset", ["batch_dataset", "streaming_dataset"])
def test_a_damaged_row_is_the_error_of_its_key_alone_and_is_not_cached(dataset):
    store, info = small_world()
    fetcher = Fetcher(store, PLANS, fetcher_cache_size=100)
    key = ROUTE_PLAN.encode_key(EWR)
    good = store.get_many([Get(getattr(info, dataset), key, info.batch_end_ms)])[0][0]
    store.put_many(getattr(info, dataset), [Put(key, good.value[:-3], good.time_ms)])
    damaged, fine = fetcher.fetch_many([route(EWR), route(JFK)])
    assert damaged.features == {}
    assert damaged.errors
    assert fine.errors == {}
    store.put_many(getattr(info, dataset), [Put(key, good.value, good.time_ms)])
    assert fetcher.fetch_many([route(EWR)])[0].features == read_directly(store, ROUTE_PLAN, info, EWR, NOON_MS)


def test_tiles_that_overlap_are_the_error_of_their_key():
    store, info = small_world()
    tile = Tile(start_ms=NOON_MS - 2 * HOUR_MS, size_ms=HOUR_MS, ir=ROUTE_PLAN.collect([0], [(1.0,)]))
    twin = Tile(start_ms=tile.start_ms + 5 * MINUTE_MS, size_ms=5 * MINUTE_MS, ir=tile.ir)
    key = ROUTE_PLAN.encode_key(JFK)
    store.put_many(
        info.streaming_dataset, [Put(key, ROUTE_PLAN.encode_tile(key, each), each.start_ms) for each in (tile, twin)]
    )
    response = Fetcher(store, PLANS).fetch_many([route(JFK)])[0]
    assert response.features == {}
    assert "overlaps" in response.errors["route"]


def test_a_serving_info_that_does_not_decode_stops_the_fetch():
    store, _ = small_world()
    store.put_many("serving_info", [Put(b"route", b"\x09")])
    with pytest.raises(CorruptionError, match="serving info"):
        Fetcher(store, PLANS).fetch_many([route(EWR)])


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (FetchRequest("rout", EWR, NOON_MS), OptionError, "no GroupBy 'rout' .* did you mean 'route'"),
        (FetchRequest("weather", EWR, NOON_MS), OptionError, r"served are \['aircraft', 'route'\]"),
        (route({"origin": "EWR"}), DataError, "carrier"),
        (route({"origin": "EWR", "carrier": 7}), DataError, "carrier"),
        (route({**EWR, "gate": "A1"}), DataError, "gate"),
        (route(EWR, 1.5), DataError, "at is 1.5"),
        (route(EWR, True), DataError, "at is True"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_read(request_, error, message):
    store = FailingStore()
    with pytest.raises(error, match=message):
        Fetcher(store, PLANS).fetch_many([route(JFK), request_])
    assert store.asked == []


def test_plans_that_are_none_or_named_alike_are_refused():
    with pytest.raises(OptionError, match="compile_group_by"):
        Fetcher(MemoryStore(), [ROUTE])
    with pytest.raises(OptionError, match="two plans are named 'route'"):
        Fetcher(MemoryStore(), [ROUTE_PLAN, ROUTE_PLAN])


def test_what_is_fetched_from_lmdb_is_what_is_fetched_from_memory(tmp_path):
    memory, _ = small_world()
    store = LmdbStore(tmp_path, sync=False)
    key_bytes = [ROUTE_PLAN.encode_key(keys) for keys in (EWR, JFK)]
    for dataset in memory.datasets():
        for key in [*key_bytes, b"route"]:
            rows = memory.get_many([Get(dataset, key)])[0]
            store.put_many(dataset, [Put(key, row.value, row.time_ms) for row in rows])
    requests = [route(keys, NOON_MS + step) for keys in (EWR, JFK, NOBODY) for step in range(0, DAY_MS, HOUR_MS)]
    assert Fetcher(store, PLANS, fetcher_cache_size=1).fetch_many(requests) == Fetcher(memory, PLANS).fetch_many(
        requests
    )
    store.close()
