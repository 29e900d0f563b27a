"""Golden files hold what each format version wrote. They are never edited: a new layout gets a new version."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import CorruptionError, DataError
from millpond.features import (
    Aggregation,
    ClosingTime,
    EventSource,
    Field,
    GroupBy,
    Join,
    JoinPart,
    JoinSource,
    Tile,
    compile_group_by,
    encode_closing_time,
    encode_marker,
)
from millpond.features.partial_ir import UNKNOWN
from millpond.features.stored.key_codec import KeyCodec
from millpond.features.stored.rows import stream_start
from millpond.features.stored.value_header import with_header
from tests.features.oracle import DAY, HOUR
from tests.features.test_plan import EVENTS, KEY, MARK, PLAN, B, collected, tiles_of

GOLDEN = Path(__file__).parent / "golden"
TYPES = ("boolean", "double", "long", "string")
KEY_VALUES = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=4),
)


def type_of(value):
    return {bool: "boolean", float: "double", int: "long", str: "string"}[type(value)]


def encode(values):
    return KeyCodec("g", tuple(Field(f"k{n}", type_of(value)) for n, value in enumerate(values))).encode(values)


def test_one_true_one_point_zero_and_the_text_one_are_four_keys():
    assert len({encode([value]) for value in (1, True, 1.0, "1")}) == 4


def test_a_key_with_a_null_part_is_no_key():
    assert PLAN.encode_key(("JFK", None)) is None
    assert PLAN.encode_key({"origin": None, "carrier": None}) is None


@pytest.mark.parametrize(
    ("type_", "value", "other"),
    [
        ("binary", b"a", b"b"),
        ("date", date(2024, 2, 29), date(2024, 3, 1)),
        ("timestamp", datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        ("decimal(5,2)", Decimal("1.10"), Decimal("1.11")),
        ("int", -1, 1),
        ("float", 0.5, 0.25),
    ],
)
def test_every_scalar_type_can_be_a_key(type_, value, other):
    codec = KeyCodec("g", (Field("k", type_),))
    assert codec.encode([value]) == codec.encode([value])
    assert codec.encode([value]) != codec.encode([other])
    with pytest.raises(DataError, match="'k'"):
        codec.encode(["text"])


def test_equal_decimals_are_one_key_however_they_are_written():
    codec = KeyCodec("g", (Field("k", "decimal(5,2)"),))
    assert codec.encode([Decimal("1.1")]) == codec.encode([Decimal("1.10")])


@given(st.lists(KEY_VALUES, min_size=1, max_size=3), st.lists(KEY_VALUES, min_size=1, max_size=3))
def test_keys_are_the_same_bytes_exactly_when_they_are_the_same_values(one, other):
    same = [(type(value), value) for value in one] == [(type(value), value) for value in other]
    assert (encode(one) == encode(other)) == same


def test_a_key_is_given_by_name_or_in_order():
    assert PLAN.encode_key({"carrier": "UA", "origin": "JFK"}) == PLAN.encode_key(("JFK", "UA"))
    assert PLAN.encode_key(["JFK", "UA"]) != PLAN.encode_key(["UA", "JFK"])


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        ("boolean", [True, None, False]),
        ("long", [1, None, -5]),
        ("string", ["EWR", None, ""]),
        ("date", [date(2020, 1, 2), None]),
        ("double", [-0.0, None, 2.5]),
    ],
)
def test_a_key_is_the_same_bytes_by_name_in_order_and_in_columns(type_, values):
    codec = KeyCodec("route", (Field("one", type_), Field("two", "long")))
    in_order = [codec.encode((value, 7)) for value in values]
    assert in_order == [codec.encode({"two": 7, "one": value}) for value in values]
    assert in_order == codec.encode_columns([values, [7] * len(values)])
    alone = KeyCodec("route", (Field("one", type_),))
    assert alone.encode_columns([values]) == [alone.encode({"one": value}) for value in values]
    assert codec.encode_many([{"two": 7, "one": value} for value in values]) == in_order
    assert [codec.encode_named({"two": 7, "one": value}) for value in values] == in_order
    with pytest.raises(DataError, match="'two'"):
        codec.encode_columns([values, ["x"] * len(values)])
    with pytest.raises(DataError, match="'two'"):
        codec.encode_many([{"one": value, "two": "x"} for value in values])


@given(st.lists(st.text(), min_size=1))
def test_many_texts_are_the_same_bytes_as_each_alone(texts):
    codec = KeyCodec("route", (Field("one", "string"),))
    asked = [{"one": text} for text in texts]
    assert codec.encode_many(asked) == [codec.encode(keys) for keys in asked]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1))
def test_many_longs_are_the_same_bytes_as_each_alone(numbers):
    codec = KeyCodec("route", (Field("one", "long"),))
    assert codec.encode_columns([numbers]) == [codec.encode([number]) for number in numbers]


@pytest.mark.parametrize("wrong", [1 << 63, -(1 << 63) - 1, True, 1.0, "1"])
def test_a_wrong_long_among_many_is_refused_as_it_is_alone(wrong):
    codec = KeyCodec("route", (Field("one", "long"),))
    with pytest.raises(DataError) as alone:
        codec.encode([wrong])
    with pytest.raises(DataError) as among_many:
        codec.encode_columns([[7, wrong, 8]])
    assert str(among_many.value) == str(alone.value)


@pytest.mark.parametrize("wrong", [{"two": "x"}, {"one": 1}, {"one": "\ud800"}, {}, "EWR"])
def test_a_wrong_key_among_many_is_refused_as_it_is_alone(wrong):
    codec = KeyCodec("route", (Field("one", "string"),))
    with pytest.raises(DataError) as alone:
        codec.encode_named(wrong)
    with pytest.raises(DataError) as among_many:
        codec.encode_many([{"one": "EWR"}, wrong])
    assert str(among_many.value) == str(alone.value)


def test_an_empty_text_is_a_key_and_not_the_missing_one():
    assert PLAN.encode_key(("", "")) is not None


def test_negative_zero_is_the_key_zero():
    assert encode([-0.0]) == encode([0.0])


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ({"origin": "JFK"}, ["'origin', 'carrier'", "('origin',)"]),
        ({"origin": "JFK", "carier": "UA"}, ["'origin', 'carrier'", "'carier'"]),
        (("JFK",), ["'origin', 'carrier'", "('JFK',)"]),
        ("JF", ["'origin', 'carrier'", "'JF'"]),
        (None, ["'origin', 'carrier'", "None"]),
        ({"JFK", "UA"}, ["'origin', 'carrier'", "'JFK'"]),
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
    assert PLAN.decode_batch(KEY, PLAN.encode_batch(KEY, batch)) == batch
    for number, tile in enumerate(tiles_of(PLAN, events)):
        told = Tile(tile.start_ms, tile.size_ms, complete=number % 2 == 0, version=number, ir=tile.ir)
        assert PLAN.decode_tile(KEY, PLAN.encode_tile(KEY, told)) == told


@given(EVENTS, st.data())
def test_no_byte_can_be_changed_or_lost_unnoticed(events, data):
    stored = PLAN.encode_batch(KEY, PLAN.batch_ir(events, B))
    place = data.draw(st.integers(0, len(stored) - 1))
    altered = bytearray(stored)
    altered[place] ^= data.draw(st.integers(1, 255))
    for wrong in (bytes(altered), stored[:place]):
        with pytest.raises(CorruptionError, match="'route'"):
            PLAN.decode_batch(KEY, wrong)


@given(st.binary(max_size=60), st.sampled_from(["batch", "tile", "values"]))
def test_rubbish_under_a_right_checksum_is_refused(rubbish, kind):
    decode, address, form = {
        "batch": (PLAN.decode_batch, b"batch" + KEY, bytes.fromhex(PLAN.batch_form[:8])),
        "tile": (PLAN.decode_tile, KEY, bytes.fromhex(PLAN.generation)),
        "values": (PLAN.decode_values, b"values" + KEY, b""),
    }[kind]
    for body in (rubbish, form + rubbish):
        with pytest.raises(CorruptionError, match="'route'"):
            decode(KEY, with_header(2, body, address))


def test_the_row_of_another_key_is_refused():
    other = PLAN.encode_key(("EWR", "UA"))
    with pytest.raises(CorruptionError, match="of another key"):
        PLAN.decode_tile(other, PLAN.encode_tile(KEY, Tile(B, MARK, ir=PLAN.new_ir())))
    with pytest.raises(CorruptionError, match="of another key"):
        PLAN.decode_batch(other, PLAN.encode_batch(KEY, PLAN.batch_ir([], B)))


def test_a_tile_is_not_taken_for_a_batch():
    with pytest.raises(CorruptionError, match="batch row"):
        PLAN.decode_batch(KEY, PLAN.encode_tile(KEY, Tile(B, MARK, ir=PLAN.new_ir())))


def test_a_value_of_another_definition_is_refused():
    day_tiles = compile_group_by(GroupBy("route", PLAN.group_by.keys, (), (Aggregation("count"),)))
    with pytest.raises(CorruptionError, match="GroupBy has changed"):
        day_tiles.decode_tile(KEY, PLAN.encode_tile(KEY, Tile(B, MARK, ir=PLAN.new_ir())))
    with pytest.raises(CorruptionError, match="GroupBy has changed"):
        day_tiles.decode_batch(KEY, PLAN.encode_batch(KEY, PLAN.batch_ir([], B)))


INPUTS = (Field("x", "double"), Field("n", "long"))


KEYS = (Field("k", "string"),)


def plan_of(*aggregations, inputs=INPUTS, keys=KEYS, tiled=True):
    return compile_group_by(GroupBy("g", keys, inputs, aggregations, tiled=tiled))


def from_source(table="t", **rules):
    source = EventSource(table, **rules)
    aggregations = (Aggregation("count", windows=("1h", "7d")), Aggregation("sum", "x", ("1h",)))
    return compile_group_by(GroupBy("g", KEYS, INPUTS, aggregations, sources=(source,)))


FEW = plan_of(Aggregation("count", windows=("1h", "7d")), Aggregation("sum", "x", ("1h",)))
MORE = plan_of(
    Aggregation("max", "n", ("7d",)), Aggregation("sum", "x", ("1h",)), Aggregation("count", windows=("1h", "7d"))
)


@pytest.mark.parametrize(
    ("changed", "same_generation", "same_batch_form"),
    [
        (FEW, True, True),
        (MORE, True, False),
        (plan_of(Aggregation("count", windows=("1h", "2d", "7d")), Aggregation("sum", "x", ("1h",))), True, False),
        (plan_of(Aggregation("count", windows=("1h", "7d"))), True, False),
        (plan_of(Aggregation("count", windows=("30m", "7d")), Aggregation("sum", "x", ("1h",))), False, False),
        (
            plan_of(
                Aggregation("count", windows=("1h", "7d")),
                Aggregation("sum", "x", ("1h",)),
                keys=(Field("k", "long"),),
            ),
            False,
            False,
        ),
        (
            plan_of(Aggregation("count", windows=("1h", "7d")), Aggregation("sum", "x", ("1h",)), tiled=False),
            False,
            False,
        ),
        (from_source(), True, True),
        (from_source(selects={"k": "k", "x": "x", "n": "n"}), True, True),
        (from_source(selects={"k": "k", "x": "2 * x", "n": "n"}), True, False),
        (from_source(selects={"k": "lower(k)", "x": "x", "n": "n"}), False, False),
        (from_source(selects={"k": "k", "x": "x", "n": "n", "time_ms": "unix_millis(ts)"}), False, False),
        (from_source(wheres=("x > 0",)), False, False),
        (from_source(table="renamed"), True, True),
    ],
    ids=[
        "nothing",
        "added cells",
        "one more window",
        "fewer cells",
        "smaller tiles",
        "another key",
        "untiled",
        "a source",
        "columns as they are",
        "an input from another expression",
        "a key from another expression",
        "another time",
        "another condition",
        "another table",
    ],
)
def test_a_change_of_definition_costs_a_generation_only_where_tiles_change(changed, same_generation, same_batch_form):
    assert (changed.generation == FEW.generation) == same_generation
    assert (changed.batch_form == FEW.batch_form) == same_batch_form


def of_join(*, window="1d", left=(), selects=(), prefix=None, **of_part):
    """A plan over the rows of a Join with one GroupBy."""
    options = {"sources": (EventSource("visits"),), **of_part}
    counted = Aggregation("count", windows=(window,))
    visits = GroupBy("visits", (Field("k", "string"),), (), (counted,), **options)
    join = Join("joined", (JoinPart(visits, prefix=prefix),), left=EventSource("queries", wheres=left))
    source = JoinSource(join, selects={"k": "k", "n": "visits_count_1d", **dict(selects)})
    total = Aggregation("sum", "n", ("1h",))
    return compile_group_by(GroupBy("few", (Field("k", "string"),), (Field("n", "long"),), (total,), (source,)))


@pytest.mark.parametrize(
    ("changed", "is_same"),
    [
        (of_join(), True),
        (of_join(sources=(EventSource("renamed"),)), True),
        (of_join(enable_fetcher_caching=True, batch_ttl="9d", tags={"team": "a"}), True),
        (of_join(sources=(EventSource("visits", wheres=("n > 0",)),)), False),
        (of_join(accuracy="snapshot"), False),
        (of_join(window="2d"), False),
        (of_join(left=("paid",)), False),
        (of_join(prefix="other"), False),
    ],
    ids=["nothing", "another table", "options", "a condition", "accuracy", "a window", "rows of the left", "a name"],
)
def test_a_change_of_what_computes_a_joins_rows_makes_what_is_stored_of_them_another(changed, is_same):
    first = of_join()
    assert (changed.generation == first.generation) == is_same
    assert (changed.batch_form == first.batch_form) == is_same


def test_a_tile_with_fewer_cells_is_read_and_what_it_lacks_is_unknown():
    key = FEW.encode_key(["a"])
    old = Tile(B, MARK, ir=FEW.collect([B], [(0.5, 7)]))
    read = MORE.decode_tile(key, FEW.encode_tile(key, old))
    assert read.ir == (UNKNOWN, *MORE.collect([B], [(0.5, 7)])[1:])
    new = Tile(B + MARK, MARK, ir=MORE.collect([B + MARK], [(0.25, 9)]))
    assert MORE.finish(B + 2 * MARK, B, None, [read, new]) == {"x_sum_1h": 0.75, "count_1h": 2, "count_7d": 2}
    # Where no window reaches the old tile any more, its lack is gone.
    assert MORE.finish(B + 2 * DAY, B, None, [new])["n_max_7d"] == 9


def test_a_tile_of_another_expression_is_unknown_and_those_of_other_inputs_are_not():
    plain, doubled = from_source(), from_source(selects={"k": "k", "x": "2 * x", "n": "n"})
    key = plain.encode_key(["a"])
    tile = plain.encode_tile(key, Tile(B, MARK, ir=plain.collect([B], [(0.5, 7)])))
    read = doubled.decode_tile(key, tile).ir
    known = {cell.id for cell, value in zip(doubled.tile_cells.cells, read, strict=True) if value is not UNKNOWN}
    assert known == {cell.id for cell in doubled.tile_cells.cells if "x" not in cell.id} != set()
    assert {cell.id for cell in plain.tile_cells.cells} & known == known


def test_a_merged_tile_with_unknown_cells_survives_its_bytes():
    key = FEW.encode_key(["a"])
    read = MORE.decode_tile(key, FEW.encode_tile(key, Tile(B, MARK, ir=FEW.collect([B], [(0.5, 7)]))))
    merged = Tile(B, MARK, ir=MORE.merge(read.ir, MORE.collect([B], [(0.25, 9)])))
    assert MORE.decode_tile(key, MORE.encode_tile(key, merged)) == merged
    assert FEW.decode_tile(key, MORE.encode_tile(key, merged)).ir == FEW.collect([B, B], [(0.5, 7), (0.25, 9)])


def test_finished_values_survive_their_bytes():
    types = ("boolean", "long", "double", "string", "binary", "date", "timestamp", "decimal(30,2)", "array<date>")
    plan = compile_group_by(
        GroupBy(
            "facts",
            (Field("k", "string"),),
            (*(Field(f"v{n}", type_) for n, type_ in enumerate(types)), Field("m", "map<string,double>")),
            accuracy="snapshot",
        )
    )
    values = (
        True,
        1 << 70,
        0.5,
        "ü",
        b"x",
        date(2024, 2, 29),
        datetime(2024, 1, 1, tzinfo=UTC),
        Decimal("-12345678901234567890.25"),
        [date(1, 1, 1), None],
        {"a": 1.5, "b": None},
    )
    key = plan.encode_key(["a"])
    assert plan.decode_values(key, plan.encode_values(key, values, B)) == (B, values)
    assert plan.decode_values(key, plan.encode_values(key, (None,) * 10, B)) == (B, (None,) * 10)


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


def golden_tile(plan):
    times, rows = zip(*GOLDEN_EVENTS, strict=True)
    return Tile(B, MARK, complete=True, version=2, ir=plan.collect(times, rows))


def golden_values():
    plan = golden_plan()
    key = plan.encode_key(("JFK", -2, 0.5, True))
    return {
        "key_v1.bin": key,
        "batch_v2.bin": plan.encode_batch(key, plan.batch_ir(GOLDEN_EVENTS, B)),
        "tile_v2.bin": plan.encode_tile(key, golden_tile(plan)),
        "marker_v1.bin": encode_marker(key, 3),
        "closing_time_v1.bin": encode_closing_time(ClosingTime(1, 2, B)),
        "closing_time_started_v1.bin": encode_closing_time(ClosingTime(1, 2, B, started_ms=B - DAY)),
    }


@pytest.mark.parametrize("name", golden_values())
def test_the_current_version_still_writes_its_golden_bytes(name):
    assert golden_values()[name] == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("version", [1, 2])
def test_every_golden_value_still_reads(version):
    plan = golden_plan()
    key = plan.encode_key(("JFK", -2, 0.5, True))
    batch = plan.decode_batch(key, (GOLDEN / f"batch_v{version}.bin").read_bytes())
    assert batch == plan.batch_ir(GOLDEN_EVENTS, B)
    assert plan.decode_tile(key, (GOLDEN / f"tile_v{version}.bin").read_bytes()) == golden_tile(plan)


def test_a_closing_time_reads_with_and_without_the_start_of_its_stream():
    older, newer = ((GOLDEN / f"closing_time{part}_v1.bin").read_bytes() for part in ("", "_started"))
    assert (stream_start([older]), stream_start([newer]), stream_start([older, newer])) == (None, B - DAY, None)


@pytest.mark.parametrize("name", ["batch_v1.bin", "tile_v1.bin"])
def test_no_bit_of_a_format_1_value_can_be_flipped_unnoticed(name):
    plan, golden = golden_plan(), (GOLDEN / name).read_bytes()
    decode = plan.decode_batch if name.startswith("batch") else plan.decode_tile
    for place in range(len(golden)):
        altered = bytearray(golden)
        altered[place] ^= 1
        with pytest.raises(CorruptionError, match="'golden'"):
            decode(b"", bytes(altered))


@pytest.mark.parametrize("delay", [1.5, -1.5])
def test_sums_are_written_without_the_zeros_they_end_in(delay):
    tile = Tile(B, MARK, ir=collected((delay, None, None, None)))
    assert len(PLAN.encode_tile(KEY, tile)) < 100


def test_a_finished_value_that_does_not_fit_its_type_is_refused_by_its_name():
    plan = compile_group_by(
        GroupBy(
            "totals",
            (Field("k", "string"),),
            (Field("x", "decimal(38,10)"),),
            (Aggregation("sum", "x", ("1d",)),),
            accuracy="snapshot",
        )
    )
    with pytest.raises(DataError, match=r"'totals'.*'x_sum_1d'.*28 digits"):
        plan.encode_values(plan.encode_key(["a"]), [Decimal("18e27")], B)
