"""Cells that lie packed are merged as the IRs that they are of."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError
from millpond.features import UNKNOWN, Aggregation, Field, GroupBy, PartialIr, compile_group_by
from millpond.features.cells.counts_and_sums import add_all_encoded, add_encoded, encode_fixed_point
from millpond.features.operations import OPERATIONS
from millpond.features.stored.packed_cells import PackedCells
from millpond.features.types import parse_type
from tests.features.test_fixed_point_arrays import NUMBERS
from tests.features.test_operations import compiled
from tests.features.values import FEW, scalars

SHAPES = ("{}", "array<{}>", "map<string,{}>")


def columns(type_, shape):
    one = scalars(type_)
    if shape == "{}":
        return one
    return st.lists(one, max_size=2) if shape.startswith("array") else st.dictionaries(st.sampled_from("ab"), one)


@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_packed_cells_are_merged_as_their_irs_are(name, data):
    types = [type_ for type_ in FEW if parse_type(type_).kind in OPERATIONS[name].types]
    type_, shape = data.draw(st.sampled_from(types)), data.draw(st.sampled_from(SHAPES))
    cells = compiled(name, shape.format(type_), **data.draw(st.sampled_from([{}, {"buckets": ("b",)}])))
    rows = st.lists(st.tuples(st.none() | columns(type_, shape), st.sampled_from(("p", "q"))), max_size=4)
    pairs = data.draw(st.lists(st.tuples(rows, rows), max_size=3))
    irs = [[cells.collect(list(range(len(one))), one) for one in pair] for pair in pairs]
    packed = PackedCells(cells.cells)
    lefts, rights = ([packed.pack(pair[side]) for pair in irs] for side in (0, 1))
    expected = [
        packed.pack(
            tuple(
                cell.merge(*both)
                for cell, *both in zip(cells.cells, packed.unpack(left), packed.unpack(right), strict=True)
            )
        )
        for left, right in zip(lefts, rights, strict=True)
    ]
    assert packed.merge(lefts, rights) == expected
    firsts = [pair[0] for pair in irs]
    assert packed.pack_columns(list(zip(*firsts, strict=True)) or [[]] * len(cells.cells), len(firsts)) == lefts


@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
@settings(deadline=None, max_examples=15)
def test_runs_of_packed_cells_are_merged_as_all_their_irs_are(name, data):
    types = [type_ for type_ in FEW if parse_type(type_).kind in OPERATIONS[name].types]
    type_ = data.draw(st.sampled_from(types))
    cells = compiled(name, type_)
    packed = PackedCells(cells.cells)
    rows = st.lists(st.tuples(st.none() | scalars(type_), st.just("b")), max_size=3)
    runs = [
        [packed.pack(cells.collect(list(range(len(one))), one)) for one in run]
        for run in data.draw(st.lists(st.lists(rows, min_size=1, max_size=4), max_size=4))
    ]
    expected = [
        packed.pack(
            tuple(
                cell.merge_all(column)
                for cell, column in zip(cells.cells, zip(*map(packed.unpack, run), strict=True), strict=True)
            )
        )
        for run in runs
    ]
    assert packed.merge_runs(runs) == expected


@given(NUMBERS, NUMBERS)
def test_stored_numbers_are_added_as_the_numbers_are(left, right):
    assert add_encoded(encode_fixed_point(left), encode_fixed_point(right)) == encode_fixed_point(left + right)


@given(st.lists(NUMBERS, max_size=6))
def test_stored_numbers_of_a_run_are_added_as_the_numbers_are(numbers):
    # With each number's negative too, sums of 0 are drawn often.
    for added in (numbers, [*numbers, *(-number for number in numbers)]):
        assert add_all_encoded(list(map(encode_fixed_point, added))) == encode_fixed_point(sum(added))


def codec_of(*operations):
    aggregations = tuple(Aggregation(one, "x", ("1h",)) for one in operations)
    return compile_group_by(GroupBy("g", (Field("k", "string"),), (Field("x", "long"),), aggregations)).tile_codec


def test_packed_cells_of_another_plan_keep_what_both_know():
    written, read = codec_of("min", "max"), codec_of("max", "sum")
    form, packed = written.pack((1, 9))
    ir = read.unpack(form, packed)
    assert (type(ir), tuple(ir)) == (PartialIr, (9, UNKNOWN, UNKNOWN))
    known, less = read.pack(ir)
    assert known != read.form
    assert read.unpack(known, less) == ir


def test_what_are_no_packed_cells_is_refused():
    codec = codec_of("min", "max")
    form, packed = codec.pack((1, 9))
    for wrong in (packed[:-1], packed + packed, b"\xa1a" + packed[1:]):
        with pytest.raises(CorruptionError, match="tile of GroupBy 'g'"):
            codec.unpack(form, wrong)
