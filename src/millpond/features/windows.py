"""The one window rule, in whole milliseconds UTC.

Backfill, upload, stream and fetcher all ask this module which events a window holds. So a model is served
what it was trained on.

The rule: event ``t`` is in window ``w`` of query ``q`` iff ``floor((q - w) / hop) * hop <= t < q``. The
near end is exact and the far end moves in hops. A long window does not need its far end to the
second, and hops allow it to be kept as a few sums instead of events. The hop is one day
from 12 days up, one hour from 12 hours up, 5 minutes from one hour up, else one minute. So the far end
is never more than a twelfth of the window too early (for windows of 12 minutes and more). Without a
window, ``t < q``.

Every hop divides the next, and a day. So hops of all sizes share the midnights, and a longer window
never starts after a shorter one. Other modules rely on both facts.
"""

import math
import re

from millpond.errors import OptionError

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
HOPS_MS = (MINUTE_MS, 5 * MINUTE_MS, HOUR_MS, DAY_MS)
"""Every hop that a window can have, ascending; each divides the next."""

_UNITS_MS = {"m": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}
_WRITTEN_UNITS_MS = _UNITS_MS | {"ms": 1, "s": 1_000, "w": 7 * DAY_MS}
"""Also the units that a window cannot have, but that people write."""
_WINDOW = re.compile(r"([1-9][0-9]*)([mhd])")


def parse_window(text: str) -> int:
    """Return the length of a window written as ``"5m"``, ``"6h"`` or ``"30d"``, in milliseconds.

    Raises:
        OptionError: the text is not a whole number above 0 followed by m, h or d.

    >>> parse_window("6h")
    21600000
    """
    match = _WINDOW.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise OptionError(
            f"window {text!r} is not a whole number above 0 followed by m, h or d; "
            f"{_mended(text)}, or None for no window"
        )
    return int(match[1]) * _UNITS_MS[match[2]]


def window_text(window_ms: int) -> str:
    """Return whole minutes, given in milliseconds, as `parse_window` reads them, in the largest unit that fits.

    >>> window_text(300_000), window_text(86_400_000)
    ('5m', '1d')
    """
    unit = next(name for name in ("d", "h", "m") if window_ms % _UNITS_MS[name] == 0)
    return f"{window_ms // _UNITS_MS[unit]}{unit}"


def hop_ms(window_ms: int) -> int:
    """Return the step of a window's far end, in milliseconds.

    >>> [hop_ms(parse_window(window)) // MINUTE_MS for window in ("59m", "1h", "12h", "12d")]
    [1, 5, 60, 1440]
    """
    if window_ms >= 12 * DAY_MS:
        return DAY_MS
    if window_ms >= 12 * HOUR_MS:
        return HOUR_MS
    return 5 * MINUTE_MS if window_ms >= HOUR_MS else MINUTE_MS


def window_start(query_ms: int, window_ms: int) -> int:
    """Return the start of a window, which it includes: a whole number of hops.

    >>> window_start(query_ms=DAY_MS + 7 * MINUTE_MS, window_ms=HOUR_MS) == DAY_MS - 55 * MINUTE_MS
    True
    """
    hop = hop_ms(window_ms)
    return (query_ms - window_ms) // hop * hop


def in_window(event_ms: int, query_ms: int, window_ms: int | None) -> bool:
    """Return whether an event is in the window of a query; a window of ``None`` is all time before the query.

    >>> in_window(event_ms=99, query_ms=100, window_ms=None), in_window(100, 100, None)
    (True, False)
    """
    if window_ms is None:
        return event_ms < query_ms
    return window_start(query_ms, window_ms) <= event_ms < query_ms


def tile_start(time_ms: int, size_ms: int) -> int:
    """Return the start of the tile of size ``size_ms`` that holds a time.

    >>> tile_start(HOUR_MS + 1, HOUR_MS) == HOUR_MS
    True
    """
    return time_ms // size_ms * size_ms


def _mended(text: object) -> str:
    """Suggest how to write a malformed window: a number of units, rounded up to whole minutes."""
    number = re.search(r"[0-9]+(?:\.[0-9]+)?", str(text))
    unit = re.search(r"ms|[smhdw]", str(text).lower())
    amount = float(number[0]) if number and float(number[0]) else 1.0
    length_ms = amount * _WRITTEN_UNITS_MS[unit[0] if unit else "h"]
    if length_ms < MINUTE_MS:
        return "the smallest window is one minute, write '1m'"
    return f"write it like '{window_text(math.ceil(length_ms / MINUTE_MS) * MINUTE_MS)}'"
