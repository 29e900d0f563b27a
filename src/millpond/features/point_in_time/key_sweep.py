"""The features of one key at many times, for every operation, in one pass over its events in order of time.

Place on the data path: in the training set, beside `column_features`, for what cannot be computed a column at a time.

Windows end at the query and start on a hop, so a window is some whole hops and the open one. Events go
into the open hop. When it ends, its IR goes to every window of that hop. Such a window is a *queue of
IRs that knows its merge*, made of two stacks. New hops are pushed on the back, which has a running merge.
Old ones leave from the front, where each knows the merge of itself and all after it. When the front is
empty, the back is moved to it; each hop is moved once. So a query costs two merges per window, however many
events it holds, and no cell needs to delete.

The state of a key is bounded by the hops of its longest window. Features without a window need one IR of all events.

Source: Tangwongsan, Hirzel, Schneider, "Low-Latency Sliding-Window Aggregation in Worst-Case Constant
Time" (DEBS 2017), of which this is the two-stacks form.
"""

from collections.abc import Sequence
from typing import Any

from millpond.features.cells.cell import Cell, Ir
from millpond.features.compiled_cells import CompiledCells, CompiledFeature
from millpond.features.inputs import Inputs
from millpond.features.windows import hop_ms, parse_window, window_start

_COLLECTED_AT_ONCE = 4096
"""How many events are gathered before they are collected."""


class _Merge:
    """Merges the cells of an IR that a window's features read."""

    __slots__ = ("_merges", "empty", "positions")

    def __init__(self, cells: CompiledCells, positions: Sequence[int]) -> None:
        self.positions = tuple(positions)
        self._merges = [cells.cells[position].merge for position in positions]
        self.empty: Ir = tuple(cells.cells[position].empty for position in positions)

    def __call__(self, left: Ir, right: Ir) -> Ir:
        return tuple([merge(one, other) for merge, one, other in zip(self._merges, left, right, strict=True)])


class _Window:
    """One window that slides over whole hops, as two stacks."""

    __slots__ = ("_back", "_back_total", "_front", "_merge", "_window_ms")

    def __init__(self, window_ms: int, merge: _Merge) -> None:
        self._window_ms = window_ms
        self._merge = merge
        self._front: list[tuple[int, Ir]] = []  # oldest last; each IR is of its hop and all after it in the front
        self._back: list[tuple[int, Ir]] = []  # newest last
        self._back_total = merge.empty

    def push(self, start_ms: int, ir: Ir) -> None:
        """Add the IR of a hop that has ended; hops must come in order."""
        self._forget(window_start(start_ms, self._window_ms))
        cells = tuple([ir[position] for position in self._merge.positions])
        self._back.append((start_ms, cells))
        self._back_total = self._merge(self._back_total, cells)

    def total(self, query_ms: int) -> Ir:
        """Return the IR of the ended hops that the window of a query holds; queries must come in order."""
        self._forget(window_start(query_ms, self._window_ms))
        return self._merge(self._front[-1][1], self._back_total) if self._front else self._back_total

    def _forget(self, start_ms: int) -> None:
        """Drop the hops before a time."""
        front = self._front
        while front and front[-1][0] < start_ms:
            front.pop()
        if front or not self._back or self._back[0][0] >= start_ms:
            return
        total = self._merge.empty
        for hop_start_ms, cells in reversed(self._back):
            if hop_start_ms < start_ms:
                break
            total = self._merge(total, cells)
            front.append((hop_start_ms, total))
        self._back = []
        self._back_total = self._merge.empty


class _Reader:
    """One window length, with the features that read it."""

    __slots__ = ("features", "hop_ms", "merge", "window_ms")

    def __init__(self, cells: CompiledCells, window: str | None, features: Sequence[CompiledFeature]) -> None:
        self.window_ms = None if window is None else parse_window(window)
        self.hop_ms = None if self.window_ms is None else hop_ms(self.window_ms)
        self.merge = _Merge(cells, sorted({position for feature in features for position in feature.positions}))
        places = {position: place for place, position in enumerate(self.merge.positions)}
        self.features = tuple(
            (feature.name, feature.finish, tuple(places[position] for position in feature.positions))
            for feature in features
        )


class SweepPlan:
    """What the sweeps of all keys share; immutable.

    Args:
        cells: the cells and features to sweep for.
    """

    def __init__(self, cells: CompiledCells) -> None:
        self.cells = cells
        windows = dict.fromkeys(feature.window for feature in cells.features)
        self.readers = tuple(
            _Reader(cells, window, [one for one in cells.features if one.window == window]) for window in windows
        )
        self.hops = tuple(sorted({reader.hop_ms for reader in self.readers if reader.hop_ms is not None}))
        self.keeps_all = any(reader.window_ms is None for reader in self.readers)
        self.merge_all_cells = _Merge(cells, range(len(cells.cells)))


class KeySweep:
    """The features of one key as time passes. Events and queries must come in order of time.

    An event at the time of a query comes after the query: a window ends before its query.

    >>> from millpond.features.compiled_cells import compile_cells
    >>> from millpond.features.definitions import Aggregation, Field, GroupBy
    >>> route = GroupBy(
    ...     "route",
    ...     keys=(Field("origin", "string"),),
    ...     inputs=(Field("delay", "double"),),
    ...     aggregations=(Aggregation("max", "delay", ("1h", None)),),
    ... )
    >>> sweep = KeySweep(SweepPlan(compile_cells(route)))
    >>> sweep.add(0, (9.0,))
    >>> sweep.add(7_200_000, (5.0,))
    >>> sweep.answer(7_200_001)
    {'delay_max_1h': 5.0, 'delay_max': 9.0}
    """

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._windows = [
            None if reader.window_ms is None else _Window(reader.window_ms, reader.merge) for reader in plan.readers
        ]
        self._by_hop = {
            hop: [
                window
                for window, reader in zip(self._windows, plan.readers, strict=True)
                if window is not None and reader.hop_ms == hop
            ]
            for hop in plan.hops
        }
        self._open: dict[int, tuple[int, Ir]] = {}
        self._all: Ir = plan.merge_all_cells.empty
        self._times: list[int] = []
        self._inputs: list[Inputs] = []
        self._ends_ms: int | None = None  # when the smallest hop of the waiting events ends

    def add(self, time_ms: int, inputs: Inputs) -> None:
        """Add one event.

        Raises:
            DataError: an input is not of its declared type.
        """
        if self._times and (
            (self._ends_ms is not None and time_ms >= self._ends_ms) or len(self._times) == _COLLECTED_AT_ONCE
        ):
            self._collect()
        if not self._times and self._plan.hops:
            hop = self._plan.hops[0]
            self._ends_ms = (time_ms // hop + 1) * hop
        self._times.append(time_ms)
        self._inputs.append(inputs)

    def answer(self, query_ms: int) -> dict[str, Any]:
        """Return every feature as of a time; no data is None."""
        if self._times:
            self._collect()
        for hop in self._plan.hops:
            self._close_before(hop, query_ms // hop * hop)
        answers: dict[str, Any] = {}
        for reader, window in zip(self._plan.readers, self._windows, strict=True):
            cells = self._cells(reader, window, query_ms)
            for name, finish, places in reader.features:
                answers[name] = finish(*[cells[place] for place in places])
        return answers

    def _cells(self, reader: _Reader, window: _Window | None, query_ms: int) -> Sequence[Cell]:
        positions = reader.merge.positions
        if window is None or reader.hop_ms is None:
            return [self._all[position] for position in positions]
        total = window.total(query_ms)
        opened = self._open.get(reader.hop_ms)
        if opened is None:
            return total
        return reader.merge(total, tuple([opened[1][position] for position in positions]))

    def _collect(self) -> None:
        ir = self._plan.cells.collect(self._times, self._inputs)
        for hop in self._plan.hops:
            start_ms = self._times[0] // hop * hop
            self._close_before(hop, start_ms)
            former = self._open.get(hop)
            self._open[hop] = (start_ms, ir if former is None else self._plan.merge_all_cells(former[1], ir))
        if self._plan.keeps_all:
            self._all = self._plan.merge_all_cells(self._all, ir)
        self._times = []
        self._inputs = []

    def _close_before(self, hop: int, start_ms: int) -> None:
        """Close the open hop of a size if it starts before a time."""
        opened = self._open.get(hop)
        if opened is not None and opened[0] < start_ms:
            for window in self._by_hop[hop]:
                window.push(*opened)
            del self._open[hop]
