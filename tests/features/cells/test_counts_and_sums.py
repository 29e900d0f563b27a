import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.features.cells.counts_and_sums import (
    encode_fixed_point,
    from_fixed_point,
    power_sum_cells,
    sum_cells,
    to_fixed_point,
)
from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type
from tests.features.operation_oracle import rounded

DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
DOUBLE, LONG = parse_type("double"), parse_type("long")


@given(DOUBLES)
def test_a_double_survives_fixed_point(value):
    assert from_fixed_point(to_fixed_point(value)) == value


@given(st.lists(DOUBLES, min_size=1, max_size=50))
def test_sums_and_averages_of_doubles_are_rounded_once(values):
    total = sum(map(to_fixed_point, values))
    exact = sum(map(Fraction, values))
    assert from_fixed_point(total) == rounded(exact)
    assert from_fixed_point(total, len(values)) == float(exact / len(values))


def test_a_sum_beyond_all_doubles_is_infinite():
    largest = to_fixed_point(1.7976931348623157e308)
    assert from_fixed_point(largest + largest) == math.inf
    assert from_fixed_point(-largest - largest) == -math.inf
    assert from_fixed_point(largest + largest, count=2) == 1.7976931348623157e308


def test_a_sum_of_longs_is_exact_beyond_64_bits():
    cell = sum_cells(LONG)
    total = cell.collect([0, 0], [(1 << 63) - 1] * 2)
    assert cell.decode(cell.encode(total)) == total == (1 << 64) - 2
    assert OPERATIONS["sum"].finisher(LONG, None)(total, 2) == (1 << 64) - 2


def test_the_largest_power_sums_still_fit_their_bounds():
    for power in (1, 2, 3, 4):
        cell = power_sum_cells(power)(DOUBLE)
        total = cell.collect([0], [-1.7976931348623157e308]) * ((1 << 63) - 1)
        assert cell.decode(cell.encode(total)) == total
        cell = power_sum_cells(power)(parse_type("decimal(38,0)"))
        total = cell.collect([0], [1 - 10**38]) * ((1 << 63) - 1)
        assert cell.decode(cell.encode(total)) == total


@pytest.mark.parametrize(
    "stored",
    [
        b"\xff\xff\x01",  # 2**65535
        b"\x00\x00\x02",  # an even mantissa: not the shortest form
        b"\x00",
        b"\x00\x00",
        b"\x00\x00" + bytes(1 << 12) + b"\x01",
        5,
        [5, 3],
        None,
    ],
)
def test_bytes_that_ask_for_much_memory_or_are_no_sum_are_refused(stored):
    with pytest.raises((ValueError, TypeError)):
        sum_cells(DOUBLE).decode(stored)


@pytest.mark.parametrize("stored", [b"\x00" * 25, b"\x01" * 25, b"\x05", 1 << 63, True, 1.0, None])
def test_a_whole_number_that_is_too_long_or_not_in_its_shortest_form_is_refused(stored):
    with pytest.raises((ValueError, TypeError)):
        sum_cells(LONG).decode(stored)


@pytest.mark.parametrize("value", [0.1, 1.5, -1.5, 1e300])
def test_sums_are_stored_without_the_zeros_they_end_in(value):
    assert len(encode_fixed_point(to_fixed_point(value))) <= 9
