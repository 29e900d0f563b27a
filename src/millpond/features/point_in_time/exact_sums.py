"""Exact sums of doubles over many ranges of one column at once, rounded once each.

A double is a whole number of at most 53 bits times a power of two. All values of a column are written
as whole multiples of the column's lowest bit, in *limbs* of 32 bits. Each limb has its own prefix
sum in 64 bits: a sum of up to 2**31 limbs cannot overflow. The sum over a range is then one subtraction
per limb. Carrying makes it one long number. That is divided by a count, in a long division by limbs, and
rounded to the nearest double, ties to even. So the answer has the bits of `cells.counts_and_sums`, which
adds Python integers and rounds by one division of them, but no value is handled by Python code.

Results below the normal doubles are left to those integers: rounding to 53 bits first would round twice.

Source: D. E. Knuth, "The Art of Computer Programming", volume 2, 4.3.1, for the division by one limb.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.features.cells.counts_and_sums import FRACTION_BITS, from_fixed_point

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

_LIMB = 32
_MASK = (1 << _LIMB) - 1
_MANTISSA = 53
_TAKEN = 4
"""How many limbs of a quotient are computed."""

_DROPPED = 64 - _MANTISSA
_HALF = 1 << (_DROPPED - 1)
_LEAST_NORMAL = -1021
"""The exponent of the least normal double, with a mantissa in [0.5, 1)."""


class ExactSums:
    """The prefix sums of a column of finite doubles; immutable.

    >>> sums = ExactSums(np.array([0.1, 0.2, 0.3, -0.3]))
    >>> low, high = np.array([0, 0]), np.array([2, 4])
    >>> sums.averages(low, high, np.array([1, 1])).tolist()
    [0.30000000000000004, 0.30000000000000004]
    """

    def __init__(self, values: Doubles) -> None:
        fractions, exponents = np.frexp(values)
        mantissas = np.ldexp(fractions, _MANTISSA).astype(np.int64)
        shifts = exponents.astype(np.int64) - _MANTISSA
        used = mantissas != 0
        lowest = mantissas & -mantissas
        # The position of the lowest bit; 0 has none, so any value will do for it.
        trailing = np.where(used, np.frexp(lowest.astype(np.float64))[1] - 1, 0)
        self._unit = int((shifts + trailing)[used].min()) if used.any() else 0
        top = int((shifts + _MANTISSA)[used].max()) if used.any() else 1
        shifts -= self._unit
        magnitudes = np.abs(mantissas).astype(np.uint64)
        negative = mantissas < 0
        self._prefixes = [
            _prefix_sum(np.where(negative, -limb, limb))
            for limb in (
                _limb_of(magnitudes, shifts - _LIMB * number) for number in range(-(-(top - self._unit) // _LIMB))
            )
        ]

    def averages(self, low: Integers, high: Integers, counts: Integers) -> Doubles:
        """Return for each range the nearest double to its sum divided by a count.

        Args:
            low: where each range starts.
            high: where it ends, not included.
            counts: the divisor of each sum, 1 to 2**31 - 1.
        """
        limbs, negative = self._magnitudes(low, high)
        quotients, exponents, sticky = _divided(limbs, counts)
        results, tiny = _rounded(quotients, exponents + self._unit, sticky)
        results[negative] *= -1.0
        for row in np.flatnonzero(tiny):
            results[row] = from_fixed_point(self.total(int(low[row]), int(high[row])), int(counts[row]))
        return results

    def total(self, low: int, high: int) -> int:
        """Return the sum over one range as a whole multiple of 2**-1074, as cells keep it."""
        total = sum(
            (int(prefix[high]) - int(prefix[low])) << (_LIMB * number) for number, prefix in enumerate(self._prefixes)
        )
        # No double has a bit below 2**-1074, so the unit is no smaller.
        return total << (self._unit + FRACTION_BITS)

    def _magnitudes(self, low: Integers, high: Integers) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return the absolute sums in limbs, the least limb first, one row per limb; and which sums are negative."""
        carried = np.zeros(len(low), np.int64)
        rows = []
        for prefix in self._prefixes:
            carried += prefix[high] - prefix[low]
            rows.append(carried & _MASK)
            carried >>= _LIMB
        rows.append(carried & _MASK)
        negative = carried < 0
        limbs = np.array(rows, np.int64)
        if negative.any():
            carry = np.ones(int(negative.sum()), np.int64)
            for limb in limbs:
                carry += limb[negative] ^ _MASK
                limb[negative] = carry & _MASK
                carry >>= _LIMB
        return limbs, negative


def _prefix_sum(values: Integers) -> Integers:
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def _limb_of(magnitudes: npt.NDArray[np.uint64], shifts: Integers) -> Integers:
    """Return the lowest 32 bits of each number, after a shift to the left (to the right if negative)."""
    left = np.clip(shifts, 0, 63).astype(np.uint64)
    right = np.clip(-shifts, 0, 63).astype(np.uint64)
    return (((magnitudes << left) >> right) & np.uint64(_MASK)).astype(np.int64)


def _divided(limbs: npt.NDArray[Any], counts: Integers) -> tuple[list[Integers], Integers, npt.NDArray[np.bool_]]:
    """Divide long numbers by counts; return four limbs of each quotient, their exponent, and whether there is a rest.

    They begin at the number's first limb that is not 0. A count is below 2**31, so they have at least 65 bits.
    """
    columns = np.arange(limbs.shape[1])
    numbers = np.arange(len(limbs))[:, None]
    top = np.where(limbs != 0, numbers, 0).max(axis=0)
    remainders = np.zeros(limbs.shape[1], np.int64)
    quotients = []
    for step in range(_TAKEN):
        place = top - step
        taken = np.where(place >= 0, limbs[np.maximum(place, 0), columns], 0)
        dividends = (remainders << _LIMB) | taken
        quotient = dividends // counts
        remainders = dividends - quotient * counts
        quotients.append(quotient)
    below = np.logical_or.accumulate(limbs != 0, axis=0)
    sticky = (remainders != 0) | np.where(top >= _TAKEN, below[np.maximum(top - _TAKEN, 0), columns], False)
    return quotients, (top - _TAKEN + 1) * _LIMB, sticky


def _rounded(
    quotients: list[Integers], exponents: Integers, sticky: npt.NDArray[np.bool_]
) -> tuple[Doubles, npt.NDArray[np.bool_]]:
    """Round four limbs, first limb first, times a power of two; return also which results are below normal doubles."""
    first, second, third, fourth = quotients
    high = (first.astype(np.uint64) << np.uint64(_LIMB)) | second.astype(np.uint64)
    low = (third.astype(np.uint64) << np.uint64(_LIMB)) | fourth.astype(np.uint64)
    length = np.where(first != 0, _bits(first) + _LIMB, _bits(second))
    empty = np.minimum(64 - length, 63).astype(np.uint64)  # zeros before the first bit
    window = (high << empty) | ((low >> np.uint64(1)) >> (np.uint64(63) - empty))
    sticky = sticky | ((low << empty) != 0)
    kept = window >> np.uint64(_DROPPED)
    rest = window & np.uint64((1 << _DROPPED) - 1)
    up = (rest > _HALF) | ((rest == _HALF) & (sticky | ((kept & np.uint64(1)) != 0)))
    places = exponents + 64 - empty.astype(np.int64) + _DROPPED
    with np.errstate(over="ignore", under="ignore"):
        results = np.ldexp((kept + up.astype(np.uint64)).astype(np.float64), places.astype(np.int32))
    return results, (kept != 0) & (places + _MANTISSA < _LEAST_NORMAL)


def _bits(values: Integers) -> Integers:
    return np.frexp(values.astype(np.float64))[1].astype(np.int64)
