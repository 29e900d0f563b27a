"""What the batch upload keeps of one key: the past before the batch end, able to answer for two days.

For a batch end B (midnight UTC) a query q may come at any time in [B, B + 2 days]. As q moves, the far
end of each window moves with it, hop by hop, through at most two days (the *tail*); what is nearer to
B than that is in the window of every such query (the *collapsed* part). So a window needs one sum for
its collapsed part and one for each hop of its tail, and no events.

The idea: the windows of one GroupBy all end at the query, so what they hold before B are *suffixes of
one timeline*. The timeline is cut wherever any window may start for any q; each event falls into
exactly one segment between two cuts, however many windows hold it. Stored is, for each segment that
has events, the IR of everything from its start up to B. The collapsed part of a window is then the
suffix from ``B - w + 2 days``, and a window at any q is one bisect and no merging. Nothing is ever
subtracted, so minima and maxima work as sums do.

    before all cuts │ 30d tail │      │ 7d tail │      │ 1d tail │ 6h, 1h tail │ B
    ────────────────┼──┬──┬────┼──────┼─┬─┬─┬─┬─┼──────┼─┬─┬─┬─┬─┼┬┬┬┬┬┬┬┬┬┬┬┬┬┤
                    └─ every window is a suffix of this line ───────────────────┘

The trade-off: a suffix holds the cells of every aggregation, also of one whose own windows are never
cut there; GroupBys mostly have the same windows throughout, and keys few segments.

An event at exactly B belongs to the stream.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import msgspec

from millpond.errors import OptionError
from millpond.features.operations import Ir
from millpond.features.windows import DAY_MS, hop_ms, window_start

HORIZON_MS = 2 * DAY_MS
"""How long after its batch end a batch answers every window exactly."""


class BatchIr(msgspec.Struct, frozen=True):
    """The IRs of one key up to a batch end; immutable, and safe to share.

    ``segments`` are the numbers of the timeline's segments that have events, ascending;
    ``suffixes[i]`` is the IR of every event from the start of ``segments[i]`` up to the batch end.
    """

    batch_end_ms: int
    segments: tuple[int, ...]
    suffixes: tuple[Ir, ...]

    def since(self, segment: int) -> Ir | None:
        """Give the IR of everything from the start of a segment to the batch end; None if nothing is there.

        >>> BatchIr(batch_end_ms=0, segments=(3, 7), suffixes=((9,), (2,))).since(4)
        (2,)
        """
        position = bisect_left(self.segments, segment)
        return self.suffixes[position] if position < len(self.suffixes) else None


class Timeline:
    """The cuts of all windows of a GroupBy, as times before the batch end; immutable.

    Segment 0 is what lies before every cut; segment n begins at cut n - 1 and ends at cut n, or at the
    batch end.

    >>> hours = Timeline([3_600_000])
    >>> hours.cuts_ms[0] == -3_600_000, hours.segment(-3_600_000), hours.segment(-3_600_001)
    (True, 1, 0)
    """

    __slots__ = ("cuts_ms",)

    def __init__(self, windows_ms: Iterable[int]) -> None:
        cuts: set[int] = set()
        for window_ms in windows_ms:
            first = window_start(0, window_ms)
            last = min(window_start(HORIZON_MS, window_ms), 0)
            cuts.update(range(first, last + 1, hop_ms(window_ms)))
        self.cuts_ms: tuple[int, ...] = tuple(sorted(cuts - {0}))

    def segment(self, offset_ms: int) -> int:
        """Give the number of the segment that holds a time, given as its distance from the batch end (negative)."""
        return bisect_right(self.cuts_ms, offset_ms)

    def is_cut(self, offset_ms: int) -> bool:
        """Tell whether a window that starts here can be answered exactly."""
        position = bisect_left(self.cuts_ms, offset_ms)
        return offset_ms >= 0 or (position < len(self.cuts_ms) and self.cuts_ms[position] == offset_ms)


def check_batch_end(batch_end_ms: int) -> None:
    """Refuse a batch end that is not a midnight UTC.

    Raises:
        OptionError: it is not, with the midnight before it.

    >>> check_batch_end(DAY_MS)
    """
    if batch_end_ms % DAY_MS:
        raise OptionError(
            f"batch_end_ms {batch_end_ms} is not a midnight UTC in milliseconds; "
            f"the midnight before it is {batch_end_ms // DAY_MS * DAY_MS}"
        )
