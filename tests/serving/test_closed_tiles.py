"""The tile cache does what CHIP-1 says: its worked examples by name, and what drops an entry."""

import pytest

from millpond.features import (
    DAY_MS,
    HOUR_MS,
    MARKER_ADDRESS,
    Aggregation,
    Field,
    GroupBy,
    Tile,
    compile_group_by,
    tile_address,
)
from millpond.kv import Put
from millpond.serving import Fetcher
from millpond.serving.caches.closed_tiles import closed_end
from millpond.serving.groups.served_group import STEPS

from .world import BATCH_END_MS, Clock, Stream, WatchedStore, read_directly, upload

HOURLY = GroupBy(
    "hourly",
    keys=(Field("user", "string"),),
    inputs=(Field("amount", "long"),),
    aggregations=(Aggregation("sum", "amount", windows=("7d",)),),
    enable_fetcher_caching=True,
)
PLAN = compile_group_by(HOURLY)
KEY = PLAN.encode_key(["ann"])
DATASET = f"hourly.stream.{PLAN.generation}"


_END = MARKER_ADDRESS + 1


def at(hours):
    return BATCH_END_MS + int(hours * HOUR_MS)


class Shop:
    """One key with hourly tiles, written by hand."""

    def __init__(self):
        self.store = WatchedStore()
        self.info = upload(self.store, PLAN, {("ann",): [(BATCH_END_MS - DAY_MS, (1000,))]})
        self.clock = Clock()
        self.now_ms = BATCH_END_MS
        self.fetcher = Fetcher(
            self.store, [HOURLY], now=lambda: self.now_ms, clock=self.clock, background=lambda work: work()
        )

    def tile(self, hour, amount, *, complete):
        tile = Tile(at(hour), HOUR_MS, complete, 0, PLAN.collect([at(hour)], [(amount,)]))
        self.store.put_many(DATASET, [Put(KEY, PLAN.encode_tile(KEY, tile), tile_address(0, at(hour)))])

    def ask(self, hours):
        self.now_ms = max(self.now_ms, at(hours))
        answer = self.fetcher.fetch(HOURLY, {"user": "ann"}, at(hours))
        expected = read_directly(self.store, PLAN, self.info, ["ann"], at(hours))
        assert answer.features == expected
        return answer.features["amount_sum_7d"]

    @property
    def cached(self):
        return self.fetcher._groups["hourly"].tile_cache.peek(KEY)

    def stream_get(self):
        """The latest get of tiles."""
        gets = [get for gets in self.store.asked for get in gets if get.key == KEY and get.end_ms == _END]
        return gets[-1]


def test_two_complete_hours_are_cached_as_one_tile_that_ends_at_2_00():
    shop = Shop()
    shop.tile(0, 1, complete=True)
    shop.tile(1, 2, complete=True)
    shop.tile(2, 4, complete=False)
    assert shop.ask(2.5) == 1007
    assert (shop.cached.end_ms, shop.cached.total, shop.cached.tiles) == (at(2), PLAN.collect([0, 0], [(1,), (2,)]), 2)


def test_at_17_00_with_the_hours_to_13_00_cached_the_get_starts_at_13_00():
    shop = Shop()
    for hour in range(13):
        shop.tile(hour, 1, complete=True)
    for hour in range(13, 17):
        shop.tile(hour, 100, complete=False)
    shop.ask(17)
    assert shop.ask(17) == 1413
    get = shop.stream_get()
    assert (get.start_ms, get.end_ms) == (at(13), MARKER_ADDRESS + 1)


def test_with_only_the_middle_tile_complete_nothing_is_cached_and_the_start_is_unmoved():
    shop = Shop()
    for hour in range(3):
        shop.tile(hour, 1, complete=hour == 1)
    shop.ask(3)
    assert shop.ask(3) == 1003
    assert (shop.cached.total, shop.cached.tiles) == (None, 0)
    assert shop.stream_get().start_ms == BATCH_END_MS


def test_the_same_batch_end_landed_twice_is_answered_by_the_second_landing():
    shop = Shop()
    shop.tile(0, 1, complete=True)
    assert shop.ask(1.5) == 1001
    shop.info = upload(shop.store, PLAN, {("ann",): [(BATCH_END_MS - DAY_MS, (2000,))]}, landing_ms=2)
    shop.clock.now_ms += 8_000
    shop.fetcher.fetch(HOURLY, {"user": "ann"}, at(1.5))
    assert shop.ask(1.5) == 2001


def test_an_absent_hour_before_the_closing_time_is_closed_and_one_after_it_is_a_gap():
    stream_start = at(0)
    tiles = [Tile(at(1), HOUR_MS, complete=True), Tile(at(3), HOUR_MS, complete=True)]
    assert closed_end(stream_start, tiles, at(0), limit_ms=at(9)) == (at(0), 0)
    assert closed_end(stream_start, tiles, at(1), limit_ms=at(9)) == (at(2), 1)
    assert closed_end(stream_start, tiles, at(3), limit_ms=at(9)) == (at(4), 2)
    assert closed_end(stream_start, tiles, at(7), limit_ms=at(9)) == (at(7), 2)


def test_an_empty_key_is_cached_up_to_the_closing_time():
    shop = Shop()
    Stream(shop.store, PLAN).close(at(5))
    shop.fetcher.refresh()
    assert shop.ask(6.5) == 1000
    assert (shop.cached.end_ms, shop.cached.total) == (at(5), None)
    shop.ask(6.5)
    assert shop.stream_get().start_ms == at(5)


def test_a_late_event_for_a_closed_tile_drops_the_cached_part_by_its_marker():
    shop = Shop()
    stream = Stream(shop.store, PLAN)
    stream.add(("ann",), [(at(0.5), (1,)), (at(2.5), (2,))])
    stream.close(at(2))
    shop.fetcher.refresh()
    assert shop.ask(2.7) == 1003
    stream.add(("ann",), [(at(0.7), (40,))])
    assert shop.ask(2.7) == 1043
    assert shop.fetcher.stats().dropped_amended == 1
    asked = len(shop.store.asked)
    assert shop.ask(2.7) == 1043
    assert len([gets for gets in shop.store.asked[asked:] if gets[0].end_ms == MARKER_ADDRESS + 1]) == 1


def test_a_closing_time_that_went_back_drops_the_cached_part():
    shop = Shop()
    stream = Stream(shop.store, PLAN)
    stream.add(("ann",), [(at(0.5), (1,))])
    stream.close(at(4))
    shop.fetcher.refresh()
    shop.ask(5)
    assert shop.cached.end_ms == at(4)
    stream.restart(3 * HOUR_MS)
    shop.fetcher.refresh()
    stream.add(("ann",), [(at(2.5), (7,))])
    assert shop.ask(5) == 1008
    assert shop.cached.end_ms == at(1)


def test_a_query_about_the_past_is_answered_from_the_store_and_leaves_the_cached_part():
    shop = Shop()
    for hour in range(5):
        shop.tile(hour, 1, complete=True)
    assert shop.ask(5.5) == 1005
    kept = shop.cached
    assert shop.ask(2) == 1002
    assert shop.cached is kept


def test_a_query_about_the_past_reads_the_marker_and_no_tile_after_it():
    shop = Shop()
    for hour in range(3):
        shop.tile(hour, 1, complete=True)
    for hour in range(3, 9):
        shop.tile(hour, 1, complete=False)
    assert [shop.ask(hours) for hours in (4.5, 9.5)] == [1005, 1009]
    for caches, tiles in (({}, 2), ({"steps": STEPS[:3]}, 2), ({"fetcher_cache_size": 0}, 2), ({"steps": ()}, 5)):
        fetcher = Fetcher(shop.store, [HOURLY], now=lambda: at(9.5), **caches)
        for _ in range(2):
            fetcher.fetch(HOURLY, {"user": "ann"}, at(4.5))
        before = fetcher.stats()
        assert fetcher.fetch(HOURLY, {"user": "ann"}, at(4.5)).features == {"amount_sum_7d": 1005}
        after = fetcher.stats()
        assert (after.tiles_read - before.tiles_read, after.kv_calls - before.kv_calls) == (tiles, 1)


def test_a_late_event_is_met_by_a_query_about_the_past():
    shop = Shop()
    stream = Stream(shop.store, PLAN)
    stream.add(("ann",), [(at(0.5), (1,)), (at(2.5), (2,)), (at(6.5), (8,))])
    stream.close(at(2))
    shop.fetcher.refresh()
    shop.now_ms = at(7)
    assert [shop.ask(2.7), shop.ask(2.7)] == [1003, 1003]
    stream.add(("ann",), [(at(0.7), (40,))])
    assert shop.ask(2.7) == 1043
    assert shop.fetcher.stats().dropped_amended == 1


def test_a_short_window_moves_over_the_closed_part_without_reading_it_again():
    short = GroupBy(
        "short",
        keys=(Field("user", "string"),),
        aggregations=(Aggregation("count", windows=("3h", "1d", None)),),
        enable_fetcher_caching=True,
    )
    plan = compile_group_by(short)
    store = WatchedStore()
    info = upload(store, plan, {("ann",): [(BATCH_END_MS - HOUR_MS, ())]})
    stream = Stream(store, plan)
    stream.add(("ann",), [(at(minute / 60), ()) for minute in range(1, 355, 7)])
    stream.close(at(5.9))
    clock = Clock()
    fetcher = Fetcher(store, [short], clock=clock, background=lambda work: work())
    for minute in range(6 * 60, 10 * 60, 5):
        stream.add(("ann",), [(at(minute / 60) - 60_000, ())])
        stream.close(at(minute / 60))
        clock.now_ms += 9_000
        fetcher.fetch(short, {"user": "ann"}, at(minute / 60))
        before = fetcher.stats().tiles_read
        answer = fetcher.fetch(short, {"user": "ann"}, at(minute / 60) + 1)
        assert answer.features == read_directly(store, plan, info, ["ann"], at(minute / 60) + 1)
        assert fetcher.stats().tiles_read - before <= 2


@pytest.mark.parametrize("landings", [1, 3])
def test_ten_equal_requests_give_ten_equal_answers_and_leave_what_is_stored_and_cached(landings):
    shop = Shop()
    for hour in range(landings):
        shop.tile(hour, hour, complete=True)
    answers = [shop.fetcher.fetch(HOURLY, {"user": "ann"}, at(4)) for _ in range(10)]
    assert all(answer == answers[0] for answer in answers)
    kept = (shop.cached.total, shop.cached.bases, shop.cached.pieces)
    frozen = repr(kept)
    shop.ask(4)
    assert repr(kept) == frozen
