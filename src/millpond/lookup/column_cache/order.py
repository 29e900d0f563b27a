"""Which entries of a column cache go for want of room: the one used longest ago, or by W-TinyLFU.

Entries go by slot, and weigh what the cache says. The invariant: after every `put` the entries that are left
are within both limits, and those that have to go are told, once. A batch is taken key by key, in its order.
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
    """Who goes first."""

    def read(self, slots: Slots) -> None:
        """Entries were used."""

    def put(self, slots: Slots, hashes: Hashes, weights: Weights) -> Slots:
        """Entries were put, new or again, each once; the slots of the entries that have to go."""
        ...

    def removed(self, slots: Slots) -> None:
        """Entries are gone for another reason."""


class LruOrder:
    """The entry used longest ago goes first.

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
        """They are the last used."""
        self._log.note(slots)

    def put(self, slots: Slots, hashes: Hashes, weights: Weights) -> Slots:  # noqa: ARG002 - LRU knows no frequency
        """They are the last used."""
        self._weights = grown(self._weights, int(slots.max(initial=-1)), 0)
        # Whatever is there weighs something; a slot that weighs nothing is free.
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
        """Forget them."""
        self._entries -= len(slots)
        self._bytes -= int(self._weights[slots].sum())
        self._weights[slots] = 0
        self._log.forget(slots)


class TinyLfu:
    """`millpond.cache.tinylfu` by slot: entry by entry, by the hashes of their keys."""

    def __init__(self, max_entries: int | None, max_bytes: int | None) -> None:
        self._max_entries: float = inf if max_entries is None else max_entries
        self._max_bytes: float = inf if max_bytes is None else max_bytes
        self._order: TinyLfuOrder[int] = TinyLfuOrder(max_entries, max_bytes)
        self._hash_of: dict[int, int] = {}
        self._slot_of: dict[int, int] = {}
        self._weights: dict[int, int] = {}
        self._bytes = 0

    def read(self, slots: Slots) -> None:
        """They were used once more."""
        for slot in slots.tolist():
            self._order.read(self._hash_of[slot])

    def put(self, slots: Slots, hashes: Hashes, weights: Weights) -> Slots:
        """They compete with what is there."""
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
        return np.array(gone, np.int64)

    def removed(self, slots: Slots) -> None:
        """Forget them, but not how often they came."""
        for slot in slots.tolist():
            self._forget(slot)

    def _forget(self, slot: int) -> None:
        key = self._hash_of.pop(slot)
        del self._slot_of[key]
        self._bytes -= self._weights.pop(key)
        self._order.removed(key)
