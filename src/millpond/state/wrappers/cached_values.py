"""A backend whose value states stand behind King's caches: the one that carries them, and flushes them.

On the data path it stands between an operator and its backend, and mostly is not there: `enter`, the
handles of list and map states and those of value states that nobody wants cached are the backend's own.

Invariant: whoever looks at state other than through a cached handle (a commit, `keys`, `cells`) finds
in the backend what the caches have. So what is dirty is written first, by nobody's remembering; it is
dropped only where the state itself goes: by a rollback, a restore, or `close`.

The trade-off: looking at all keys in the middle of a version writes early what a commit would write.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from millpond.state.backend.declarations import open_version
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.protocols import (
    Cells,
    KeyContext,
    KeyedStateBackend,
    RawCells,
    Snapshot,
    ValueCache,
    ValueState,
)
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
        inner: where state is held; nobody else may use it from now on. It is closed with this one.
        choice: the cache in front of each value state; None for those alone that `cached_value_state` asks for.

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
        """Turn to a key group: the backend's own method, since every record of another key group pays for it."""

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """The handle of a value state: behind the cache it has, else behind the one chosen for all."""
        if descriptor.name in self._caches or self._choice is None:
            state = self._inner.value_state(descriptor)
            return self._caches.get(descriptor.name, state)
        return self.cached_value_state(descriptor, self._choice)

    def cached_value_state(self, descriptor: StateDescriptor, choice: ValueCacheChoice) -> ValueState:
        """The handle of a value state behind a cache of its own. Ask for it before the state is used otherwise."""
        # The backend refuses a second declaration that differs.
        state = self._inner.value_state(descriptor)
        cache = self._caches[descriptor.name] = self._cache(descriptor.name, state, descriptor.ttl, choice)
        return cache

    def _cache(
        self, name: str, state: ValueState, ttl: Ttl | None, choice: ValueCacheChoice
    ) -> WriteBackCache | TwoLayerCache:
        hooks, watching = choice.hooks, _watching(choice.hooks, ttl, self.context)
        if not (self.shares_objects or hooks.on_update or hooks.write_watch):
            # Bytes are made of the checked values as they are, many at once, where nobody wants to hear of each.
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
        """Have a cache flushed before state is looked at, and emptied when it is undone or restored.

        The last one first, since it may stand in front of another's handle.
        """
        self._attached.append(cache)

    def write_dirty(self) -> None:
        """Have the backend hold what the caches do. At an error what was not written stays dirty."""
        for cache in reversed(self._attached):
            cache.update_all_states()

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Key group and key of every key that has this state now, each once."""
        self.write_dirty()
        return self._inner.keys(name)

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group as it is now."""
        self.write_dirty()
        return self._inner.cells(name, key_group)

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Every cell of a state in one key group as bytes; None where they are not as such. Between two versions."""
        self.write_dirty()
        return self._inner.raw_cells(name, key_group)

    def write(self, name: str, cells: Cells) -> None:
        """Put or delete cells in the open version; the caches forget what they knew of them."""
        self._inner.write(name, cells)
        if name in self._caches:
            self._caches[name].overwritten(cells)

    def raw(self, name: str) -> RawCells:
        """The cells of a declared state past its handle; a cached one is written before it is read."""
        cells, cache = self._inner.raw(name), self._caches.get(name)
        return cells if cache is None else _CachedCells(cells, cache)

    def commit(self) -> Snapshot:
        """End the version, after what is dirty was written. Where that fails nothing is committed."""
        for cache in reversed(self._attached):
            cache.flush()
        return self._inner.commit()

    def rollback(self) -> bool:
        """Drop every change since the last commit; whether there was any."""
        dirty = any(cache.dirty_size() for cache in self._caches.values())
        changed = self._inner.rollback()
        self._forget()
        return changed or dirty

    def undo_commit(self) -> None:
        """Take the last commit back, and what came after it."""
        self._inner.undo_commit()
        self._forget()

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells as part of a restore."""
        self._load(self._inner.load, descriptor, cells)

    def load_raw(self, descriptor: StateDescriptor, key_group: int, pairs: Iterable[Pair]) -> None:
        """Put cells that are bytes as part of a restore."""
        self._load(self._inner.load_raw, descriptor, key_group, pairs)

    def _load(self, load: Callable[..., None], descriptor: StateDescriptor, *cells: Any) -> None:
        if any(cache.dirty_size() for cache in self._caches.values()):
            raise open_version(descriptor.name)
        load(descriptor, *cells)
        self._forget()

    def close(self) -> None:
        """Free everything, the backend too. What is dirty goes with the state that it belongs to. Idempotent."""
        self._forget()
        self._inner.close()

    def _forget(self) -> None:
        for cache in self._attached:
            cache.forget()


class _CachedCells:
    """The `RawCells` of a state behind a cache, which neither counts what is read nor makes room for it."""

    def __init__(self, inner: RawCells, cache: WriteBackCache | TwoLayerCache) -> None:
        self._inner = inner
        self._cache = cache

    def place(self, key_group: int, cell: Any) -> tuple[Where, Any]:
        """The key, and where the backend has its value."""
        return (key_group, cell), self._inner.place(key_group, cell)

    def read(self, place: tuple[Where, Any]) -> Any:
        """A key's value as it is now."""
        where, inner = place
        self._cache.write_key(where)
        return self._inner.read(inner)

    def read_all(self, places: list[tuple[Where, Any]]) -> list[Any]:
        """The same of many keys."""
        return list(map(self.read, places))

    def put_all(self, places: list[tuple[Where, Any]], values: list[Any]) -> None:
        """Put or delete values; the cache forgets what it knew of them."""
        self._inner.put_all([inner for _, inner in places], values)
        wheres = [where for where, _ in places]
        self._cache.overwritten(Cells([group for group, _ in wheres], [key for _, key in wheres]))

    def of_key(self, key_group: int, key: Row) -> Cells:
        """The cell of a key as it is now."""
        self._cache.write_key((key_group, key))
        return self._inner.of_key(key_group, key)


def _watching(hooks: CacheHooks, ttl: Ttl | None, context: KeyContext) -> Watching:
    on_get, on_update = hooks.on_get, hooks.on_update
    if ttl is not None:
        on_get = on_get and partial(_got, on_get, ttl, context)
        on_update = on_update and partial(_updated, on_update, context)
    return Watching(on_get=on_get, on_update=on_update, read_watch=hooks.read_watch, write_watch=hooks.write_watch)


def _got(on_get: Hook, ttl: Ttl, context: KeyContext, key: Row, stamped: Any) -> Any:
    """`on_get` of a state with a ttl, whose values have the beginning of their lives beside them."""
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
