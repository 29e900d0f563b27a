"""When to send a failed call again.

A fetch changes nothing, so any call may be sent twice. Invariant: no call and no pause goes beyond the
caller's deadline. Pauses double and are randomised, so that many clients of a server that comes back do not
all call it at once.
"""

import random
from collections.abc import Callable

from millpond.errors import OptionError

_FIRST_PAUSE_MS = 25
_LONGEST_PAUSE_MS = 1_000


class Deadline:
    """The end of the time that a caller allows for a call, counted from its making.

    >>> deadline = Deadline(100, clock=lambda: 0)
    >>> deadline.left_ms()
    100
    """

    def __init__(self, timeout_ms: int, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._end_ms = clock() + timeout_ms

    def left_ms(self) -> int:
        """Return the milliseconds that are left; 0 after the deadline."""
        return max(0, self._end_ms - self._clock())


class Retries:
    """How often a call is sent again, and after which pause.

    >>> Retries(2, random.Random(0)).pause_ms(sent=3, retry_after=None, left_ms=1_000) is None
    True
    """

    def __init__(self, retries: int, chance: random.Random) -> None:
        if type(retries) is not int or retries < 0:
            raise OptionError(f"retries is {retries!r}; a whole number from 0 on is needed.")
        self._retries = retries
        self._chance = chance

    def pause_ms(self, *, sent: int, retry_after: str | None, left_ms: int) -> int | None:
        """Return how long to pause before sending the call again; None if it must not be sent again.

        Args:
            sent: how often the call was sent.
            retry_after: the seconds that the server asked to wait, as text; None if it asked for none.
            left_ms: what is left until the deadline.
        """
        if sent > self._retries:
            return None
        longest = min(_FIRST_PAUSE_MS << (sent - 1), _LONGEST_PAUSE_MS)
        pause_ms = self._chance.randint(longest // 2, longest)
        if retry_after is not None and retry_after.isdecimal():
            pause_ms += 1_000 * int(retry_after[:6])
        return pause_ms if pause_ms < left_ms else None
