"""The source of one merge of two cells, for the functions that are generated for a plan.

Place on the data path: in the finisher and in the merge of two tiles. Sums, counts and extremes are most cells, and a
call costs several times what such a merge does. So these merges are written out, and all others are called.
"""

import operator
from collections.abc import Callable
from typing import Any

from millpond.features.cells.cell import Cell
from millpond.features.cells.extremes import greatest, least

_WRITTEN_OUT: dict[Callable[..., Any], str] = {
    operator.add: "{0} + {1}",
    greatest: "{1} if {0} is None or ({1} is not None and {1} > {0}) else {0}",
    least: "{1} if {0} is None or ({1} is not None and {1} < {0}) else {0}",
}
"""The expression of each such merge; the placeholders are the two cells."""


def merge_source(merge: Callable[[Cell, Cell], Cell], left: str, right: str, called: str, names: dict[str, Any]) -> str:
    """Return the expression that merges two cells.

    Args:
        merge: the merge of the cell operation.
        left: the source of one cell; it may be evaluated several times.
        right: the source of the other cell, likewise.
        called: the name of the merge in the generated source, if it must be called.
        names: the names of the generated source, to which `called` is then added.

    >>> merge_source(operator.add, "a", "b", "merge_0", {})
    'a + b'
    >>> merge_source(max, "a", "b", "merge_0", {})
    'merge_0(a, b)'
    """
    written = _WRITTEN_OUT.get(merge)
    if written is not None:
        return written.format(left, right)
    names[called] = merge
    return f"{called}({left}, {right})"
