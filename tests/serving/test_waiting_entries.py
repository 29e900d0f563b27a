"""Entries for full caches wait for a fetch that misses nothing, and are then put as if they had not waited."""

import pytest

from millpond.features import DAY_MS, HOUR_MS, Join, JoinPart
from millpond.serving import Fetcher, FetchRequest
from millpond.serving.caches.waiting_entries import MOST_WAITING, WaitingEntries

from .world import (
    AIRCRAFT,
    AIRCRAFT_PLAN,
    BATCH_END_MS,
    NOON_MS,
    ROUTE,
    ROUTE_PLAN,
    Stream,
    WatchedStore,
    read_directly,
    upload,
)

TAILS = [f"N{number}" for number in range(60)]
EVENT = (BATCH_END_MS - HOUR_MS, (30.0,))
PAIR = Join("pair", parts=(JoinPart(AIRCRAFT), JoinPart(ROUTE, prefix="route")))
NEW = {"tail": "N new"}


class Full:
    """A fetcher whose caches are full, and which has hits enough to admit a key at its third miss."""

    def __init__(self):
        self.store = WatchedStore()
        self.info = upload(self.store, AIRCRAFT_PLAN, {(tail,): [EVENT] for tail in [*TAILS, "N new"]})
        self.fetcher = Fetcher(
            self.store, [AIRCRAFT], fetcher_cache_size=10, fetcher_tile_cache_size=10, now=lambda: NOON_MS
        )
        (self.group,) = self.fetcher.groups
        for tail in TAILS:
            self.fetch({"tail": tail})
        self.hit = {"tail": next(tail for tail in TAILS if self.is_cached({"tail": tail}))}
        for _ in range(200):
            self.fetch(self.hit)
        # A full cache looks at its hits, which pay for new entries, once in 64 misses.
        for number in range(64):
            self.fetch({"tail": f"N other {number}"})

    def fetch(self, keys):
        answer = self.fetcher.fetch("aircraft", keys, NOON_MS)
        assert answer.features == read_directly(self.store, AIRCRAFT_PLAN, self.info, keys, NOON_MS)

    def miss_until_admitted(self):
        for _ in range(3):
            self.fetch(NEW)

    def is_cached(self, keys):
        return self.group.tile_cache.peek(AIRCRAFT_PLAN.encode_key(keys)) is not None


@pytest.fixture
def full():
    return Full()


def test_an_entry_for_a_full_cache_waits_for_a_fetch_that_misses_nothing(full):
    full.miss_until_admitted()
    assert not full.is_cached(NEW)
    full.fetch({"tail": "N nobody"})
    assert not full.is_cached(NEW)
    full.fetch(full.hit)
    assert full.is_cached(NEW)
    assert full.group.batch_cache.peek(AIRCRAFT_PLAN.encode_key(NEW)) is not None


def test_a_key_whose_entry_waits_is_a_miss(full):
    full.miss_until_admitted()
    before = full.fetcher.stats().caches["aircraft.tiles"]
    full.fetch(NEW)
    after = full.fetcher.stats().caches["aircraft.tiles"]
    assert (after.hits - before.hits, after.misses - before.misses) == (0, 1)


def test_a_call_for_many_keys_puts_the_entries_at_once(full):
    for _ in range(3):
        full.fetcher.fetch_many([FetchRequest("aircraft", keys, NOON_MS) for keys in (NEW, full.hit)])
    assert full.is_cached(NEW)


def test_an_entry_of_a_former_batch_is_not_put(full):
    full.miss_until_admitted()
    upload(full.store, AIRCRAFT_PLAN, {("N new",): [EVENT]}, BATCH_END_MS, landing_ms=2)
    full.fetcher.refresh()
    full.group.waiting.put_all()
    assert not full.is_cached(NEW)


def test_an_entry_that_another_fetch_put_meanwhile_stays(full):
    full.miss_until_admitted()
    waiting = list(full.group.waiting.puts)
    full.group.waiting.put_all()
    key = AIRCRAFT_PLAN.encode_key(NEW)
    entry = full.group.tile_cache.peek(key)
    for put in waiting:
        put()
    assert full.group.tile_cache.peek(key) is entry


def test_when_many_entries_wait_the_oldest_is_put_at_once():
    waiting, put = WaitingEntries(), []
    for number in range(MOST_WAITING + 2):
        waiting.add(lambda number=number: put.append(number))
    assert put == [0, 1]
    waiting.put_all()
    assert put == list(range(MOST_WAITING + 2))


def test_a_join_puts_the_entries_of_all_its_parts():
    store = WatchedStore()
    events = {(tail,): [EVENT] for tail in TAILS}
    upload(store, AIRCRAFT_PLAN, events)
    upload(store, ROUTE_PLAN, {(tail, "UA"): [(BATCH_END_MS - DAY_MS, (1.0, tail))] for tail in TAILS})
    for plan in (AIRCRAFT_PLAN, ROUTE_PLAN):
        Stream(store, plan).publish(NOON_MS)
    fetcher = Fetcher(store, [PAIR], fetcher_cache_size=10, fetcher_tile_cache_size=10, now=lambda: NOON_MS)

    def asked(tail):
        return {"tail": tail, "origin": tail, "carrier": "UA"}

    def is_cached(tail):
        keys = {"aircraft": [tail], "route": [tail, "UA"]}
        return [one.tile_cache.peek(one.plan.encode_key(keys[one.name])) is not None for one in fetcher.groups]

    for tail in TAILS:
        fetcher.fetch(PAIR, asked(tail), NOON_MS)
    hit = next(tail for tail in TAILS if all(is_cached(tail)))
    for _ in range(200):
        fetcher.fetch(PAIR, asked(hit), NOON_MS)
    for number in range(64):
        fetcher.fetch(PAIR, asked(f"N other {number}"), NOON_MS)
    new = next(tail for tail in TAILS if not any(is_cached(tail)))
    for _ in range(3):
        fetcher.fetch(PAIR, asked(new), NOON_MS)
    assert is_cached(new) == [False, False]
    fetcher.fetch(PAIR, asked(hit), NOON_MS)
    assert is_cached(new) == [True, True]
