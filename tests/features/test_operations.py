import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.features.operations import cell_operation, finisher, from_fixed_point, to_fixed_point

DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES = {"double": DOUBLES, "long": LONGS, "boolean": st.booleans(), "string": st.text(max_size=5)}
CASES = [
    ("count", None),
    *((kind, type_) for kind in ("count", "min", "max") for type_ in VALUES),
    *(("sum", type_) for type_ in ("double", "long", "boolean")),
]


def values_of(type_):
    return VALUES[type_ or "long"]


@given(DOUBLES)
def test_a_double_survives_fixed_point(value):
    assert from_fixed_point(to_fixed_point(value)) == value


@given(st.lists(DOUBLES, min_size=1, max_size=50))
def test_a_sum_of_doubles_is_rounded_once(values):
    total = from_fixed_point(sum(map(to_fixed_point, values)))
    try:
        assert total == math.fsum(values)
    except OverflowError:  # fsum gives up on sums that only pass through what is too large
        exact = sum(map(Fraction, values))
        assert total == (float(exact) if abs(exact) < Fraction(2) ** 1023 else total)


@given(st.lists(DOUBLES, min_size=1, max_size=50))
def test_an_average_of_doubles_is_rounded_once(values):
    average = from_fixed_point(sum(map(to_fixed_point, values)), len(values))
    assert average == float(sum(map(Fraction, values)) / len(values))


def test_a_sum_beyond_all_doubles_is_infinite():
    largest = to_fixed_point(1.7976931348623157e308)
    assert from_fixed_point(largest + largest) == math.inf
    assert from_fixed_point(-largest - largest) == -math.inf
    assert from_fixed_point(largest + largest, count=2) == 1.7976931348623157e308


@pytest.mark.parametrize(("kind", "type_"), CASES)
@given(data=st.data())
def test_merging_is_associative_and_commutative_and_the_empty_cell_is_neutral(kind, type_, data):
    operation = cell_operation(kind, type_)
    one, two, three = (
        operation.collect(data.draw(st.lists(values_of(type_), max_size=4).map(_without_negative_zero)))
        for _ in range(3)
    )
    merge = operation.merge
    assert merge(one, two) == merge(two, one)
    assert merge(merge(one, two), three) == merge(one, merge(two, three)) == operation.merge_all([three, one, two])
    assert merge(one, operation.init) == merge(operation.init, one) == one
    assert operation.collect([]) == operation.init


@pytest.mark.parametrize(("kind", "type_"), CASES)
@given(data=st.data())
def test_merging_cells_is_collecting_all_their_values(kind, type_, data):
    operation = cell_operation(kind, type_)
    left = data.draw(st.lists(values_of(type_), max_size=6))
    right = data.draw(st.lists(values_of(type_), max_size=6))
    assert operation.merge(operation.collect(left), operation.collect(right)) == operation.collect(left + right)


@pytest.mark.parametrize("operation", ["average", "count", "max", "min", "sum"])
@pytest.mark.parametrize("type_", ["double", "long"])
def test_no_data_is_none_and_not_zero(operation, type_):
    empty = {"average": (0, 0), "sum": (0, 0), "count": (0,), "min": (None,), "max": (None,)}[operation]
    assert finisher(operation, type_, tuple(range(len(empty))))(empty) is None


def _without_negative_zero(values):
    return [value + 0.0 if isinstance(value, float) else value for value in values]
