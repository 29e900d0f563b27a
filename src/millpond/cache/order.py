"""The order in which entries are evicted: the interface, and plain LRU.

An order knows keys and weights, never values. The invariant: it knows exactly the keys that the
cache holds, and names a victim as long as there is one. The cache asks for victims until it is within
its bounds, so the order need not know whether the cache exceeds them.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import inf
from typing import Generic, Protocol

from millpond.cache.api import K


class EvictionOrder(Protocol[K]):
    """Chooses the next key to evict. The cache reports every change and every use of a key."""

    def added(self, key: K, weight: int) -> None:
        """Add a new key, which was put."""

    def replaced(self, key: K, weight: int) -> None:
        """Record that a present key was put again, which counts as a use."""

    def read(self, key: K) -> None:
        """Record a use of a present key."""

    def read_all(self, keys: Sequence[K]) -> None:
        """Record a use of each key in turn, as `read` does."""

    def removed(self, key: K) -> None:
        """Remove a key that the cache has removed."""

    def victim(self) -> K:
        """Return the key to evict next. Called only while there is a key."""

    def keys(self) -> Iterator[K]:
        """Iterate over every key, coldest first."""

    def resize(self, max_entries: int | None, max_bytes: int | None) -> None:
        """Adopt new bounds. The cache then asks for victims until it is within them."""


class Segment(Generic[K]):
    """Keys in the order of their last use, with their weights, and the segment's limits."""

    __slots__ = ("bytes", "max_bytes", "max_entries", "weights")

    def __init__(self, max_entries: float = inf, max_bytes: float = inf) -> None:
        self.weights: OrderedDict[K, int] = OrderedDict()
        self.bytes = 0
        self.max_entries = max_entries
        self.max_bytes = max_bytes

    def append(self, key: K, weight: int) -> None:
        """Add a key as the most recently used."""
        self.weights[key] = weight
        self.bytes += weight

    def reweigh(self, key: K, weight: int) -> None:
        """Change the weight of a key and make it the most recently used."""
        self.bytes += weight - self.weights[key]
        self.weights[key] = weight
        self.weights.move_to_end(key)

    def remove(self, key: K) -> int:
        """Remove a key and return its weight."""
        weight = self.weights.pop(key)
        self.bytes -= weight
        return weight

    def oldest(self) -> K:
        """Return the least recently used key."""
        return next(iter(self.weights))

    def is_over(self) -> bool:
        """Whether the segment exceeds one of its limits."""
        return len(self.weights) > self.max_entries or self.bytes > self.max_bytes


class LruOrder(Generic[K]):
    """Evicts the least recently used key first.

    >>> order = LruOrder()
    >>> order.added("a", 1); order.added("b", 1); order.read("a")
    >>> order.victim()
    'b'
    """

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: OrderedDict[K, None] = OrderedDict()

    def added(self, key: K, weight: int) -> None:  # noqa: ARG002 - LRU does not weigh
        """Make the key the most recently used."""
        self._keys[key] = None

    def replaced(self, key: K, weight: int) -> None:  # noqa: ARG002 - LRU does not weigh
        """Make the key the most recently used."""
        self._keys.move_to_end(key)

    def read(self, key: K) -> None:
        """Make the key the most recently used."""
        self._keys.move_to_end(key)

    def read_all(self, keys: Sequence[K]) -> None:
        """Make each key in turn the most recently used."""
        for key in keys:
            self._keys.move_to_end(key)

    def removed(self, key: K) -> None:
        """Remove the key."""
        del self._keys[key]

    def victim(self) -> K:
        """Return the least recently used key."""
        return next(iter(self._keys))

    def keys(self) -> Iterator[K]:
        """Iterate over the keys, least recently used first."""
        return iter(self._keys)

    def resize(self, max_entries: int | None, max_bytes: int | None) -> None:
        """Do nothing: LRU does not depend on the bounds."""
