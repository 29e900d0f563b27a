"""The hops into which the history of a key is collected, so that every later batch can be made of them.

A batch cuts the timeline wherever one of its windows may start (`batch`). As batches end later, a cut only
moves forward. So what lies before the longest window's start is never cut again. What lies before the start
of all windows with a five-minute hop is cut only at hours, and so on. A time needs the smallest hop of the
windows that still reach it, and no finer one.

    before all windows │ days, while the 30d window reaches │ hours: 7d │ 5 minutes: 1h │ end
    ───────────────────┼──────┬──────┬──────┬──────┬──────┬─┼─┬─┬─┬─┬─┬─┼┬┬┬┬┬┬┬┬┬┬┬┬┬┬┤

Hops for a later end are unions of hops for an earlier one. So hops that were collected once are merged, and
no event is read again. No hop reaches across a midnight UTC, until it is older than `KEPT_DAYS_MS` and than
every window. So if late events of a day are found, that day alone can be collected again.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from millpond.features.windows import DAY_MS, hop_ms, window_start

BEFORE_MS = -(1 << 62)
"""The start of the one hop that holds all time before the others."""

KEPT_DAYS_MS = 3 * DAY_MS
"""How long days stay apart even if no window reaches them: as long as the stream takes late events."""


class Hops:
    """The hops of a history that ends at some time; immutable.

    Args:
        windows_ms: the lengths of the windows; a window of all time is left out.
        end_ms: where the history ends: a full hour.

    >>> hours = Hops([86_400_000], 20 * DAY_MS)
    >>> hours.start(20 * DAY_MS - 1) == 20 * DAY_MS - 3_600_000, hours.start(18 * DAY_MS + 1) == 18 * DAY_MS
    (True, True)
    >>> hours.start(0) == BEFORE_MS
    True
    """

    __slots__ = ("_levels", "end_ms")

    def __init__(self, windows_ms: Iterable[int], end_ms: int) -> None:
        longest: dict[int, int] = {}
        for window_ms in windows_ms:
            longest[hop_ms(window_ms)] = max(window_ms, longest.get(hop_ms(window_ms), 0))
        sizes = sorted({*longest, DAY_MS})
        kept_ms = (end_ms - KEPT_DAYS_MS) // DAY_MS * DAY_MS
        self.end_ms = end_ms
        # Each entry: from this start on, hops of this size. A start lies between two hops of the next larger size.
        self._levels: list[tuple[int, int]] = []
        for size, larger in zip(sizes, [*sizes[1:], DAY_MS], strict=True):
            start = window_start(end_ms, longest[size]) // larger * larger if size in longest else kept_ms
            self._levels.append((start, size))
        oldest = min(start for start, _ in self._levels) // DAY_MS * DAY_MS
        self._levels[-1] = (min(oldest, kept_ms), DAY_MS)

    @property
    def first_ms(self) -> int:
        """The start of the first hop of a day or less."""
        return self._levels[-1][0]

    @property
    def smallest_ms(self) -> int:
        """The size of the smallest hop, of which all others are multiples."""
        return self._levels[0][1]

    def start(self, time_ms: int) -> int:
        """Return the start of the hop that holds a time; `BEFORE_MS` for a time before all separate hops."""
        for start, size in self._levels:
            if time_ms >= start:
                return time_ms // size * size
        return BEFORE_MS

    def last_size(self, day_ms: int) -> int:
        """Return the size of the last hop of a day, which is the smallest of that day.

        >>> Hops([3_600_000], 20 * DAY_MS).last_size(19 * DAY_MS)
        300000
        """
        last_ms = day_ms + DAY_MS - 1
        return next((size for start, size in self._levels if last_ms >= start), DAY_MS)

    def starts(self, times_ms: Any) -> Any:
        """Return for each time the start of the hop that holds it."""
        found = np.full(len(times_ms), BEFORE_MS, np.int64)
        for start, size in reversed(self._levels):
            later = times_ms >= start
            found[later] = times_ms[later] // size * size
        return found
