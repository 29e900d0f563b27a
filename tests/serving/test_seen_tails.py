"""A tail is decoded once for each change of it, and answers are those of what the store has."""

import pytest

from millpond.features import HOUR_MS, MINUTE_MS
from millpond.serving import Fetcher, FetchRequest
from millpond.serving.entry_sizes import closed_tiles_size

from .world import BATCH_END_MS, NOON_MS, PLANS, ROUTE_PLAN, Stream, WatchedStore, read_directly, upload

ROUTES = [{"origin": f"A{number}", "carrier": "UA"} for number in range(4)]
TILE_MS = ROUTE_PLAN.tile_ms


class Routes:
    """Some routes with two open tiles each, asked for at a time that moves."""

    def __init__(self):
        self.store = WatchedStore()
        batch = {tuple(one.values()): [(BATCH_END_MS - HOUR_MS, (1.0, "N1"))] for one in ROUTES}
        self.info = upload(self.store, ROUTE_PLAN, batch)
        self.stream = Stream(self.store, ROUTE_PLAN)
        for one in ROUTES:
            self.add(one, NOON_MS - TILE_MS, 2.0)
            self.add(one, NOON_MS, 3.0)
        self.stream.close(NOON_MS - TILE_MS)
        self.now_ms = NOON_MS + MINUTE_MS
        self.fetcher = Fetcher(
            self.store, PLANS, enable_fetcher_caching=True, refresh_ms=0, now=lambda: self.now_ms, background=_at_once
        )

    def add(self, route, time_ms, delay):
        self.stream.add(tuple(route.values()), [(time_ms, (delay, "N2"))])

    def decoded_by(self, ask, at=None):
        """Ask for all routes, compare with what the store has, and give how many tiles were decoded."""
        query_ms = self.now_ms if at is None else at
        before = self.fetcher.stats().tiles_read
        answers = ask(self.fetcher, query_ms)
        expected = [read_directly(self.store, ROUTE_PLAN, self.info, one, query_ms) for one in ROUTES]
        assert [answer.features for answer in answers] == expected
        return self.fetcher.stats().tiles_read - before


def _at_once(work):
    work()


def one_by_one(fetcher, at):
    return [fetcher.fetch("route", one, at) for one in ROUTES]


def together(fetcher, at):
    return fetcher.fetch_many([FetchRequest("route", one, at) for one in ROUTES])


@pytest.fixture(params=[one_by_one, together])
def ask(request):
    return request.param


@pytest.fixture
def routes(ask):
    made = Routes()
    made.decoded_by(ask)
    made.decoded_by(ask)
    return made


def test_a_tail_that_has_not_changed_is_read_and_not_decoded(routes, ask):
    before = routes.fetcher.stats()
    assert routes.decoded_by(ask) == 0
    after = routes.fetcher.stats()
    assert after.rows_read - before.rows_read == 2 * len(ROUTES)
    assert after.tiles_saved - before.tiles_saved >= 2 * len(ROUTES)


def test_what_one_call_decoded_another_way_of_asking_need_not(routes):
    assert routes.decoded_by(together) == routes.decoded_by(one_by_one) == 0


def test_only_a_tail_that_has_changed_is_decoded_again(routes, ask):
    routes.add(ROUTES[1], NOON_MS + 1, 40.0)
    assert routes.decoded_by(ask) == 2
    assert routes.decoded_by(ask) == 0


def test_a_tile_that_is_new_is_met(routes, ask):
    routes.now_ms = NOON_MS + TILE_MS + MINUTE_MS
    routes.add(ROUTES[2], NOON_MS + TILE_MS, 50.0)
    for _ in range(2):
        routes.decoded_by(ask)  # windows moved, so it is decoded anew with what is closed, and then alone
    assert routes.decoded_by(ask) == 0


def test_a_query_before_the_newest_tile_does_not_get_it(routes, ask):
    routes.decoded_by(ask, at=NOON_MS)
    routes.decoded_by(ask, at=NOON_MS + 1)
    routes.decoded_by(ask)


def test_a_tile_that_closes_becomes_part_of_what_is_closed(routes, ask):
    routes.now_ms = NOON_MS + TILE_MS + MINUTE_MS
    routes.stream.close(NOON_MS)
    for _ in range(3):
        routes.decoded_by(ask)
    before = routes.fetcher.stats().rows_read
    assert routes.decoded_by(ask) == 0
    assert routes.fetcher.stats().rows_read - before == len(ROUTES)


def test_a_late_event_is_met(routes, ask):
    routes.add(ROUTES[0], BATCH_END_MS + MINUTE_MS, 60.0)
    assert routes.decoded_by(ask) > 0
    routes.decoded_by(ask)
    assert routes.decoded_by(ask) == 0


def test_the_weight_of_an_entry_has_the_tail_that_it_began_with():
    routes = Routes()
    routes.decoded_by(one_by_one)
    key = ROUTE_PLAN.encode_key(ROUTES[0])
    closed = routes.fetcher._groups["route"].tile_cache.peek(key)
    with_tail = closed_tiles_size()(key, closed)
    tail, closed.seen_tail = closed.seen_tail, None
    assert with_tail - closed_tiles_size()(key, closed) > sum(len(row.value) for row in tail.rows)
