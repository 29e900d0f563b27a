"""The merge of two IRs, generated as source for a plan and compiled.

The tail of a key is often two tiles: the present one, and one that is not closed yet. Merged by the loop of the plan's
`merge`, they cost as much as decoding one of them.
"""

from collections.abc import Callable
from typing import Any

from millpond.features.answering.merge_source import merge_source
from millpond.features.cells.cell import Ir
from millpond.features.plan import GroupByPlan


def pair_merger(plan: GroupByPlan) -> Callable[[Ir, Ir], Ir]:
    """Return a function that merges two IRs of a plan, all of whose cells are known; its results equal `merge`.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> plan = compile_group_by(GroupBy("route", (Field("origin", "string"),), (), (Aggregation("count"),)))
    >>> pair_merger(plan)((2,), (3,))
    (5,)
    """
    names: dict[str, Any] = {}
    cells = plan.cells.cells
    lefts, rights = ("".join(f"{side}_{place}, " for place in range(len(cells))) for side in ("left", "right"))
    merged = [
        merge_source(cell.merge, f"left_{place}", f"right_{place}", f"merge_{place}", names)
        for place, cell in enumerate(cells)
    ]
    source = f"""
def merge(left, right):
    [{lefts}] = left
    [{rights}] = right
    return ({"".join(f"{one}, " for one in merged)})
"""
    exec(compile(source, "<pair_merger>", "exec"), names)  # noqa: S102 - source of numbers only
    compiled: Callable[[Ir, Ir], Ir] = names["merge"]
    return compiled
