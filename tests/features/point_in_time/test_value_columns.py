from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond.features import Field
from millpond.features.cells.counts_and_sums import finished_average
from millpond.features.point_in_time.value_columns import ValueColumn

EDGES = (1 << 53, 1 << 54, 1 << 55, 1 << 62, 1 << 63)


def near_edges():
    """Longs whose sums lie where doubles stop to hold every whole number, or longs to hold every sum."""
    edges = st.sampled_from([*EDGES, *(-edge for edge in EDGES)])
    near = st.tuples(edges, st.integers(-4, 4)).map(sum)
    return st.one_of(near, st.integers(-4, 4)).filter(lambda value: -(1 << 63) <= value < 1 << 63)


def average(column, type_, scale=0):
    ends = np.array([0]), np.array([len(column)])
    values = ValueColumn(column, Field("n", type_), len(column), "a test")
    return values.averages(*ends, np.array([len(column)]), scale).tolist()


@settings(max_examples=300)
@given(st.lists(near_edges(), min_size=1, max_size=7))
@example([2**53 + 1, 0, 0])
@example([-(2**53) - 1, 0, 0])
@example([2**53, 1, 0])
@example([2**63 - 1, 2, 0])
@example([-(2**63), -1])
def test_an_average_of_longs_is_the_exact_quotient_rounded_once(values):
    exact = float(Fraction(sum(values), len(values)))
    assert average(pa.array(values, pa.int64()), "long") == [exact] == [finished_average(sum(values), len(values))]


@settings(max_examples=200)
@given(st.lists(near_edges(), min_size=1, max_size=7), st.integers(0, 18))
@example([2**53 + 1, 0, 0], 0)
@example([2**53 + 1, 0, 0], 2)
def test_an_average_of_decimals_is_the_exact_quotient_rounded_once(values, scale):
    unscaled = [value % 10**18 - (10**18 if value < 0 else 0) for value in values]
    column = pa.array([Decimal(value).scaleb(-scale) for value in unscaled], pa.decimal128(18, scale))
    exact = float(Fraction(sum(unscaled), len(unscaled) * 10**scale))
    assert average(column, f"decimal(18,{scale})", scale) == [exact]


@pytest.mark.parametrize("count", [1, 3, (1 << 31) - 1])
def test_a_divisor_of_more_than_53_bits_is_not_rounded_first(count):
    column = pa.array([Decimal("0.000000000000000001"), Decimal("0.999999999999999998")], pa.decimal128(18, 18))
    values = ValueColumn(column, Field("n", "decimal(18,18)"), 2, "a test")
    found = values.averages(np.array([0]), np.array([2]), np.array([count]), 18).tolist()
    assert found == [float(Fraction(10**18 - 1, count * 10**18))]
