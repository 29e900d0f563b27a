"""The lease that an attempt has on a shard.

Spark may run a shard's batch again while the first attempt still runs. The latest attempt gets the lease; the earlier
one finds at its next key that it was superseded.
"""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

from millpond.errors import UnavailableError


class Attempt(NamedTuple):
    """Who asks for a shard. `order` grows from attempt to attempt of one application."""

    application: str
    order: int


class Lease:
    """An attempt's hold on a slot. Whoever works under it looks at `superseded_by` before every key."""

    __slots__ = ("_interrupt", "attempt", "superseded_by")

    def __init__(self, attempt: Attempt, interrupt: Callable[[], None] = lambda: None) -> None:
        self.attempt = attempt
        self.superseded_by: Attempt | None = None
        self._interrupt = interrupt

    def supersede(self, by: Attempt) -> None:
        """Take the hold away: the holder stops at its next key, or at once where it waits for rows."""
        self.superseded_by = by
        self._interrupt()

    def refuse(self) -> NoReturn:
        """Say who has the shard now."""
        raise UnavailableError(f"{self.attempt} was superseded by {self.superseded_by}, which has the shard now.")
