"""The limit on fetches that run at once in a process."""

from millpond.serving.http.limits import Limits
from millpond.serving.http.problems import RefusedError


class InFlight:
    """Counts the fetches that run, and refuses those beyond the limit; for one event loop.

    A call counts from the end of its body to its answer, so slow senders and readers do not count.
    """

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.max_in_flight
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether another fetch would be refused."""
        return self.count >= self._limit

    def enter(self) -> None:
        """Begin a fetch, or raise `RefusedError`."""
        if self.is_full:
            raise RefusedError(
                "too_many_calls", f"{self._limit} fetches are running here, the most that may. Try again."
            )
        self.count += 1

    def leave(self) -> None:
        """End a fetch that was begun."""
        self.count -= 1
