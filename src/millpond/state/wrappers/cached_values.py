"""A backend that carries King's caches in front of its value states, and flushes them.

On the data path it stands between an operator and its backend, and mostly adds nothing: `enter`, the handles of list
and map states, and those of value states without a cache are the backend's own.

Invariant: a reader of state that does not use a cached handle (a commit, `keys`, `cells`) finds in the backend what
the caches hold. So dirty entries are written before such a read, without anyone having to remember it. They are
dropped only if the state itself is dropped: by a rollback, a restore, or `close`.

The trade-off: reading all keys in the middle of a version writes early what a commit would write.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from millpond.state.backend.declarations import open_version
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.protocols import Cells, KeyedStateBackend, RawCells, Snapshot, ValueCache, ValueState
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.rows import Row
from millpond.state.types.ttl import Ttl
from millpond.state.wrappers.choice import CacheHooks, TwoLayer, ValueCacheChoice
from millpond.state.wrappers.forwarding import ForwardingBackend
from millpond.state.wrappers.king.state_access import Hook, Watching, Where
from millpond.state.wrappers.king.two_layer import TwoLayerCache
from millpond.state.wrappers.king.write_back import WriteBackCache


class CachedValues(ForwardingBackend):
    """A `KeyedStateBackend` over another one, with caches in front of its value states.

    Args:
        inner: holds the state. Nothing else may use it from now on. It is closed with this one.
        choice: the cache in front of each value state; None for a cache only where `cached_value_state` asks for one.

    >>> import pyarrow as pa
    >>> from millpond.state import WriteBack
    >>> from millpond.state.spi import HeapBackend, StateKind
    >>> backend = CachedValues(HeapBackend(range(128)), WriteBack(max_size=1000))
    >>> visits = backend.value_state(StateDescriptor("visits", StateKind.VALUE, pa.schema([("count", pa.int64())])))
    >>> backend.enter(7); backend.context.key = ("ann",)
    >>> visits.update((1,))
    >>> visits.dirty_size(), list(backend.keys("visits")), visits.dirty_size()
    (1, [(7, ('ann',))], 0)
    """

    def __init__(self, inner: KeyedStateBackend, choice: ValueCacheChoice | None = None) -> None:
        super().__init__(inner)
        self._choice = choice
        self._caches: dict[str, WriteBackCache | TwoLayerCache] = {}
        self._attached: list[ValueCache] = []
        self.enter = inner.enter  # type: ignore[method-assign]
        """Enter a key group. This is the backend's own method, because records of a new key group pay for it."""

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """Return the handle of a value state: its cache, if it has one or one was chosen for all states."""
        if descriptor.name in self._caches or self._choice is None:
            state = self._inner.value_state(descriptor)
            return self._caches.get(descriptor.name, state)
        return self.cached_value_state(descriptor, self._choice)

    def cached_value_state(self, descriptor: StateDescriptor, choice: ValueCacheChoice) -> ValueState:
        """Return the handle of a value state behind a cache of its own. Call this before any other use of the state."""
        # The backend rejects a second declaration that differs.
        state = self._inner.value_state(descriptor)
        cache = self._caches[descriptor.name] = self._cache(descriptor.name, state, descriptor.ttl, choice)
        return cache

    def _cache(
        self, name: str, state: ValueState, ttl: Ttl | None, choice: ValueCacheChoice
    ) -> WriteBackCache | TwoLayerCache:
        hooks, watching = choice.hooks, _watching(choice.hooks, ttl, self.context)
        if not (self.shares_objects or hooks.on_update or hooks.write_watch):
            # The backend encodes the checked values itself, so many can be written at once if no hook needs each one.
            watching["raw"] = self._inner.raw(name)
        if isinstance(choice, TwoLayer):
            return TwoLayerCache(
                self,
                state,
                max_size=choice.max_size,
                max_size_l2=choice.max_size_l2,
                hit_tracker=hooks.hit_tracker,
                hit_tracker_l2=hooks.hit_tracker_l2,
                **watching,
            )
        return WriteBackCache(self, state, max_size=choice.max_size, hit_tracker=hooks.hit_tracker, **watching)

    def attach(self, cache: ValueCache) -> None:
        """Have a cache flushed before state is read past it, and emptied when state is undone or restored.

        Caches are flushed last one first, since the last may stand in front of another's handle.
        """
        self._attached.append(cache)

    def write_dirty(self) -> None:
        """Write the caches' dirty entries to the backend. After an error, entries that were not written stay dirty."""
        for cache in reversed(self._attached):
            cache.update_all_states()

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Yield key group and key of every key that has this state now, each once."""
        self.write_dirty()
        return self._inner.keys(name)

    def cells(self, name: str, key_group: int) -> Cells:
        """Return every cell of a state in one key group as it is now."""
        self.write_dirty()
        return self._inner.cells(name, key_group)

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Return every cell of a state in one key group as bytes; None if there are no bytes. Between two versions."""
        self.write_dirty()
        return self._inner.raw_cells(name, key_group)

    def write(self, name: str, cells: Cells) -> None:
        """Put or delete cells in the open version, and drop them from the caches."""
        self._inner.write(name, cells)
        if name in self._caches:
            self._caches[name].overwritten(cells)

    def raw(self, name: str) -> RawCells:
        """Return direct access to the cells of a declared state. A dirty entry is written before it is read."""
        cells, cache = self._inner.raw(name), self._caches.get(name)
        return cells if cache is None else _CachedCells(cells, cache)

    def commit(self) -> Snapshot:
        """Write dirty entries, then end the version. If writing fails, nothing is committed."""
        for cache in reversed(self._attached):
            cache.flush()
        return self._inner.commit()

    def rollback(self) -> bool:
        """Drop every change since the last commit. Return whether there was any."""
        dirty = any(cache.dirty_size() for cache in self._caches.values())
        changed = self._inner.rollback()
        self._forget()
        return changed or dirty

    def undo_commit(self) -> None:
        """Revert the last commit, and what came after it."""
        self._inner.undo_commit()
        self._forget()

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells as part of a restore."""
        self._load(self._inner.load, descriptor, cells)

    def load_raw(self, descriptor: StateDescriptor, key_group: int, pairs: Iterable[Pair]) -> None:
        """Put cells as part of a restore, given as bytes."""
        self._load(self._inner.load_raw, descriptor, key_group, pairs)

    def _load(self, load: Callable[..., None], descriptor: StateDescriptor, *cells: Any) -> None:
        if any(cache.dirty_size() for cache in self._caches.values()):
            raise open_version(descriptor.name)
        load(descriptor, *cells)
        self._forget()

    def close(self) -> None:
        """Free everything, the backend included. Dirty entries are dropped, as is the state itself. Idempotent."""
        self._forget()
        self._inner.close()

    def _forget(self) -> None:
        for cache in self._attached:
            cache.forget()


class _CachedCells:
    """The `RawCells` of a state behind a cache. Reads are not counted as the cache's, and not kept in it."""

    def __init__(self, inner: RawCells, cache: WriteBackCache | TwoLayerCache) -> None:
        self._inner = inner
        self._cache = cache

    def place(self, key_group: int, cell: Any) -> tuple[Where, Any]:
        """Return the key, and the place of its value in the backend."""
        return (key_group, cell), self._inner.place(key_group, cell)

    def read(self, place: tuple[Where, Any]) -> Any:
        where, inner = place
        self._cache.write_key(where)
        return self._inner.read(inner)

    def read_all(self, places: list[tuple[Where, Any]]) -> list[Any]:
        return list(map(self.read, places))

    def put_all(self, places: list[tuple[Where, Any]], values: list[Any]) -> None:
        self._inner.put_all([inner for _, inner in places], values)
        wheres = [where for where, _ in places]
        self._cache.overwritten(Cells([group for group, _ in wheres], [key for _, key in wheres]))

    def of_key(self, key_group: int, key: Row) -> Cells:
        self._cache.write_key((key_group, key))
        return self._inner.of_key(key_group, key)


def _watching(hooks: CacheHooks, ttl: Ttl | None, context: KeyContext) -> Watching:
    on_get, on_update = hooks.on_get, hooks.on_update
    if ttl is not None:
        on_get = on_get and partial(_got, on_get, ttl, context)
        on_update = on_update and partial(_updated, on_update, context)
    return Watching(on_get=on_get, on_update=on_update, read_watch=hooks.read_watch, write_watch=hooks.write_watch)


def _got(on_get: Hook, ttl: Ttl, context: KeyContext, key: Row, stamped: Any) -> Any:
    """Call `on_get` for a state with a TTL, whose values are stored beside the beginning of their lives."""
    expired = stamped is not None and ttl.visibility == "never" and ttl.expired(stamped[1], context.now_ms)
    value = on_get(key, None if stamped is None or expired else stamped[0])
    if value is None:
        return stamped if expired else None
    return value, context.now_ms if stamped is None or expired else stamped[1]


def _updated(on_update: Hook, context: KeyContext, key: Row, stamped: Any) -> Any:
    value = on_update(key, None if stamped is None else stamped[0])
    if value is None:
        return None
    return value, context.now_ms if stamped is None else stamped[1]
