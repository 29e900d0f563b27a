"""A circuit breaker for each server, so that reads do not wait for servers known to be down.

Place on the data path: `dispatch` asks it before it sends reads, and reports how they ended.

Idea: the first reads that fail are retried for `retry_ms`, because most failures pass. After that time the server
counts as down until it answers. Meanwhile one call at a time tries it once, and all others fail at once. So a server
that does not answer costs one caller the time-out, not every caller, and rows on other servers are still returned.

Trade-off: writes are always retried. A writer can wait, and would lose a batch by giving up early.

Source: the circuit breaker of M. Nygard, *Release It!*, 2007
"""

from millpond.errors import UnavailableError
from millpond.kv.redis.options import Address


class Outages:
    """The servers that are down; shared by all threads of a store.

    >>> outages, one = Outages(), Address("one", 7000)
    >>> outages.failed(one, UnavailableError("Redis at one:7000 failed for 5000 ms"))
    >>> outages.begin(one) is None, str(outages.begin(one))
    (True, 'Redis at one:7000 failed for 5000 ms')
    >>> outages.answered(one)
    >>> one in outages
    False
    """

    def __init__(self) -> None:
        self._down: dict[Address, UnavailableError] = {}
        self._asked: set[Address] = set()

    def __bool__(self) -> bool:
        return bool(self._down)

    def __contains__(self, server: object) -> bool:
        return server in self._down

    def begin(self, server: Address) -> UnavailableError | None:
        """Begin to try a server that is down. Return the known failure if another call is trying it, else None.

        After a None the caller must call `end`.
        """
        if server in self._asked:
            known = self._down.get(server)
            # Each caller gets an error of its own: a traceback grows with every raise.
            return None if known is None else UnavailableError(str(known))
        self._asked.add(server)
        return None

    def end(self, server: Address) -> None:
        """End the attempt that `begin` began."""
        self._asked.discard(server)

    def failed(self, server: Address, error: UnavailableError) -> None:
        """Record that a server failed until its retries ended, or failed again while it was down."""
        self._down[server] = error

    def answered(self, server: Address) -> None:
        """Record that a server answers again."""
        self._down.pop(server, None)
