"""A clock whose readings never fall, over a clock that may step back.

Every expiry uses it. Expiry keeps entries in the order of their deadlines, which a step back would break. The time
between the two readings around a step back is lost; from there on, ages grow as usual.
"""

from millpond.cache.api import Clock


class SteadyClock:
    """A clock in milliseconds that never goes back, over one that may.

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
        """Return the time of the clock, with its steps back removed."""
        now_ms = self._clock() + self._stepped_back_ms
        if now_ms < self._last_ms:
            self._stepped_back_ms += self._last_ms - now_ms
            now_ms = self._last_ms
        self._last_ms = now_ms
        return now_ms
