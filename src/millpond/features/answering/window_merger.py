"""The merge of a key's closed part with newer tiles, for all windows, generated as source for a layout and compiled.

Place on the data path: in a fetcher, when closed tiles are put into the cache. It runs once for each entry that is
made. A loop over windows and cells costs about as much as decoding the tiles.
"""

from collections.abc import Callable, Sequence
from typing import Any

from millpond.features.answering.layout import Layout, Projection
from millpond.features.answering.merge_source import merge_source
from millpond.features.cells.cell import Ir

WindowMerger = Callable[[Sequence[Projection], Sequence[Ir]], tuple[Projection, ...]]
"""Takes the cells and the IR of newer tiles of each window of a layout; returns the cells of both."""


def window_merger(layout: Layout) -> WindowMerger:
    """Return a function that merges the cells of each window with newer tiles; all cells must be known.

    Its results equal `Layout.merge` with `Layout.project`, window by window.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> counts = (Aggregation("count", windows=("1h", "1d")),)
    >>> layout = Layout(compile_group_by(GroupBy("route", (Field("origin", "string"),), (), counts)))
    >>> window_merger(layout)([(2,), (5,)], [(1,), (3,)])
    ((3,), (8,))
    """
    names: dict[str, Any] = {}
    lines: list[str] = []
    for place, window in enumerate(layout.windows):
        cells = "".join(
            f"{merge_source(merge, f'base_{position}', f'tail[{position}]', f'merge_{position}', names)}, "
            for merge, position in zip(layout.merges[place], window.positions, strict=True)
        )
        lines += [
            f"[{''.join(f'base_{position}, ' for position in window.positions)}] = bases[{place}]",
            f"tail = tails[{place}]",
            f"window_{place} = ({cells})",
        ]
    windows = "".join(f"window_{place}, " for place in range(len(layout.windows)))
    source = "\n".join(["def merge(bases, tails):", *(f"    {line}" for line in lines), f"    return ({windows})"])
    exec(compile(source, "<window_merger>", "exec"), names)  # noqa: S102 - source of positions only
    compiled: WindowMerger = names["merge"]
    return compiled
