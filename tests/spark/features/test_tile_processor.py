from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import OptionError
from millpond.features import (
    DAY_MS,
    HOUR_MS,
    MARKER_ADDRESS,
    Aggregation,
    Field,
    GroupBy,
    compile_group_by,
    decode_marker,
    layer_of,
    stream_dataset,
    tile_address,
    tile_start,
)
from millpond.spark.features.tiles.processor import DEFAULT_RETENTION_MS, TileProcessor
from millpond.spark.features.tiles.rows import AMENDED, CLOSED, CLOSING, FORGOTTEN, LATE, MARKED, OPENED
from millpond.spark.features.tiles.slots import CLOSING_SLOT, CombinedTiles, encode_combined, slot_of
from tests.spark.features.arrow_states import OneShard

GROUP_BY = GroupBy(
    "route",
    keys=(Field("origin", "string"),),
    inputs=(Field("delay", "double"),),
    aggregations=(Aggregation("count", windows=("1h",)), Aggregation("average", "delay", ("1h", "30d", None))),
)
PLAN = compile_group_by(GROUP_BY)
DATASET = stream_dataset(PLAN.name, PLAN.generation)
TILE_MS, _, _ = PLAN.layers
B = 16_000 * DAY_MS
JFK, EWR = (PLAN.encode_key((origin,)) for origin in ("JFK", "EWR"))


def part(key, time, delay, plan=PLAN):
    """What is combined of one event."""
    start = tile_start(time, plan.tile_ms)
    _, cells = plan.tile_codec.pack(plan.collect([time], [(delay,)]))
    return {"slot": slot_of(key), "tiles": encode_combined({start: CombinedTiles([key], [cells], [1])})}


class Shard(OneShard):
    def __init__(self, plan=PLAN, retention=DEFAULT_RETENTION_MS):
        super().__init__(TileProcessor(plan.group_by, retention))
        self.plan = plan

    def events(self, *events, watermark=None, key=JFK):
        return self.batch([part(key, time, delay, self.plan) for time, delay in events], watermark)


@pytest.fixture
def shard():
    return Shard()


def told(rows, layer=0):
    """The tiles of a layer that were emitted, as (tiles after B, events, complete, version)."""
    tiles = []
    for row in rows:
        if row["change"] in (OPENED, CLOSED, AMENDED) and layer_of(row["address"]) == layer:
            tile = PLAN.decode_tile(row["key"], row["value"])
            assert row["address"] == tile_address(layer, tile.start_ms)
            tiles.append(((tile.start_ms - B) // tile.size_ms, tile.ir[0], tile.complete, tile.version))
    return tiles


def markers(rows):
    return [decode_marker(row["key"], row["value"]) for row in rows if row["change"] == MARKED]


def counted(rows, what):
    return sum(row["amount"] for row in rows if row["change"] == what)


def test_each_tile_that_a_batch_changed_is_emitted_once_and_whole(shard):
    assert told(shard.events((B, 1.0), (B + TILE_MS, 2.0), (B + 1, 3.0))) == [(0, 2, False, 0), (1, 1, False, 0)]
    assert told(shard.events((B + TILE_MS - 1, 1.0))) == [(0, 3, False, 0)]


def test_a_tile_closes_when_the_watermark_reaches_its_end(shard):
    shard.events((B, 1.0), (B + TILE_MS, 2.0))
    assert shard.batch([], B + TILE_MS - 1) == []
    assert told(shard.batch([], B + TILE_MS)) == [(0, 1, True, 0)]
    assert shard.batch([], B + TILE_MS + 1) == []


def test_events_of_the_batch_that_closes_a_tile_are_in_it_and_amend_nothing(shard):
    shard.events((B, 1.0))
    rows = shard.events((B + 1, 1.0), watermark=B + TILE_MS)
    assert told(rows)[-1] == (0, 2, True, 0)
    assert markers(rows) == []


def test_a_late_event_amends_the_tile_and_raises_version_and_marker(shard):
    shard.events((B, 1.0))
    shard.batch([], B + TILE_MS)
    for amendments in (1, 2):
        rows = shard.events((B + 1, 3.0), (B + 2, 3.0))
        assert told(rows) == [(0, 1 + 2 * amendments, True, amendments)]
        assert markers(rows) == [amendments]
        assert rows[-1]["address"] == MARKER_ADDRESS
        assert counted(rows, LATE) == 2


def test_a_tile_that_first_appears_after_its_end_amends_an_empty_one(shard):
    rows = shard.events((B, 1.0), watermark=B + TILE_MS)
    assert told(rows) == [(0, 1, True, 1)]
    assert markers(rows) == [1]


def test_a_closed_hour_and_day_are_tiles_of_their_own(shard):
    shard.events((B, 1.0), (B + TILE_MS, 1.0), (B + 2 * HOUR_MS, 1.0))
    assert told(shard.batch([], B + HOUR_MS - 1), layer=1) == []
    assert told(shard.batch([], B + HOUR_MS), layer=1) == [(0, 2, True, 0)]
    at_once = shard.batch([], B + DAY_MS)
    assert told(at_once, layer=1) == [(2, 1, True, 0)]
    assert told(at_once, layer=2) == [(0, 3, True, 0)]


def test_a_late_event_amends_every_closed_layer_and_joins_the_open_one(shard):
    shard.events((B, 1.0))
    shard.batch([], B + HOUR_MS)
    rows = shard.events((B + 1, 1.0))
    assert told(rows) == [(0, 2, True, 1)]
    assert told(rows, layer=1) == [(0, 2, True, 1)]
    assert told(rows, layer=2) == []
    assert markers(rows) == [1]
    assert told(shard.batch([], B + DAY_MS), layer=2) == [(0, 2, True, 0)]


def test_the_closing_time_is_the_watermark_rounded_down_and_comes_without_events_too(shard):
    heartbeat = {"slot": CLOSING_SLOT, "tiles": None}
    assert counted(shard.batch([heartbeat, part(JFK, B, 1.0)], B + TILE_MS + 7), CLOSING) == B + TILE_MS
    assert counted(shard.batch([], B + 2 * TILE_MS - 1), CLOSING) == 0
    assert counted(shard.batch([], B + 5 * TILE_MS + 1), CLOSING) == B + 5 * TILE_MS


def test_a_tile_is_forgotten_a_retention_after_its_end_and_later_events_are_counted(shard):
    shard.events((B, 1.0))
    shard.batch([], B + TILE_MS)
    shard.batch([], B + TILE_MS + DEFAULT_RETENTION_MS - 1)
    assert told(shard.events((B, 1.0))) == [(0, 2, True, 1)]
    shard.batch([], B + TILE_MS + DEFAULT_RETENTION_MS)
    rows = shard.events((B, 1.0), (B + 1, 2.0))
    assert told(rows) == []
    assert counted(rows, FORGOTTEN) == 2


def test_state_drops_the_tiles_of_an_hour_together(shard):
    shard.events((B, 1.0), (B + 3 * TILE_MS, 1.0))
    for end in (B + TILE_MS, B + 4 * TILE_MS, B + HOUR_MS + DEFAULT_RETENTION_MS - 1):
        shard.batch([], end)
    slot = slot_of(JFK)
    assert {(slot, B), (slot, B + 3 * TILE_MS)} <= shard.maps.keys()
    shard.batch([], B + HOUR_MS + DEFAULT_RETENTION_MS)
    assert not {(slot, B), (slot, B + 3 * TILE_MS)} & shard.maps.keys()


def test_nothing_but_the_marker_is_left_of_a_key_that_went_quiet(shard):
    shard.events((B, 1.0))
    shard.batch([], B + HOUR_MS)
    shard.events((B, 1.0))
    for days in range(1, 8):
        shard.batch([], B + days * DAY_MS)
    assert list(shard.maps) == [(slot_of(JFK), MARKER_ADDRESS)]
    assert shard.timers == set()


@pytest.mark.parametrize("retention", [0, 2 * DAY_MS - TILE_MS, 2 * DAY_MS + 1, "3d"])
def test_a_retention_that_queries_could_outlive_is_refused(retention):
    with pytest.raises(OptionError, match="retention_ms"):
        TileProcessor(GROUP_BY, retention)


OFFSETS = st.one_of(st.integers(0, 2 * DAY_MS), st.integers(0, 3).map(lambda hour: hour * HOUR_MS - 1).filter(bool))
BATCHES = st.lists(
    st.tuples(
        st.lists(
            st.tuples(
                st.sampled_from((JFK, EWR)), OFFSETS.map(lambda offset: B + offset), st.none() | st.floats(-9, 9)
            ),
            max_size=8,
        ),
        st.sampled_from((0, 1, TILE_MS, HOUR_MS - 1, HOUR_MS, DAY_MS // 4, DAY_MS // 3)),
    ),
    max_size=7,
)
TILED = st.sampled_from(
    (PLAN, compile_group_by(GroupBy("route", GROUP_BY.keys, GROUP_BY.inputs, GROUP_BY.aggregations, tiled=False)))
)


@given(BATCHES, TILED, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_the_store_holds_every_event_once_in_each_closed_layer_whatever_the_batches(batches, plan, random):
    shard, store, seen, watermark = Shard(plan), {}, [], B
    markers_seen = {}
    for events, advance in batches:
        closed = tile_start(watermark, plan.tile_ms) if shard.watermark else None
        watermark += advance
        before = dict(store)
        rows = [part(key, time, delay, plan) for key, time, delay in random.sample(events, len(events))]
        for row in shard.batch(rows, watermark):
            if row["value"] is not None:
                store[row["key"], row["address"]] = row["value"]
        seen += events
        check_store(plan, store, seen, watermark)
        check_markers(plan, before, store, closed, markers_seen)


def check_store(plan, store, seen, watermark):
    """Every layer holds what the events say: the smallest always, the others once they are closed."""
    for layer, size in enumerate(plan.layers):

        def place(event, size=size):
            return event[0], tile_start(event[1], size)

        expected = {
            found: (plan.collect([event[1] for event in of_tile], [event[2:] for event in of_tile]))
            for found, of_tile in ((found, list(of_tile)) for found, of_tile in groupby(sorted(seen, key=place), place))
            if layer == 0 or found[1] + size <= watermark
        }
        stored = {
            (key, address - tile_address(layer, 0)): plan.decode_tile(key, value)
            for (key, address), value in store.items()
            if address != MARKER_ADDRESS and layer_of(address) == layer
        }
        assert {found: tile.ir for found, tile in stored.items()} == expected
        assert all(tile.complete == (tile.end_ms <= watermark) for tile in stored.values())


def check_markers(plan, before, store, closed, markers_seen):
    """Whatever a reader may have cached as closed has changed only together with the key's marker."""
    for key in (JFK, EWR):
        raised = store.get((key, MARKER_ADDRESS)) != before.get((key, MARKER_ADDRESS))
        changed = closed is not None and any(
            store[key, address] != before.get((key, address))
            for of_key, address in store
            if of_key == key
            and address != MARKER_ADDRESS
            and plan.decode_tile(key, store[key, address]).end_ms <= closed
        )
        assert raised or not changed
        if raised:
            amendments = decode_marker(key, store[key, MARKER_ADDRESS])
            assert amendments > markers_seen.get(key, 0)
            markers_seen[key] = amendments


@given(st.lists(st.tuples(st.integers(B, B + 2 * TILE_MS), st.floats(-9, 9)), min_size=1), st.data())
def test_a_batch_run_again_in_another_order_writes_the_same_bytes(events, data):
    again = data.draw(st.permutations(events))
    assert Shard().events(*events) == Shard().events(*again)


@pytest.mark.parametrize(
    "changed",
    [
        replace(GROUP_BY, aggregations=(Aggregation("count", windows=("30m",)),)),
        replace(GROUP_BY, keys=(Field("destination", "string"),)),
        replace(GROUP_BY, name="path"),
    ],
    ids=["tile sizes", "keys", "name"],
)
def test_a_checkpoint_goes_on_with_added_cells_and_windows_and_not_with_another_dataset(shard, changed):
    def heartbeat(group_by):
        shard.processor = TileProcessor(group_by)
        shard.processor.init(shard)
        return shard.batch([{"slot": CLOSING_SLOT, "tiles": None}])

    shard.batch([{"slot": CLOSING_SLOT, "tiles": None}, part(JFK, B, 1.0)])
    added = replace(GROUP_BY, aggregations=(*GROUP_BY.aggregations, Aggregation("max", "delay", ("6h",))))
    assert heartbeat(added)
    before = dict(shard.maps)
    with pytest.raises(OptionError, match=rf"'{changed.name}': .*'{DATASET}'.*empty checkpoint folder"):
        heartbeat(changed)
    assert shard.maps == before
