"""Whatever the caches, the order of requests and what the stream did: an answer is the plan's own."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond.features import DAY_MS, HOUR_MS, MINUTE_MS
from millpond.kv import MemoryStore
from millpond.serving import Fetcher, FetchRequest
from millpond.serving.served_group import STEPS

from .world import BATCH_END_MS, PLANS, ROUTE_PLAN, Clock, Stream, read_directly, upload

KEYS = [("EWR", "UA"), ("JFK", "B6"), ("LGA", "DL")]
CACHES = {
    "off": {},
    "batch rows": {"fetcher_cache_size": 100},
    "closed tiles": {"fetcher_tile_cache_size": "1MB"},
    "all": {"enable_fetcher_caching": True},
    "tiny": {"fetcher_cache_size": 1, "fetcher_tile_cache_size": 1},
    "without moved start": {"enable_fetcher_caching": True, "steps": STEPS[:3]},
    "without skipped gets": {"enable_fetcher_caching": True, "steps": ("batch_ir", "tile_ir", "stream_get")},
    "batch decoding only": {"enable_fetcher_caching": True, "steps": STEPS[:1]},
}

STEPS_OF_A_SCRIPT = 60
DID = {
    "ask now": 12,
    "ask any time": 3,
    "pass some time": 8,
    "stream events": 10,
    "stream late ones": 3,
    "close": 8,
    "close without saying so": 1,
    "closing time goes back": 1,
    "land": 1,
    "refresh": 2,
}
"""What happens, and how often."""


@pytest.mark.parametrize("caches", CACHES.values(), ids=CACHES)
@given(seed=st.integers(0, 1 << 32), length=st.integers(1, STEPS_OF_A_SCRIPT))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_answer_is_what_the_plan_gives_on_the_rows_of_that_moment(caches, seed, length):
    world = World(random.Random(seed), caches)
    for _ in range(length):
        world.do_something()


class World:
    """A store with an upload and a stream, a fetcher over it, and the time; what happens is drawn."""

    def __init__(self, random, caches):
        self.random = random
        self.store = MemoryStore()
        self.clock = Clock()
        self.now_ms = (
            BATCH_END_MS + random.choice([0, 1, 5, 11, 23, 40]) * HOUR_MS + random.choice([0, 1, 7]) * MINUTE_MS
        )
        self.past = {key: self.events(20, -30 * 24, 0) for key in KEYS[:2]}
        self.stream = Stream(self.store, ROUTE_PLAN)
        self.landing = 0
        self.batch_end_ms = BATCH_END_MS
        self.land()
        for key in KEYS[1:]:
            self.stream.add(key, self.events(30, 0, (self.now_ms - BATCH_END_MS) // HOUR_MS))
        self.stream.close(self.now_ms - 2 * HOUR_MS)
        self.fetcher = Fetcher(self.store, PLANS, clock=self.clock, background=lambda work: work(), **caches)

    def events(self, count, first_hours, last_hours):
        """Some moments near the marks of tiles, where most goes wrong."""
        return [
            (self.moment(BATCH_END_MS + first_hours * HOUR_MS, BATCH_END_MS + last_hours * HOUR_MS), self.values())
            for _ in range(count)
        ]

    def moment(self, first_ms, last_ms):
        mark = self.random.randrange(first_ms, last_ms + 1) // (5 * MINUTE_MS) * 5 * MINUTE_MS
        return max(first_ms, mark + self.random.choice([-1, 0, 1, 17, 2 * MINUTE_MS]))

    def values(self):
        delay = self.random.choice([None, float(self.random.randrange(-50, 500))])
        return delay, self.random.choice([None, "N1", "N2", "N3"])

    def do_something(self):
        (what,) = self.random.choices(list(DID), list(DID.values()))
        getattr(self, what.replace(" ", "_"))()

    def ask_now(self):
        self.ask([(key, self.now_ms) for key in self.random.choices(KEYS, k=self.random.choice([1, 1, 3]))])

    def ask_any_time(self):
        self.ask([(key, self.moment(self.batch_end_ms, self.now_ms)) for key in self.random.choices(KEYS, k=3)])

    def pass_some_time(self):
        by_ms = self.random.choice([1, MINUTE_MS, 5 * MINUTE_MS, 17 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS])
        self.now_ms += by_ms
        self.clock.now_ms += by_ms

    def stream_events(self):
        self.add_since(self.now_ms - 30 * MINUTE_MS)

    def stream_late_ones(self):
        self.add_since(self.batch_end_ms)

    def add_since(self, earliest_ms):
        key = self.random.choice(KEYS)
        self.stream.add(key, [(self.moment(earliest_ms, self.now_ms), self.values()) for _ in range(3)])

    def close_to(self, *, publish):
        self.stream.close(self.now_ms - self.random.choice([0, 1, 10, 40]) * MINUTE_MS, publish=publish)

    def close(self):
        self.close_to(publish=True)

    def close_without_saying_so(self):
        self.close_to(publish=False)

    def closing_time_goes_back(self):
        self.stream.restart(self.random.choice([5 * MINUTE_MS, HOUR_MS, 6 * HOUR_MS]))
        self.fetcher.refresh()

    def refresh(self):
        self.fetcher.refresh()

    def land(self):
        if self.landing and self.now_ms >= self.batch_end_ms + DAY_MS:
            self.batch_end_ms += DAY_MS
        self.landing += 1
        known = dict(self.past)
        for key in KEYS:
            known[key] = known.get(key, []) + self.stream.events[ROUTE_PLAN.encode_key(key)]
        self.info = upload(self.store, ROUTE_PLAN, known, self.batch_end_ms, self.landing)
        if self.landing > 1:
            self.fetcher.refresh()

    def ask(self, wanted):
        requests = [FetchRequest("route", dict(zip(("origin", "carrier"), key, strict=True)), at) for key, at in wanted]
        expected = [read_directly(self.store, ROUTE_PLAN, self.info, one.keys, one.at) for one in requests]
        stale = [set(ROUTE_PLAN.stale_features(one.at, self.batch_end_ms)) for one in requests]
        for _ in range(2):
            for answer, wholly, left_out in zip(self.answers(requests), expected, stale, strict=True):
                assert answer.features == {name: value for name, value in wholly.items() if name not in left_out}
                assert set(answer.errors) == left_out

    def answers(self, requests):
        """All at once, or one by one: what is hot goes a shorter way."""
        if self.random.random() < 0.5:
            return self.fetcher.fetch_many(requests)
        return [self.fetcher.fetch(one.name, one.keys, one.at) for one in requests]
