"""Tiles of the larger layers: made of those below them when they close, also from the state of earlier versions."""

import pytest

from millpond.features import HOUR_MS, tile_address
from millpond.spark.features.tiles.rows import AMENDED, CLOSED
from millpond.spark.features.tiles.slots import Block, TileCells, decode_block, encode_block, merged_tiles, slot_of
from tests.spark.features.test_tile_processor import EWR, JFK, PLAN, TILE_MS, B, Shard, markers, part, told

HOUR = tile_address(1, B)
SLOT = slot_of(JFK)


@pytest.fixture
def shard():
    return Shard()


def cells(*delays):
    """The packed cells of the events of one tile."""
    return PLAN.tile_codec.pack(PLAN.collect([B] * len(delays), [(delay,) for delay in delays]))[1]


def store(shard, key, address, *, versions=None, **tiles):
    """Put an incomplete block into state, as versions stored it that merged each closed tile into the one above."""
    shard.maps[slot_of(key), address] = encode_block(PLAN.tile_codec, Block(tiles["cells"], versions=versions))


def test_an_hour_that_is_open_has_an_empty_block_until_it_closes(shard):
    shard.events((B, 1.0))
    opened = shard.maps[SLOT, HOUR]
    assert decode_block(PLAN.tile_codec, opened).cells == {}
    shard.batch([], B + TILE_MS)
    shard.events((B, 1.0), (B + TILE_MS, 1.0))
    assert shard.maps[SLOT, HOUR] == opened
    assert told(shard.batch([], B + HOUR_MS), layer=1) == [(0, 3, True, 0)]
    assert decode_block(PLAN.tile_codec, shard.maps[SLOT, HOUR]).cells.keys() == {JFK}


def test_a_late_event_of_the_batch_that_closes_the_hour_is_in_it_and_does_not_amend_it(shard):
    shard.events((B, 1.0))
    shard.batch([], B + TILE_MS)
    rows = shard.events((B + 1, 3.0), watermark=B + HOUR_MS)
    assert told(rows) == [(0, 2, True, 1)]
    assert told(rows, layer=1) == [(0, 2, True, 0)]
    assert markers(rows) == [1]


def test_a_late_event_amends_an_empty_hour_whose_other_tiles_close_in_the_same_batch(shard):
    shard.events((B + 2 * TILE_MS, 1.0))
    rows = shard.events((B, 3.0), watermark=B + HOUR_MS)
    assert told(rows, layer=1)[-1][:3] == (0, 2, True)
    assert markers(rows) == [1]


def test_a_late_event_amends_an_hour_that_no_event_was_in(shard):
    shard.batch([part(EWR, B + HOUR_MS, 1.0)], B + 2 * HOUR_MS)
    rows = shard.events((B, 1.0))
    assert told(rows, layer=1) == [(0, 1, True, 1)]
    assert [row["change"] for row in rows if row["address"] == HOUR] == [AMENDED]
    rows = shard.events((B + TILE_MS, 1.0), (B + TILE_MS, 1.0))
    assert told(rows, layer=1) == [(0, 3, True, 2)]
    assert markers(rows) == [2]


def test_an_hour_that_was_merged_so_far_counts_no_event_twice(shard):
    shard.events((B, 1.0))
    shard.batch([], B + TILE_MS)
    store(shard, JFK, HOUR, cells={JFK: cells(1.0)})
    shard.events((B, 2.0), (B + TILE_MS, 4.0))
    rows = shard.batch([], B + HOUR_MS)
    assert told(rows, layer=1) == [(0, 3, True, 0)]
    assert [row["change"] for row in rows if row["address"] == HOUR] == [CLOSED]


def test_an_hour_that_was_merged_so_far_has_each_late_event_of_the_batch_that_closes_it(shard):
    shard.events((B, 1.0))
    shard.batch([], B + TILE_MS)
    store(shard, JFK, HOUR, cells={JFK: cells(1.0)})
    rows = shard.events((B, 2.0), watermark=B + HOUR_MS)
    assert told(rows, layer=1)[-1][:3] == (0, 2, True)


def test_an_hour_that_late_events_made_is_amended_and_keeps_its_versions(shard):
    key = next(key for number in range(10_000) if slot_of(key := b"K%d" % number) == SLOT)
    shard.batch([part(key, B, 1.0)], B + 2 * HOUR_MS)
    assert decode_block(PLAN.tile_codec, shard.maps[SLOT, HOUR]).versions == {key: 1}
    store(shard, JFK, HOUR, cells={key: cells(1.0)}, versions={key: 1})
    rows = shard.events((B, 1.0), (B + TILE_MS, 1.0))
    written = {row["key"]: PLAN.decode_tile(row["key"], row["value"]) for row in rows if row["address"] == HOUR}
    assert {key: (tile.ir[0], tile.complete, tile.version) for key, tile in written.items()} == {
        JFK: (2, True, 1),
        key: (1, True, 1),
    }
    assert markers(rows) == [1]


def test_tiles_that_opened_when_nothing_was_above_them_are_in_the_hour_too(shard):
    shard.events((B, 1.0), (B + TILE_MS, 1.0))
    for place in [place for place in shard.maps if place[1] >= HOUR]:
        del shard.maps[place]
    shard.timers = {(slot, time) for slot, time in shard.timers if time < B + HOUR_MS}
    shard.batch([], B + TILE_MS)
    assert told(shard.batch([], B + HOUR_MS), layer=1) == [(0, 2, True, 0)]


def test_merging_parts_changes_none_of_them():
    parts = [TileCells({JFK: cells(1.0)}), TileCells({EWR: cells(2.0), JFK: cells(2.0)}), TileCells({JFK: cells(4.0)})]
    before = [dict(one.cells) for one in parts]
    assert merged_tiles(PLAN, parts).cells == {JFK: cells(1.0, 2.0, 4.0), EWR: cells(2.0)}
    assert merged_tiles(PLAN, []).cells == {}
    assert [one.cells for one in parts] == before
