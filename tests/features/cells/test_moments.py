import math
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.features.cells.moments import root_of_quotient
from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type
from tests.features import operation_oracle

DOUBLE = parse_type("double")
MOMENTS = ("variance", "stddev", "skew", "kurtosis")


def moment(name, values, type_=DOUBLE):
    operation = OPERATIONS[name]
    cells = [make(type_, None).collect([0] * len(values), type_.inward(values)) for make in operation.cells]
    return operation.finisher(type_, None)(*cells)


@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("spread", [1e-9, 1.0, 1e12, 1e-300, 1e150])
def test_a_moment_is_the_nearest_double_whatever_cancels(name, spread):
    draw = random.Random(11)
    for centre in (0.0, 1.0, 1e6):
        values = [centre + spread * draw.gauss() for _ in range(30)]
        assert moment(name, values) == operation_oracle.answer(name, list(enumerate(values)), "double")


def test_moments_are_those_of_the_population():
    values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]
    assert [moment(name, values) for name in MOMENTS] == [4.0, 2.0, 0.65625, -0.21875]


@pytest.mark.parametrize("values", [[3.5], [0.1] * 7, [1e308, 1e308]])
def test_skew_and_kurtosis_are_null_where_all_values_are_equal(values):
    assert [moment(name, values) for name in MOMENTS] == [0.0, 0.0, None, None]


def test_a_variance_beyond_all_doubles_is_infinite_and_its_root_is_not():
    values = [-1.7e308, 1.7e308]
    assert moment("variance", values) == math.inf
    assert moment("stddev", values) == 1.7e308
    assert (moment("skew", values), moment("kurtosis", values)) == (0.0, -2.0)


@given(st.integers(0, 1 << 300), st.integers(1, 1 << 300), st.integers(-1100, 900))
@settings(deadline=None)
def test_a_root_is_the_nearest_double(numerator, denominator, scale):
    if scale >= 0:
        numerator <<= scale
    else:
        denominator <<= -scale
    root = root_of_quotient(numerator, denominator)
    exact = Fraction(numerator, denominator)
    below = (Fraction(root) + Fraction(math.nextafter(root, 0.0))) / 2
    above = (Fraction(root) + Fraction(math.nextafter(root, math.inf))) / 2
    assert root == 0.0 or below**2 <= exact
    assert exact <= above**2


def test_a_stddev_of_the_smallest_doubles_is_not_zero():
    assert moment("stddev", [0.0, 1e-323]) == 5e-324
