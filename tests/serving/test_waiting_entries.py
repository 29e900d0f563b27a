"""Entries for full caches wait for fetches that miss nothing, and are then made and put as if they had not waited."""

import pytest

from millpond.features import DAY_MS, HOUR_MS, MINUTE_MS, Join, JoinPart
from millpond.serving import Fetcher, FetchRequest
from millpond.serving.caches.waiting_entries import AT_ONCE, CROWDED, MOST_WAITING, WaitingEntries

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
        self.stream = Stream(self.store, AIRCRAFT_PLAN)
        self.stream.add(["N new"], [(BATCH_END_MS + hours * HOUR_MS, (5.0,)) for hours in range(12)])
        self.stream.close(NOON_MS - 30 * MINUTE_MS)
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

    def put_what_waits(self):
        for _ in range(len(self.group.waiting.puts)):
            self.fetch(self.hit)
        assert not self.group.waiting.puts

    def miss_until_admitted(self):
        self.put_what_waits()
        for _ in range(3):
            self.fetch(NEW)
        assert len(self.group.waiting.puts) == 1

    def is_cached(self, keys):
        return self.group.tile_cache.peek(AIRCRAFT_PLAN.encode_key(keys)) is not None


@pytest.fixture
def full():
    return Full()


def test_an_entry_for_a_full_cache_waits_for_a_fetch_that_misses_nothing(full):
    full.miss_until_admitted()
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


def test_each_fetch_that_misses_nothing_puts_the_entries_of_a_few_keys(full):
    full.put_what_waits()
    put = []
    full.group.waiting.puts.extend([lambda: put.append(True)] * (2 * AT_ONCE))
    full.fetch({"tail": "N nobody"})
    assert not put
    full.fetch(full.hit)
    assert len(put) == AT_ONCE
    full.fetch({"tail": "N nobody"})
    assert len(put) == AT_ONCE
    full.fetch(full.hit)
    assert len(put) == 2 * AT_ONCE


def test_if_many_entries_wait_every_fetch_puts_those_of_one_key(full):
    full.put_what_waits()
    put = []
    full.group.waiting.puts.extend([lambda: put.append(True)] * (CROWDED + 1))
    full.fetch({"tail": "N nobody"})
    full.fetch({"tail": "N somebody"})
    assert len(put) == 1


def test_a_call_for_many_keys_puts_the_entries_at_once(full):
    full.put_what_waits()
    for _ in range(3):
        full.fetcher.fetch_many([FetchRequest("aircraft", keys, NOON_MS) for keys in (NEW, full.hit)])
    assert full.is_cached(NEW)


def test_entries_of_a_former_batch_are_not_put(full):
    full.miss_until_admitted()
    upload(full.store, AIRCRAFT_PLAN, {("N new",): [EVENT]}, BATCH_END_MS, landing_ms=2)
    full.fetcher.refresh()
    full.group.waiting.put_some(1)
    assert not full.is_cached(NEW)
    assert full.group.batch_cache.peek(AIRCRAFT_PLAN.encode_key(NEW)) is None


def test_closed_tiles_are_not_put_if_the_stream_restarted_meanwhile(full):
    full.miss_until_admitted()
    full.stream.restart(3 * HOUR_MS)
    full.fetcher.refresh()
    full.group.waiting.put_some(1)
    assert not full.is_cached(NEW)
    full.fetch(NEW)


def test_closed_tiles_are_put_if_more_tiles_closed_meanwhile(full):
    full.miss_until_admitted()
    full.stream.close(NOON_MS - 10 * MINUTE_MS)
    full.fetcher.refresh()
    full.put_what_waits()
    assert full.is_cached(NEW)
    full.fetch(NEW)


def test_tiles_beyond_the_closing_time_are_not_put_once_the_serving_info_was_read_again(full):
    full.stream.add(["N new"], [(NOON_MS - 30 * MINUTE_MS, (5.0,))])
    full.stream.close(NOON_MS, publish=False)
    full.miss_until_admitted()
    full.fetcher.refresh()
    full.group.waiting.put_some(1)
    assert not full.is_cached(NEW)
    full.fetch(NEW)


def test_a_key_amended_while_its_entry_waited_is_read_anew(full):
    full.miss_until_admitted()
    full.stream.add(["N new"], [(BATCH_END_MS + HOUR_MS, (7.0,))])
    full.put_what_waits()
    full.fetch(NEW)
    full.fetch(NEW)


def test_entries_that_another_fetch_put_meanwhile_stay(full):
    full.miss_until_admitted()
    (put,) = full.group.waiting.puts
    full.put_what_waits()
    key = AIRCRAFT_PLAN.encode_key(NEW)
    entry, row = full.group.tile_cache.peek(key), full.group.batch_cache.peek(key)
    put()
    assert full.group.tile_cache.peek(key) is entry
    assert full.group.batch_cache.peek(key) is row


def test_when_many_entries_wait_the_oldest_is_put_at_once():
    waiting, put = WaitingEntries(), []
    for number in range(MOST_WAITING + 2):
        waiting.add(lambda number=number: put.append(number))
    assert put == [0, 1]
    waiting.put_some(MOST_WAITING)
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
    waiting = fetcher.groups[0].waiting
    for _ in range(len(waiting.puts)):
        fetcher.fetch(PAIR, asked(hit), NOON_MS)
    assert is_cached(new) == [True, True]
