"""One input of many events as NumPy values, and the counts, sums, averages and extremes of its ranges.

Values are in the inside form of `scalar_values`: a date is its day, a decimal its unscaled number. Texts
and binaries are their ranks among the column's values, which sort as the values do. Nulls are left out. A table
maps positions of events to positions of values, so a range of events is a range of values.
"""

from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.errors import DataError
from millpond.features.definitions import Field
from millpond.features.point_in_time.exact_sums import Doubles, ExactSums, Integers
from millpond.features.point_in_time.range_extremes import range_extremes
from millpond.features.types import DataType, parse_type

LONG_DIGITS = 18
"""Decimals of up to this many digits fit into 64 bits."""

_EXACT_DOUBLES = 1 << 53
"""Whole numbers up to this one are exact as doubles."""

_LIMB = 32
_MASK = (1 << _LIMB) - 1


class WholeSums:
    """The prefix sums of whole numbers of 64 bits, exact; immutable.

    >>> sums = WholeSums(np.array([2**62, 2**62, 2**62, -1]))
    >>> sums.total(0, 4) == 3 * 2**62 - 1
    True
    """

    def __init__(self, values: Integers) -> None:
        self._high = _prefix_sum(values >> _LIMB)
        self._low = _prefix_sum(values & _MASK)

    def totals(self, low: Integers, high: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return the sum over each range, and a mask of those that do not fit into 64 bits."""
        lower = self._low[high] - self._low[low]
        upper = self._high[high] - self._high[low] + (lower >> _LIMB)
        too_large = (upper < -(1 << 31)) | (upper >= 1 << 31)
        return (upper << _LIMB) | (lower & _MASK), too_large

    def total(self, low: int, high: int) -> int:
        """Return the sum over one range, of any size."""
        return ((int(self._high[high]) - int(self._high[low])) << _LIMB) + int(self._low[high]) - int(self._low[low])


class ValueColumn:
    """One input of some events; immutable.

    Args:
        column: the input of each event, or None for the events themselves.
        field: the input's name and type, for errors.
        count: the number of events.
        whose: the beginning of error messages.

    Raises:
        DataError: a double is not finite.
    """

    def __init__(self, column: pa.Array | None, field: Field | None, count: int, whose: str) -> None:
        self._places: Integers | None = None
        self._ordered: pa.Array | None = None
        self._count = count
        if column is None or field is None:
            self._values: npt.NDArray[Any] = np.zeros(0, np.int64)
            return
        self._type = parse_type(field.type)
        if column.null_count:
            self._places = _prefix_sum(column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64))
            column = column.drop_null()
        if self._type.kind in ("string", "binary"):
            self._values, self._ordered = _ranks(column)
        else:
            self._values = _numbers(column, self._type)
        if self._values.dtype == np.float64 and not np.isfinite(self._values).all():
            wrong = self._values[~np.isfinite(self._values)][0]
            raise DataError(
                f"{whose}: input {field.name!r} must be of type {field.type} or None, got {float(wrong)!r}: "
                "it is not finite; say None where there is no value; convert it before it is aggregated"
            )

    def ranges(self, low: Integers, high: Integers) -> tuple[Integers, Integers]:
        """Convert ranges of events to ranges of values."""
        return (low, high) if self._places is None else (self._places[low], self._places[high])

    @property
    def is_fraction(self) -> bool:
        """Whether sums are of doubles, not of whole numbers."""
        return self._values.dtype == np.float64

    def averages(self, low: Integers, high: Integers, counts: Integers, scale: int = 0) -> Doubles:
        """Return the nearest double to the sum over each range of values, divided by its count and by 10**scale."""
        if self.is_fraction:
            return self._fractions.averages(low, high, counts)
        totals, too_large = self._wholes.totals(low, high)
        unit = 10**scale
        results = totals / (counts * float(unit))
        # The totals are compared as integers: 2**53 + 1 becomes 2**53 as a double. A divisor that was rounded to 2**53
        # cannot be told from 2**53 itself, so both are divided as integers.
        inexact = too_large | (totals > _EXACT_DOUBLES) | (totals < -_EXACT_DOUBLES)
        inexact |= counts * float(unit) >= _EXACT_DOUBLES
        for row in np.flatnonzero(inexact):
            results[row] = self._wholes.total(int(low[row]), int(high[row])) / (int(counts[row]) * unit)
        return results

    def totals(self, low: Integers, high: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return the sum over each range of whole values, and a mask of those that do not fit into 64 bits."""
        return self._wholes.totals(low, high)

    def total(self, low: int, high: int) -> int:
        """Return the sum over one range of values, as a cell."""
        return (self._fractions if self.is_fraction else self._wholes).total(low, high)

    def extremes(self, low: Integers, high: Integers, kind: Literal["min", "max"]) -> pa.Array:
        """Return the least or greatest value of each range of values, as an Arrow column; null for an empty range."""
        found = range_extremes(self._values, low, high, kind)
        return self._column(found, high <= low)

    def extreme(self, low: int, high: int, kind: Literal["min", "max"]) -> Any:
        """Return the least or greatest value of one range, as a cell; None for an empty range."""
        if low >= high:
            return None
        found = (self._values[low:high].min() if kind == "min" else self._values[low:high].max()).item()
        if self._ordered is not None:
            return self._ordered[found].as_py()
        return bool(found) if self._type.kind == "boolean" else found

    @cached_property
    def _fractions(self) -> ExactSums:
        return ExactSums(self._values)

    @cached_property
    def _wholes(self) -> WholeSums:
        return WholeSums(self._values)

    def _column(self, values: npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> pa.Array:
        if self._ordered is not None:
            return self._ordered.take(pa.array(values, mask=missing)).cast(self._type.arrow())
        if self._type.kind == "decimal":
            outward = self._type.outward
            rows = zip(values.tolist(), missing.tolist(), strict=True)
            return pa.array([None if gone else outward(value) for value, gone in rows], self._type.arrow())
        return typed_column(values, missing, self._type)


def typed_column(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_], type_: DataType) -> pa.Array:
    """Return NumPy values in their inside form as an Arrow column, null where ``missing`` is true."""
    column = pa.array(values, mask=missing)
    if type_.kind == "date":
        column = column.cast(pa.int32())
    return column.cast(type_.arrow())


def _numbers(column: pa.Array, type_: DataType) -> npt.NDArray[Any]:
    if type_.kind in ("float", "double"):
        # Adding 0.0 turns -0.0 into 0.0.
        return column.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # type: ignore[no-any-return]
    if type_.kind == "decimal":
        # 16 bytes each, the low 8 first.
        words = np.frombuffer(column.buffers()[1], np.int64) if len(column) else np.zeros(0, np.int64)
        return words[2 * column.offset : 2 * (column.offset + len(column)) : 2].copy()
    if type_.kind == "timestamp":
        column = column.cast(pa.timestamp("us", tz="UTC"))
    if type_.kind == "date":
        column = column.cast(pa.int32())
    return column.cast(pa.int64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _ranks(column: pa.Array) -> tuple[Integers, pa.Array]:
    encoded = column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    ranks = np.empty(len(order), np.int64)
    ranks[order.to_numpy()] = np.arange(len(order))
    return ranks[encoded.indices.to_numpy(zero_copy_only=False)], encoded.dictionary.take(order)


def _prefix_sum(values: Integers) -> Integers:
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums
