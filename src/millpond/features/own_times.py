"""Tiles of rows that come and go: their cells are kept by the rows' own times.

Place on the data path: between the stream of an entity's changes and the last step of an answer.

A change has two times. The *mutation time* is when a row came or went: it decides which tile the change lies in,
and whether a batch has it already. The *own time* of the row is what windows look at. It may lie long before the
batch end: a listing of last week is sold today.

So where windows look at rows that come and go, each cell of a tile is a dict from spans of own time to their cells.
A span is as long as the smallest tile. Windows start at multiples of that, so a reader finds exactly the part of a
tile that a window holds. A row that goes is subtracted from the cell of its own span. If the batch has the row, the
cell falls below zero, and the sum of batch and tiles is right.

A row's own time is not after its mutation time. So a tile that ends before a window starts has nothing for that window.
"""

from collections.abc import Sequence

from millpond.features.cells.cell import CellOperation, Ir
from millpond.features.definitions import EntitySource, GroupBy
from millpond.features.partial_ir import UNKNOWN, PartialIr


def keeps_own_times(group_by: GroupBy) -> bool:
    """Return whether the tiles of a GroupBy keep cells by the own times of their rows.

    They do if an entity is among its sources and it has windows. Without windows a row's own time changes nothing.
    """
    has_windows = any(window is not None for one in group_by.aggregations for window in one.windows)
    return has_windows and any(isinstance(source, EntitySource) for source in group_by.sources)


def irs_since(cells: Sequence[CellOperation], ir: Ir, starts: Sequence[int | None]) -> list[Ir]:
    """Return for each window start the IR of a tile's rows whose own time is not before it.

    Args:
        cells: the plan's cells.
        ir: the IR of one tile or of several merged; its cells are dicts by own time.
        starts: where the windows start; None is all time.

    >>> from millpond.features.cells.counts_and_sums import count_cells
    >>> irs_since([count_cells(None)], ({0: -1, 60_000: 2},), [60_000, None])
    [(2,), (1,)]
    """
    return [_since(cells, ir, start) for start in starts]


def _since(cells: Sequence[CellOperation], ir: Ir, start_ms: int | None) -> Ir:
    found = [
        UNKNOWN
        if spans is UNKNOWN
        else cell.merge_all([one for own_ms, one in spans.items() if start_ms is None or own_ms >= start_ms])
        for cell, spans in zip(cells, ir, strict=True)
    ]
    return PartialIr(found) if UNKNOWN in found else tuple(found)
