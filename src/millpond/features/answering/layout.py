"""A layout: the windows and cells that a set of features reads.

Place on the data path: in a fetcher, prepared once for a set of features and read by each request.

A `Layout` has one place for each window that a feature needs, shortest first, and in it one place for each cell that
the window's features read. What a fetcher keeps of a key (the closed part of each window) has this order. So nothing is
kept or merged that no feature reads.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from millpond.features.cells.cell import Cell, Ir
from millpond.features.compiled_cells import CompiledFeature
from millpond.features.partial_ir import UNKNOWN
from millpond.features.plan import GroupByPlan
from millpond.features.windows import hop_ms

Projection = tuple[Cell, ...]
"""The cells of one window of a layout."""


@dataclass(frozen=True, slots=True)
class LayoutWindow:
    """One window, the features that read it, and the cells that they read, by position in an IR."""

    window_ms: int | None
    features: tuple[CompiledFeature, ...]
    positions: tuple[int, ...]

    @property
    def hop_ms(self) -> int | None:
        """The step by which its start moves, in milliseconds; None for all time."""
        return None if self.window_ms is None else hop_ms(self.window_ms)


class Layout:
    """The windows that some features of a plan read; immutable.

    Args:
        plan: the plan of the GroupBy.
        features: the names of the features; None for all.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> counts = (Aggregation("count", windows=("1h", "1d")), Aggregation("max", "delay", windows=("1d",)))
    >>> plan = compile_group_by(GroupBy("route", (Field("origin", "string"),), (Field("delay", "double"),), counts))
    >>> [(window.window_ms // 3_600_000, window.positions) for window in Layout(plan).windows]
    [(1, (0,)), (24, (0, 1))]
    >>> len(Layout(plan, ["count_1h"]).windows)
    1
    """

    __slots__ = ("decoders", "empties", "merge_alls", "merges", "no_tails", "plan", "suffixes", "windows")

    def __init__(self, plan: GroupByPlan, features: Collection[str] | None = None) -> None:
        wanted = None if features is None else frozenset(features)
        windows = []
        for planned in plan.windows:
            read = tuple(feature for _, feature in planned.features if wanted is None or feature.name in wanted)
            if read:
                positions = dict.fromkeys(position for feature in read for position in feature.positions)
                windows.append(LayoutWindow(planned.window_ms, read, tuple(positions)))
        cells = plan.cells.cells
        self.plan = plan
        self.windows = tuple(windows)
        self.empties: tuple[Projection, ...] = tuple(
            tuple(cells[position].empty for position in window.positions) for window in windows
        )
        """For each window the cells of no events."""
        self.no_tails: tuple[Ir, ...] = (plan.new_ir(),) * len(windows)
        """For each window the IR of no events. A finisher that gets this very object merges nothing."""
        self.merges = tuple(tuple(cells[position].merge for position in window.positions) for window in windows)
        self.merge_alls = tuple(tuple(cells[position].merge_all for position in window.positions) for window in windows)
        self.decoders = tuple(
            tuple(None if cells[position].plain else cells[position].decode for position in window.positions)
            for window in windows
        )
        """For each cell of a window the decoder of its stored form; None where that is the cell itself."""
        self.suffixes = tuple(tuple(cells[position].suffix for position in window.positions) for window in windows)

    def project(self, window: int, ir: Ir) -> Projection:
        """Return the cells of one window from an IR."""
        return tuple([ir[position] for position in self.windows[window].positions])

    def merge(self, window: int, left: Projection, right: Projection) -> Projection:
        """Return the cells of one window for the events of both."""
        return tuple(
            [
                UNKNOWN if one is UNKNOWN or other is UNKNOWN else merge(one, other)
                for merge, one, other in zip(self.merges[window], left, right, strict=True)
            ]
        )

    def merge_all(self, window: int, parts: list[Projection]) -> Projection:
        """Return the cells of one window for the events of all parts; without parts, the cells of no events."""
        if not parts:
            return self.empties[window]
        if len(parts) == 1:
            return parts[0]
        return tuple(
            [
                UNKNOWN if _lacks(cells) else merge_all(cells)
                for merge_all, cells in zip(self.merge_alls[window], zip(*parts, strict=True), strict=True)
            ]
        )


def _lacks(cells: tuple[Any, ...]) -> bool:
    return any(cell is UNKNOWN for cell in cells)
