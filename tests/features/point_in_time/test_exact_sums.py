import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.features.cells.counts_and_sums import from_fixed_point, to_fixed_point
from millpond.features.point_in_time.exact_sums import ExactSums

finite = st.floats(allow_nan=False, allow_infinity=False)
near = st.floats(-1e6, 1e6) | st.integers(-(10**6), 10**6).map(lambda cents: cents / 100)


def by_integers(values, low, high, count):
    return from_fixed_point(sum(map(to_fixed_point, values[low:high])), count)


def assert_as_by_integers(values, ranges):
    sums = ExactSums(np.array(values, np.float64))
    low, high, counts = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    found = sums.averages(low, high, counts).tolist()
    assert list(map(repr, found)) == [repr(by_integers(values, *one)) for one in ranges]
    for start, end, _ in ranges:
        assert sums.total(start, end) == sum(map(to_fixed_point, values[start:end]))


@st.composite
def columns_and_ranges(draw, values):
    column = draw(st.lists(values, min_size=1, max_size=30))
    place = st.integers(0, len(column))
    bounds = st.tuples(place, place).map(sorted)
    counts = st.integers(1, 40) | st.sampled_from([2**31 - 1, 2**31 - 2, 3**19, 2**30])
    ranges = draw(st.lists(st.builds(lambda pair, count: (*pair, count), bounds, counts), min_size=1, max_size=20))
    return column, ranges


@settings(max_examples=150)
@given(columns_and_ranges(near))
def test_usual_columns_have_the_bits_of_python_integers(drawn):
    assert_as_by_integers(*drawn)


@settings(max_examples=150)
@given(columns_and_ranges(finite))
def test_columns_of_any_doubles_have_the_bits_of_python_integers(drawn):
    assert_as_by_integers(*drawn)


@settings(max_examples=100)
@given(columns_and_ranges(st.integers(-(2**60), 2**60).map(lambda n: n * 5e-324) | st.sampled_from([2.0**-1022, 0.0])))
def test_sums_below_the_normal_doubles_are_rounded_once(drawn):
    assert_as_by_integers(*drawn)


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0**-53],  # a tie, to even: down
        [1.0 + 2.0**-52, 2.0**-53],  # a tie, to even: up
        [1.0, 2.0**-53, 2.0**-1074],  # just above the tie, by a bit far below
        [1.0, 2.0**-53, -(2.0**-1074)],  # just below
        [1.7976931348623157e308, 1.7976931348623157e308],  # more than a double holds
        [-1.7976931348623157e308, -1.7976931348623157e308],
        [9007199254740991.0, 1.0, 0.5],  # rounding up gives one bit more
        [0.0, -0.0],
        [],
    ],
)
def test_edges_of_rounding_are_met(values):
    assert_as_by_integers(values, [(0, len(values), 1), (0, len(values), 3), (0, 0, 1)])
