"""Slots in the order in which each was last noted, a batch at a time.

The column cache uses it for the order of use (eviction, expiry after access) and for the order of loading (expiry
after write). Batches of slots are appended to a log, each slot with a tick. The invariant: **only the last
entry of a slot counts**, whose tick is also in an array indexed by slot. Every other entry is stale and is skipped.
When more than half of a large log is stale, the log is rewritten.

So noting a batch takes two array writes, however many slots it has, and the order is exact.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from millpond.lookup.column_cache.hash_index import Slots, grown

_WINDOW = 4_096
_LEAST_STALE = 65_536


class SlotLog:
    """The order of slots. The caller gives the times, which must never go back.

    >>> log = SlotLog()
    >>> log.note(np.array([1, 2, 3]), now_ms=10); log.note(np.array([2]), now_ms=20); log.forget(np.array([3]))
    >>> [slots.tolist() for slots in log.oldest()], log.due(10).tolist(), log.first_ms
    ([[1], [2]], [1], 10)
    """

    def __init__(self) -> None:
        self._ticks = np.full(0, -1, np.int64)
        self._blocks: deque[_Block] = deque()
        self._next = self._written = self._current = 0

    def note(self, slots: Slots, now_ms: int = 0) -> None:
        """Move distinct slots to the end of the order."""
        if not len(slots):
            return
        self._ticks = grown(self._ticks, int(slots.max()), -1)
        self._current += int(np.count_nonzero(self._ticks[slots] < 0))
        ticks = np.arange(self._next, self._next + len(slots))
        self._ticks[slots] = ticks
        self._blocks.append(_Block(slots, ticks, now_ms))
        self._next += len(slots)
        self._written += len(slots)
        if self._written > 2 * self._current + _LEAST_STALE:
            self._rewrite()

    def forget(self, slots: Slots) -> None:
        """Remove distinct slots from the order. Slots that are not in it are ignored."""
        known = slots[slots < len(self._ticks)]
        self._current -= int(np.count_nonzero(self._ticks[known] >= 0))
        self._ticks[known] = -1

    def clear(self) -> None:
        """Remove every slot."""
        self.__init__()  # type: ignore[misc]  # a new log is an empty one

    @property
    def first_ms(self) -> int | None:
        """A time before which no slot was last noted; None if there are no slots."""
        self._drop_stale()
        return self._blocks[0].noted_ms if self._blocks else None

    def oldest(self) -> Iterator[Slots]:
        """Yield all slots in parts, oldest first."""
        self._drop_stale()
        for block in self._blocks:
            for first in range(block.first, len(block.slots), _WINDOW):
                current = block.current(self._ticks, first, first + _WINDOW)
                if len(current):
                    yield current

    def due(self, at_ms: int) -> Slots:
        """Return the slots that were last noted at this time or before, oldest first."""
        self._drop_stale()
        due: list[Slots] = []
        for block in self._blocks:
            if block.noted_ms > at_ms:
                break
            due.append(block.current(self._ticks, block.first, len(block.slots)))
        return np.concatenate(due) if due else np.zeros(0, np.int64)

    def _drop_stale(self) -> None:
        """Drop stale entries at the beginning, so that they are skipped only once."""
        while self._blocks:
            block = self._blocks[0]
            while block.first < len(block.slots):
                if len(block.current(self._ticks, block.first, block.first + _WINDOW)):
                    return
                block.first += _WINDOW
            self._written -= len(self._blocks.popleft().slots)

    def _rewrite(self) -> None:
        """Rewrite the log without stale entries, and merge blocks of the same time."""
        kept: deque[_Block] = deque()
        parts: list[tuple[Slots, Slots]] = []
        blocks = list(self._blocks)
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            current = self._ticks[block.slots] == block.ticks
            parts.append((block.slots[current], block.ticks[current]))
            if after is None or after.noted_ms != block.noted_ms:
                slots, ticks = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
                if len(slots):
                    kept.append(_Block(slots, ticks, block.noted_ms))
                parts = []
        self._blocks, self._written = kept, self._current


class _Block:
    """Slots that were noted at one time. The entries before `first` are stale."""

    __slots__ = ("first", "noted_ms", "slots", "ticks")

    def __init__(self, slots: Slots, ticks: npt.NDArray[np.int64], noted_ms: int) -> None:
        self.slots, self.ticks, self.noted_ms = slots, ticks, noted_ms
        self.first = 0

    def current(self, ticks: npt.NDArray[np.int64], first: int, end: int) -> Slots:
        slots = self.slots[first:end]
        current: Slots = slots[ticks[slots] == self.ticks[first:end]]
        return current
