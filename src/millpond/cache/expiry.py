"""Which entries are too old, found without looking at the others.

Every entry lives equally long after a put, so entries fall due in the order in which they were put;
the same holds for the last use. Two queues in those orders therefore have what is due at their
heads, and one comparison with `earliest_ms` tells when nothing is due. The invariants: a key is in
every queue that is in use, or in none; no deadline is before `earliest_ms`.

An entry is due when its age **reaches** the limit. Trade-off: one relinking per read where there
is an expiry after access, and no limit of its own per entry; a timer wheel would be needed for that.

A clock that steps back would leave entries with later deadlines before earlier ones, so its steps back are
taken out (`steady_clock`).

Source: Caffeine's access-order and write-order queues.
"""

from collections import OrderedDict
from collections.abc import Iterator
from math import inf
from typing import Generic

from millpond.cache.api import Clock, K
from millpond.cache.steady_clock import SteadyClock


class Expiry(Generic[K]):
    """The deadlines of the keys of one cache; `earliest_ms` is never later than the first of them."""

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
        """The key was put now."""
        if self._after_write_ms is not None:
            self._last(self._by_write, key, now_ms + self._after_write_ms)
        if self._after_access_ms is not None:
            self._last(self._by_access, key, now_ms + self._after_access_ms)

    def read(self, key: K, now_ms: int) -> None:
        """The key was used now."""
        if self._after_access_ms is not None:
            self._last(self._by_access, key, now_ms + self._after_access_ms)

    def forget(self, key: K) -> None:
        """The key is gone."""
        self._by_access.pop(key, None)
        self._by_write.pop(key, None)

    def due(self, now_ms: int) -> Iterator[K]:
        """Keys that are too old now; each must be forgotten before the next is asked for."""
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
