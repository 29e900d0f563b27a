"""In which order entries go for want of room: the interface, and plain LRU.

A policy knows keys and weights, never values. The invariant: it knows exactly the keys that the
cache holds, and while it knows any it names a victim. The cache asks for victims until it is within
its bounds, so a policy need not know whether it is over them.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import inf
from typing import Generic, Protocol

from millpond.cache.api import K


class EvictionOrder(Protocol[K]):
    """Who goes first."""

    def added(self, key: K, weight: int) -> None:
        """A key that was not there was put."""

    def replaced(self, key: K, weight: int) -> None:
        """A key that was there was put again, which is a use."""

    def read(self, key: K) -> None:
        """A key that is there was used."""

    def read_all(self, keys: Sequence[K]) -> None:
        """Do as `read` for each key in turn."""

    def removed(self, key: K) -> None:
        """A key that was there is gone."""

    def victim(self) -> K:
        """The key to go next; asked only while there is one."""

    def keys(self) -> Iterator[K]:
        """Every key, coldest first."""

    def resize(self, max_entries: int | None, max_bytes: int | None) -> None:
        """The cache has other bounds now; the victims to come are its own to ask for."""


class Segment(Generic[K]):
    """Keys in the order of their use, with their weights and the room they may take."""

    __slots__ = ("bytes", "max_bytes", "max_entries", "weights")

    def __init__(self, max_entries: float = inf, max_bytes: float = inf) -> None:
        self.weights: OrderedDict[K, int] = OrderedDict()
        self.bytes = 0
        self.max_entries = max_entries
        self.max_bytes = max_bytes

    def append(self, key: K, weight: int) -> None:
        """Add a key as the last used."""
        self.weights[key] = weight
        self.bytes += weight

    def reweigh(self, key: K, weight: int) -> None:
        """Change a weight and make the key the last used."""
        self.bytes += weight - self.weights[key]
        self.weights[key] = weight
        self.weights.move_to_end(key)

    def remove(self, key: K) -> int:
        """Take a key out; its weight."""
        weight = self.weights.pop(key)
        self.bytes -= weight
        return weight

    def oldest(self) -> K:
        """The key used longest ago."""
        return next(iter(self.weights))

    def is_over(self) -> bool:
        """Whether it takes more room than it may."""
        return len(self.weights) > self.max_entries or self.bytes > self.max_bytes


class LruOrder(Generic[K]):
    """The key used longest ago goes first.

    >>> order = LruOrder()
    >>> order.added("a", 1); order.added("b", 1); order.read("a")
    >>> order.victim()
    'b'
    """

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: OrderedDict[K, None] = OrderedDict()

    def added(self, key: K, weight: int) -> None:  # noqa: ARG002 - LRU does not weigh
        """The key is the last used."""
        self._keys[key] = None

    def replaced(self, key: K, weight: int) -> None:  # noqa: ARG002 - LRU does not weigh
        """The key is the last used."""
        self._keys.move_to_end(key)

    def read(self, key: K) -> None:
        """The key is the last used."""
        self._keys.move_to_end(key)

    def read_all(self, keys: Sequence[K]) -> None:
        """The keys are the last used, in turn."""
        for key in keys:
            self._keys.move_to_end(key)

    def removed(self, key: K) -> None:
        """Forget the key."""
        del self._keys[key]

    def victim(self) -> K:
        """The key used longest ago."""
        return next(iter(self._keys))

    def keys(self) -> Iterator[K]:
        """The key used longest ago first."""
        return iter(self._keys)

    def resize(self, max_entries: int | None, max_bytes: int | None) -> None:
        """Nothing changes: the order knows no bounds."""
