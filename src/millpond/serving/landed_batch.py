"""The batch that is served of a GroupBy, and where the windows of a query start in it.

Place on the data path: between the serving info, which says what landed, and the caches, whose entries
name the `LandedBatch` they were made from. The border between batch and stream is always its own.

Idea: window starts move in hops, so between two hops nothing about them changes: not the segments of the
batch, not the first tile, not which tiles lie before a window. A `View` holds all of that for one such
span of queries. It is made once for each span, not for each key or request.
"""

from collections.abc import Sequence

from millpond.features import HORIZON_MS, GroupByPlan, ServingInfo
from millpond.features.answering import Layout
from millpond.features.windows import window_start

ALL_TIME_MS = 1 << 62
"""Later than every query."""


class View:
    """Where the windows of a layout start, for the queries in ``[from_ms, until_ms)``; immutable.

    Attributes:
        starts: the start of each window; None is all time.
        segments: the first segment of the batch that each window holds; None where it starts at the batch
            end or after it.
        reads_batch: whether any window reaches into the batch.
        read_start_ms: where the first tile that any window holds starts.
        latest_start_ms: the start of the shortest window, no earlier than the batch end.
        kept_from: for each hop of `short_hops`, the earliest start of a window of that hop.
        is_cacheable: whether closed tiles can be kept for every window.
    """

    __slots__ = (
        "from_ms",
        "is_cacheable",
        "kept_from",
        "latest_start_ms",
        "read_start_ms",
        "reads_batch",
        "segments",
        "starts",
        "until_ms",
    )

    def __init__(self, layout: Layout, batch_end_ms: int, query_ms: int, short_hops: Sequence[int]) -> None:
        timeline = layout.plan.timeline(batch_end_ms)
        self.from_ms, self.until_ms = -ALL_TIME_MS, ALL_TIME_MS
        starts: list[int | None] = []
        segments: list[int | None] = []
        kept_from = dict.fromkeys(short_hops, ALL_TIME_MS)
        self.is_cacheable = True
        for window in layout.windows:
            length, hop = window.window_ms, window.hop_ms
            if length is None or hop is None:
                starts.append(None)
                segments.append(0)
                continue
            start = window_start(query_ms, length)
            self.from_ms = max(self.from_ms, start + length)
            self.until_ms = min(self.until_ms, start + hop + length)
            starts.append(start)
            segments.append(timeline.segment(start - batch_end_ms) if start < batch_end_ms else None)
            if is_short(length):
                kept_from[hop] = min(kept_from[hop], max(start, batch_end_ms))
            elif start > batch_end_ms:
                self.is_cacheable = False
        after = [start for start in starts if start is not None and start > batch_end_ms]
        self.starts = tuple(starts)
        self.segments = tuple(segments)
        self.reads_batch = any(segment is not None for segment in segments)
        self.read_start_ms = min(after) if after and len(after) == len(starts) else batch_end_ms
        self.latest_start_ms = max(after, default=batch_end_ms)
        self.kept_from = tuple(kept_from.values())

    def holds(self, query_ms: int) -> bool:
        """Tell whether a query has these window starts."""
        return self.from_ms <= query_ms < self.until_ms


class LandedBatch:
    """One landing of one batch; compared by identity, since two landings of one batch end may differ.

    Args:
        info: the record that points to it.
        plan: the plan of the GroupBy.
    """

    __slots__ = ("_short_hops", "_view", "batch_end_ms", "horizon_end_ms", "info", "plan")

    def __init__(self, info: ServingInfo, plan: GroupByPlan) -> None:
        self.info = info
        self.plan = plan
        self.batch_end_ms = info.batch_end_ms
        self.horizon_end_ms = info.batch_end_ms + HORIZON_MS
        self._view: dict[Layout, View] = {}
        self._short_hops: dict[Layout, tuple[int, ...]] = {}

    def view(self, layout: Layout, query_ms: int) -> View:
        """Give where the windows of a layout start at a query."""
        view = self._view.get(layout)
        if view is None or not view.from_ms <= query_ms < view.until_ms:
            view = self._view[layout] = View(layout, self.batch_end_ms, query_ms, self.short_hops(layout))
        return view

    def short_hops(self, layout: Layout) -> tuple[int, ...]:
        """Give the hops of the windows that may start after the batch end while this batch is served, ascending."""
        hops = self._short_hops.get(layout)
        if hops is None:
            hops = self._short_hops[layout] = short_hops(layout)
        return hops


def short_hops(layout: Layout) -> tuple[int, ...]:
    """Give the hops of the layout's windows that are shorter than a batch is served, ascending."""
    return tuple(
        sorted({window.hop_ms for window in layout.windows if window.hop_ms is not None and is_short(window.window_ms)})
    )


def is_short(window_ms: int | None) -> bool:
    """Tell whether a window may come to start after the batch end while its batch answers every window exactly.

    >>> is_short(3_600_000), is_short(30 * 86_400_000), is_short(None)
    (True, False, False)
    """
    return window_ms is not None and window_ms <= HORIZON_MS
