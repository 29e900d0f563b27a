"""Collects cells of many groups at once, by array operations.

The rows lie sorted by group, so a group is a slice, and a reduction over all slices is one numpy call
(``reduceat``, ``bincount``). Every function returns exactly what ``CellOperation.collect`` returns for each
group; that is their oracle.

Sums of doubles stay exact: a mantissa is cut into limbs of 32 bits, which are added as fixed-point numbers
(`fixed_point_arrays`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from millpond.features.cells.cell import Cell, CellOperation
from millpond.features.cells.counts_and_sums import FRACTION_BITS, encode_fixed_point
from millpond.features.columnar.fixed_point_arrays import WordSums

_LIMB_BITS = 32
_LIMB_MASK = np.uint64((1 << _LIMB_BITS) - 1)
_MANTISSA_BITS = 53


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows that have a value, sorted by group.

    Args:
        groups: the number of each group that has rows, ascending.
        starts: where the rows of each of these groups begin.
        index: for each row, the position of its group in ``groups``.
        times: the time of each row.
        values: the value of each row, as a numpy array or as a list.
        ranked: None, or the distinct values in order; then ``values`` are positions in it.
    """

    groups: Any
    starts: Any
    index: Any
    times: Any
    values: Any
    ranked: list[Any] | None = None

    def listed(self, values: Any) -> list[Any]:
        """Return some of ``values`` as Python values."""
        found: list[Any] = values if isinstance(values, list) else values.tolist()
        ranked = self.ranked
        return found if ranked is None else [ranked[place] for place in found]

    def slices(self) -> list[tuple[int, int]]:
        """Return where the rows of each group begin and end."""
        return list(pairwise([*self.starts.tolist(), len(self.index)]))


def collect_each(cell: CellOperation, rows: GroupedRows) -> list[Cell]:
    """Collect each group with the cell's own ``collect``; works for every kind of cell."""
    values = rows.listed(rows.values)
    times = rows.times.tolist()
    collect = cell.collect
    return [collect(times[start:end], values[start:end]) for start, end in rows.slices()]


def _counts(_: CellOperation, rows: GroupedRows) -> list[int]:
    counts: list[int] = np.diff(rows.starts, append=len(rows.index)).tolist()
    return counts


def _sums(_: CellOperation, rows: GroupedRows) -> list[int]:
    if rows.values.dtype == np.float64:
        return _sums_of_doubles(rows).sums()
    whole = rows.values.astype(np.int64)
    if max(-int(whole.min()), int(whole.max())) * len(whole) < 1 << 62:
        sums: list[int] = np.add.reduceat(whole, rows.starts).tolist()
        return sums
    low = np.add.reduceat(whole & 0xFFFFFFFF, rows.starts).tolist()
    high = np.add.reduceat(whole >> _LIMB_BITS, rows.starts).tolist()
    return [(above << _LIMB_BITS) + below for above, below in zip(high, low, strict=True)]


def _sums_of_doubles(rows: GroupedRows) -> WordSums:
    fractions, exponents = np.frexp(rows.values)
    mantissas = (fractions * (1 << _MANTISSA_BITS)).astype(np.int64)
    shifts = exponents.astype(np.int64) + (FRACTION_BITS - _MANTISSA_BITS)
    # The mantissa of a subnormal ends in as many zero bits as its shift is below 0.
    mantissas >>= np.maximum(-shifts, 0)
    shifts = np.maximum(shifts, 0)
    signs = np.sign(mantissas)
    magnitudes = np.abs(mantissas).astype(np.uint64)
    sums = WordSums(len(rows.groups), shifts, _MANTISSA_BITS)
    sums.add(rows.index, shifts, magnitudes & _LIMB_MASK, signs)
    sums.add(rows.index, shifts + _LIMB_BITS, magnitudes >> np.uint64(_LIMB_BITS), signs)
    return sums


def _reduced(reduce: Any, values: Any, starts: Any) -> Any:
    """Reduce each group; numpy cannot reduce booleans to extremes, so these are reduced as bytes."""
    if values.dtype == np.bool_:
        return reduce.reduceat(values.view(np.uint8), starts).astype(np.bool_)
    return reduce.reduceat(values, starts)


def _least(_: CellOperation, rows: GroupedRows) -> list[Cell]:
    return rows.listed(_reduced(np.minimum, rows.values, rows.starts))


def _greatest(_: CellOperation, rows: GroupedRows) -> list[Cell]:
    return rows.listed(_reduced(np.maximum, rows.values, rows.starts))


def _first(_: CellOperation, rows: GroupedRows) -> list[Cell]:
    return _earliest(rows, rows.times)


def _last(_: CellOperation, rows: GroupedRows) -> list[Cell]:
    return _earliest(rows, -rows.times)


def _earliest(rows: GroupedRows, times: Any) -> list[Cell]:
    earliest = np.minimum.reduceat(times, rows.starts)
    chosen = np.flatnonzero(times == earliest[rows.index])
    starts = np.flatnonzero(np.diff(rows.index[chosen], prepend=-1))
    values = _reduced(np.minimum, rows.values[chosen], starts)
    return list(zip(earliest.tolist(), rows.listed(values), strict=True))


def _first_k(cell: CellOperation, rows: GroupedRows) -> list[Cell]:
    return _k_earliest(cell, rows, rows.times)


def _last_k(cell: CellOperation, rows: GroupedRows) -> list[Cell]:
    return _k_earliest(cell, rows, -rows.times)


def _k_earliest(cell: CellOperation, rows: GroupedRows, times: Any) -> list[Cell]:
    order = np.lexsort((rows.values, times, rows.index))
    rank = np.arange(len(order)) - rows.starts[rows.index]
    order = order[rank < cell.parameter]
    starts = np.flatnonzero(np.diff(rows.index[order], prepend=-1)).tolist()
    pairs = list(zip(times[order].tolist(), rows.listed(rows.values[order]), strict=True))
    return [tuple(pairs[start:end]) for start, end in pairwise([*starts, len(pairs)])]


def _sets(cell: CellOperation, rows: GroupedRows) -> list[Cell]:
    values = rows.listed(rows.values)
    limit: Any = cell.parameter
    sets = [frozenset(values[start:end]) for start, end in rows.slices()]
    return sets if max(map(len, sets)) <= limit else [one if len(one) <= limit else None for one in sets]


_ARRAY_OPERATIONS: dict[str, Callable[[CellOperation, GroupedRows], list[Cell]]] = {
    "count": _counts,
    "first": _first,
    "first_k": _first_k,
    "last": _last,
    "last_k": _last_k,
    "max": _greatest,
    "min": _least,
    "set": _sets,
    "sum": _sums,
}
"""The array operation of each kind of cell that has one."""


def collect_groups(cell: CellOperation, rows: GroupedRows, count: int) -> Sequence[Cell]:
    """Return the cell of each group, for all groups from 0 to ``count``; those without rows get the empty cell."""
    if not len(rows.index):
        return [cell.empty] * count
    by_arrays = _ARRAY_OPERATIONS.get(cell.kind)
    if by_arrays is None or (isinstance(rows.values, list) and cell.kind != "count"):
        by_arrays = collect_each
    return _of_all_groups(by_arrays(cell, rows), rows, count, cell.empty)


def store_groups(cell: CellOperation, rows: GroupedRows, count: int) -> Sequence[Any]:
    """Return the stored form of the cell of each group: ``CellOperation.encode`` of what `collect_groups` returns.

    Exact sums are encoded from their words, without making the long integers that they are in memory.
    """
    if (
        cell.encode is encode_fixed_point
        and cell.kind == "sum"
        and len(rows.index)
        and not isinstance(rows.values, list)
    ):
        stored = _sums_of_doubles(rows).stored()
        if stored is not None:
            return _of_all_groups(stored, rows, count, b"")
    cells = collect_groups(cell, rows, count)
    return cells if cell.plain else list(map(cell.encode, cells))


def _of_all_groups(found: Sequence[Any], rows: GroupedRows, count: int, empty: Any) -> Sequence[Any]:
    """Return one entry for each group: what was found for groups with rows, ``empty`` for the others."""
    if len(found) == count:
        return found
    of_all = [empty] * count
    for group, one in zip(rows.groups.tolist(), found, strict=True):
        of_all[group] = one
    return of_all
