"""Whatever the caches, the order of requests and what the stream did: an answer is the plan's own."""

import random
import threading
from contextlib import ExitStack, closing

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.redis_servers import redis_cluster, redis_server
from millpond.features import DAY_MS, HOUR_MS, MINUTE_MS, Join, JoinPart
from millpond.kv import MemoryStore, open_store
from millpond.serving import Fetcher, FetchRequest, FetchResponse
from millpond.serving.groups.served_group import STEPS

from .world import BATCH_END_MS, PLANS, ROUTE, ROUTE_PLAN, Clock, Stream, read_directly, upload

KEYS = [("EWR", "UA"), ("JFK", "B6"), ("LGA", "DL")]
PAIR = Join(
    "pair",
    parts=(
        JoinPart(ROUTE, prefix="own"),
        JoinPart(ROUTE, key_mapping={"other_origin": "origin", "other_carrier": "carrier"}, prefix="other"),
    ),
)
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
@example(seed=304, length=STEPS_OF_A_SCRIPT)  # restarted without its state between two looks at the closing time
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_answer_is_what_the_plan_gives_on_the_rows_of_that_moment(caches, seed, length):
    world = World(random.Random(seed), caches)
    for _ in range(length):
        world.do_something()


@pytest.fixture(scope="module", params=["lmdb", "redis", "cluster"])
def durable_store(request, tmp_path_factory):
    with ExitStack() as stack:
        if request.param == "lmdb":
            url = f"lmdb://{tmp_path_factory.mktemp('kv')}?sync=false"
        else:
            url = stack.enter_context(redis_cluster() if request.param == "cluster" else redis_server()).url
        store = stack.enter_context(closing(open_store(url)))
        yield store


@pytest.mark.parametrize("caches", [CACHES["all"], CACHES["tiny"]], ids=["all", "tiny"])
@pytest.mark.parametrize("seed", range(4))
def test_an_answer_is_the_plans_own_over_every_store(durable_store, caches, seed):
    for dataset in durable_store.datasets():
        durable_store.drop(dataset)
    world = World(random.Random(seed), caches, durable_store)
    for _ in range(STEPS_OF_A_SCRIPT):
        world.do_something()


@pytest.mark.parametrize("caches", [CACHES["all"], CACHES["tiny"], CACHES["off"]], ids=["all", "tiny", "off"])
def test_many_threads_get_the_plans_own_answers_while_batches_land_again_and_entries_are_evicted(caches):
    world = World(random.Random(5), caches)
    for _ in range(40):
        world.do_something()
    keys = [dict(zip(("origin", "carrier"), key, strict=True)) for key in KEYS]
    asked = [FetchRequest("route", one, world.now_ms + step) for one in keys for step in (0, 1, MINUTE_MS)]
    expected = [read_directly(world.store, ROUTE_PLAN, world.info, one.keys, one.at) for one in asked]
    stale = [set(ROUTE_PLAN.stale_features(one.at, world.batch_end_ms)) for one in asked]
    cached = [entry for group in world.fetcher.groups for entry in entries_of(group)]
    before = [repr(entry) for entry in cached]
    wrong = []

    def ask(seed):
        draw = random.Random(seed)
        for _ in range(60):
            at = draw.randrange(len(asked))
            answer = world.fetcher.fetch_many([asked[at]] * draw.choice([1, 2]))[0]
            # Batches land faster here than a thread may get its turn. Then it is told so, and gets no value.
            if not answer.features and any("was replaced" in reason for reason in answer.errors.values()):
                continue
            if answer.features != {name: value for name, value in expected[at].items() if name not in stale[at]}:
                wrong.append((asked[at], answer))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        world.land_again()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert [repr(entry) for entry in cached] == before


def entries_of(group):
    """What the caches of a GroupBy hold, as plain values."""
    if group.batch_cache is not None:
        for _, row in group.batch_cache.items():  # noqa: PERF102 - a cache has no values()
            yield row.batch
    if group.tile_cache is not None:
        for _, closed in group.tile_cache.items():  # noqa: PERF102 - a cache has no values()
            yield (closed.end_ms, closed.total, closed.pieces, closed.bases)


class World:
    """A store with an upload and a stream, a fetcher over it, and the time; what happens is drawn."""

    def __init__(self, random, caches, store=None):
        self.random = random
        self.store = MemoryStore() if store is None else store
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
        self.fetcher = Fetcher(
            self.store,
            [*PLANS, PAIR],
            now=lambda: self.now_ms,
            clock=self.clock,
            background=lambda work: work(),
            **caches,
        )

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
        some = self.random.choice([KEYS, self.random.choices(KEYS, k=self.random.choice([1, 1, 3]))])
        self.ask([(key, self.now_ms) for key in some])

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
        self.streamed_before_landing = {key: list(self.stream.events[ROUTE_PLAN.encode_key(key)]) for key in KEYS}
        known = {key: self.past.get(key, []) + self.streamed_before_landing[key] for key in KEYS}
        self.info = upload(self.store, ROUTE_PLAN, known, self.batch_end_ms, self.landing)
        if self.landing > 1:
            self.fetcher.refresh()

    def land_again(self):
        """Land the same batch once more, under another landing time."""
        self.landing += 1
        known = {key: self.past.get(key, []) + self.streamed_before_landing.get(key, []) for key in KEYS}
        upload(self.store, ROUTE_PLAN, known, self.batch_end_ms, self.landing)
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
        how = self.random.random()
        if how < 0.25:
            return self.fetcher.fetch_many(requests)
        if how < 0.5:
            return self.joined_answers(requests)
        return [self.fetcher.fetch(one.name, one.keys, one.at) for one in requests]

    def joined_answers(self, requests):
        """The same by a Join that asks for two routes each; those with the same time must agree."""
        pairs = [(one, other) for one, other in zip(requests, [*requests[1:], requests[0]], strict=True)]
        asked = [
            FetchRequest("pair", one.keys | {f"other_{name}": key for name, key in other.keys.items()}, one.at)
            for one, other in pairs
        ]
        found = (
            self.fetcher.fetch_many(asked)
            if self.random.random() < 0.5
            else [self.fetcher.fetch(one.name, one.keys, one.at) for one in asked]
        )
        own, others = ([unprefixed(answer, prefix) for answer in found] for prefix in ("own_", "other_"))
        for place, (one, other) in enumerate(pairs):
            if one.at == other.at:
                assert others[place] == own[(place + 1) % len(pairs)]
        return own


def unprefixed(answer, prefix):
    """The part of an answer that has a prefix, under the names of the GroupBy."""
    features, errors = (
        {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
        for found in (answer.features, answer.errors)
    )
    return FetchResponse("route", {}, answer.at, features, {}, errors)
