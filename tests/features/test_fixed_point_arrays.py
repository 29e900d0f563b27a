"""Sums by array operations are the sums of Python's integers."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.features.cells.counts_and_sums import encode_fixed_point
from millpond.features.fixed_point_arrays import merged_fixed_points

NUMBERS = st.builds(
    lambda mantissa, shift: mantissa << shift, st.integers(-(1 << 200), 1 << 200), st.integers(0, 2100)
) | st.integers(-5, 5)


def merged(numbers, index, groups):
    stored = [msgspec.msgpack.encode(encode_fixed_point(number)) for number in numbers]
    bounds = np.cumsum([0, *map(len, stored)])
    return merged_fixed_points(np.frombuffer(b"".join(stored), np.uint8), bounds, np.array(index), groups)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 3)), min_size=1, max_size=20))
def test_stored_numbers_are_added_exactly(rows):
    found = merged([number for number, _ in rows], [group for _, group in rows], 4)
    assert found == [sum(number for number, of in rows if of == group) for group in range(4)]


def test_a_group_without_numbers_is_zero():
    assert merged([5, 0], [1, 2], 4) == [0, 5, 0, 0]


@pytest.mark.parametrize("stored", ["05", "c40200ff", "c403000104", "c4040001", "a3000105"])
def test_what_is_no_fixed_point_number_is_refused(stored):
    data = np.frombuffer(bytes.fromhex(stored), np.uint8)
    with pytest.raises(ValueError, match="no fixed-point numbers"):
        merged_fixed_points(data, np.array([0, len(data)]), np.array([0]), 1)
