"""The batch that is served of a GroupBy, and where the windows of a query start in it.

Place on the data path: between the serving info, which says which batch landed, and the caches, whose entries name
the `LandedBatch` they were made from. The end of this batch is where the stream's tiles begin.

Idea: window starts move in hops. Between two moves, all queries use the same segments of the batch, the same first
tile and the same tiles before each window. A `View` holds all of that for one such span of query times. It is made
once for each span, not for each key or request.
"""

from collections.abc import Sequence

from millpond.features import HORIZON_MS, GroupByPlan, ServingInfo
from millpond.features.answering import Layout
from millpond.features.windows import window_start

ALL_TIME_MS = 1 << 62
"""A time later than every query."""


class View:
    """Where the windows of a layout start, for the queries in ``[from_ms, until_ms)``; immutable.

    Attributes:
        starts: the start of each window; None is all time.
        segments: the first segment of the batch that each window covers; None if the window starts at or after
            the batch end.
        reads_batch: whether any window reaches into the batch.
        read_start_ms: the start of the first tile that any window covers.
        latest_start_ms: the latest start of a window, no earlier than the batch end.
        kept_from: for each hop of `short_hops`, the earliest start of a short window of that hop, no earlier than the
            batch end.
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
        """Return whether a query has these window starts."""
        return self.from_ms <= query_ms < self.until_ms


class LandedBatch:
    """One landing of one batch; compared by identity, because two landings with the same batch end may differ.

    Args:
        info: the serving info that names the batch.
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
        """Return where the windows of a layout start for a query."""
        view = self._view.get(layout)
        if view is None or not view.from_ms <= query_ms < view.until_ms:
            view = self._view[layout] = View(layout, self.batch_end_ms, query_ms, self.short_hops(layout))
        return view

    def short_hops(self, layout: Layout) -> tuple[int, ...]:
        """Return the hops of the windows that may start after the batch end while this batch is served, ascending."""
        hops = self._short_hops.get(layout)
        if hops is None:
            hops = self._short_hops[layout] = short_hops(layout)
        return hops


def short_hops(layout: Layout) -> tuple[int, ...]:
    """Return the hops of the layout's short windows (`is_short`), ascending."""
    return tuple(
        sorted({window.hop_ms for window in layout.windows if window.hop_ms is not None and is_short(window.window_ms)})
    )


def is_short(window_ms: int | None) -> bool:
    """Return whether a window may start after the batch end while the batch still answers every window exactly.

    Such a window is no longer than the horizon. A window over all time (None) is not short.

    >>> is_short(3_600_000), is_short(30 * 86_400_000), is_short(None)
    (True, False, False)
    """
    return window_ms is not None and window_ms <= HORIZON_MS
