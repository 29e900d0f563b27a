"""A batch lands: the hottest keys are read before it is served, outdated entries go, requests do not wait."""

from millpond.features import DAY_MS
from millpond.serving import Fetcher

from .world import BATCH_END_MS, EWR, JFK, NOON_MS, PLANS, ROUTE_PLAN, Clock, Later, WatchedStore, upload

EVENTS = {("EWR", "UA"): [(BATCH_END_MS - 1, (1.0, "N1"))], ("JFK", "B6"): [(BATCH_END_MS - 1, (2.0, "N1"))]}


def served(**options):
    store, clock, later = WatchedStore(), Clock(), Later()
    upload(store, ROUTE_PLAN, EVENTS)
    fetcher = Fetcher(store, PLANS[:1], enable_fetcher_caching=True, clock=clock, background=later, **options)
    fetcher.refresh()
    for keys in (EWR, JFK):
        fetcher.fetch("route", keys, NOON_MS)
    return store, clock, later, fetcher


def test_the_hottest_keys_are_warm_when_a_batch_lands():
    store, clock, later, fetcher = served()
    upload(store, ROUTE_PLAN, {("EWR", "UA"): [(BATCH_END_MS - 1, (5.0, "N1"))]} | EVENTS, landing_ms=2)
    clock.now_ms = 8_000
    fetcher.fetch("route", EWR, NOON_MS)
    later.run()
    before = fetcher.stats()
    fetcher.fetch("route", EWR, NOON_MS)
    assert before.warmed == 2
    assert fetcher.stats().batch_gets == before.batch_gets


def test_outdated_entries_go_when_a_batch_lands():
    store, clock, later, fetcher = served(warm_keys=0)
    upload(store, ROUTE_PLAN, EVENTS, BATCH_END_MS + DAY_MS, landing_ms=2)
    clock.now_ms = 8_000
    fetcher.fetch("route", EWR, NOON_MS)
    assert [cache.entries for cache in fetcher.stats().caches.values()] == [2, 2]
    later.run()
    assert [cache.entries for cache in fetcher.stats().caches.values()] == [0, 0]


def test_a_request_that_meets_a_new_batch_does_not_wait_for_the_cleaning():
    store, _, later, fetcher = served()
    old = fetcher.serving_infos()["route"]
    new = upload(store, ROUTE_PLAN, {}, landing_ms=2)
    store.drop(old.batch_dataset)
    answer = fetcher.fetch("route", {"origin": "LGA", "carrier": "DL"}, NOON_MS)
    assert answer.errors == {}
    assert fetcher.serving_infos()["route"] == new
    assert fetcher.stats().caches["route.batch"].entries >= 2
    later.run()
    assert fetcher.stats().caches["route.batch"].entries == 1
