"""Minima and maxima over many ranges of one column at once.

A table of the extremes of all runs of 1, 2, 4, … values answers any range by two runs that cover it, because
an extreme may count a value twice. The table is never whole in memory: each run length is made from the one
before, and answers the ranges that need it.

Source: M. A. Bender and M. Farach-Colton, "The LCA Problem Revisited" (2000), the sparse table.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


def range_extremes(
    values: npt.NDArray[Any], low: Integers, high: Integers, kind: Literal["min", "max"]
) -> npt.NDArray[Any]:
    """Return the least or greatest value of each range; the result for an empty range is undefined.

    Args:
        values: the column.
        low: where each range starts.
        high: where it ends, not included.
        kind: which extreme.

    >>> range_extremes(np.array([3, 1, 2]), np.array([0, 2]), np.array([2, 3]), "min").tolist()
    [1, 2]
    """
    extreme = np.minimum if kind == "min" else np.maximum
    results = np.zeros(len(low), values.dtype)
    lengths = high - low
    # The greatest power of two in each length; -1 for an empty range.
    levels = np.frexp(np.maximum(lengths, 0).astype(np.float64))[1] - 1
    order = np.argsort(levels, kind="stable")
    bounds = np.searchsorted(levels[order], np.arange(int(levels.max(initial=-1)) + 2))
    runs = values
    for level in range(len(bounds) - 1):
        if level:
            half = 1 << (level - 1)
            runs = extreme(runs[:-half], runs[half:])
        asked = order[bounds[level] : bounds[level + 1]]
        results[asked] = extreme(runs[low[asked]], runs[high[asked] - (1 << level)])
    return results
