"""What is compiled for the fetcher equals the plan's own, and refuses what the plan refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError
from millpond.features import DAY_MS, UNKNOWN, Aggregation, Field, GroupBy, PartialIr, Tile, compile_group_by
from millpond.features.answering import (
    BatchDecoder,
    Finishers,
    Layout,
    TileColumnDecoder,
    TileDecoder,
    pair_merger,
)

GROUP_BY = GroupBy(
    "route",
    keys=(Field("origin", "string"),),
    inputs=(Field("delay", "double"), Field("tail", "string")),
    aggregations=(
        Aggregation("count", windows=("1h", None)),
        Aggregation("average", "delay", windows=("1h", "7d")),
        Aggregation("last_k", "tail", windows=("1h",), k=2),
        Aggregation("unique_count", "tail", windows=("7d",)),
        Aggregation("max", "delay", windows=("7d",)),
        Aggregation("min", "delay", windows=("1h", "7d")),
    ),
)
PLAN = compile_group_by(GROUP_BY)
KEY = PLAN.encode_key(["EWR"])
LAYOUT = Layout(PLAN)

inputs = st.tuples(st.none() | st.floats(-1e6, 1e6), st.none() | st.sampled_from(["N1", "N2", "N3"]))
irs = st.lists(inputs, max_size=5).map(lambda events: PLAN.collect(list(range(len(events))), events))


@given(left=irs, right=irs)
@settings(max_examples=50, deadline=None)
def test_a_compiled_merge_of_two_is_the_plans_merge(left, right):
    assert pair_merger(PLAN)(left, right) == PLAN.merge(left, right)


@given(ir=irs, start=st.integers(0, 100), complete=st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_tile_decodes_as_the_plan_decodes_it(ir, start, complete):
    data = PLAN.encode_tile(KEY, Tile(start * PLAN.tile_ms, PLAN.tile_ms, complete, 2, ir))
    assert TileDecoder(PLAN).decode(KEY, data) == PLAN.decode_tile(KEY, data)


@given(data=st.data(), ir=irs)
@settings(max_examples=100, deadline=None)
def test_torn_and_altered_tiles_are_refused(data, ir):
    whole = PLAN.encode_tile(KEY, Tile(0, PLAN.tile_ms, True, 0, ir))
    place = data.draw(st.integers(0, len(whole) - 1))
    altered = whole[:place] + bytes((whole[place] ^ data.draw(st.integers(1, 255)),)) + whole[place + 1 :]
    for torn in (altered, whole[:place]):
        with pytest.raises(CorruptionError):
            TileDecoder(PLAN).decode(KEY, torn)


def test_a_tile_of_another_key_is_refused():
    data = PLAN.encode_tile(KEY, Tile(0, PLAN.tile_ms, True, 0, PLAN.new_ir()))
    with pytest.raises(CorruptionError, match="another key"):
        TileDecoder(PLAN).decode(PLAN.encode_key(["JFK"]), data)


def test_a_tile_of_fewer_cells_has_unknown_ones():
    fewer = compile_group_by(
        GroupBy("route", GROUP_BY.keys, GROUP_BY.inputs, (Aggregation("count", windows=("1h", None)),))
    )
    data = fewer.encode_tile(KEY, Tile(0, fewer.tile_ms, True, 0, (3,)))
    assert fewer.generation == PLAN.generation or fewer.layers != PLAN.layers
    if fewer.generation == PLAN.generation:
        assert TileDecoder(PLAN).decode(KEY, data).ir.count(UNKNOWN) == len(PLAN.new_ir()) - 1


@given(events=st.lists(st.tuples(st.integers(0, DAY_MS - 1), inputs), max_size=8), altered=st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_a_batch_row_holds_what_the_plan_decodes_and_is_refused_if_altered(events, altered):
    batch = PLAN.batch_ir(events, DAY_MS)
    data = PLAN.encode_batch(KEY, batch)
    found = BatchDecoder(PLAN).decode(KEY, data)
    decoded = [
        tuple(column if operation.plain else map(operation.decode, column))
        for operation, column in zip(PLAN.cells.cells, found.columns, strict=True)
    ]
    assert (found.batch_end_ms, tuple(found.segments), tuple(decoded)) == (DAY_MS, batch.segments, batch.columns)
    place = altered % len(data)
    with pytest.raises(CorruptionError):
        BatchDecoder(PLAN).decode(KEY, data[:place] + bytes((data[place] ^ 1,)) + data[place + 1 :])


@given(base=irs, tail=irs)
@settings(max_examples=50, deadline=None)
def test_both_forms_of_finishing_give_the_values_of_the_merged_cells(base, tail):
    names = list(PLAN.feature_names)[::-1]
    finishers = Finishers(LAYOUT, names)
    bases = [LAYOUT.project(place, base) for place in range(len(LAYOUT.windows))]
    tails = [tail] * len(LAYOUT.windows)
    merged = PLAN.merge(base, tail)
    expected = {
        feature.name: feature.finish(*[merged[position] for position in feature.positions])
        for feature in PLAN.cells.features
    }
    assert finishers.compiled(bases, tails) == finishers.careful(bases, tails) == expected
    assert list(finishers.compiled(bases, tails)) == names


@given(base=irs)
@settings(max_examples=50, deadline=None)
def test_finishing_without_tails_gives_what_merging_empty_tails_gives(base):
    finishers = Finishers(LAYOUT, PLAN.feature_names)
    bases = [LAYOUT.project(place, base) for place in range(len(LAYOUT.windows))]
    assert repr(finishers.compiled(bases, LAYOUT.no_tails)) == repr(finishers.compiled(bases, list(LAYOUT.no_tails)))


def test_features_of_unknown_cells_are_left_out():
    tail = PartialIr([UNKNOWN, *PLAN.new_ir()[1:]])
    found = Finishers(LAYOUT, PLAN.feature_names).careful(LAYOUT.empties, [tail] * len(LAYOUT.windows))
    assert set(PLAN.feature_names) - set(found) == {"count_1h", "count"}


def test_a_layout_of_some_features_has_no_more_windows_and_cells_than_they_read():
    layout = Layout(PLAN, ["delay_max_7d"])
    assert [(window.window_ms, len(window.positions)) for window in layout.windows] == [(7 * DAY_MS, 1)]


def test_a_compiled_finisher_gives_the_values_under_the_names_of_the_answer():
    names = {"delay_max_7d": "worst", "count_1h": "flights"}
    tails = (PLAN.collect([0, 1], [(3.0, "N1"), (5.0, "N2")]),) * len(LAYOUT.windows)
    own = Finishers(LAYOUT, list(names)).compiled(LAYOUT.empties, tails)
    named = Finishers(LAYOUT, list(names), names).compiled(LAYOUT.empties, tails)
    assert own == {"delay_max_7d": 5.0, "count_1h": 2}
    assert list(named.items()) == [("worst", 5.0), ("flights", 2)]


KEYS = [PLAN.encode_key([name]) for name in ("EWR", "JFK", "LGA")]
tails = st.lists(st.lists(irs, max_size=3), min_size=1, max_size=3)


def stored_tails(tails):
    """The keys and the bytes of some tiles, of each key in turn."""
    found = [
        (key, PLAN.encode_tile(key, Tile(number * PLAN.tile_ms, PLAN.tile_ms, False, 0, ir)))
        for key, tail in zip(KEYS, tails, strict=False)
        for number, ir in enumerate(tail)
    ]
    return [key for key, _ in found], [data for _, data in found]


@given(tails=tails)
@settings(max_examples=100, deadline=None)
def test_columns_of_tiles_are_the_tiles_of_the_decoder_and_merge_as_they_do(tails):
    keys, stored = stored_tails(tails)
    decoder = TileColumnDecoder(PLAN)
    columns = decoder.decode(KEYS[: len(tails)], [len(tail) for tail in tails], stored)
    expected = [TileDecoder(PLAN).decode(key, data) for key, data in zip(keys, stored, strict=True)]
    assert list(columns.start_ms) == [tile.start_ms for tile in expected]
    assert list(columns.size_ms) == [tile.size_ms for tile in expected]
    assert list(columns.complete) == [tile.complete for tile in expected]
    assert [tuple(cells) for cells in columns.cells] == [
        tuple(tile.ir[place] for tile in expected) for place in range(len(PLAN.new_ir()))
    ]
    merged = decoder.merged(columns.cells, [len(tail) for tail in tails])
    assert list(zip(*merged, strict=True)) == [PLAN.merge_all([PLAN.new_ir(), *tail]) for tail in tails]


@given(data=st.data(), tails=tails.filter(any))
@settings(max_examples=100, deadline=None)
def test_a_torn_tile_leaves_all_to_the_decoder_of_one(data, tails):
    keys, stored = stored_tails(tails)
    number = data.draw(st.integers(0, len(stored) - 1))
    whole = stored[number]
    place = data.draw(st.integers(0, len(whole) - 1))
    altered = whole[:place] + bytes((whole[place] ^ data.draw(st.integers(1, 255)),)) + whole[place + 1 :]
    for torn in (altered, whole[:place]):
        assert (
            TileColumnDecoder(PLAN).decode(keys, [1] * len(keys), [*stored[:number], torn, *stored[number + 1 :]])
            is None
        )


def test_a_tile_of_another_key_leaves_all_to_the_decoder_of_one():
    keys, stored = stored_tails([[PLAN.new_ir()], [PLAN.new_ir()]])
    assert TileColumnDecoder(PLAN).decode(keys[::-1], [1, 1], stored) is None


@given(pairs=st.lists(st.tuples(irs, irs), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_finishing_by_columns_is_finishing_one_by_one(pairs):
    bounds = []
    names = {"delay_max_7d": "worst", "count_1h": "flights", "tail_unique_count_7d": "planes"}
    finishers = Finishers(LAYOUT, list(names), names, on_bound=lambda: bounds.append(1))
    bases = [[LAYOUT.project(place, base) for place in range(len(LAYOUT.windows))] for base, _ in pairs]
    found = finishers.compiled_columns(bases, list(zip(*[tail for _, tail in pairs], strict=True)))
    met_by_columns = len(bounds)
    one_by_one = [
        finishers.compiled(base, [tail] * len(LAYOUT.windows)) for base, (_, tail) in zip(bases, pairs, strict=True)
    ]
    assert [list(one.items()) for one in found] == [list(one.items()) for one in one_by_one]
    assert met_by_columns == len(bounds) - met_by_columns


doubles = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([5e-324, -1e-30, 1e300, -1.7e308, 1.7e308])


@given(events=st.lists(st.tuples(doubles, st.none()), max_size=5), split=st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_sums_of_any_doubles_end_as_the_plan_ends_them(events, split):
    sums = (Aggregation("sum", "delay", windows=("7d",)), Aggregation("average", "delay", windows=("7d",)))
    plan = compile_group_by(GroupBy("route", (Field("origin", "string"),), GROUP_BY.inputs, sums))
    layout = Layout(plan)
    base, tail = (plan.collect(list(range(len(part))), part) for part in (events[:split], events[split:]))
    total = plan.merge(base, tail)
    expected = {
        feature.name: feature.finish(*[total[position] for position in feature.positions])
        for feature in layout.windows[0].features
    }
    finishers = Finishers(layout, list(expected))
    bases = [layout.project(0, base)]
    assert finishers.compiled(bases, [tail]) == finishers.careful(bases, [tail]) == expected
    assert finishers.compiled_columns([bases], [[cell] for cell in tail]) == [expected]
