"""Sums by array operations are the sums of Python's integers."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.features.cells.counts_and_sums import encode_fixed_point
from millpond.features.columnar.fixed_point_arrays import added_fixed_points

NUMBERS = st.builds(
    lambda mantissa, shift: mantissa << shift, st.integers(-(1 << 200), 1 << 200), st.integers(0, 2100)
) | st.integers(-5, 5)


def added(numbers, index, groups):
    stored = [msgspec.msgpack.encode(encode_fixed_point(number)) for number in numbers]
    bounds = np.cumsum([0, *map(len, stored)])
    return added_fixed_points(np.frombuffer(b"".join(stored), np.uint8), bounds, np.array(index), groups)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 3)), min_size=1, max_size=20))
def test_stored_numbers_are_added_exactly(rows):
    found = added([number for number, _ in rows], [group for _, group in rows], 4).sums()
    assert found == [sum(number for number, of in rows if of == group) for group in range(4)]


def test_a_group_without_numbers_is_zero():
    assert added([5, 0], [1, 2], 4).sums() == [0, 5, 0, 0]


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 3)), min_size=1, max_size=20))
def test_sums_are_packed_as_they_are_stored_one_by_one(rows):
    sums = added([number for number, _ in rows], [group for _, group in rows], 4)
    sums.add_following(np.array([0, 3, 4]))
    of_group = [sum(number for number, of in rows if of == group) for group in range(4)]
    expected = [encode_fixed_point(number) for number in [sum(of_group[:3]), sum(of_group[1:3]), *of_group[2:]]]
    packed = sums.packed()
    if packed is None:
        assert max(map(len, expected)) > 255
        return
    assert max(map(len, expected)) <= 255
    assert packed.runs(np.arange(5)) == list(map(msgspec.msgpack.encode, expected))
    assert packed.data == b"".join(map(msgspec.msgpack.encode, expected))


@pytest.mark.parametrize("number", [0, 1, -1, 255, -255, -257, 1 << 31, 1 << 32, -(1 << 32), (1 << 64) - 1, 3 << 2097])
def test_a_number_alone_is_packed_as_it_is_stored(number):
    packed = added([number], [0], 1).packed()
    assert packed is not None
    assert packed.data == msgspec.msgpack.encode(encode_fixed_point(number))


def test_a_number_of_more_bytes_than_a_short_length_says_is_left_to_others():
    assert added([1, 1 << 2097], [0, 0], 1).packed() is None


@pytest.mark.parametrize("stored", ["05", "c40200ff", "c403000104", "c4040001", "a3000105"])
def test_what_is_no_fixed_point_number_is_refused(stored):
    data = np.frombuffer(bytes.fromhex(stored), np.uint8)
    with pytest.raises(ValueError, match="no fixed-point numbers"):
        added_fixed_points(data, np.array([0, len(data)]), np.array([0]), 1)
