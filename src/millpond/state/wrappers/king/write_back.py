"""King's single-layer cache: a value state that is written when an entry leaves, or at a checkpoint.

On the data path it stands between user code and one value state of a backend, usually one that turns
every value into bytes. A key that is read and written event after event costs the state one read when
it comes and one write per checkpoint.

Invariant: what the state does not have yet is a dirty entry, and a dirty entry leaves only after its
value reached the state. The cache is attached to its backend, so a commit flushes it first and a
rollback empties it; nobody has to remember.

Trade-off: the larger the cache, the more is dirty at a checkpoint, and the flush is in its blocking
part. `TwoLayerCache` bounds that by its first layer; `LruStateCache` avoids it.

Source: King's flink-state-cache, "Background of two layered state caching in Flink".
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


class WriteBackCache(CachedState):
    """A write-back LRU cache in front of one value state, used like that state.

    - Key: the backend's current key and its key group.
    - Capacity: `max_size` keys. A key without a value takes a place too, and is not read again.
    - Freshness: the state belongs to the cache. Whoever else changes the state, or puts a second cache
      in front of it, is not seen.
    - Concurrency: one thread, the backend's.

    An entry is dirty if and only if `update` or `clear` was called since it was last written. A value
    that `get` returned and that was changed in place becomes state with `update`, and only then;
    without one the cache lets go of it at the end of the version.

    The backend has what is dirty written before anybody looks at all its keys.

    Args:
        backend: a `CachedValues`, whose current key is meant; it flushes this cache before every commit.
        state: what `backend.value_state` returned.
        max_size: how many keys to keep.
        on_get: given a key and what was read of the state, the value to hand out and to cache. A value that it
            replaced is state only after an `update`.
        on_update: given a key and the value about to be written, the value to write and to cache instead; None
            clears. Hooks must not use the cache.
        hit_tracker: told of every read, True where the key was cached.
        read_watch: runs while the state is read.
        write_watch: runs while the state is written.
        copy: makes the copy that is written where the backend keeps the very objects it is given and the state, one of
            your own, does not copy them itself.
        raw: the cells of the same state past its handle, of a backend that keeps bytes: what is dirty is written there,
            many at once, without another check. Not together with `on_update` or `write_watch`.

    Raises:
        OptionError: a size below 1, a backend that carries no caches, no state, a handle that has a ttl or a default;
            later, a use without a current key.
        DataError: an `update` with None, or with what the state cannot keep.

    >>> import pyarrow as pa
    >>> from millpond.state.spi import CachedValues, HeapBackend, StateDescriptor, StateKind
    >>> backend = CachedValues(HeapBackend(range(128)))
    >>> state = backend.value_state(StateDescriptor("visits", StateKind.VALUE, pa.schema([("count", pa.int64())])))
    >>> visits = WriteBackCache(backend, state, max_size=20_000)
    >>> backend.enter(7); backend.context.key = ("ann",)
    >>> visits.update((1,))
    >>> visits.get(), state.get()
    ((1,), None)
    >>> visits.update_all_states()
    >>> state.get()
    (1,)
    """

    def __init__(
        self,
        backend: Carrier,
        state: ValueState,
        *,
        max_size: int,
        hit_tracker: HitTracker | None = None,
        **watching: Unpack[Watching],
    ) -> None:
        super().__init__(backend, state, hit_tracker, **watching)
        self.max_size = checked_size("max_size", max_size)
        self._entries: Cache[Where, Entry] = new_cache("write-back", max_entries=max_size, on_evict=self._evict)
        self._layers = (self._entries,)
        self._put = self._entries.put
        backend.attach(self)

    def _entry(self) -> Entry:
        context = self._context
        where = (context.key_group, context.key)
        entry = self._entries.get(where)
        if self._hit_tracker is not None:
            self._hit_tracker(entry is not None)
        if entry is None:
            entry = self._below.read()
            self._entries.put(where, entry)
        return entry

    def _evict(self, where: Where, entry: Entry, _: str) -> None:
        self._below.write(((where, entry),))
        self._below.let_go(where)
