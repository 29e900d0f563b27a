"""Servers that are known to be down, so that not every read waits for them.

Place on the data path: asked by `redis_dispatch` before reads are sent, told how they ended.

Idea: the first reads that fail are tried again for `retry_ms`, for most failures pass. Once that time is
over the server counts as down, until it answers. Meanwhile one call at a time asks it, once; the others
fail at once. So a server that does not answer takes the time-out of one caller and not of all, and what
lies on other servers is answered without it.

Trade-off: writes are not held back. Whoever writes has the time, and loses a batch by giving up early.

Source: the circuit breaker of M. Nygard, *Release It!*, 2007
"""

from millpond.errors import UnavailableError
from millpond.kv.redis_options import Address


class Outages:
    """The servers that are down; one for all threads of a store.

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
        """Begin to ask a server that is down; or why not, while another call asks it. `end` must follow a None."""
        if server in self._asked:
            known = self._down.get(server)
            # Each caller gets an error of its own: a traceback grows with every raise.
            return None if known is None else UnavailableError(str(known))
        self._asked.add(server)
        return None

    def end(self, server: Address) -> None:
        """End what `begin` began."""
        self._asked.discard(server)

    def failed(self, server: Address, error: UnavailableError) -> None:
        """Note that a server failed for the whole time of retries, or again."""
        self._down[server] = error

    def answered(self, server: Address) -> None:
        """Note that a server answers again."""
        self._down.pop(server, None)
