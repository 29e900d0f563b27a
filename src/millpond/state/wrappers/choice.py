"""Which cache stands in front of state, as plain data: options are parsed into it, and declarations name it.

`Lru` caches every cell of a backend. `WriteBack` and `TwoLayer` cache value states, each state on its own. List and
map states then stay uncached, since King's caches keep whole values.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from millpond.errors import OptionError
from millpond.state.wrappers.king.state_access import HitTracker, Hook, Watch, checked_size


@dataclass(frozen=True, kw_only=True)
class Lru:
    """An `LruStateCache` in front of a whole backend, for all kinds of state. At least one limit is needed.

    Attributes:
        max_entries: how many pairs it holds, per shard, over all its states; None for no such limit.
        max_bytes: how many bytes the pairs may weigh; None for no such limit.
        hit_rate_curve: whether it records its hit rate at other sizes, see `millpond.cache.curves`.
    """

    max_entries: int | None = None
    max_bytes: int | None = None
    hit_rate_curve: bool = False

    def __post_init__(self) -> None:
        if self.max_entries is None and self.max_bytes is None:
            raise OptionError("Lru(): expected max_entries or max_bytes; a cache needs a limit.")
        for name, limit in (("max_entries", self.max_entries), ("max_bytes", self.max_bytes)):
            if limit is not None:
                checked_size(name, limit)


@dataclass(frozen=True, kw_only=True)
class CacheHooks:
    """The functions that a user of one of King's caches has called, to observe it or to change values.

    Hooks get the key as a tuple, and the value as the operator knows it, even if the state has a TTL. They must not
    use the state.

    Attributes:
        on_get: gets a key and the value that was read from the state (None if there is none, or it has expired).
            Returns the value to hand out and to cache. A value it replaced becomes state only with an `update`.
        on_update: gets a key and the value about to be written (None for a `clear`). Returns the value to write and to
            cache instead; None clears.
        hit_tracker: called at every read, with True if the key was cached; with two layers, if it was in L1.
        hit_tracker_l2: two layers only: called at every read that missed L1, with True if the key was in L2.
        read_watch: runs while the state is read.
        write_watch: runs while the state is written.
    """

    on_get: Hook | None = None
    on_update: Hook | None = None
    hit_tracker: HitTracker | None = None
    hit_tracker_l2: HitTracker | None = None
    read_watch: Watch | None = None
    write_watch: Watch | None = None


@dataclass(frozen=True, kw_only=True)
class WriteBack:
    """A `WriteBackCache` in front of a value state. Two choices of the same sizes are equal, whatever their hooks.

    Attributes:
        max_size: how many keys to keep, per state and shard.
        hooks: functions to call.

    >>> WriteBack(max_size=0)
    Traceback (most recent call last):
    millpond.errors.OptionError: max_size: expected a whole number of at least 1, got 0.
    """

    max_size: int
    hooks: CacheHooks = field(default=CacheHooks(), compare=False)

    def __post_init__(self) -> None:
        checked_size("max_size", self.max_size)
        if self.hooks.hit_tracker_l2 is not None:
            raise OptionError(
                "WriteBack has one layer, and hooks.hit_tracker_l2 no effect; remove it or take TwoLayer."
            )


@dataclass(frozen=True, kw_only=True)
class TwoLayer:
    """A `TwoLayerCache` in front of a value state. Two choices of the same sizes are equal, whatever their hooks.

    Attributes:
        max_size: how many keys to keep in L1, per state and shard: the most that a checkpoint has to write.
        max_size_l2: how many more to keep in L2.
        hooks: functions to call.
    """

    max_size: int
    max_size_l2: int
    hooks: CacheHooks = field(default=CacheHooks(), compare=False)

    def __post_init__(self) -> None:
        checked_size("max_size", self.max_size)
        checked_size("max_size_l2", self.max_size_l2)


ValueCacheChoice: TypeAlias = WriteBack | TwoLayer
CacheChoice: TypeAlias = Lru | ValueCacheChoice
