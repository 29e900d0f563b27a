"""King's single-layer cache: a value state that is written when an entry leaves the cache, or at a checkpoint.

On the data path it stands between user code and one value state of a backend, usually one that encodes every value as
bytes. A key that is read and written event after event costs the state one read when the key enters the cache, and
one write per checkpoint.

Invariant: a value that the state does not have yet is a dirty entry, and a dirty entry leaves only after its value
reached the state. The cache is attached to its backend. So a commit flushes it first, and a rollback empties it; no
caller has to remember that.

Trade-off: the larger the cache, the more is dirty at a checkpoint, and the flush is in its blocking part.
`TwoLayerCache` bounds that by its first layer; `LruStateCache` avoids it.

Source: King's flink-state-cache, "Background of two layered state caching in Flink".
"""

from typing import Unpack

from millpond.cache import new_cache
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
    - Capacity: `max_size` keys. A key without a value counts too, and is not read again.
    - Freshness: the state belongs to the cache. Changes that anything else makes to the state, such as a second
      cache in front of it, are not seen.
    - Concurrency: one thread, the backend's.

    An entry is dirty if and only if `update` or `clear` was called since it was last written. If a value
    that `get` returned is changed in place, that becomes state with an `update`, and only then. Without
    one, the cache drops the value at the end of the version.

    The backend has dirty entries written before it reads all its keys.

    Args:
        backend: a `CachedValues`, whose current key is used. It flushes this cache before every commit.
        state: what `backend.value_state` returned.
        max_size: how many keys to keep.
        on_get: gets a key and the value read from the state. Returns the value to hand out and to cache. A value that
            it replaced becomes state only with an `update`.
        on_update: gets a key and the value about to be written. Returns the value to write and to cache instead; None
            clears. Hooks must not use the cache.
        hit_tracker: called at every read, with True if the key was cached.
        read_watch: runs while the state is read.
        write_watch: runs while the state is written.
        copy: makes the copy to write, if the backend keeps the very objects it is given and the state is a custom one
            that does not copy them itself.
        raw: direct access to the same state, for a backend that keeps bytes. Dirty entries are written there, many at
            once, without another check. Not together with `on_update` or `write_watch`.

    Raises:
        OptionError: a size below 1, a backend that carries no caches, no state, or a handle that has a TTL or a
            default; later, a use without a current key.
        DataError: an `update` with None, or with a value that the state cannot keep.

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
        self._l1 = new_cache("write-back", max_entries=max_size, on_evict=self._evict)
        self._layers = (self._l1,)
        self._put = self._l1.put
        backend.attach(self)

    def _evict(self, where: Where, entry: Entry, _: str) -> None:
        self._below.write(((where, entry),))
        self._below.let_go(where)
