"""Golden files hold what each format version wrote. They are never edited: a new layout gets a new version."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import CorruptionError, DataError
from millpond.features import Aggregation, Field, GroupBy, Tile, compile_group_by
from millpond.features.codec import KeyCodec
from tests.features.oracle import DAY, HOUR
from tests.features.test_plan import EVENTS, PLAN, B, tiles_of

GOLDEN = Path(__file__).parent / "golden"
TYPES = ("boolean", "double", "long", "string")
KEY_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=4),
)


def type_of(value):
    return {bool: "boolean", float: "double", int: "long", str: "string", type(None): "long"}[type(value)]


def encode(values):
    return KeyCodec("g", tuple(Field(f"k{n}", type_of(value)) for n, value in enumerate(values))).encode(values)


def test_one_true_one_point_zero_and_the_text_one_are_four_keys_and_none_is_a_fifth():
    assert len({encode([value]) for value in (1, True, 1.0, "1", None)}) == 5


@given(st.lists(KEY_VALUES, min_size=1, max_size=3), st.lists(KEY_VALUES, min_size=1, max_size=3))
def test_keys_are_the_same_bytes_exactly_when_they_are_the_same_values(one, other):
    same = [(type(value), value) for value in one] == [(type(value), value) for value in other]
    assert (encode(one) == encode(other)) == same


def test_a_key_is_given_by_name_or_in_order():
    assert PLAN.encode_key({"carrier": "UA", "origin": "JFK"}) == PLAN.encode_key(("JFK", "UA"))
    assert PLAN.encode_key(["JFK", "UA"]) != PLAN.encode_key(["UA", "JFK"])


def test_an_empty_text_is_a_key_and_not_the_missing_one():
    assert PLAN.encode_key(("", "")) != PLAN.encode_key((None, None))


def test_negative_zero_is_the_key_zero():
    assert encode([-0.0]) == encode([0.0])


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ({"origin": "JFK"}, ["'origin', 'carrier'", "('origin',)"]),
        ({"origin": "JFK", "carier": "UA"}, ["'origin', 'carrier'", "'carier'"]),
        (("JFK",), ["'origin', 'carrier'", "('JFK',)"]),
        ("JF", ["'origin', 'carrier'", "'JF'"]),
        (("JFK", 7), ["'carrier'", "string", "7", "int"]),
        (("JFK", "\ud800"), ["'carrier'", "surrogates"]),
    ],
)
def test_a_key_that_is_not_as_declared_is_refused_by_name(key, named):
    with pytest.raises(DataError) as refused:
        PLAN.encode_key(key)
    for part in ["'route'", *named]:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("type_", "value"), [("long", 1 << 63), ("double", float("nan")), ("long", True), ("double", 1)]
)
def test_a_key_of_the_wrong_kind_or_size_is_refused(type_, value):
    with pytest.raises(DataError, match="'k'"):
        KeyCodec("g", (Field("k", type_),)).encode([value])


@given(EVENTS)
def test_batches_and_tiles_survive_their_bytes(events):
    batch = PLAN.batch_ir(events, B)
    assert PLAN.decode_batch(PLAN.encode_batch(batch)) == batch
    for number, tile in enumerate(tiles_of(PLAN, events)):
        told = Tile(tile.start_ms, tile.size_ms, complete=number % 2 == 0, version=number, ir=tile.ir)
        assert PLAN.decode_tile(PLAN.encode_tile(told)) == told


@given(EVENTS, st.data())
def test_no_byte_can_be_changed_or_lost_unnoticed(events, data):
    stored = PLAN.encode_batch(PLAN.batch_ir(events, B))
    place = data.draw(st.integers(0, len(stored) - 1))
    altered = bytearray(stored)
    altered[place] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(altered), stored[:place]):
        with pytest.raises(CorruptionError, match="'route'"):
            PLAN.decode_batch(wrong)


def test_a_tile_is_not_taken_for_a_batch():
    with pytest.raises(CorruptionError, match="batch IR"):
        PLAN.decode_batch(PLAN.encode_tile(Tile(B, ir=PLAN.new_ir())))


def test_a_value_of_another_definition_is_refused():
    other = compile_group_by(GroupBy("route", PLAN.group_by.keys, (), (Aggregation("count"),)))
    with pytest.raises(CorruptionError, match="GroupBy has changed"):
        other.decode_tile(PLAN.encode_tile(Tile(B, ir=PLAN.new_ir())))


def golden_plan():
    """Must never change: the golden files were written under this definition."""
    return compile_group_by(
        GroupBy(
            "golden",
            keys=(Field("s", "string"), Field("l", "long"), Field("d", "double"), Field("b", "boolean")),
            inputs=(Field("x", "double"), Field("n", "long"), Field("t", "string")),
            aggregations=(
                Aggregation("count", windows=("1h", "30d", None)),
                Aggregation("average", "x", ("1h", "7d")),
                Aggregation("sum", "n", ("1d",)),
                Aggregation("min", "t"),
                Aggregation("max", "x", ("6h",)),
            ),
        )
    )


GOLDEN_EVENTS = [
    (B - 100 * DAY, (0.1, 1, "zebra")),
    (B - 29 * DAY, (0.2, (1 << 63) - 1, None)),
    (B - 6 * DAY, (None, (1 << 63) - 1, "ape")),
    (B - HOUR, (1e300, -5, "")),
    (B - 1, (5e-324, None, "ü")),
]


def golden_values():
    plan = golden_plan()
    batch = plan.batch_ir(GOLDEN_EVENTS, B)
    tile = Tile(B, complete=True, version=2, ir=plan.collect([inputs for _, inputs in GOLDEN_EVENTS]))
    return {
        "key_v1.bin": plan.encode_key(("JFK", -2, 0.5, True)),
        "batch_v1.bin": plan.encode_batch(batch),
        "tile_v1.bin": plan.encode_tile(tile),
    }


@pytest.mark.parametrize("name", ["key_v1.bin", "batch_v1.bin", "tile_v1.bin"])
def test_the_current_version_still_writes_its_golden_bytes(name):
    assert golden_values()[name] == (GOLDEN / name).read_bytes()


def test_every_golden_value_still_reads():
    plan = golden_plan()
    batch = plan.decode_batch((GOLDEN / "batch_v1.bin").read_bytes())
    assert batch == plan.batch_ir(GOLDEN_EVENTS, B)
    tile = plan.decode_tile((GOLDEN / "tile_v1.bin").read_bytes())
    assert tile == Tile(B, complete=True, version=2, ir=plan.collect([inputs for _, inputs in GOLDEN_EVENTS]))


@pytest.mark.parametrize("delay", [1.5, -1.5])
def test_sums_are_written_without_the_zeros_they_end_in(delay):
    tile = Tile(B, ir=PLAN.collect([(delay, None, None, None)]))
    assert len(PLAN.encode_tile(tile)) < 80
