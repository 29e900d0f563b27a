"""The fetcher's face: GroupBys and Joins, states and errors, subsets, context, times, tables, async."""

import asyncio
import os
import threading
from datetime import UTC, datetime
from http.client import HTTPConnection

import msgspec
import pyarrow as pa
import pytest

from millpond.errors import DataError, OptionError, UnavailableError
from millpond.features import (
    DAY_MS,
    HOUR_MS,
    MARKER_ADDRESS,
    MINUTE_MS,
    Aggregation,
    Field,
    GroupBy,
    Join,
    JoinPart,
    compile_group_by,
)
from millpond.features.cells.sets_and_maps import MAX_DISTINCT
from millpond.features.stored.rows import MAX_QUERY_MS
from millpond.kv import Get, MemoryStore, Put
from millpond.serving import FetchClient, Fetcher, FetchRequest, http_app, running_server

from .world import (
    AIRCRAFT,
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
    Later,
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


def test_a_time_before_the_batch_end_is_refused(fetcher):
    answer = fetcher.fetch("route", EWR, BATCH_END_MS - 1)
    assert "before the batch end" in answer.errors["route"]
    assert set(answer.states.values()) == {"unavailable"}


def test_a_time_in_seconds_is_told_so(fetcher):
    problem = fetcher.fetch("route", EWR, NOON_MS // 1000).errors["route"]
    assert problem.endswith("This looks like seconds: multiply it by 1000.")


def test_a_batch_too_old_for_a_window_is_refused_or_flagged(world):
    late_ms = BATCH_END_MS + 3 * DAY_MS
    refused = Fetcher(world[0], PLANS).fetch("route", EWR, late_ms)
    flagged = Fetcher(world[0], PLANS, stale="serve-and-flag").fetch("route", EWR, late_ms)
    stale = set(ROUTE_PLAN.stale_features(late_ms, BATCH_END_MS))
    assert set(refused.errors) == set(flagged.errors) == stale != set()
    assert stale & set(refused.features) == set()
    assert stale < set(flagged.features)


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda fetcher: fetcher.fetch("rout", EWR), OptionError, "did you mean 'route'"),
        (lambda fetcher: fetcher.fetch("route", {"origin": "EWR"}), DataError, "carrier"),
        (lambda fetcher: fetcher.fetch("route", {"origin": "EWR", "carrier": 7}), DataError, "carrier"),
        (lambda fetcher: fetcher.fetch("flight", {"origin": "EWR", "carrier": "UA"}), DataError, "price|plane"),
        (lambda fetcher: fetcher.fetch("flight", PLANE), DataError, "'price'"),
        (lambda fetcher: fetcher.fetch("flight", PLANE, context={"price": "x"}), DataError, "'price'"),
        (lambda fetcher: fetcher.fetch("flight", PLANE, context={"prize": 1.0}), DataError, "did you mean 'price'"),
        (lambda fetcher: fetcher.fetch("route", ("EWR", "UA")), DataError, "such as {'origin': 'EWR', 'carr"),
        (lambda fetcher: fetcher.fetch("route", ["EWR", "UA"]), DataError, "such as {'origin': 'EWR', 'carr"),
        (lambda fetcher: fetcher.fetch("route", "EWR"), DataError, "keys are 'EWR'; expected a mapping"),
        (lambda fetcher: fetcher.fetch("flight", ("EWR",), context={"price": 1.0}), DataError, "expected a mapp"),
        (lambda fetcher: fetcher.fetch(EWR, "route"), OptionError, "target is {.* target comes first"),
        (lambda fetcher: fetcher.fetch_many("route"), DataError, "requests is 'route'; expected a list"),
        (lambda fetcher: fetcher.fetch_many([EWR]), DataError, r"requests\[0\] is {.*expected a list of FetchRequest"),
        (lambda fetcher: fetcher.fetch_many([FetchRequest("route", EWR), EWR]), DataError, r"requests\[1\] is {"),
        (lambda fetcher: fetcher.fetch_many([FetchRequest(EWR, "route")]), DataError, r"requests\[0\].name is {"),
        (lambda fetcher: fetcher.fetch_many(FetchRequest("route", EWR)), DataError, "requests is FetchRequest"),
        (lambda fetcher: fetcher.fetch_many([FetchRequest("route", ("EWR", "UA"))] * 2), DataError, "expected a mapp"),
        (lambda fetcher: asyncio.run(fetcher.fetch_many_async([EWR])), DataError, r"requests\[0\] is {"),
        (lambda fetcher: fetcher.fetch("route", EWR, features="count_1h"), OptionError, r"such as \['count_1h'\]"),
        (lambda fetcher: fetcher.fetch_many([FetchRequest("route", EWR, features="count_1h")]), OptionError, "such as"),
        (lambda fetcher: fetcher.prepare("route", "count_1h"), OptionError, "features is 'count_1h'; expected a list"),
        (lambda fetcher: fetcher.fetch("route", EWR, features=7), OptionError, "features is 7; expected a list of na"),
        (lambda fetcher: fetcher.fetch("route", EWR, context=7), DataError, "context is 7; expected a mapping"),
        (lambda fetcher: fetcher.fetch_table("route", [EWR]), DataError, "type list; expected a pyarrow.Tabl"),
        (lambda fetcher: fetcher.fetch("route", EWR, 1.5), DataError, "at is 1.5"),
        (lambda fetcher: fetcher.fetch("route", EWR, True), DataError, "at is True"),
        (lambda fetcher: fetcher.fetch("route", EWR, datetime(2026, 1, 1, tzinfo=UTC)), DataError, "timestamp"),
        (lambda fetcher: fetcher.fetch("route", EWR, NOON_MS * 10**6), DataError, "nanoseconds|microseconds"),
        (lambda fetcher: fetcher.fetch("route", EWR, 1 << 44), DataError, "year 2499.*microseconds"),
        (lambda fetcher: fetcher.fetch("flight", PLANE, 1 << 44, context={"price": 1.0}), DataError, "microseconds"),
        (lambda fetcher: fetcher.fetch("route", EWR, 1_795_651_200_000_000_000), DataError, "nanoseconds"),
        (lambda fetcher: fetcher.fetch_many([FetchRequest("route", EWR, 1 << 44)] * 2), DataError, "microseconds"),
        (lambda fetcher: fetcher.fetch_table("route", pa.table({**{k: [v] for k, v in EWR.items()}, "at": [1 << 44]})),
         DataError, "microseconds"),
        (lambda fetcher: fetcher.fetch_table("route", pa.table({k: [v] for k, v in EWR.items()}), at=1.5),
         DataError, "at is 1.5"),
        (lambda fetcher: fetcher.fetch("route", EWR, features=["count_1hh"]), OptionError, "did you mean 'count_1h'"),
        (lambda fetcher: fetcher.fetch("route", EWR, features=[]), OptionError, "at least one"),
        (lambda fetcher: fetcher.fetch(GroupBy("route", ROUTE.keys, ROUTE.inputs, ROUTE.aggregations[:1]), EWR),
         OptionError, "another definition"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_call_is_raised_and_named(fetcher, ask, error, said):
    for _ in range(2):
        with pytest.raises(error, match=said):
            ask(fetcher)


def test_no_range_of_tiles_up_to_a_query_reaches_the_marker():
    last = MAX_QUERY_MS - 1
    ends_ms = [-(-last // tile_ms) * tile_ms for tile_ms in (1, MINUTE_MS, HOUR_MS, DAY_MS, 366 * DAY_MS)]
    assert max(ends_ms) < MARKER_ADDRESS
    assert datetime.fromtimestamp(MAX_QUERY_MS / 1000, UTC) == datetime(2500, 1, 1, tzinfo=UTC)


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


def test_a_hundred_callers_of_a_cold_key_make_one_get():
    asked, release = [], threading.Event()

    class Slow(MemoryStore):
        def get_many(self, gets):
            if any(".batch." in get.dataset for get in gets):
                asked.append(gets)
                release.wait(10)
            return super().get_many(gets)

    store = Slow()
    upload(store, ROUTE_PLAN, {("EWR", "UA"): [(BATCH_END_MS - 1, (1.0, "N1"))]})
    fetcher = Fetcher(store, PLANS, enable_fetcher_caching=True)
    fetcher.refresh()
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(fetcher.fetch("route", EWR, NOON_MS))) for _ in range(100)
    ]
    for thread in threads:
        thread.start()
    while len(asked) < 1 or threading.active_count() < 50:
        pass
    release.set()
    for thread in threads:
        thread.join(20)
    assert len(asked) == 1
    assert len(answers) == 100
    assert all(answer == answers[0] for answer in answers)


class Remote:
    """A store that is in no way known to be in this process, so the async fetcher awaits it."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)


@pytest.mark.parametrize("wrapped", [lambda store: store, Remote], ids=["inline", "awaited"])
@pytest.mark.parametrize("options", [{}, {"enable_fetcher_caching": True}], ids=["uncached", "cached"])
def test_the_async_twins_go_the_same_ways_to_the_same_answers(world, wrapped, options):
    store = wrapped(world[0])
    asked = [
        [FetchRequest("route", EWR, NOON_MS + 7)],
        [FetchRequest("route", NOBODY, NOON_MS)],
        [FetchRequest("route", EWR, BATCH_END_MS)],
        [FetchRequest("route", keys, NOON_MS) for keys in (EWR, JFK, NOBODY)],
        [FetchRequest("flight", PLANE, NOON_MS, {"price": 1.0})],
    ]
    blocking, awaiting = (Fetcher(store, [FLIGHT], now=lambda: NOON_MS + 7, **options) for _ in range(2))

    async def ask():
        return [await awaiting.fetch_many_async(requests) for requests in asked * 3]

    assert asyncio.run(ask()) == [blocking.fetch_many(requests) for requests in asked * 3]
    before, after = (msgspec.structs.asdict(one.stats()) for one in (blocking, awaiting))
    for count in ("requests", "kv_calls", "batch_gets", "stream_gets", "info_gets", "rows_read", "bytes_read"):
        assert after[count] == before[count], count


def test_an_answer_now_is_the_same_answer_or_none_where_something_is_waited_for(world):
    clock, requests = Clock(), [FetchRequest("route", keys, NOON_MS) for keys in (EWR, NOBODY)]
    fetcher = Fetcher(world[0], [FLIGHT], enable_fetcher_caching=True, clock=clock, background=Later())
    assert fetcher.fetch_now(requests) is None, "nobody knows yet what is served"
    fetcher.refresh()
    for _ in range(3):
        assert fetcher.fetch_now(requests) == fetcher.fetch_many(requests)
    clock.now_ms += 16_000
    assert fetcher.fetch_now(requests) is None, "what is known is too old"
    remote = Fetcher(Remote(world[0]), [FLIGHT], enable_fetcher_caching=True)
    remote.refresh()
    assert remote.fetch_now(requests) is None, "the store may be far away"


def test_a_cold_key_that_another_thread_reads_is_waited_for_within_a_join_too(world):
    reached, release = threading.Event(), threading.Event()

    class Slow(WatchedStore):
        def get_many(self, gets):
            if any(".batch." in get.dataset for get in gets) and not reached.is_set():
                reached.set()
                release.wait(10)
            return super().get_many(gets)

    store = Slow()
    upload(store, ROUTE_PLAN, {("EWR", "UA"): [(BATCH_END_MS - 1, (1.0, "N1"))]})
    upload(store, AIRCRAFT_PLAN, {("N7",): [(BATCH_END_MS - HOUR_MS, (30.0,))]})
    join = Join("both", parts=(JoinPart(ROUTE), JoinPart(AIRCRAFT)))
    fetcher = Fetcher(store, [join], enable_fetcher_caching=True)
    fetcher.refresh()
    answers = []
    first = threading.Thread(target=lambda: answers.append(fetcher.fetch("route", EWR, NOON_MS)))
    first.start()
    assert reached.wait(10)
    store.asked.clear()
    second = threading.Thread(target=lambda: answers.append(fetcher.fetch("both", EWR | {"tail": "N7"}, NOON_MS)))
    second.start()
    while not store.asked:
        pass
    release.set()
    first.join(10)
    second.join(10)
    alone, both = answers
    assert both.features["route_count"] == alone.features["count"] == 1
    assert both.features["aircraft_dep_delay_sum_1d"] == 30.0
    assert [get.dataset for gets in store.asked for get in gets].count(f"route.batch.{BATCH_END_MS}.1") == 1
    assert [group.flights for group in fetcher.groups] == [{}, {}]


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


def test_a_child_that_is_forked_while_a_refresh_is_under_way_refreshes_for_itself():
    later, clock = Later(), Clock()
    store = MemoryStore()
    upload(store, ROUTE_PLAN, {("EWR", "UA"): [(BATCH_END_MS - 1, (1.0, "N1"))]})
    fetcher = Fetcher(store, PLANS[:1], enable_fetcher_caching=True, clock=clock, background=later)
    fetcher.refresh()
    expected = fetcher.fetch("route", EWR, NOON_MS).features
    clock.now_ms = 16_000
    fetcher._infos.begin()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        later.work.clear()
        fetcher._infos._background = lambda work: work()
        os.write(writer, b"y" if fetcher.fetch("route", EWR, NOON_MS).features == expected else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 1) == b"y"
    os.close(reader)
    os.close(writer)


def test_a_time_in_microseconds_is_refused_over_http_in_json_and_arrow(world):
    keys = pa.table({name: [value] for name, value in EWR.items()})
    with (
        Fetcher(world[0], PLANS, now=lambda: NOON_MS) as fetcher,
        running_server(http_app(fetcher)) as url,
        FetchClient(url) as client,
    ):
        with pytest.raises(DataError, match=r"at is 17592186044416, beyond the year 2499.*microseconds"):
            client.fetch_table("route", keys.append_column("at", pa.array([1 << 44])))
        body = msgspec.json.encode({"requests": [{"keys": EWR, "at": 1 << 44}]})
        connection = HTTPConnection(url.removeprefix("http://"))
        connection.request("POST", "/v1/fetch/route", body, {"content-type": "application/json"})
        refused = connection.getresponse()
        assert refused.status == 400
        assert b"microseconds" in refused.read()
        connection.close()
