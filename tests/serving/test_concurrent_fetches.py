"""Callers who fetch at once, on threads, on an event loop and after a fork: the same answers, and shared reads."""

import asyncio
import os
import threading

import msgspec
import pytest

from millpond.features import HOUR_MS, Join, JoinPart
from millpond.kv import MemoryStore
from millpond.serving import Fetcher, FetchRequest

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
    WatchedStore,
    upload,
)


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
