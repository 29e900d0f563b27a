"""The contract of `Cache`, the one bounded map of Millpond.

Keyed state, lookup tables and the fetcher all use it. The invariant: **a cache is never part of
correctness**. A program gives the same answers with a cache of size 0. After every call a cache is
within its bounds and holds no expired entry, and `on_evict` was called for each entry that it evicted
or that expired.

Three classes implement the contract, and `factory.new_cache` picks the cheapest that fits the options:

- `plain`: LRU with a limit on entries and nothing else, for the hot path of keyed state.
- `metered`: a limit in bytes, expiry, and W-TinyLFU.
- `shared`: a lock around either of these, and single flight.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return self.value


MISSING: Final = Missing.MISSING
"""Means "not cached". None would be ambiguous, because it can be a cached value."""

Policy: TypeAlias = Literal["lru", "w-tinylfu"]
Cause: TypeAlias = Literal["size", "expired"]
Weigher: TypeAlias = Callable[[K, V], int]
EvictionListener: TypeAlias = Callable[[K, V, Cause], None]
Clock: TypeAlias = Callable[[], int]


def monotonic_ms() -> int:
    """Return milliseconds of a clock that never goes back. Only differences between readings mean anything."""
    return time.monotonic_ns() // 1_000_000


class Bounds(NamedTuple):
    """The limits of a cache; None means no limit of that kind."""

    max_entries: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counters of a cache since it was made, and its present size.

    `hits` and `misses` count `get` and `get_or_load`; a caller that waits for another's load
    counts as a hit. `loads` counts calls of a loader, `load_failures` those that raised.
    `evictions` counts entries removed to make room, `expirations` those removed for their age.
    `bytes` is None if the cache does not weigh its entries.
    """

    hits: int
    misses: int
    loads: int
    load_failures: int
    evictions: int
    expirations: int
    entries: int
    bytes: int | None

    @property
    def hit_rate(self) -> float:
        """Hits per request, 0.0 before the first request."""
        requests = self.hits + self.misses
        return self.hits / requests if requests else 0.0


class Cache(Generic[K, V]):
    """A bounded map from hashable keys to values. `new_cache` makes one and documents its behaviour."""

    __slots__ = ("__weakref__", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: object = None) -> object:
        """Return the value of `key` and count this as a use; return `default` if it is not cached."""
        raise NotImplementedError

    def get_present(self, keys: Iterable[K]) -> dict[K, V]:
        """Return the values of the cached keys among `keys`, as if `get` were called for each in turn."""
        found = ((key, self.get(key, MISSING)) for key in keys)
        return {key: value for key, value in found if value is not MISSING}

    @overload
    def peek(self, key: K) -> V | None: ...
    @overload
    def peek(self, key: K, default: D) -> V | D: ...
    def peek(self, key: K, default: object = None) -> object:
        """Return what `get` would, but count it neither as a use nor in the statistics."""
        raise NotImplementedError

    def put(self, key: K, value: V) -> None:
        """Cache `value` under `key`, replacing the value that was there."""
        raise NotImplementedError

    def invalidate(self, key: K) -> None:
        """Remove `key`; the result of a load that is under way is not cached."""
        raise NotImplementedError

    def clear(self) -> None:
        """Remove every key, as `invalidate` does."""
        raise NotImplementedError

    def get_or_load(self, key: K, loader: Callable[[K], V]) -> V:
        """Return the value of `key`; on a miss, call `loader(key)` and cache its result.

        An exception of the loader is raised in every caller that waited for it, and never cached.

        Raises:
            OptionError: the loader asks, directly or through another thread's load, for the key
                that it is loading. That would deadlock.
        """
        raise NotImplementedError

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over a copy of the entries, coldest first. The cache may change meanwhile."""
        raise NotImplementedError

    def stats(self) -> CacheStats:
        """Return the counters and the present sizes."""
        raise NotImplementedError

    @property
    def policy(self) -> Policy:
        """The rule that chooses the entries to evict."""
        raise NotImplementedError

    @property
    def bounds(self) -> Bounds:
        """The limits of this cache."""
        raise NotImplementedError

    def resize(self, bounds: Bounds) -> None:
        """Change the limits, and evict entries until the cache fits them.

        Raises:
            OptionError: a limit is negative, or one in bytes is given to a cache that does not weigh entries.
        """
        raise NotImplementedError

    def weigh(self, key: K, value: V) -> int:
        """Return the bytes that this cache counts for an entry; an estimate if it does not weigh entries."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __bool__(self) -> bool:
        """Always true, even for an empty cache."""
        return True
