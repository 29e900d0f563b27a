"""Slots in the order in which each was last noted, a batch at a time.

Under the column cache: the order of use, of which the oldest go first, and the order of loading, in which
entries fall due. Batches of slots are appended to a log, each slot with a tick. The invariant: **the last
entry of a slot counts**, the one whose tick is also in an array by slot; every other one is stale and is
passed over. When more than half of the log is stale, it is written anew.

So noting a batch is two writes of arrays, whatever the number of slots, and the order is exact.
"""

from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from millpond.lookup.column_cache.hash_index import Slots, grown

_WINDOW = 4_096
_LEAST_STALE = 65_536


class SlotLog:
    """The order of slots; times are given by the caller and never go back.

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
        """Move slots, each once, to the end of the order."""
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
        """Take slots, each once, out of the order; those that are not in it stay so."""
        known = slots[slots < len(self._ticks)]
        self._current -= int(np.count_nonzero(self._ticks[known] >= 0))
        self._ticks[known] = -1

    def clear(self) -> None:
        """Forget every slot."""
        self.__init__()  # type: ignore[misc]  # a new log is an empty one

    @property
    def first_ms(self) -> int | None:
        """No slot was last noted before this time; None where there is no slot."""
        self._drop_stale()
        return self._blocks[0].noted_ms if self._blocks else None

    def oldest(self) -> Iterator[Slots]:
        """All slots, oldest first, in parts."""
        self._drop_stale()
        for block in self._blocks:
            for first in range(block.first, len(block.slots), _WINDOW):
                current = block.current(self._ticks, first, first + _WINDOW)
                if len(current):
                    yield current

    def due(self, at_ms: int) -> Slots:
        """The slots that were last noted at that time or before it, oldest first."""
        self._drop_stale()
        due: list[Slots] = []
        for block in self._blocks:
            if block.noted_ms > at_ms:
                break
            due.append(block.current(self._ticks, block.first, len(block.slots)))
        return np.concatenate(due) if due else np.zeros(0, np.int64)

    def _drop_stale(self) -> None:
        """Drop what is stale at the beginning, so that nobody passes over it twice."""
        while self._blocks:
            block = self._blocks[0]
            while block.first < len(block.slots):
                if len(block.current(self._ticks, block.first, block.first + _WINDOW)):
                    return
                block.first += _WINDOW
            self._written -= len(self._blocks.popleft().slots)

    def _rewrite(self) -> None:
        """Write the log without stale entries, blocks of one time as one."""
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
    """Slots that were noted at one time; what lies before `first` is stale."""

    __slots__ = ("first", "noted_ms", "slots", "ticks")

    def __init__(self, slots: Slots, ticks: npt.NDArray[np.int64], noted_ms: int) -> None:
        self.slots, self.ticks, self.noted_ms = slots, ticks, noted_ms
        self.first = 0

    def current(self, ticks: npt.NDArray[np.int64], first: int, end: int) -> Slots:
        slots = self.slots[first:end]
        current: Slots = slots[ticks[slots] == self.ticks[first:end]]
        return current
