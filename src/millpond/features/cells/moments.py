"""Moments of a population: variance, stddev, skew, kurtosis.

The cells are a count and the exact sums of the first to fourth powers (``power_sum_cells``). They merge
to the bit in any order, and they can delete. One-pass recurrences (Welford, Terriberry) cannot do either. A
moment is then a fraction of whole numbers. It is rounded once: by Python's true division of integers,
which rounds correctly, or by an integer square root with a sticky bit. So no moment is off by more than
half a unit in the last place, whatever cancels on the way.

With n values and power sums S1 to S4:

| number        | is                                            | stands for                   |
|---------------|-----------------------------------------------|------------------------------|
| B             | n S2 - S1^2                                   | n^2 m2, m2 the variance      |
| A             | n^2 S3 - 3 n S1 S2 + 2 S1^3                   | n^3 m3                       |
| K             | n^3 S4 - 4 n^2 S1 S3 + 6 n S1^2 S2 - 3 S1^4   | n^4 m4                       |

variance = B / n^2, skew = A / B^(3/2), and kurtosis = K / B^2 - 3: the excess over a normal
distribution, as in Spark. Skew and kurtosis are null if all values are equal, because B is 0 then. In both
the unit of the sums cancels.
"""

import math
from collections.abc import Callable

from millpond.features.cells.cell import Finish, Operation, Parameter
from millpond.features.cells.counts_and_sums import (
    FRACTION_BITS,
    NUMBERS,
    count_cells,
    double_result,
    is_fraction,
    power_sum_cells,
    sum_cells,
)
from millpond.features.types import DataType

_ROOT_BITS = 64
"""How many bits of a square root are computed: 53 are kept, the rest and the sticky bit round it."""


def quotient(numerator: int, denominator: int) -> float:
    """Return the nearest double to a fraction; an infinity if it is too large for a double.

    >>> quotient(1, 3), quotient(-(10**400), 1)
    (0.3333333333333333, -inf)
    """
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if (numerator > 0) == (denominator > 0) else -math.inf


def root_of_quotient(numerator: int, denominator: int) -> float:
    """Return the nearest double to the square root of a fraction; both parts are at least 0.

    >>> root_of_quotient(2, 1) == math.sqrt(2), root_of_quotient(10**800, 10**800)
    (True, 1.0)
    """
    # An even shift makes the whole quotient 2 * _ROOT_BITS bits long, so its root has _ROOT_BITS.
    shift = 2 * _ROOT_BITS - (numerator.bit_length() - denominator.bit_length())
    shift += shift & 1
    if shift >= 0:
        whole, rest = divmod(numerator << shift, denominator)
    else:
        whole, rest = divmod(numerator, denominator << -shift)
    root = math.isqrt(whole)
    # The sticky bit says that the true root is larger. It keeps a root near the middle of two doubles on its side.
    sticky = rest != 0 or root * root != whole
    doubled = root << 1 | sticky
    halves = shift // 2 + 1
    return quotient(doubled, 1 << halves) if halves >= 0 else quotient(doubled << -halves, 1)


def _reduced(count: int, *sums: int) -> tuple[int, tuple[int, ...]]:
    """Divide power sums by the largest power of two that all values share.

    If every value is a multiple of 2**shift, the p-th sum is a multiple of 2**(p * shift).
    """
    shift = min(((total & -total).bit_length() - 1) // power for power, total in enumerate(sums, 1) if total)
    return count, tuple(total >> power * shift for power, total in enumerate(sums, 1))


def _spread(count: int, total: int, squares: int) -> int:
    return count * squares - total * total


def _variance_unit(type_: DataType | None) -> int:
    """Return the square of the factor by which values are multiplied inside cells."""
    if is_fraction(type_):
        return 1 << 2 * FRACTION_BITS
    scale = 0 if type_ is None else type_.scale
    unit: int = 100**scale
    return unit


def _finish_variance(type_: DataType | None, _: Parameter) -> Finish:
    unit = _variance_unit(type_)

    def finish(total: int, squares: int, count: int) -> float | None:
        if count <= 0:
            return None
        return quotient(max(0, _spread(count, total, squares)), count * count * unit)

    return finish


def _finish_stddev(type_: DataType | None, _: Parameter) -> Finish:
    unit = _variance_unit(type_)

    def finish(total: int, squares: int, count: int) -> float | None:
        if count <= 0:
            return None
        return root_of_quotient(max(0, _spread(count, total, squares)), count * count * unit)

    return finish


def _finish_skew(_: DataType | None, __: Parameter) -> Finish:
    def finish(s1: int, s2: int, s3: int, n: int) -> float | None:
        if n <= 0 or _spread(n, s1, s2) <= 0:
            return None
        _, (s1, s2, s3) = _reduced(n, s1, s2, s3)
        spread = _spread(n, s1, s2)
        third = n * n * s3 - 3 * n * s1 * s2 + 2 * s1**3
        root = root_of_quotient(third * third, spread**3)
        return -root if third < 0 else root

    return finish


def _finish_kurtosis(_: DataType | None, __: Parameter) -> Finish:
    def finish(s1: int, s2: int, s3: int, s4: int, n: int) -> float | None:
        if n <= 0 or _spread(n, s1, s2) <= 0:
            return None
        _, (s1, s2, s3, s4) = _reduced(n, s1, s2, s3, s4)
        squared = _spread(n, s1, s2) ** 2
        fourth = n**3 * s4 - 4 * n * n * s1 * s3 + 6 * n * s1 * s1 * s2 - 3 * s1**4
        return quotient(fourth - 3 * squared, squared)

    return finish


def _moment(powers: int, finisher: Callable[[DataType | None, Parameter], Finish]) -> Operation:
    cells = (sum_cells, *map(power_sum_cells, range(2, powers + 1)), count_cells)
    return Operation(cells, NUMBERS, double_result, finisher)


VARIANCE = _moment(2, _finish_variance)
"""The population variance; 0 for a single value."""

STDDEV = _moment(2, _finish_stddev)
"""The root of the population variance."""

SKEW = _moment(3, _finish_skew)
"""The population skewness; null where all values are equal."""

KURTOSIS = _moment(4, _finish_kurtosis)
"""The population kurtosis minus 3 (excess kurtosis); null where all values are equal."""
