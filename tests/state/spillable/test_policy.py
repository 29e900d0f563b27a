"""Which key groups go to disk, and which come back."""

from hypothesis import given
from hypothesis import strategies as st

from millpond.state.spillable.policy import GroupLoad, chosen_to_load, chosen_to_spill

groups = st.lists(
    st.builds(GroupLoad, st.integers(0, 1000), st.none(), st.integers(1, 1000), st.floats(0, 1000)), max_size=20
)


def group(number, heap_bytes, rate):
    return GroupLoad(number, None, heap_bytes, rate)


def numbers(chosen):
    return [each.key_group for each in chosen]


def test_of_groups_of_one_size_the_coldest_are_spilled():
    known = [group(1, 100, 5), group(2, 100, 1), group(3, 100, 9)]
    assert numbers(chosen_to_spill(known, 150)) == [2, 1]


def test_of_groups_of_one_rate_the_largest_are_spilled():
    known = [group(1, 100, 5), group(2, 300, 5), group(3, 200, 5)]
    assert numbers(chosen_to_spill(known, 301)) == [2, 3]


def test_of_groups_of_one_size_the_hottest_are_loaded():
    known = [group(1, 100, 5), group(2, 100, 1), group(3, 100, 9)]
    assert numbers(chosen_to_load(known, 250)) == [3, 1]


def test_of_groups_of_one_rate_the_smallest_are_loaded():
    known = [group(1, 100, 5), group(2, 300, 5), group(3, 200, 5)]
    assert numbers(chosen_to_load(known, 300)) == [1, 3]


def test_an_empty_group_is_not_spilled():
    assert chosen_to_spill([group(1, 0, 0)], 100) == []


@given(groups, st.integers(1, 5000))
def test_no_more_groups_are_spilled_than_it_takes(known, wanted):
    chosen = chosen_to_spill(known, wanted)
    freed = [each.heap_bytes for each in chosen]
    assert sum(freed) >= min(wanted, sum(each.heap_bytes for each in known))
    assert sum(freed[:-1]) < wanted


@given(groups, st.integers(-10, 5000))
def test_what_is_loaded_fits(known, room):
    assert sum(each.heap_bytes for each in chosen_to_load(known, room)) <= max(0, room)
