import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.features.cells import sets_and_maps
from millpond.features.cells.sets_and_maps import MAX_DISTINCT, histogram_cells, set_cells
from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type

LONG, STRING = parse_type("long"), parse_type("string")
VALUES = st.lists(st.integers(0, 6), max_size=5)


@given(VALUES, VALUES, VALUES)
def test_merging_is_associative_and_commutative_where_sets_fill_up(one, two, three):
    cell = set_cells("unique", LONG, 3)
    whole = cell.collect([0] * len(one + two + three), one + two + three)
    parts = [cell.collect([0] * len(values), values) for values in (one, two, three)]
    for a, b, c in itertools.permutations(parts):
        assert cell.merge(cell.merge(a, b), c) == cell.merge(a, cell.merge(b, c)) == cell.merge_all([a, b, c]) == whole
    assert (whole is None) == (len({*one, *two, *three}) > 3)


def test_unique_count_says_when_it_is_only_a_bound():
    operation = OPERATIONS["unique_count"]
    (cell,) = [make(LONG, None) for make in operation.cells]
    finish = operation.finisher(LONG, None)
    at_limit = cell.collect(range(MAX_DISTINCT), range(MAX_DISTINCT))
    beyond = cell.merge(at_limit, cell.collect([0], [-1]))
    assert (finish(at_limit), operation.limit_met(at_limit)) == (MAX_DISTINCT, False)
    assert (finish(beyond), operation.limit_met(beyond)) == (MAX_DISTINCT, True)
    assert cell.decode(cell.encode(beyond)) is beyond is None
    assert cell.size(beyond) == 0


def test_a_full_histogram_is_null_flagged_and_stays_full():
    operation = OPERATIONS["histogram"]
    cell = histogram_cells(LONG)
    beyond = cell.collect(range(MAX_DISTINCT + 1), range(MAX_DISTINCT + 1))
    assert (operation.finisher(LONG, None)(beyond), operation.limit_met(beyond)) == (None, True)
    one = cell.collect([0], [0])
    assert cell.merge(beyond, one) is cell.merge(one, beyond) is cell.merge_all([one, beyond]) is None
    assert cell.delete(beyond, one) is cell.delete(one, beyond) is None
    assert cell.decode(cell.encode(beyond)) is None


def test_a_histogram_gives_only_what_is_there_after_deletes():
    cell = histogram_cells(STRING)
    left = cell.delete(cell.collect([0, 0, 0], ["a", "b", "b"]), cell.collect([0, 0], ["a", "c"]))
    assert left == {"b": 2, "c": -1}
    assert OPERATIONS["histogram"].finisher(STRING, None)(left) == {"b": 2}


def test_bounded_unique_count_keeps_fewer_than_k_values():
    operation = OPERATIONS["bounded_unique_count"]
    (cell,) = [make(LONG, 2) for make in operation.cells]
    finish = operation.finisher(LONG, 2)
    assert [finish(cell.collect([0] * n, range(n))) for n in range(4)] == [None, 1, 2, 2]
    assert cell.collect([0, 0], [1, 2]) is None
    assert operation.limit_met is None


def test_adding_counts_changes_none_of_them():
    counts = [{"a": 1}, {"a": 1, "b": 2}, {"b": -2}]
    assert sets_and_maps.added(*counts) == {"a": 2}
    assert counts == [{"a": 1}, {"a": 1, "b": 2}, {"b": -2}]


@pytest.mark.parametrize("stored", [["b", 1, "a", 1], ["a", 1, "a", 1], ["a", 0], ["a"], ["a", True], [1, 1], "a", 3])
def test_a_stored_histogram_that_is_no_cell_is_refused(stored):
    with pytest.raises((ValueError, TypeError)):
        histogram_cells(STRING).decode(stored)


@pytest.mark.parametrize("stored", [[2, 1], [1, 1], [1, 2, 3, 4], ["a"], [1.0], {}, b""])
def test_a_stored_set_that_is_no_cell_is_refused(stored):
    with pytest.raises((ValueError, TypeError)):
        set_cells("unique", LONG, 3).decode(stored)
