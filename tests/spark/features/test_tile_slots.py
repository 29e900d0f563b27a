"""Blocks of tiles: what state keeps of the keys of a hash slot."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import CorruptionError
from millpond.features import UNKNOWN, Aggregation, Field, GroupBy, compile_group_by
from millpond.features.stored.value_header import HEADER, with_header
from millpond.spark.features.tiles.slots import (
    SLOTS,
    Block,
    TileCells,
    add_tiles,
    decode_block,
    decode_markers,
    encode_block,
    encode_markers,
    slot_of,
)

GOLDEN = Path(__file__).parent / "golden"


def plan_of(*operations, tiled=True):
    aggregations = tuple(Aggregation(one, "x", ("1h",)) for one in operations)
    return compile_group_by(GroupBy("g", (Field("k", "string"),), (Field("x", "double"),), aggregations, tiled=tiled))


PLAN = plan_of("sum", "max")
WIDER = plan_of("sum", "max", "min")
KEYS = (b"EWR", b"JFK", b"LGA")


def cells_of(plan, *values):
    return plan.tile_codec.pack(plan.collect([0] * len(values), [(value,) for value in values]))[1]


def block_of(plan=PLAN):
    cells = {key: cells_of(plan, 0.1, float(number)) for number, key in enumerate(KEYS)}
    return Block(cells, complete=True, versions={b"JFK": 2})


def parts_of(block):
    return block.cells, block.forms, block.complete, block.versions


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("tile_block_v1", encode_block(PLAN.tile_codec, block_of())),
        ("tile_markers_v1", encode_markers({b"EWR": 1, b"JFK": 300})),
    ],
)
def test_the_stored_form_is_what_the_golden_file_holds(name, encoded):
    assert encoded == (GOLDEN / f"{name}.bin").read_bytes()


def test_a_block_is_read_as_it_was_written():
    found = decode_block(PLAN.tile_codec, encode_block(PLAN.tile_codec, block_of()))
    assert parts_of(found) == parts_of(block_of())
    assert found.is_closed(b"EWR")
    assert found.open_keys() == []


def test_only_amended_tiles_of_an_open_block_are_closed():
    block = Block(dict.fromkeys(KEYS, b""), versions={b"JFK": 1})
    assert [block.is_closed(key) for key in KEYS] == [False, True, False]
    assert block.open_keys() == [b"EWR", b"LGA"]


def test_keys_lie_in_all_slots_and_each_in_one():
    slots = [slot_of(number.to_bytes(4, "big")) for number in range(20 * SLOTS)]
    assert set(slots) == set(range(SLOTS))
    assert slots == [slot_of(number.to_bytes(4, "big")) for number in range(20 * SLOTS)]


def test_a_block_of_fewer_cells_is_read_with_the_others_unknown():
    found = decode_block(WIDER.tile_codec, encode_block(PLAN.tile_codec, block_of()))
    ir = WIDER.tile_codec.unpack(found.forms[b"LGA"], found.cells[b"LGA"])
    assert tuple(ir) == (*PLAN.collect([0, 0], [(0.1,), (2.0,)]), UNKNOWN)
    again = decode_block(WIDER.tile_codec, encode_block(WIDER.tile_codec, found))
    assert parts_of(again) == parts_of(found)


def test_a_block_of_more_cells_is_read_without_them():
    found = decode_block(PLAN.tile_codec, encode_block(WIDER.tile_codec, block_of(WIDER)))
    assert parts_of(found) == parts_of(block_of())


NUMBERS = st.dictionaries(st.sampled_from(KEYS), st.floats(-9, 9), max_size=3)


@given(known=NUMBERS, partial=NUMBERS, added=NUMBERS)
def test_tiles_are_merged_key_by_key_and_what_is_unknown_of_one_stays_unknown(known, partial, added):
    before = {key: WIDER.collect([0], [(value,)]) for key, value in known.items()}
    tiles = TileCells({key: WIDER.tile_codec.pack(ir)[1] for key, ir in before.items()})
    narrow = decode_block(
        WIDER.tile_codec,
        encode_block(PLAN.tile_codec, Block({key: cells_of(PLAN, value) for key, value in partial.items()})),
    )
    more = TileCells({key: cells_of(WIDER, value) for key, value in added.items()})
    for others in (narrow, more):
        for key in others.cells:
            ir = WIDER.tile_codec.unpack(others.forms.get(key, WIDER.tile_codec.form), others.cells[key])
            before[key] = ir if key not in before else WIDER.merge_tiles((before[key], ir))
        add_tiles(WIDER, tiles, others)
    assert {key: (tiles.forms.get(key, WIDER.tile_codec.form), cells) for key, cells in tiles.cells.items()} == {
        key: WIDER.tile_codec.pack(ir) for key, ir in before.items()
    }


def test_a_block_of_another_generation_is_refused():
    stored = encode_block(plan_of("sum", "max", tiled=False).tile_codec, Block({b"EWR": b""}))
    with pytest.raises(CorruptionError, match="generation"):
        decode_block(PLAN.tile_codec, stored)


def test_bytes_that_are_no_block_are_refused():
    random = Random(5)
    for decode, stored in (
        (lambda data: decode_block(WIDER.tile_codec, data), encode_block(PLAN.tile_codec, block_of())),
        (decode_markers, encode_markers({b"EWR": 1})),
    ):
        for _ in range(300):
            wrong = bytearray(stored)
            wrong[random.randrange(len(wrong))] ^= 1 << random.randrange(8)
            with pytest.raises(CorruptionError):
                decode(bytes(wrong))
            # Under a right checksum they are refused, or taken for others: nothing else happens.
            with suppress(CorruptionError):
                decode(with_header(1, bytes(wrong[HEADER.size :])))
