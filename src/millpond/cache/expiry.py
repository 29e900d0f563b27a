"""Finds the expired entries of a cache without looking at the others.

All entries live equally long after a put, so they expire in the order in which they were put. The
same holds for the last use. So there are two queues in these orders, with the expired entries at
their heads, and one comparison with `earliest_ms` shows that nothing has expired. The invariants: a
key is in every queue that is in use, or in none; no deadline is before `earliest_ms`.

An entry expires when its age **reaches** the limit. The trade-off: expiry after access costs one
relinking per read, and an entry cannot have its own limit. That would need a timer wheel.

A clock that steps back would break the order of the deadlines, so its steps are removed (`steady_clock`).

Source: Caffeine's access-order and write-order queues.
"""

from collections import OrderedDict
from collections.abc import Iterator
from math import inf
from typing import Generic

from millpond.cache.api import Clock, K
from millpond.cache.steady_clock import SteadyClock


class Expiry(Generic[K]):
    """The deadlines of the keys of one cache. `earliest_ms` is never later than the first deadline."""

    __slots__ = (
        "_after_access_ms",
        "_after_write_ms",
        "_by_access",
        "_by_write",
        "earliest_ms",
        "now_ms",
    )

    def __init__(self, after_access_ms: int | None, after_write_ms: int | None, clock: Clock) -> None:
        self._after_access_ms = after_access_ms
        self._after_write_ms = after_write_ms
        self._by_access: OrderedDict[K, int] = OrderedDict()
        self._by_write: OrderedDict[K, int] = OrderedDict()
        self.now_ms = SteadyClock(clock)
        self.earliest_ms: float = inf

    def wrote(self, key: K, now_ms: int) -> None:
        """Set the deadlines of a key that was put at `now_ms`."""
        if self._after_write_ms is not None:
            self._last(self._by_write, key, now_ms + self._after_write_ms)
        if self._after_access_ms is not None:
            self._last(self._by_access, key, now_ms + self._after_access_ms)

    def read(self, key: K, now_ms: int) -> None:
        """Set the deadline of a key that was used at `now_ms`."""
        if self._after_access_ms is not None:
            self._last(self._by_access, key, now_ms + self._after_access_ms)

    def forget(self, key: K) -> None:
        """Remove the deadlines of a key."""
        self._by_access.pop(key, None)
        self._by_write.pop(key, None)

    def due(self, now_ms: int) -> Iterator[K]:
        """Yield the expired keys. The caller must `forget` each before it takes the next."""
        first_ms: float = inf
        for queue in (self._by_write, self._by_access):
            while queue:
                key, deadline_ms = next(iter(queue.items()))
                if deadline_ms > now_ms:
                    first_ms = min(first_ms, deadline_ms)
                    break
                yield key
        self.earliest_ms = first_ms

    def _last(self, queue: OrderedDict[K, int], key: K, deadline_ms: int) -> None:
        queue[key] = deadline_ms
        queue.move_to_end(key)
        if deadline_ms < self.earliest_ms:  # noqa: PLR1730 - min() is a call for every read
            self.earliest_ms = deadline_ms
