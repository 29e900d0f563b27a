"""King's two-layer cache: a small write-back layer for the blocking part's sake, a large one for the hits'.

The single layer (`write_back`) has to be large for its hits and small for its flush. Here the two are
apart. L1 is write-back and small; L2 is write-through and large:

    update ──> L1 (dirty or clean) ── evicted: written, then moved down ──> L2 (clean) ──> dropped
                 ▲                                                           │
                 └────────────────────────── read again ─────────────────────┘

Invariants: an entry of L2 is clean; a key is in one layer at most. So a flush writes no more than L1
holds, however large L2 is. The cache is attached to its backend, as the single layer is.

Trade-off: a key that moves between the layers is written each time it goes down dirty: more writes
between checkpoints than with one layer of the same size.

Source: King's flink-state-cache, "Two layered cache".
"""

from typing import Any, Unpack

from millpond.cache import Cache, new_cache
from millpond.state.backend.protocols import Cells, ValueState
from millpond.state.backend.sums import PlainValue
from millpond.state.wrappers.king.state_access import (
    Carrier,
    Entry,
    HitTracker,
    WatchedState,
    Watching,
    Where,
    checked_size,
)


class TwoLayerCache(PlainValue):
    """A write-back LRU layer over a write-through LRU layer in front of one value state, used like that state.

    - Key: the backend's current key and its key group.
    - Capacity: `max_size` keys in L1 and `max_size_l2` in L2.
    - Freshness, concurrency, dirtiness and iteration: as `WriteBackCache`.

    Args:
        backend: a `CachedValues`, whose current key is meant; it flushes this cache before every commit.
        state: what `backend.value_state` returned.
        max_size: how many keys to keep in L1, which is the most that a checkpoint has to write.
        max_size_l2: how many more to keep in L2.
        hit_tracker: told of every read, True where the key was in L1.
        hit_tracker_l2: told of every read that missed L1, True where the key was in L2.
        watching: `on_get`, `on_update`, `read_watch`, `write_watch` and `copy`, as for `WriteBackCache`.

    Raises:
        OptionError: a size below 1, a backend that carries no caches, no state, a handle that has a ttl or a default;
            later, a use without a current key.
        DataError: an `update` with None, or with what the state cannot keep.

    >>> import pyarrow as pa
    >>> from millpond.state.spi import CachedValues, HeapBackend, StateDescriptor, StateKind
    >>> backend = CachedValues(HeapBackend(range(128)))
    >>> state = backend.value_state(StateDescriptor("visits", StateKind.VALUE, pa.schema([("count", pa.int64())])))
    >>> visits = TwoLayerCache(backend, state, max_size=1, max_size_l2=1)
    >>> backend.enter(7); backend.context.key = ("ann",)
    >>> visits.update((1,))
    >>> state.exists()
    False
    >>> backend.context.key = ("bob",)
    >>> visits.update((5,))
    >>> backend.context.key = ("ann",)
    >>> state.get(), visits.size_l1(), visits.size_l2()
    ((1,), 1, 1)
    """

    def __init__(
        self,
        backend: Carrier,
        state: ValueState,
        *,
        max_size: int,
        max_size_l2: int,
        hit_tracker: HitTracker | None = None,
        hit_tracker_l2: HitTracker | None = None,
        **watching: Unpack[Watching],
    ) -> None:
        self.max_size = checked_size("max_size", max_size)
        self.max_size_l2 = checked_size("max_size_l2", max_size_l2)
        self.descriptor = getattr(state, "descriptor", None)
        self._below = WatchedState(backend, state, **watching)
        self._sums = self._below.sums
        self._context = backend.context
        self._hit_tracker = hit_tracker
        self._hit_tracker_l2 = hit_tracker_l2
        self._l1: Cache[Where, Entry] = new_cache("two-layer L1", max_entries=max_size, on_evict=self._move_down)
        self._l2: Cache[Where, Entry] = new_cache("two-layer L2", max_entries=max_size_l2)
        backend.attach(self)

    def exists(self) -> bool:
        """Whether the current key has a value. A read like `get`."""
        return self._entry().value is not None

    def get(self) -> Any:
        """The current key's value, or None."""
        return self._below.lend(self._entry())

    def update(self, value: Any) -> None:
        """Set the current key's value; it is written when the key leaves L1, or at the next checkpoint."""
        where = self._below.require_key()
        self._put(where, self._below.updated(where, value))

    def clear(self) -> None:
        """Forget the current key's value; written as an update is."""
        where = self._below.require_key()
        self._put(where, self._below.cleared(where))

    def update_all_states(self) -> None:
        """Write each dirty entry to the state, once, and keep it in L1, clean. The current key stays the same.

        Raises whatever the state or a hook raises; entries that were not written yet stay dirty.
        """
        self._below.write_dirty()

    def flush(self) -> None:
        """The backend's call at the beginning of a commit: `update_all_states`, and the version ends."""
        self.update_all_states()
        self._below.end_version(self._l1, self._l2)

    def forget(self) -> None:
        """The backend's call when the state was undone or restored: every entry goes, dirty or not."""
        self._l1.clear()
        self._l2.clear()
        self._below.dirty.clear()
        self._below.end_version()

    def write_key(self, where: Where) -> None:
        """Write one key's entry to the state, if it is dirty, and keep it, clean."""
        self._below.write_key(where)

    def overwritten(self, cells: Cells) -> None:
        """The backend's call when it was given cells of this state to put or delete: they are cached no more."""
        for where in zip(cells.key_groups, cells.keys, strict=True):
            self._below.dirty.pop(where, None)
            self._below.let_go(where)
            self._l1.invalidate(where)
            self._l2.invalidate(where)

    def size(self) -> int:
        """How many keys are cached, in both layers."""
        return len(self._l1) + len(self._l2)

    def size_l1(self) -> int:
        """How many keys are in L1."""
        return len(self._l1)

    def size_l2(self) -> int:
        """How many keys are in L2."""
        return len(self._l2)

    def dirty_size(self) -> int:
        """How many keys the state does not have as they are cached: what a checkpoint would write now."""
        return len(self._below.dirty)

    def _entry(self) -> Entry:
        context = self._context
        where = (context.key_group, context.key)
        entry = self._l1.get(where)
        if self._hit_tracker is not None:
            self._hit_tracker(entry is not None)
        return self._promoted(where) if entry is None else entry

    def _promoted(self, where: Where) -> Entry:
        entry = self._l2.get(where)
        if self._hit_tracker_l2 is not None:
            self._hit_tracker_l2(entry is not None)
        if entry is None:
            entry = self._below.read()
        self._put(where, entry)
        return entry

    def _put(self, where: Where, entry: Entry) -> None:
        # Out of L2 first: what L1 moves down needs the room, and must not push out another.
        self._l2.invalidate(where)
        self._l1.put(where, entry)

    def _move_down(self, where: Where, entry: Entry, _: str) -> None:
        self._below.write(((where, entry),))
        self._below.revert(where)
        self._l2.put(where, entry)
