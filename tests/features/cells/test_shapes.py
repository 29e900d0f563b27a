"""What every operation owes in every shape: arrays, maps, positions, buckets, and spans of own time."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.features.cells.shapes import bucketed, by_own_time, element_wise, exploded, keyed
from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type
from tests.features.cells.test_algebra import TYPES_OF, cells_of
from tests.features.values import FEW

TIMES = st.integers(-3, 3) | st.integers(-(1 << 40), 1 << 42)


def values_of(type_):
    return st.sampled_from(parse_type(type_).inward(list(FEW[type_])))


SHAPES = {
    "exploded": (exploded, lambda values: st.lists(st.none() | values, max_size=3)),
    "element-wise": (element_wise, lambda values: st.lists(st.none() | values, max_size=3)),
    "keyed": (
        lambda cell: keyed(cell, parse_type("string")),
        lambda values: st.dictionaries(st.sampled_from("ab"), st.none() | values, max_size=2),
    ),
    "bucketed": (bucketed, lambda values: st.tuples(st.sampled_from("xy"), values)),
    "by own time": (lambda cell: by_own_time(cell, 3), lambda values: values),
    "bucketed by own time": (
        lambda cell: by_own_time(bucketed(cell), 3),
        lambda values: st.tuples(st.sampled_from("xy"), values),
    ),
    "element-wise in buckets": (
        lambda cell: bucketed(element_wise(cell)),
        lambda values: st.tuples(st.sampled_from("xy"), st.lists(st.none() | values, max_size=2)),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_shaped_cells_merge_in_any_order_and_grouping_and_a_delete_undoes_a_collect(name, data):
    type_ = data.draw(st.sampled_from(TYPES_OF[name]))
    shape, column = SHAPES[data.draw(st.sampled_from(sorted(SHAPES)))]
    rows = st.lists(st.tuples(TIMES, column(values_of(type_))), max_size=3)
    lists = [data.draw(rows) for _ in range(3)]
    for cell in map(shape, cells_of(name, type_)):

        def stored(value, cell=cell):
            return msgspec.msgpack.encode(cell.encode(value))

        def collected(pairs, cell=cell):
            return cell.collect([time for time, _ in pairs], [value for _, value in pairs])

        parts = list(map(collected, lists))
        before = list(map(stored, parts))
        whole = stored(collected([pair for pairs in lists for pair in pairs]))
        for one, two, three in itertools.permutations(parts):
            assert stored(cell.merge(cell.merge(one, two), three)) == whole
            assert stored(cell.merge(one, cell.merge(two, three))) == whole
            assert stored(cell.merge_all([one, two, three])) == whole
        assert cell.merge(parts[0], cell.empty) == cell.merge(cell.empty, parts[0]) == parts[0]
        assert cell.collect([], []) == cell.merge_all([]) == cell.empty
        assert cell.decode(msgspec.msgpack.decode(before[0])) == parts[0]
        if cell.delete is not None:
            assert stored(cell.delete(cell.merge(parts[0], parts[1]), parts[1])) == before[0]
            early = cell.delete(cell.empty, parts[1])
            assert stored(cell.merge(early, cell.merge(parts[0], parts[1]))) == before[0]
        assert list(map(stored, parts)) == before, "a merge or delete changed what it was given"


@pytest.mark.parametrize("shape", [None, *SHAPES])
def test_many_stored_cells_are_decoded_as_each_is(shape):
    shaped, column = SHAPES[shape] if shape else (lambda cell: cell, lambda values: values)
    for name, types in TYPES_OF.items():
        for type_ in types:
            for cell in map(shaped, cells_of(name, type_)):
                if cell.decode_all is not None:
                    check_decode_all(cell, column(values_of(type_)))


def check_decode_all(cell, values):
    @given(columns=st.lists(st.lists(values, max_size=3), max_size=3))
    @settings(deadline=None, max_examples=10)
    def check(columns):
        cells = [cell.collect([0] * len(column), column) for column in columns]
        assert (
            cell.decode_all([msgspec.msgpack.decode(msgspec.msgpack.encode(cell.encode(one))) for one in cells])
            == cells
        )

    check()
