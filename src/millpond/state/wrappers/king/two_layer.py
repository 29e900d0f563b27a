"""King's two-layer cache: a small write-back layer that keeps the flush short, and a large one that gives hits.

A single layer (`write_back`) has to be large to hit and small to be flushed quickly. This cache separates the two: L1
is write-back and small, L2 is write-through and large.

    update ──> L1 (dirty or clean) ── evicted: written, then moved down ──> L2 (clean) ──> dropped
                 ▲                                                           │
                 └────────────────────────── read again ─────────────────────┘

Invariants: an entry of L2 is clean, and a key is in at most one layer. So a flush writes no more than L1 holds, however
large L2 is. The cache is attached to its backend, as the single layer is.

Trade-off: a key that moves between the layers is written each time it goes down dirty. So there are more writes
between checkpoints than with one layer of the same size.

Source: King's flink-state-cache, "Two layered cache".
"""

from typing import Unpack

from millpond.cache import Cache, new_cache
from millpond.state.backend.protocols import ValueState
from millpond.state.wrappers.king.cached_state import CachedState
from millpond.state.wrappers.king.state_access import (
    Carrier,
    Entry,
    HitTracker,
    Watching,
    Where,
    checked_size,
)


class TwoLayerCache(CachedState):
    """A write-back LRU layer over a write-through LRU layer in front of one value state, used like that state.

    - Key: the backend's current key and its key group.
    - Capacity: `max_size` keys in L1 and `max_size_l2` in L2.
    - Freshness, concurrency, dirtiness and iteration: as `WriteBackCache`.

    Args:
        backend: a `CachedValues`, whose current key is used. It flushes this cache before every commit.
        state: what `backend.value_state` returned.
        max_size: how many keys to keep in L1, which is the most that a checkpoint has to write.
        max_size_l2: how many more to keep in L2.
        hit_tracker: called at every read, with True if the key was in L1.
        hit_tracker_l2: called at every read that missed L1, with True if the key was in L2.
        watching: `on_get`, `on_update`, `read_watch`, `write_watch` and `copy`, as for `WriteBackCache`.

    Raises:
        OptionError: a size below 1, a backend that carries no caches, no state, or a handle that has a TTL or a
            default; later, a use without a current key.
        DataError: an `update` with None, or with a value that the state cannot keep.

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
        super().__init__(backend, state, hit_tracker, **watching)
        self.max_size = checked_size("max_size", max_size)
        self.max_size_l2 = checked_size("max_size_l2", max_size_l2)
        self._hit_tracker_l2 = hit_tracker_l2
        self._l1 = new_cache("two-layer L1", max_entries=max_size, on_evict=self._move_down)
        self._l2: Cache[Where, Entry] = new_cache("two-layer L2", max_entries=max_size_l2)
        self._layers = (self._l1, self._l2)
        self._put = self._to_l1
        backend.attach(self)

    def size_l1(self) -> int:
        """Return how many keys are in L1."""
        return len(self._l1)

    def size_l2(self) -> int:
        """Return how many keys are in L2."""
        return len(self._l2)

    def _missed(self, where: Where) -> Entry:
        entry = self._l2.get(where)
        if self._hit_tracker_l2 is not None:
            self._hit_tracker_l2(entry is not None)
        if entry is None:
            return super()._missed(where)
        self._put(where, entry)
        return entry

    def _to_l1(self, where: Where, entry: Entry) -> None:
        # Out of L2 first: the entry that L1 moves down needs the room, and must not push out another.
        self._l2.invalidate(where)
        self._l1.put(where, entry)

    def _move_down(self, where: Where, entry: Entry, _: str) -> None:
        self._below.write(((where, entry),))
        self._below.revert(where)
        self._l2.put(where, entry)
