"""A clock without its steps back.

Under every expiry. A clock that steps back would leave entries with later deadlines before earlier ones. The
invariant: readings never fall. The time between the two readings around a step back is lost, and ages go on
from there.
"""

from millpond.cache.api import Clock


class SteadyClock:
    """A clock that never goes back, over one that may; milliseconds.

    >>> readings = iter([10, 20, 15, 18])
    >>> clock = SteadyClock(lambda: next(readings))
    >>> clock(), clock(), clock()
    (20, 20, 23)
    """

    __slots__ = ("_clock", "_last_ms", "_stepped_back_ms")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_ms = clock()
        self._stepped_back_ms = 0

    def __call__(self) -> int:
        """The time by the clock, without its steps back."""
        now_ms = self._clock() + self._stepped_back_ms
        if now_ms < self._last_ms:
            self._stepped_back_ms += self._last_ms - now_ms
            now_ms = self._last_ms
        self._last_ms = now_ms
        return now_ms
