"""Blocks that lie in leaves: they say what whole blocks say, and a change writes its own leaves."""

import itertools
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError
from millpond.features import MARKER_ADDRESS
from millpond.features.stored.rows import layer_of
from millpond.spark.features.tiles import leaves as tile_leaves
from millpond.spark.features.tiles.leaves import LEAF_BYTES, ROOT_FORMAT_VERSION, decode_root, encode_root
from millpond.spark.features.tiles.processor import DEFAULT_RETENTION_MS
from millpond.spark.features.tiles.slots import decode_block, decode_markers, slot_of
from tests.spark.features.test_tile_processor import (
    DAY_MS,
    HOUR_MS,
    OFFSETS,
    PLAN,
    TILE_MS,
    B,
    Shard,
    check_store,
    part,
)

GOLDEN = Path(__file__).parent / "golden"
WHOLE = 1 << 40
"""A leaf of that size holds every block: what state had before there were leaves."""


def keys_of_slot(slot, count):
    """Keys that share a slot; the operator takes any bytes for a key."""
    keys = (b"K%d" % number for number in itertools.count())
    return list(itertools.islice((key for key in keys if slot_of(key) == slot), count))


KEYS = [*keys_of_slot(7, 24), *keys_of_slot(8, 3)]


@pytest.fixture
def leaves_of(monkeypatch):
    return lambda size: monkeypatch.setattr(tile_leaves, "LEAF_BYTES", size)


def batch_of(keys, offset=0):
    return [part(key, B + offset, float(number)) for number, key in enumerate(keys)]


def entries_of(shard, address):
    """The entries of state of a block and of its leaves."""
    return {place: value for place, value in shard.maps.items() if place[1] == address}


def comparable(rows):
    return sorted(map(repr, rows))


BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from(KEYS), OFFSETS, st.none() | st.floats(-9, 9)), max_size=30),
        st.sampled_from((0, 1, TILE_MS, HOUR_MS, DAY_MS // 3, 2 * DAY_MS)),
        st.sampled_from((1, 60, 300, LEAF_BYTES, WHOLE)),
    ),
    min_size=1,
    max_size=6,
)


@given(BATCHES)
@settings(max_examples=60, deadline=None)
def test_however_blocks_grow_and_are_divided_the_tiles_are_those_of_whole_blocks_and_of_the_events(batches):
    shard, twin, store, seen, watermark = Shard(), Shard(), {}, [], B
    for events, advance, size in batches:
        watermark += advance
        rows = [part(key, B + offset, delay) for key, offset, delay in events]
        emitted = {}
        for one, most in ((shard, size), (twin, WHOLE)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tile_leaves, "LEAF_BYTES", most)
                emitted[one] = one.batch(rows, watermark)
        assert comparable(emitted[shard]) == comparable(emitted[twin])
        store |= {(row["key"], row["address"]): row["value"] for row in emitted[shard] if row["value"] is not None}
        seen += [(key, B + offset, delay) for key, offset, delay in events]
        check_state(shard, twin)
        if watermark < B + DEFAULT_RETENTION_MS:
            check_store(PLAN, store, seen, watermark)


def check_state(shard, twin):
    """State has of each block what one whole block has; and no leaf is left over."""
    blocks = {place: value for place, value in shard.maps.items() if len(place) == 2}
    assert blocks.keys() == twin.maps.keys()
    known = set()
    for place, value in blocks.items():
        begins = decode_root(value)[1] if value[0] == ROOT_FORMAT_VERSION else []
        entries = [shard.maps[*place, begin] for begin in begins] if begins else [value]
        known |= {place, *((*place, begin) for begin in begins)}
        if place[1] == MARKER_ADDRESS:
            found = [decode_markers(entry) for entry in entries]
            assert {key: count for one in found for key, count in one.items()} == decode_markers(twin.maps[place])
            continue
        found = [decode_block(PLAN.tile_codec, entry) for entry in entries]
        whole = decode_block(PLAN.tile_codec, twin.maps[place])
        assert {key: cells for one in found for key, cells in one.cells.items()} == whole.cells
        assert {key: version for one in found for key, version in one.versions.items()} == whole.versions
        assert sum(len(one.cells) for one in found) == len(whole.cells)
        assert (decode_root(value)[0] if begins else found[0].complete) == whole.complete
    assert known == shard.maps.keys()


def test_what_a_batch_writes_follows_the_keys_that_it_changes():
    keys, rng = keys_of_slot(7, 2_000), Random(3)
    shard = Shard()
    shard.batch(batch_of(keys))
    before = dict(shard.maps)
    shard.batch(batch_of(rng.sample(keys, 5), offset=1))
    written = [value for place, value in shard.maps.items() if before.get(place) != value]
    assert 1 <= len(written) <= 5
    assert sum(map(len, written)) < 5 * (LEAF_BYTES + 300)
    assert sum(map(len, before.values())) > 15 * LEAF_BYTES


def test_a_new_key_divides_no_more_than_its_own_leaf(leaves_of):
    keys = keys_of_slot(7, 300)
    shard = Shard()
    leaves_of(200)
    for key in keys:
        before = dict(shard.maps)
        shard.batch(batch_of([key]))
        written = [value for place, value in shard.maps.items() if len(place) == 3 and before.get(place) != value]
        assert len(written) <= 3
        assert all(len(value) < 400 for value in written)
    entries = entries_of(shard, B)
    assert len(entries) > 20
    assert len(decode_root(entries[7, B])[1]) == len(entries) - 1


def test_a_divided_block_is_closed_by_its_root_alone():
    shard = Shard()
    shard.batch(batch_of(keys_of_slot(7, 300)))
    before = entries_of(shard, B)
    assert len(before) > 2
    shard.batch([], B + TILE_MS)
    after = entries_of(shard, B)
    assert {place for place in before if before[place] != after[place]} == {(7, B)}
    assert [decode_root(entries[7, B])[0] for entries in (before, after)] == [False, True]


def test_a_forgotten_block_leaves_no_leaf_behind(leaves_of):
    leaves_of(100)
    shard = Shard()
    shard.batch(batch_of(keys_of_slot(7, 40)))
    for end in (B + TILE_MS, B + HOUR_MS, B + DAY_MS, B + 3 * DAY_MS + DEFAULT_RETENTION_MS):
        shard.batch([], end)
    assert shard.maps == {}


def test_state_from_before_there_were_leaves_is_read_and_divided_when_it_changes(leaves_of):
    keys, shard = keys_of_slot(7, 300), Shard()
    leaves_of(WHOLE)
    shard.batch(batch_of(keys))
    assert list(entries_of(shard, B)) == [(7, B)]
    leaves_of(LEAF_BYTES)
    rows = shard.batch(batch_of(keys[:1], offset=1))
    assert [(row["key"], PLAN.decode_tile(row["key"], row["value"]).ir[0]) for row in rows] == [(keys[0], 2)]
    begins = decode_root(shard.maps[7, B])[1]
    assert len(entries_of(shard, B)) == 1 + len(begins) > 3
    closed = shard.batch([], B + TILE_MS)
    assert sorted(row["key"] for row in closed if layer_of(row["address"]) == 0) == sorted(keys)


def test_a_leaf_that_is_missing_is_refused_by_name():
    keys, shard = keys_of_slot(7, 300), Shard()
    shard.batch(batch_of(keys))
    last = max(place for place in shard.maps if len(place) == 3)
    del shard.maps[last]
    with pytest.raises(CorruptionError, match=rf"slot 7.*{B}.*{last[2]}.*missing"):
        shard.batch([], B + TILE_MS)


def test_the_stored_form_of_a_root_is_what_the_golden_file_holds():
    assert encode_root([0, 1 << 31], complete=True) == (GOLDEN / "tile_root_v2.bin").read_bytes()


@pytest.mark.parametrize("begins", [[], [1], [0, 5, 5], [0, 7, 3], [0, 1 << 32]])
def test_a_root_whose_ranges_do_not_cover_the_hashes_is_refused(begins):
    with pytest.raises(CorruptionError, match="cover"):
        decode_root(encode_root(begins, complete=False))


def test_bytes_that_are_no_root_are_refused():
    stored, random = encode_root([0, 1 << 31], complete=True), Random(6)
    for _ in range(200):
        wrong = bytearray(stored)
        wrong[random.randrange(len(wrong))] ^= 1 << random.randrange(8)
        with pytest.raises(CorruptionError):
            decode_root(bytes(wrong))
