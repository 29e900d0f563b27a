import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.streaming.tws_tester import TwsTester

from millpond.errors import DataError, OptionError
from millpond.features import DAY_MS, Aggregation, Field, GroupBy, Tile, compile_group_by, tile_start
from millpond.spark.tile_stream import DEFAULT_RETENTION_MS, TileProcessor

GROUP_BY = GroupBy(
    "route",
    keys=(Field("origin", "string"),),
    inputs=(Field("delay", "double"),),
    aggregations=(Aggregation("count", windows=("1h",)), Aggregation("average", "delay", ("1h", None))),
)
PLAN = compile_group_by(GROUP_BY)
KEY = ("JFK",)
ENCODED = PLAN.encode_key(KEY)
TILE_MS = PLAN.tile_ms
B = 16_000 * DAY_MS


class OneKey:
    """The state, the timers and the watermark of one key, as plain as can be."""

    def __init__(self, processor):
        self.map, self.timers, self.watermark = {}, set(), 0
        self.processor = processor
        processor.init(self)

    def getMapState(self, name, key_schema, value_schema):
        return self

    def getValue(self, key):
        return self.map.get(key)

    def updateValue(self, key, value):
        self.map[key] = value

    def removeKey(self, key):
        self.map.pop(key, None)

    def registerTimer(self, expiry):
        self.timers.add(expiry)

    def batch(self, *events, watermark=None):
        """Run one micro-batch: its rows, then the timers that are due; give what was emitted."""
        self.watermark = self.watermark if watermark is None else watermark
        times = TimerValues(0, self.watermark)
        rows = [Row(key_0=KEY[0], time_ms=time, input_0=delay) for time, delay in events]
        emitted = list(self.processor.handleInputRows(KEY, iter(rows), times)) if rows else []
        for expiry in sorted(timer for timer in self.timers if timer <= self.watermark):
            emitted += self.processor.handleExpiredTimer(KEY, times, ExpiredTimerInfo(expiry))
            self.timers.discard(expiry)
        return emitted


@pytest.fixture
def key():
    return OneKey(TileProcessor(GROUP_BY))


def told(rows):
    """What was emitted, as (tiles after B, events, complete, version)."""
    tiles = [PLAN.decode_tile(ENCODED, row.tile) for row in rows]
    for row, tile in zip(rows, tiles, strict=True):
        assert (row.key, row.start_ms) == (PLAN.encode_key(KEY), tile.start_ms)
        assert (row.complete, row.version) == (tile.complete, tile.version)
    return [((tile.start_ms - B) // TILE_MS, tile.ir[0], tile.complete, tile.version) for tile in tiles]


def test_each_tile_that_a_batch_changed_is_emitted_once_and_whole(key):
    assert told(key.batch((B, 1.0), (B + TILE_MS, 2.0), (B + 1, 3.0))) == [(0, 2, False, 0), (1, 1, False, 0)]
    assert told(key.batch((B + TILE_MS - 1, 1.0))) == [(0, 3, False, 0)]


def test_a_tile_is_emitted_once_more_and_complete_when_the_watermark_passes_its_end(key):
    key.batch((B, 1.0), (B + TILE_MS, 2.0))
    assert key.batch(watermark=B + TILE_MS - 1) == []
    assert told(key.batch(watermark=B + TILE_MS)) == [(0, 1, True, 0)]
    assert key.batch(watermark=B + TILE_MS + 1) == []


def test_a_tile_that_changes_in_the_batch_that_closes_it_is_emitted_once(key):
    key.batch((B, 1.0))
    assert told(key.batch((B + 1, 1.0), watermark=B + TILE_MS)) == [(0, 2, True, 0)]


def test_a_late_event_amends_a_closed_tile_under_the_next_version(key):
    key.batch((B, 1.0))
    key.batch(watermark=B + TILE_MS)
    assert told(key.batch((B, 1.0))) == [(0, 2, True, 1)]
    assert told(key.batch((B, 1.0), (B, 1.0))) == [(0, 4, True, 2)]


def test_a_tile_that_first_appears_late_amends_the_empty_one_that_was_complete(key):
    assert told(key.batch((B, 1.0), watermark=B + TILE_MS)) == [(0, 1, True, 1)]


@pytest.mark.parametrize("late", [False, True])
def test_a_tile_is_forgotten_a_retention_after_its_end(key, late):
    key.batch((B, 1.0), watermark=B + TILE_MS if late else 0)
    key.batch(watermark=B + TILE_MS)
    key.batch(watermark=B + TILE_MS + DEFAULT_RETENTION_MS - 1)
    assert len(key.map) == 1
    assert key.batch(watermark=B + TILE_MS + DEFAULT_RETENTION_MS) == []
    assert (key.map, key.timers) == ({}, set())


def test_a_jump_of_the_watermark_over_the_whole_retention_closes_and_then_forgets(key):
    key.batch((B, 1.0))
    far = B + TILE_MS + 2 * DEFAULT_RETENTION_MS
    assert told(key.batch(watermark=far)) == [(0, 1, True, 0)]
    assert key.batch(watermark=far) == []
    assert (key.map, key.timers) == ({}, set())


def test_an_event_for_a_forgotten_tile_is_left_out_and_said_once(key, caplog):
    assert key.batch((B, 1.0), (B, 2.0), watermark=B + TILE_MS + DEFAULT_RETENTION_MS) == []
    assert key.map == {}
    key.processor.close()
    key.processor.close()
    assert ["2 events" in message and "'route'" in message for message in caplog.messages] == [True]


def test_closing_one_tile_forgets_another_of_the_same_moment(key):
    key.batch((B, 1.0), (B + DEFAULT_RETENTION_MS, 1.0))
    key.batch(watermark=B + TILE_MS)
    closed = key.batch(watermark=B + TILE_MS + DEFAULT_RETENTION_MS)
    assert told(closed) == [(DEFAULT_RETENTION_MS // TILE_MS, 1, True, 0)]
    assert list(key.map) == [(B + DEFAULT_RETENTION_MS,)]


def test_an_event_without_a_time_is_refused(key):
    with pytest.raises(DataError, match=r"'route'.*\('JFK',\).*no time"):
        key.batch((None, 1.0))


@pytest.mark.parametrize("retention", [0, 2 * DAY_MS - TILE_MS, 2 * DAY_MS + 1])
def test_a_retention_that_queries_could_outlive_is_refused(retention):
    with pytest.raises(OptionError, match=f"retention_ms {retention}"):
        TileProcessor(GROUP_BY, retention)


BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, DAY_MS).map(lambda offset: B + offset), st.none() | st.floats(-9, 9))),
        st.integers(0, DAY_MS // 2),
    ),
    max_size=6,
)


@given(BATCHES, st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_last_tiles_written_hold_every_event_whatever_the_batches_and_their_order(batches, random):
    key, store, watermark = OneKey(TileProcessor(GROUP_BY)), {}, B
    for events, advance in batches:
        watermark += advance
        for row in key.batch(*random.sample(events, len(events)), watermark=watermark):
            former = store.get(row.start_ms)
            assert former is None or (former.version, former.complete) <= (row.version, row.complete)
            store[row.start_ms] = row
    expected = {}
    for time, delay in (event for events, _ in batches for event in events):
        expected.setdefault(tile_start(time, TILE_MS), []).append((delay,))
    assert {start: PLAN.decode_tile(ENCODED, row.tile).ir for start, row in store.items()} == {
        start: PLAN.collect([0] * len(rows), rows) for start, rows in expected.items()
    }
    assert all(row.complete == (start + TILE_MS <= watermark) for start, row in store.items())


@given(st.lists(st.tuples(st.integers(B, B + 2 * TILE_MS), st.floats(-9, 9)), min_size=1), st.data())
def test_a_batch_run_again_in_another_order_writes_the_same_bytes(events, data):
    again = data.draw(st.permutations(events))
    one, other = OneKey(TileProcessor(GROUP_BY)), OneKey(TileProcessor(GROUP_BY))
    assert one.batch(*events) == other.batch(*again)


def test_the_processor_runs_under_pyspark_s_own_tester():
    tester = TwsTester(
        TileProcessor(GROUP_BY), timeMode="EventTime", outputMode="Update", eventTimeExtractor=lambda row: row.time_ms
    )
    event = Row(key_0="JFK", time_ms=B, input_0=1.0)
    assert told(tester.test("JFK", [event, event])) == [(0, 2, False, 0)]
    assert told(tester.setWatermark(B + TILE_MS)) == [(0, 2, True, 0)]
    assert tester.setWatermark(B + TILE_MS + DEFAULT_RETENTION_MS) == []
    assert tester.peekMapState("tiles", "JFK") == {}


def test_emitted_tiles_answer_queries(key):
    rows = key.batch((B, 1.0), (B + 1, 3.0))
    tiles: list[Tile] = [PLAN.decode_tile(ENCODED, row.tile) for row in rows]
    assert PLAN.finish(B + TILE_MS, B, None, tiles) == {
        "count_1h": 2,
        "delay_average_1h": 2.0,
        "delay_average": 2.0,
    }
