"""Counts and exact sums, and the operations that read them: count, sum, average.

Counts and sums of whole numbers and decimals are Python integers, so they are exact. Sums of doubles
are exact too: each finite double is a whole multiple of 2**-1074. So a sum is kept as that whole number
and rounded once, by the division that computes the answer. Upload, stream and fetcher can then add in any order,
re-run and re-group, and still give the same bytes. The answer is the correctly rounded one, as
``math.fsum`` gives it.

The price is an integer of about 150 bytes while in memory. Adding two of them costs about what adding two
floats costs in CPython. Compensated sums (Neumaier) would be smaller but still depend on order, and exact
expansions (Shewchuk) need a Python loop where one addition does.

`power_sum_cells` also serves the moments: the sum of the p-th powers has the unit 2**(-1074 p).

Sources: J. R. Shewchuk, "Adaptive precision floating-point arithmetic" (1997), for the exact
alternatives; U. Kulisch's long accumulator for the idea of one fixed-point sum.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from millpond.features.cells.cell import CellMaker, CellOperation, Finish, Operation, Parameter
from millpond.features.cells.memory import value_bytes
from millpond.features.cells.stored_values import as_is, decode_int, encode_int
from millpond.features.scalar_values import LONG_MAX, LONG_MIN
from millpond.features.types import SCALARS, DataType, parse_type

NUMBERS = ("boolean", "int", "long", "float", "double", "decimal")
"""The kinds of types that can be added; a boolean True counts as 1."""

FRACTION_BITS = 1074
"""Every finite double is a whole multiple of 2**-1074."""

LOW = 1000
LOW_BITS = (1 << LOW) - 1
"""The bits in which every double of at least 2**-22 has zeros."""

LOW_UNIT = 2.0 ** (LOW - FRACTION_BITS)
"""The value of the lowest of the other bits. Almost every total has zeros in its low bits. It is divided without them,
because small numbers divide several times faster. The quotient is rounded once: its product with a power of two is
exact, since it is never near the least double.
"""

_DOUBLE_BITS = FRACTION_BITS + 1024
_COUNT_BITS = 64
_WHOLE_BITS = {"boolean": 1, "int": 32, "long": 64}


def to_fixed_point(value: float) -> int:
    """Return a finite double as its whole multiple of 2**-1074, exactly.

    >>> to_fixed_point(0.5) == 2**1073, to_fixed_point(5e-324)
    (True, 1)
    """
    numerator, denominator = value.as_integer_ratio()
    return numerator << (FRACTION_BITS + 1 - denominator.bit_length())


def from_fixed_point(total: int, count: int = 1) -> float:
    """Return ``total / count`` as the nearest double, or an infinity if it is too large for a double.

    >>> from_fixed_point(to_fixed_point(0.1) + to_fixed_point(0.2)), from_fixed_point(2**1074, count=2)
    (0.30000000000000004, 0.5)
    """
    try:
        if not total & LOW_BITS:
            return (total >> LOW) / count * LOW_UNIT
    except OverflowError:
        pass  # the quotient is larger by the unit than what is asked for
    try:
        return total / (count << FRACTION_BITS)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def is_fraction(type_: DataType | None) -> bool:
    """Return whether sums of a type are fixed-point numbers, not whole numbers."""
    return type_ is not None and type_.kind in {"float", "double"}


def count_cells(type_: DataType | None, _: Parameter = None) -> CellOperation:
    """Make the cells that count values, or events.

    >>> count_cells(None).collect([1, 2], [(), ()])
    2
    """
    return CellOperation(
        id="count" if type_ is None else f"count:{type_.name}",
        empty=0,
        suffix=True,
        plain=True,
        collect=_collect_count,
        merge=operator.add,
        merge_all=sum,
        delete=operator.sub,
        encode=as_is,
        decode=_decode_count,
        size=value_bytes,
        kind="count",
    )


def power_sum_cells(power: int) -> CellMaker:
    """Return the maker of cells that add the p-th powers of values.

    >>> power_sum_cells(2)(parse_type("long"), None).collect([0, 0], [3, 4])
    25
    """

    def make(type_: DataType | None, _: Parameter = None) -> CellOperation:
        if type_ is None:
            raise TypeError("events have no value that could be added")
        fraction = is_fraction(type_)
        bits = _DOUBLE_BITS if fraction else _whole_bits(type_)
        max_bytes = (power * bits + _COUNT_BITS) // 8 + 1
        return CellOperation(
            id=f"{'sum' if power == 1 else f'sum{power}'}:{type_.name}",
            empty=0,
            suffix=True,
            plain=False,
            collect=_power_sum(power, fraction=fraction),
            merge=operator.add,
            merge_all=sum,
            delete=operator.sub,
            encode=encode_fixed_point if fraction else encode_int,
            decode_all=_fixed_points_decoder(max_bytes) if fraction else None,
            decode=_fixed_point_decoder(max_bytes) if fraction else lambda stored: decode_int(stored, max_bytes),
            size=value_bytes,
            kind="sum" if power == 1 else "",
        )

    return make


sum_cells = power_sum_cells(1)


def encode_fixed_point(number: int) -> bytes:
    r"""Write a number as a shift (two bytes) and an odd mantissa; 0 as no bytes.

    >>> encode_fixed_point(5 << 300)
    b'\x01,\x05'
    """
    if not number:
        return b""
    shift = (number & -number).bit_length() - 1
    mantissa = number >> shift
    return shift.to_bytes(2, "big") + mantissa.to_bytes(mantissa.bit_length() // 8 + 1, "big", signed=True)


def add_encoded(left: bytes, right: bytes) -> bytes:
    """Add two numbers that `encode_fixed_point` wrote; the zeros below the smaller shift are never made.

    >>> add_encoded(encode_fixed_point(5 << 300), encode_fixed_point(3 << 300)) == encode_fixed_point(1 << 303)
    True
    """
    if not left or not right:
        return left or right
    from_bytes = int.from_bytes
    shift, other = from_bytes(left[:2], "big"), from_bytes(right[:2], "big")
    total, addend = from_bytes(left[2:], "big", signed=True), from_bytes(right[2:], "big", signed=True)
    if shift <= other:
        total += addend << (other - shift)
    else:
        total, shift = addend + (total << (shift - other)), other
    if not total:
        return b""
    zeros = (total & -total).bit_length() - 1
    total >>= zeros
    return (shift + zeros).to_bytes(2, "big") + total.to_bytes(total.bit_length() // 8 + 1, "big", signed=True)


def add_all_encoded(stored: Sequence[bytes]) -> bytes:
    """Add any number of numbers that `encode_fixed_point` wrote, as `add_encoded` adds two.

    >>> add_all_encoded([encode_fixed_point(5 << 300), b"", encode_fixed_point(3 << 302)]).hex()
    '012c11'
    """
    from_bytes = int.from_bytes
    mantissas = [from_bytes(one[2:], "big", signed=True) for one in stored if one]
    if not mantissas:
        return b""
    shifts = [one[0] << 8 | one[1] for one in stored if one]
    lowest = min(shifts)
    total = sum([mantissa << shift - lowest for mantissa, shift in zip(mantissas, shifts, strict=True)])
    if not total:
        return b""
    zeros = (total & -total).bit_length() - 1
    total >>= zeros
    return (lowest + zeros).to_bytes(2, "big") + total.to_bytes(total.bit_length() // 8 + 1, "big", signed=True)


def _fixed_point_decoder(max_bytes: int) -> Callable[[Any], int]:
    max_bits = 8 * max_bytes
    from_bytes = int.from_bytes

    def decode(stored: Any) -> int:
        if type(stored) is not bytes:
            raise TypeError(f"expected a fixed-point number, found {type(stored).__name__}")
        if not stored:
            return 0
        size = len(stored)
        mantissa = from_bytes(stored[2:], "big", signed=True)
        shift = stored[0] << 8 | stored[1] if mantissa else 0
        if shift + 8 * size > max_bits + 32 or not mantissa & 1:
            raise ValueError(f"{size} bytes are no fixed-point number of at most {max_bytes} bytes")
        return mantissa << shift

    return decode


def _fixed_points_decoder(max_bytes: int) -> Callable[[Sequence[Any]], list[int]]:
    """Return the function that decodes many numbers in one loop; it leaves unusual ones to the decoder of one."""
    decode, from_bytes = _fixed_point_decoder(max_bytes), int.from_bytes
    most = 8 * max_bytes

    def decode_all(stored: Sequence[Any]) -> list[int]:
        if set(map(type, stored)) != {bytes}:
            return list(map(decode, stored))
        return [
            mantissa << shift
            if one
            and (mantissa := from_bytes(one[2:], "big", signed=True)) & 1
            and (shift := one[0] << 8 | one[1]) + 8 * len(one) <= most
            else decode(one)
            for one in stored
        ]

    return decode_all


def _collect_count(times: Sequence[int], _: Sequence[Any]) -> int:
    return len(times)


def _decode_count(stored: Any) -> int:
    if type(stored) is not int:
        raise TypeError(f"expected a count, found {type(stored).__name__}")
    if not LONG_MIN <= stored <= LONG_MAX:
        raise ValueError(f"a count of {stored} does not fit into 64 bits")
    return stored


def _whole_bits(type_: DataType) -> int:
    if type_.kind == "decimal":
        return 4 * type_.precision
    return _WHOLE_BITS[type_.kind]


def _power_sum(power: int, *, fraction: bool) -> Callable[[Sequence[int], Sequence[Any]], int]:
    if fraction and power == 1:
        return lambda _, values: sum(map(to_fixed_point, values))
    if fraction:
        return lambda _, values: sum([_fixed_point_power(value, power) for value in values])
    if power == 1:
        return lambda _, values: sum(values)
    return lambda _, values: sum([value**power for value in values])


def _fixed_point_power(value: float, power: int) -> int:
    numerator, denominator = value.as_integer_ratio()
    raised: int = numerator**power
    return raised << (power * (FRACTION_BITS + 1 - denominator.bit_length()))


# Finish functions. A fetcher writes the most frequent ones out in its own code, so these are named functions.


def finished_count(count: int) -> int | None:
    """Return a count, or None for no events."""
    return count if count > 0 else None


def finished_sum(total: int, count: int) -> int | None:
    """Return a sum of whole numbers, or None for no values."""
    return total if count > 0 else None


def finished_average(total: int, count: int) -> float | None:
    """Return the average of whole numbers, or None for no values."""
    return total / count if count > 0 else None


def finished_fraction_sum(total: int, count: int) -> float | None:
    """Return a sum of doubles, or None for no values."""
    return from_fixed_point(total) if count > 0 else None


def finished_fraction_average(total: int, count: int) -> float | None:
    """Return the average of doubles, or None for no values."""
    return from_fixed_point(total, count) if count > 0 else None


def _finish_count(_: DataType | None, __: Parameter) -> Finish:
    return finished_count


def _finish_sum(type_: DataType | None, _: Parameter) -> Finish:
    if is_fraction(type_):
        return finished_fraction_sum
    if type_ is not None and type_.kind == "decimal":
        outward = type_.outward
        return lambda total, count: outward(total) if count > 0 else None
    return finished_sum


def _finish_average(type_: DataType | None, _: Parameter) -> Finish:
    if is_fraction(type_):
        return finished_fraction_average
    if type_ is not None and type_.kind == "decimal":
        unit = 10**type_.scale
        return lambda total, count: total / (count * unit) if count > 0 else None
    return finished_average


def _sum_type(type_: DataType, _: Parameter) -> DataType:
    if type_.kind == "decimal":
        return parse_type(f"decimal({min(38, type_.precision + 10)},{type_.scale})")
    return parse_type("double" if is_fraction(type_) else "long")


def long_result(_: DataType, __: Parameter) -> DataType:
    """Return the type of a result that is a whole number."""
    return parse_type("long")


def double_result(_: DataType, __: Parameter) -> DataType:
    """Return the type of a result that is a double, whatever the input is."""
    return parse_type("double")


COUNT = Operation((count_cells,), SCALARS, long_result, _finish_count, of_events=True)
"""The number of values, or without a column the number of events."""

SUM = Operation((sum_cells, count_cells), NUMBERS, _sum_type, _finish_sum)
"""The exact sum, rounded once: a double for doubles, a long for whole numbers, a decimal for decimals."""

AVERAGE = Operation((sum_cells, count_cells), NUMBERS, double_result, _finish_average)
"""The exact mean, rounded once to a double, also of decimals."""
