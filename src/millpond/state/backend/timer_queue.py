"""The timers of a shard in the order of time: the interface, and a queue in memory.

A backend whose state may exceed memory keeps this order where it keeps the state. Every other backend has a
`TimerQueue` beside its state: a binary heap with deferred deletion.

A heap cannot give up an entry in its middle. So a deleted timer stays in the heap, is marked, and is skipped when it
comes up. Once more than half of the entries are marked, the heap is rebuilt from the others. Each deletion pays for two
entries of a rebuild. So a deletion costs O(1) on average, and a timer that is set and deleted with every record leaves
nothing behind.

Invariants: the timers that are set are the heap's unmarked entries, each once. At most half of the entries are marked,
so the heap is at most twice as long as there are timers.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millpond.state.types.rows import Row

if TYPE_CHECKING:
    from millpond.state.backend.protocols import Cells


class DueTimer(NamedTuple):
    """A timer whose time has come."""

    expiry_ms: int
    key_group: int
    key: Row


class TimersByTime(Protocol):
    """The timers that are set, in the order of time. Timers of one time come in the order in which they were set.

    It is told of every timer that its state gains or loses. It is discarded when the state is undone or restored.
    """

    def __len__(self) -> int:
        """Return the number of entries in memory."""

    def add(self, timer: DueTimer) -> None:
        """Add a timer that was not set."""

    def remove(self, timer: DueTimer) -> None:
        """Remove a timer that was set."""

    def first(self) -> DueTimer | None:
        """Return the earliest timer, or None."""

    def up_to(self, limit_ms: int) -> Iterable[DueTimer]:
        """Return every timer at or before the limit that is set at the time of the call. Iterate over them once.

        Timers that are set or deleted during the iteration change nothing about the result.
        """

    def close(self) -> None:
        """Free what it holds. It is not used afterwards. Idempotent."""


class TimerQueue:
    """`TimersByTime` in memory.

    >>> queue = TimerQueue([DueTimer(5, 0, ("ann",)), DueTimer(3, 1, ("bob",))])
    >>> queue.remove(DueTimer(3, 1, ("bob",)))
    >>> queue.up_to(9), len(queue)
    ([DueTimer(expiry_ms=5, key_group=0, key=('ann',))], 1)
    """

    __slots__ = ("_entries", "_order", "_removed")

    def __init__(self, timers: Iterable[DueTimer] = ()) -> None:
        self._order = itertools.count()
        # The order decides before the timers are compared: keys may hold None, which cannot be compared.
        self._entries = [(timer.expiry_ms, next(self._order), timer) for timer in timers]
        heapq.heapify(self._entries)
        self._removed: set[DueTimer] = set()

    def __len__(self) -> int:
        """Return the number of entries, marked ones included."""
        return len(self._entries)

    def add(self, timer: DueTimer) -> None:
        """Add a timer that was not set."""
        if timer in self._removed:
            self._removed.remove(timer)
        else:
            heapq.heappush(self._entries, (timer.expiry_ms, next(self._order), timer))

    def remove(self, timer: DueTimer) -> None:
        """Remove a timer that was set."""
        self._removed.add(timer)
        if 2 * len(self._removed) > len(self._entries):
            self._entries = [entry for entry in self._entries if entry[2] not in self._removed]
            heapq.heapify(self._entries)
            self._removed.clear()

    def first(self) -> DueTimer | None:
        """Return the earliest timer, or None."""
        entries = self._entries
        while entries and entries[0][2] in self._removed:
            self._removed.remove(heapq.heappop(entries)[2])
        return entries[0][2] if entries else None

    def up_to(self, limit_ms: int) -> list[DueTimer]:
        """Return every timer at or before the limit, in the order of time. They stay in the queue."""
        taken = []
        while self._entries and self._entries[0][0] <= limit_ms:
            entry = heapq.heappop(self._entries)
            if entry[2] in self._removed:
                self._removed.remove(entry[2])
            else:
                taken.append(entry)
        for entry in taken:
            heapq.heappush(self._entries, entry)
        return [timer for _, _, timer in taken]

    def close(self) -> None:
        """Do nothing: only memory is held."""


def timers_in(cells_of: Callable[[str, int], "Cells"], name: str, key_groups: Iterable[int]) -> Iterator[DueTimer]:
    """Yield the timers that a state holds, from its cells. Only one key group's cells lie in memory at a time."""
    for group in key_groups:
        cells = cells_of(name, group)
        for key_group, key, (expiry_ms,) in zip(cells.key_groups, cells.keys, cells.map_keys or (), strict=True):
            # Checkpoints of 0.1 may hold timers without a time, which are never due.
            if expiry_ms is not None:
                yield DueTimer(expiry_ms, key_group, key)
