"""What the batch upload stores of one key: the past before the batch end, enough to answer for two days.

For a batch end B a query q may come at any time in [B, B + 2 days]. As q moves, the far end of each
window moves with it, hop by hop, through at most two days (the *tail*). What lies between the tail and B
is in the window of every such query. So a window needs one IR for each hop of its tail and one for
what follows, and no events.

The idea: the windows of one GroupBy all end at the query, so what they hold before B are *suffixes of
one timeline*. The timeline is cut wherever any window may start for any q. Each event falls into
exactly one *segment* between two cuts, however many windows hold it. A window is then all segments
from its start on, found by one bisect.

    before all cuts │ 30d tail │      │ 7d tail │      │ 1d tail │ 6h, 1h tail │ B
    ────────────────┼──┬──┬────┼──────┼─┬─┬─┬─┬─┼──────┼─┬─┬─┬─┬─┼┬┬┬┬┬┬┬┬┬┬┬┬┬┤
                    └─ every window is a suffix of this line ───────────────────┘

How a cell is stored depends on its size. A *scalar* (a count, a sum, a maximum) is stored as a suffix:
for each segment the cell of everything from its start up to B. So a window is read and not merged.
A *collection* (a set, a list, a map, a sketch) is stored once per segment and folded when it is read: as
suffixes, each element would be stored again for every cut before it.

Nothing is ever subtracted, so minima and maxima work as sums do. An event at exactly B belongs to the
stream.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from datetime import datetime

import msgspec

from millpond.errors import OptionError
from millpond.features.cells.cell import Cell
from millpond.features.windows import DAY_MS, HOUR_MS, hop_ms, window_start

HORIZON_MS = 2 * DAY_MS
"""How long after its batch end a batch answers every window exactly."""


class BatchIr(msgspec.Struct, frozen=True):
    """The IRs of one key up to a batch end; immutable, and safe to share.

    ``segments`` are the numbers of the timeline's segments that have events, ascending. ``columns`` has
    one column for each cell of the plan, with an entry for each of these segments: the cell of every
    event from the segment's start up to the batch end (scalars), or of the segment's own events
    (collections).
    """

    batch_end_ms: int
    segments: tuple[int, ...]
    columns: tuple[tuple[Cell, ...], ...]

    def position(self, segment: int) -> int:
        """Return the position in the columns of the first segment from ``segment`` on; their length if there is none.

        >>> BatchIr(batch_end_ms=0, segments=(3, 7), columns=((9, 2),)).position(4)
        1
        """
        return bisect_left(self.segments, segment)


class Timeline:
    """The cuts of all windows of a GroupBy, as times before the batch end; immutable.

    Segment 0 lies before all cuts. Segment n begins at cut n - 1 and ends at cut n, or at the batch end.

    Args:
        windows_ms: the lengths of the windows.
        phase_ms: how long after a midnight UTC the batch ends: hops are counted from midnight.

    >>> hours = Timeline([3_600_000])
    >>> hours.cuts_ms[0] == -3_600_000, hours.segment(-3_600_000), hours.segment(-3_600_001)
    (True, 1, 0)
    """

    __slots__ = ("cuts_ms",)

    def __init__(self, windows_ms: Iterable[int], phase_ms: int = 0) -> None:
        cuts: set[int] = set()
        for window_ms in windows_ms:
            first = window_start(phase_ms, window_ms) - phase_ms
            last = min(window_start(phase_ms + HORIZON_MS, window_ms) - phase_ms, 0)
            cuts.update(range(first, last + 1, hop_ms(window_ms)))
        self.cuts_ms: tuple[int, ...] = tuple(sorted(cuts - {0}))

    def segment(self, offset_ms: int) -> int:
        """Return the number of the segment that holds a time, given as its distance from the batch end (negative)."""
        return bisect_right(self.cuts_ms, offset_ms)

    def is_cut(self, offset_ms: int) -> bool:
        """Return whether a window that starts at this offset from the batch end can be answered exactly."""
        position = bisect_left(self.cuts_ms, offset_ms)
        return offset_ms >= 0 or (position < len(self.cuts_ms) and self.cuts_ms[position] == offset_ms)


def check_batch_end(batch_end_ms: int, tile_ms: int = DAY_MS) -> None:
    """Raise if no tile begins at a batch end.

    Args:
        batch_end_ms: in milliseconds since the epoch, UTC.
        tile_ms: the plan's smallest tile; a batch ends at a multiple of it, and at a full hour.

    Raises:
        OptionError: it is not such a time; the error names the nearest one before it.

    >>> check_batch_end(HOUR_MS, tile_ms=300_000)
    """
    step_ms = max(tile_ms, HOUR_MS)
    if type(batch_end_ms) is not int or batch_end_ms % step_ms:
        wanted = "a midnight UTC" if step_ms == DAY_MS else "a full hour UTC"
        raise OptionError(
            f"batch_end_ms {batch_end_ms!r} is not {wanted} in milliseconds; {_mend(batch_end_ms, step_ms)}"
        )


_SECONDS = range(10**8, 10**11)
"""Seconds since 1970 from 1973 on. As milliseconds they lie in the years 1970 to 1973."""


def _mend(given: object, step_ms: int) -> str:
    """Return what to write instead of a time at which no batch ends."""
    if type(given) is not int:
        moment = "moment" if isinstance(given, datetime) else "datetime(2026, 1, 31, tzinfo=UTC)"
        return f"expected an int: pass int({moment}.timestamp() * 1000)"
    if given in _SECONDS:
        return "this looks like seconds: multiply it by 1000"
    return f"the one before it is {given // step_ms * step_ms}"
