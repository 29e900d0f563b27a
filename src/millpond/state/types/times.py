"""Points in time as state keeps them: whole milliseconds in 64 bits, as in segments and manifests."""

from operator import index
from typing import Any

from millpond.errors import OptionError

FIRST_MS, LAST_MS = -(1 << 63), (1 << 63) - 1
"""The first and the last time that fits."""


def checked_ms(given: Any, what: str) -> int:
    """Return a time as an int. `what` names it in errors.

    Raises:
        OptionError: it is not a whole number, or needs more than 64 bits.

    >>> checked_ms(5, "the watermark")
    5
    >>> checked_ms(1.5, "the watermark")
    Traceback (most recent call last):
    millpond.errors.OptionError: the watermark is float 1.5; expected a whole number of ms. Write int(…).
    """
    try:
        moment = index(given)
    except TypeError as error:
        raise OptionError(
            f"{what} is {type(given).__name__} {given!r}; expected a whole number of ms. Write int(…)."
        ) from error
    if not FIRST_MS <= moment <= LAST_MS:
        raise OptionError(f"{what} is {moment}; expected a number of ms that fits in 64 bits, {LAST_MS} at most.")
    return moment
