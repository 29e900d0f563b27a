"""The bounded map of the house: its contract.

Under the keyed state, the lookup tables and the fetcher lies one `Cache`. The invariant to hold in
mind: **a cache is never part of correctness**. After every call it is within its bounds, holds no
expired entry, and what it forgot it told to `on_evict`; a program that runs with a cache of size 0
gives the same answers.

Three forms fulfil this contract, and `factory.new_cache` picks one, so that nobody pays for what they
did not ask for: `plain` (LRU by entries, nothing else: the hot path of the keyed state), `metered`
(bytes, expiry, W-TinyLFU) and `shared` (one lock around either, and single flight).
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
"""Stands for "not cached", since None is a value like any other."""

Policy: TypeAlias = Literal["lru", "w-tinylfu"]
Cause: TypeAlias = Literal["size", "expired"]
Weigher: TypeAlias = Callable[[K, V], int]
EvictionListener: TypeAlias = Callable[[K, V, Cause], None]
Clock: TypeAlias = Callable[[], int]


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes back; its zero means nothing."""
    return time.monotonic_ns() // 1_000_000


class Bounds(NamedTuple):
    """The most that a cache holds; None is no bound of that kind."""

    max_entries: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache did since it was made, and what it holds now.

    `hits` and `misses` count `get` and `get_or_load`; a caller that waits for another's load
    counts a hit. `loads` are the calls of a loader, `load_failures` those of them that raised.
    `evictions` are entries that went for want of room, `expirations` those that went for their age.
    `bytes` is None where nothing is weighed.
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
    """A bounded map from hashable keys to values; `new_cache` makes one, and says what it promises."""

    __slots__ = ("__weakref__", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: object = None) -> object:
        """The value of `key`, which counts as its use; `default` where it is not cached."""
        raise NotImplementedError

    def get_present(self, keys: Iterable[K]) -> dict[K, V]:
        """The values of those keys that are cached, as `get` for each in turn."""
        found = ((key, self.get(key, MISSING)) for key in keys)
        return {key: value for key, value in found if value is not MISSING}

    @overload
    def peek(self, key: K) -> V | None: ...
    @overload
    def peek(self, key: K, default: D) -> V | D: ...
    def peek(self, key: K, default: object = None) -> object:
        """As `get`, but neither a use nor in the statistics."""
        raise NotImplementedError

    def put(self, key: K, value: V) -> None:
        """Cache `value` under `key`, in place of what was there."""
        raise NotImplementedError

    def invalidate(self, key: K) -> None:
        """Forget `key`; a load of it that is under way will not be cached."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget every key, as `invalidate` does."""
        raise NotImplementedError

    def get_or_load(self, key: K, loader: Callable[[K], V]) -> V:
        """The value of `key`; on a miss, what `loader(key)` returns, which is then cached.

        What the loader raises is raised here, to every caller that waited for it, and never cached.

        Raises:
            OptionError: the loader asks, directly or through another thread's load, for the key
                that it is loading, which could never end.
        """
        raise NotImplementedError

    def items(self) -> Iterator[tuple[K, V]]:
        """What is cached now, coldest first; a copy, so the cache may change meanwhile."""
        raise NotImplementedError

    def stats(self) -> CacheStats:
        """The counters and the sizes now."""
        raise NotImplementedError

    @property
    def policy(self) -> Policy:
        """What goes for want of room."""
        raise NotImplementedError

    @property
    def bounds(self) -> Bounds:
        """The most that it holds."""
        raise NotImplementedError

    def resize(self, bounds: Bounds) -> None:
        """Change the bounds; what no longer fits goes, as for want of room.

        Raises:
            OptionError: a bound is negative, or one in bytes is given to a cache that weighs nothing.
        """
        raise NotImplementedError

    def weigh(self, key: K, value: V) -> int:
        """The bytes that an entry would count for here; an estimate where nothing is weighed."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def __bool__(self) -> bool:
        """A cache is a thing, true even when it is empty."""
        return True
