"""The lease of an attempt on a shard.

Spark may run a shard's batch again while the first attempt still runs. The latest attempt gets the lease. The earlier
one sees at its next key that it was superseded, and stops.
"""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

from millpond.errors import UnavailableError


class Attempt(NamedTuple):
    """A task attempt that asks for a shard. `order` grows from attempt to attempt of one application."""

    application: str
    order: int


class Lease:
    """An attempt's lease on a shard. Code that works under it must check `superseded_by` before every key."""

    __slots__ = ("_interrupt", "attempt", "superseded_by")

    def __init__(self, attempt: Attempt, interrupt: Callable[[], None] = lambda: None) -> None:
        self.attempt = attempt
        self.superseded_by: Attempt | None = None
        self._interrupt = interrupt

    def supersede(self, by: Attempt) -> None:
        """End the lease: its holder stops at its next key, or at once if it waits for rows."""
        self.superseded_by = by
        self._interrupt()

    def refuse(self) -> NoReturn:
        """Raise an UnavailableError that names the attempt that has the shard."""
        raise UnavailableError(f"{self.attempt} was superseded by {self.superseded_by}, which has the shard now.")
