"""The eviction orders of a column cache: least recently used, or W-TinyLFU.

Entries are known by slot, with weights that the cache gives. The invariant: after every `put` the remaining
entries are within both limits, and each evicted slot is returned once. Keys of a batch count in their order.
"""

from math import inf
from typing import Protocol

import numpy as np
import numpy.typing as npt

from millpond.cache.tinylfu import TinyLfuOrder
from millpond.lookup.column_cache.hash_index import Slots, grown
from millpond.lookup.column_cache.key_hash import Hashes
from millpond.lookup.column_cache.slot_log import SlotLog

Weights = npt.NDArray[np.int64]


class Order(Protocol):
    """Chooses the entries to evict. The cache reports every change and use."""

    def read(self, slots: Slots) -> None:
        """Record a use of each entry."""

    def put(self, slots: Slots, hashes: Hashes, weights: Weights) -> Slots:
        """Add or replace distinct entries. Return the slots to evict, which the order has dropped itself."""
        ...

    def removed(self, slots: Slots) -> None:
        """Remove entries that the cache drops for another reason than room."""


class LruOrder:
    """Evicts the least recently used entry first.

    >>> order = LruOrder(max_entries=2, max_bytes=None)
    >>> order.put(np.array([0, 1]), np.array([7, 8], np.uint64), np.array([1, 1])).tolist()
    []
    >>> order.read(np.array([0]))
    >>> order.put(np.array([2]), np.array([9], np.uint64), np.array([1])).tolist()
    [1]
    """

    def __init__(self, max_entries: int | None, max_bytes: int | None) -> None:
        self._max_entries: float = inf if max_entries is None else max_entries
        self._max_bytes: float = inf if max_bytes is None else max_bytes
        self._log = SlotLog()
        self._weights = np.zeros(0, np.int64)
        self._entries = self._bytes = 0

    def read(self, slots: Slots) -> None:
        """Make the entries the most recently used."""
        self._log.note(slots)

    def put(self, slots: Slots, hashes: Hashes, weights: Weights) -> Slots:  # noqa: ARG002 - LRU knows no frequency
        """Make the entries the most recently used."""
        self._weights = grown(self._weights, int(slots.max(initial=-1)), 0)
        # Every entry weighs something: a slot of weight 0 is free.
        self._entries += int(np.count_nonzero(self._weights[slots] == 0))
        self._bytes += int(weights.sum()) - int(self._weights[slots].sum())
        self._weights[slots] = weights
        self._log.note(slots)
        gone = []
        for oldest in self._log.oldest():
            if self._entries <= self._max_entries and self._bytes <= self._max_bytes:
                break
            freed = np.cumsum(self._weights[oldest])
            fits = freed >= self._bytes - self._max_bytes
            fits &= np.arange(1, len(oldest) + 1) >= self._entries - self._max_entries
            count = int(np.argmax(fits)) + 1 if fits.any() else len(oldest)
            gone.append(oldest[:count])
            self._entries -= count
            self._bytes -= int(freed[count - 1])
        if not gone:
            return np.zeros(0, np.int64)
        evicted = np.concatenate(gone)
        self._weights[evicted] = 0
        self._log.forget(evicted)
        return evicted

    def removed(self, slots: Slots) -> None:
        """Remove the entries."""
        self._entries -= len(slots)
        self._bytes -= int(self._weights[slots].sum())
        self._weights[slots] = 0
        self._log.forget(slots)


class TinyLfu:
    """W-TinyLFU (`millpond.cache.tinylfu`) by slot, with a window of fixed share. It counts keys by their hashes."""

    def __init__(self, max_entries: int | None, max_bytes: int | None) -> None:
        self._max_entries: float = inf if max_entries is None else max_entries
        self._max_bytes: float = inf if max_bytes is None else max_bytes
        self._order: TinyLfuOrder[int] = TinyLfuOrder(max_entries, max_bytes)
        self._hash_of: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self._bytes = 0

    def read(self, slots: Slots) -> None:
        """Count a use of each entry."""
        for slot in slots.tolist():
            self._order.read(self._hash_of[slot])

    def put(self, slots: Slots, hashes: Hashes, weights: Weights) -> Slots:
        """Add the entries one by one, and evict after each until the limits hold."""
        gone: list[int] = []
        for slot, key, weight in zip(slots.tolist(), hashes.tolist(), weights.tolist(), strict=True):
            if slot in self._hash_of:
                self._order.replaced(key, weight)
                self._bytes -= self._weights[key]
            else:
                self._hash_of[slot], self._slot_of[key] = key, slot
                self._order.added(key, weight)
            self._weights[key] = weight
            self._bytes += weight
            while len(self._slot_of) > self._max_entries or self._bytes > self._max_bytes:
                gone.append(self._slot_of[self._order.victim()])
                self._forget(gone[-1])
        # An entry that an earlier one of the batch evicted, and that was then put itself, is there again.
        return np.array([slot for slot in dict.fromkeys(gone) if slot not in self._hash_of], np.int64)

    def removed(self, slots: Slots) -> None:
        """Remove the entries. The counts of their uses remain."""
        for slot in slots.tolist():
            self._forget(slot)

    def _forget(self, slot: int) -> None:
        key = self._hash_of.pop(slot)
        del self._slot_of[key]
        self._bytes -= self._weights.pop(key)
        self._order.removed(key)
