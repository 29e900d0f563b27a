import itertools

import pytest

from millpond.features.cells import ordered
from millpond.features.types import parse_type

STRING, LONG = parse_type("string"), parse_type("long")


@pytest.mark.parametrize("make", [ordered.first_cells, ordered.last_cells])
def test_of_values_at_one_time_the_least_wins_in_whatever_order_they_came(make):
    cell = make(STRING)
    for values in itertools.permutations(("b", "a", "c")):
        assert cell.collect([7, 7, 7], values)[1] == "a"
        assert cell.merge_all([cell.collect([7], [value]) for value in values])[1] == "a"


def test_the_latest_values_come_first_and_equal_ones_stay_apart():
    cell = ordered.last_k_cells(LONG, 3)
    whole = cell.merge(cell.collect([1, 9], [10, 90]), cell.collect([9, 5], [90, 50]))
    assert ordered.LAST_K.finisher(LONG, 3)(whole) == [90, 90, 50]


def test_a_list_never_holds_more_than_k():
    for make in (ordered.first_k_cells, ordered.last_k_cells, ordered.top_k_cells, ordered.bottom_k_cells):
        cell = make(LONG, 2)
        parts = [cell.collect(range(5), range(5)) for _ in range(3)]
        assert len(parts[0]) == len(cell.merge(*parts[:2])) == len(cell.merge_all(parts)) == 2


@pytest.mark.parametrize(
    "stored",
    [
        [2, "a", 1, "b"],  # not in order
        [1, "a", 2],  # a time without its value
        [1, "a", 2, "b", 3, "c"],  # more than k
        [1, 2],
        ["a", 1],
        [1.0, "a"],
        "ab",
        None,
    ],
)
def test_a_stored_list_that_is_no_cell_is_refused(stored):
    with pytest.raises((ValueError, TypeError)):
        ordered.first_k_cells(STRING, 2).decode(stored)


@pytest.mark.parametrize("stored", [[1], [1, "a", 2], [True, "a"], [1, 2], "ab", 5, [1 << 63, "a"]])
def test_a_stored_pair_that_is_no_cell_is_refused(stored):
    with pytest.raises((ValueError, TypeError)):
        ordered.first_cells(STRING).decode(stored)


def test_the_greatest_values_are_stored_in_descending_order_only():
    cell = ordered.top_k_cells(LONG, 3)
    assert cell.decode([9, 9, 2]) == (9, 9, 2)
    with pytest.raises(ValueError, match="in order"):
        cell.decode([2, 9])
