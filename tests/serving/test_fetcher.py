"""The fetcher's face: GroupBys and Joins, states and errors, subsets, warming, counts."""

import msgspec
import pytest

from millpond.errors import UnavailableError
from millpond.features import DAY_MS, HOUR_MS, MINUTE_MS, Aggregation, Field, GroupBy, Join, JoinPart, compile_group_by
from millpond.features.cells.sets_and_maps import MAX_DISTINCT
from millpond.kv import Get, MemoryStore, Put
from millpond.serving import Fetcher, FetchRequest

from .world import (
    AIRCRAFT_PLAN,
    BATCH_END_MS,
    EWR,
    FLIGHT,
    JFK,
    NOBODY,
    NOON_MS,
    PLANE,
    PLANS,
    ROUTE,
    ROUTE_PLAN,
    Clock,
    Stream,
    WatchedStore,
    read_directly,
    small_world,
    upload,
    upload_values,
)


def test_a_group_by_is_asked_by_name_or_definition(fetcher, world):
    expected = read_directly(world[0], ROUTE_PLAN, world[1], EWR, NOON_MS)
    for _ in range(3):
        assert fetcher.fetch("route", EWR).features == fetcher.fetch(ROUTE, EWR, NOON_MS).features == expected


def test_a_join_answers_under_its_own_names_with_keys_mapped_and_derivations_added(fetcher):
    answer = fetcher.fetch("flight", PLANE, context={"price": 100.0})
    route, aircraft = fetcher.fetch("route", EWR).features, fetcher.fetch("aircraft", {"tail": "N7"}).features
    assert answer.features["r_count_1d"] == route["count_1d"]
    assert answer.features["aircraft_dep_delay_sum_1d"] == aircraft["dep_delay_sum_1d"] == 30.0
    assert (answer.features["name"], answer.features["seats"]) == ("Ann", [1, 2])
    assert answer.features["price_per_flight"] == 100.0 / route["count_1d"]
    assert answer.features["is_known"] is True
    assert answer.errors == {}
    assert answer.batch_end_ms == {"route": BATCH_END_MS, "aircraft": BATCH_END_MS, "owner": BATCH_END_MS}


def test_states_tell_null_from_present(fetcher):
    answer = fetcher.fetch("route", NOBODY)
    assert set(answer.features.values()) == {None}
    assert set(answer.states.values()) == {"null"}
    assert answer.state("count_1h") == "null"
    assert fetcher.fetch("route", EWR).state("count") == "present"


def test_a_null_key_part_leads_to_no_get_no_features_and_no_error(world):
    store = WatchedStore()
    upload(store, ROUTE_PLAN, {})
    fetcher = Fetcher(store, PLANS[:1])
    fetcher.refresh()
    store.asked.clear()
    answer = fetcher.fetch("route", {"origin": "EWR", "carrier": None}, NOON_MS)
    assert (store.asked, answer.errors, set(answer.features.values())) == ([], {}, {None})


def test_wanted_features_come_in_their_order_and_only_their_group_bys_are_read(world):
    store = WatchedStore()
    upload(store, ROUTE_PLAN, {})
    upload(store, AIRCRAFT_PLAN, {})
    fetcher = Fetcher(store, [FLIGHT])
    fetcher.refresh()
    store.asked.clear()
    answer = fetcher.fetch("flight", PLANE, NOON_MS, features=["r_count_1d", "r_count_1h"])
    assert list(answer.features) == ["r_count_1d", "r_count_1h"]
    assert {get.dataset.split(".")[0] for gets in store.asked for get in gets} == {"route", "serving_info"}


def test_a_short_window_alone_reads_no_batch_row():
    store = WatchedStore()
    upload(store, ROUTE_PLAN, {})
    fetcher = Fetcher(store, PLANS)
    fetcher.refresh()
    store.asked.clear()
    fetcher.fetch("route", EWR, NOON_MS, features=["count_1h"])
    assert [[get.start_ms - BATCH_END_MS for get in gets] for gets in store.asked] == [[11 * HOUR_MS]]


def test_a_fetch_of_many_is_one_call_with_equal_keys_merged():
    store = WatchedStore()
    info = upload(store, ROUTE_PLAN, {("EWR", "UA"): [(BATCH_END_MS - 1, (1.0, "N1"))]})
    fetcher = Fetcher(store, PLANS)
    fetcher.refresh()
    store.asked.clear()
    fetcher.fetch_many([FetchRequest("route", EWR, NOON_MS)] * 3)
    assert len(store.asked) == 1
    assert [get.dataset for get in store.asked[0]].count(info.batch_dataset) == 1


def test_a_part_that_fails_leaves_the_others_answered(world):
    store = world[0]
    key = AIRCRAFT_PLAN.encode_key(["N7"])
    store.put_many(f"aircraft.batch.{BATCH_END_MS}.1", [Put(key, b"\x02torn bytes", BATCH_END_MS)])
    answer = Fetcher(store, [FLIGHT]).fetch("flight", PLANE, NOON_MS, context={"price": 1.0})
    assert "batch row" in answer.errors["aircraft"]
    assert answer.state("aircraft_dep_delay_sum_1d") == "unavailable"
    assert answer.state("r_count_1d") == answer.state("name") == "present"


def test_a_derivation_of_what_is_unavailable_is_unavailable_and_names_it():
    store, _, _ = small_world()
    answer = Fetcher(store, [FLIGHT]).fetch("flight", PLANE, NOON_MS, context={"price": 1.0})
    assert "no batch has been uploaded" in answer.errors["owner"]
    assert "name" in answer.errors["is_known"]
    assert answer.state("is_known") == "unavailable"
    assert answer.state("price_per_flight") == "present"


@pytest.mark.parametrize("kind", ["batch", "tile"])
def test_the_data_of_another_key_is_refused_and_named(world, kind):
    store, info, _ = world
    ewr, jfk = ROUTE_PLAN.encode_key(EWR), ROUTE_PLAN.encode_key(JFK)
    dataset = info.batch_dataset if kind == "batch" else info.streaming_dataset
    rows = store.get_many([Get(dataset, ewr)])[0]
    store.put_many(dataset, [Put(jfk, row.value, row.time_ms) for row in rows])
    for caching in (False, True):
        answer = Fetcher(store, PLANS, enable_fetcher_caching=caching).fetch("route", JFK, NOON_MS)
        assert "another key" in answer.errors["route"]
        assert answer.features == {}


def test_a_batch_too_old_for_a_window_is_refused_or_flagged(world):
    late_ms = BATCH_END_MS + 3 * DAY_MS
    refused = Fetcher(world[0], PLANS).fetch("route", EWR, late_ms)
    flagged = Fetcher(world[0], PLANS, stale="serve-and-flag").fetch("route", EWR, late_ms)
    stale = set(ROUTE_PLAN.stale_features(late_ms, BATCH_END_MS))
    assert set(refused.errors) == set(flagged.errors) == stale != set()
    assert stale & set(refused.features) == set()
    assert stale < set(flagged.features)


def test_a_failing_store_is_raised_and_never_cached_as_absent():
    store = WatchedStore()
    info = upload(store, ROUTE_PLAN, {("EWR", "UA"): [(BATCH_END_MS - 1, (1.0, "N1"))]})
    fetcher = Fetcher(store, PLANS, enable_fetcher_caching=True)
    fetcher.refresh()
    store.failing = True
    for ask in (
        fetcher.fetch,
        lambda *one: fetcher.fetch_many([FetchRequest(*one), FetchRequest("route", JFK, one[2])]),
    ):
        with pytest.raises(UnavailableError, match="away"):
            ask("route", EWR, NOON_MS)
        assert fetcher.groups[0].flights == {}, "others would wait for a read that has ended"
    store.failing = False
    assert fetcher.fetch("route", EWR, NOON_MS).features == read_directly(store, ROUTE_PLAN, info, EWR, NOON_MS)
    store.failing = True
    with pytest.raises(UnavailableError, match="away"):
        fetcher.fetch("route", EWR, NOON_MS)


def test_absence_is_believed_only_if_the_batch_is_still_served_after_the_read(world):
    store, old, _ = world
    fetcher = Fetcher(store, PLANS, enable_fetcher_caching=True)
    fetcher.refresh()
    new = upload(store, ROUTE_PLAN, {("EWR", "UA"): [(BATCH_END_MS - 1, (9.0, "N9"))]}, landing_ms=5)
    store.drop(old.batch_dataset)
    assert fetcher.fetch("route", EWR, NOON_MS).features == read_directly(store, ROUTE_PLAN, new, EWR, NOON_MS)


def test_only_an_absent_batch_row_takes_a_second_call(world):
    fetcher = Fetcher(world[0], [FLIGHT], now=lambda: NOON_MS)
    context = {"price": 1.0}
    fetcher.fetch("route", EWR)
    fetcher.fetch("flight", PLANE, context=context)
    calls = []
    for ask in (
        lambda: fetcher.fetch("route", EWR),
        lambda: fetcher.fetch("route", NOBODY),
        lambda: fetcher.fetch("flight", PLANE, context=context),
        lambda: fetcher.fetch("flight", {**PLANE, "origin": "XXX"}, context=context),
    ):
        before = fetcher.stats().kv_calls
        ask()
        calls.append(fetcher.stats().kv_calls - before)
    assert calls == [1, 2, 1, 2]


def test_a_batch_that_is_replaced_while_an_absent_row_is_read_is_noticed_uncached_too(world):
    store, old, _ = world
    fetcher = Fetcher(store, PLANS)
    fetcher.fetch("route", EWR, NOON_MS)
    new = upload(store, ROUTE_PLAN, {("EWR", "UA"): [(BATCH_END_MS - 1, (9.0, "N9"))]}, landing_ms=5)
    store.drop(old.batch_dataset)
    assert fetcher.fetch("route", EWR, NOON_MS).features == read_directly(store, ROUTE_PLAN, new, EWR, NOON_MS)


def test_one_key_and_many_keys_get_equal_answers(fetcher):
    requests = [FetchRequest("route", keys, NOON_MS + step * MINUTE_MS) for keys in (EWR, JFK) for step in range(9)]
    for _ in range(2):
        assert fetcher.fetch_many(requests) == [fetcher.fetch(one.name, one.keys, one.at) for one in requests]


@pytest.mark.parametrize("caching", [False, True], ids=["uncached", "cached"])
def test_a_value_that_is_only_a_bound_is_counted_and_told(caching):
    seen = GroupBy(
        "seen",
        keys=(Field("user", "string"),),
        inputs=(Field("page", "long"),),
        aggregations=(Aggregation("unique_count", "page", windows=("1d",)), Aggregation("count", windows=("1d",))),
        enable_fetcher_caching=caching,
    )
    plan, store = compile_group_by(seen), MemoryStore()
    upload(store, plan, {("ann",): [(BATCH_END_MS - 1, (page,)) for page in range(MAX_DISTINCT + 1)]})
    upload_ends = BATCH_END_MS + 1
    fetcher = Fetcher(store, [seen, Join("both", parts=(JoinPart(seen, prefix="one"),))])
    for _ in range(2):
        assert fetcher.fetch(seen, {"user": "ann"}, upload_ends).features["page_unique_count_1d"] == MAX_DISTINCT
    assert fetcher.stats().bounds == 2
    fetcher.fetch("both", {"user": "ann"}, upload_ends)
    assert fetcher.stats().bounds == 3
    told = fetcher.fetch(seen, {"user": "ann"}, upload_ends, explain=True).explain
    assert (told["page_unique_count_1d"]["is_bound"], told["count_1d"]["is_bound"]) == (True, False)


def test_explain_tells_where_each_value_comes_from(fetcher):
    for _ in range(2):
        answer = fetcher.fetch("flight", PLANE, context={"price": 1.0}, explain=True)
        told = answer.explain["r_count_1d"]
        assert (told["group_by"], told["batch_end_ms"], told["batch_landing_ms"]) == ("route", BATCH_END_MS, 1)
        assert told["batch_row"] in {"store", "cache"}
        assert told["tiles"] > 0
        assert told["newest_event_before_ms"] > BATCH_END_MS
        assert answer.explain["price_per_flight"]["derived_from"] == ["price", "r_count_1d"]
    assert list(answer.explain) == list(answer.features)


def test_values_that_a_caller_changes_are_not_those_of_the_cache(fetcher):
    first = fetcher.fetch("owner", {"tail": "N7"})
    first.features["seats"].append(99)
    first.features.clear()
    assert fetcher.fetch("owner", {"tail": "N7"}).features["seats"] == [1, 2]
    lists = fetcher.fetch("route", EWR).features["tail_last2_7d"]
    expected = list(lists)
    lists.clear()
    assert fetcher.fetch("route", EWR).features["tail_last2_7d"] == expected


def test_a_cache_of_size_0_is_never_touched(world):
    fetcher = Fetcher(world[0], PLANS, fetcher_cache_size=0, fetcher_tile_cache_size="50MB")
    fetcher.fetch("route", EWR, NOON_MS)
    assert set(fetcher.stats().caches) == {"route.tiles", "aircraft.tiles"}


def test_a_tail_may_be_as_old_as_is_allowed(world):
    store, _, stream = world
    clock = Clock()
    fetcher = Fetcher(store, PLANS, enable_fetcher_caching=True, tail_freshness_ms=500, clock=clock)
    before = [fetcher.fetch("route", EWR, NOON_MS + 60_000) for _ in range(3)][-1]
    calls = fetcher.stats().kv_calls
    stream.add(("EWR", "UA"), [(NOON_MS + 1, (1.0, "N1"))])
    assert fetcher.fetch("route", EWR, NOON_MS + 60_000) == before
    assert fetcher.stats().kv_calls == calls
    clock.now_ms += 501
    assert fetcher.fetch("route", EWR, NOON_MS + 60_000).features["count"] == before.features["count"] + 1


def test_warmed_keys_are_read_before_they_are_asked_for(world):
    fetcher = Fetcher(world[0], PLANS, enable_fetcher_caching=True, now=lambda: NOON_MS)
    assert fetcher.warm("route", [EWR, JFK]) == 2
    before = fetcher.stats()
    fetcher.fetch("route", EWR)
    assert fetcher.stats().batch_gets == before.batch_gets
    assert before.warmed == 2


def test_a_caller_may_change_what_lies_within_the_values_of_a_snapshot():
    latest = GroupBy(
        "latest",
        keys=(Field("user", "string"),),
        inputs=(Field("seen", "map<string,long>"),),
        aggregations=(Aggregation("last_k", "seen", windows=(None,), k=2),),
        accuracy="snapshot",
    )
    store = MemoryStore()
    upload_values(store, compile_group_by(latest), {("ann",): ({"EWR": [1, 2]},)})
    fetcher = Fetcher(store, [latest], enable_fetcher_caching=True)
    for _ in range(3):
        (seen,) = fetcher.fetch("latest", {"user": "ann"}, NOON_MS).features.values()
        assert seen == {"EWR": [1, 2]}
        seen["EWR"].append(3)


def test_stats_count_values_by_state_gets_and_freshness(world):
    fetcher = Fetcher(world[0], PLANS, enable_fetcher_caching=True, now=lambda: NOON_MS)
    for _ in range(40):
        fetcher.fetch("route", EWR)
    fetcher.fetch("route", EWR, BATCH_END_MS - 1)
    stats = fetcher.stats()
    assert stats.requests == 41
    assert (stats.batch_gets, stats.batch_gets_saved) == (1, 39)
    assert stats.unavailable == len(ROUTE_PLAN.feature_names)
    assert stats.present + stats.null + stats.unavailable == 41 * len(ROUTE_PLAN.feature_names)
    assert stats.freshness["route"].batch_end_age_ms == 12 * HOUR_MS
    assert stats.freshness["route"].closing_age_ms == 0
    assert stats.latencies["fetch"].count >= 1
    assert stats.process_bytes > 0
    assert msgspec.json.encode(stats)


def test_an_untiled_group_by_is_answered_exactly_at_any_moment():
    untiled = GroupBy(
        "clicks",
        keys=(Field("user", "string"),),
        aggregations=(Aggregation("count", windows=("1h", None)),),
        tiled=False,
        enable_fetcher_caching=True,
    )
    plan, store = compile_group_by(untiled), MemoryStore()
    upload(store, plan, {("ann",): [(BATCH_END_MS - 1, ())]})
    Stream(store, plan).add(("ann",), [(BATCH_END_MS + 10, ()), (BATCH_END_MS + 20, ())])
    fetcher = Fetcher(store, [untiled])
    counts = [fetcher.fetch(untiled, {"user": "ann"}, BATCH_END_MS + at).features["count"] for at in (10, 11, 20, 21)]
    assert counts == [1, 2, 2, 3]
