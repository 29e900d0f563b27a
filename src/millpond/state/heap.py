"""The heap backend: state as plain Python objects, one dictionary per state and key group.

On the data path this is where a keyed operator's state lives while its host does; what is durable is
elsewhere (see `millpond.state.checkpoint`). The tables themselves, and how they remember what they
were, are in `heap_tables`; here are the backend around them and its snapshots.

Invariant: a commit walks over states and key groups, never over cells. What a snapshot needs of later
changes it finds in the versions after its own.

Trade-off: a change pays one dictionary test and, the first time in a version, one more entry. FLIP-325
and Flink's heap backend copy the bucket array at a checkpoint and a bucket's entries at the first
touch; here nothing is copied but mutable values that are handed out.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from millpond.errors import OptionError
from millpond.state.backend import Cells, KeyContext, ListState, MapState, ValueCache, ValueState
from millpond.state.descriptor import StateDescriptor, StateKind
from millpond.state.heap_tables import HeapListState, HeapMapState, HeapState, HeapValueState, Version
from millpond.state.rows import Row

S = TypeVar("S", bound=HeapState)

_KINDS: Mapping[StateKind, type[HeapState]] = {
    StateKind.VALUE: HeapValueState,
    StateKind.LIST: HeapListState,
    StateKind.MAP: HeapMapState,
}


class HeapBackend:
    """A `KeyedStateBackend` over Python dictionaries.

    >>> import pyarrow as pa
    >>> backend = HeapBackend(range(128))
    >>> visits = backend.value_state(
    ...     StateDescriptor("visits", StateKind.VALUE, pa.schema([("count", pa.int64())])))
    >>> backend.enter(7)
    >>> backend.context.key = ("ann",)
    >>> visits.update((1,))
    >>> first = backend.commit()
    >>> backend.enter(7)
    >>> visits.update((2,))
    >>> [(name, cells.keys, cells.values) for name, cells in first.changes()]
    [('visits', [('ann',)], [(1,)])]
    >>> backend.rollback()
    True
    >>> backend.enter(7)
    >>> visits.get()
    (1,)
    """

    shares_objects = True

    def __init__(self, key_groups: range) -> None:
        self.key_groups = key_groups
        self._context = KeyContext()
        self._states: dict[str, HeapState] = {}
        self._caches: list[ValueCache] = []

    @property
    def context(self) -> KeyContext:
        """Whose state the handles speak of."""
        return self._context

    def enter(self, key_group: int) -> None:
        """Bind every handle to the dictionaries of one key group."""
        if key_group not in self.key_groups:
            raise OptionError(f"key group {key_group} is not one of this shard's: {self.key_groups}.")
        self._context.key_group = key_group
        for state in self._states.values():
            state.bind(key_group)

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """The handle of a value state."""
        return self._declare(descriptor, HeapValueState)

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """The handle of a list state."""
        return self._declare(descriptor, HeapListState)

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """The handle of a map state."""
        return self._declare(descriptor, HeapMapState)

    def _declare(self, descriptor: StateDescriptor, kind: type[S]) -> S:
        known = self._states.get(descriptor.name)
        if known is None:
            known = self._states[descriptor.name] = kind(descriptor, self._context)
            if self._context.key_group >= 0:
                known.bind(self._context.key_group)
        if known.descriptor != descriptor or not isinstance(known, kind):
            raise OptionError(
                f"state {descriptor.name!r} is held as [{known.descriptor.describe()}] and was declared again as "
                f"[{descriptor.describe()}]. Give the new state another name; an operator that is restored declares "
                "its states before the restore."
            )
        return known

    def attach(self, cache: ValueCache) -> None:
        """Flush this cache before every commit; empty it when its state is undone or restored."""
        self._caches.append(cache)

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Every key that has the state, key group by key group."""
        state = self._known(name)
        for key_group in self.key_groups:
            for key in state.keys(key_group):
                yield key_group, key

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group, as it is now; none of a state that was never declared."""
        return self._states[name].cells(key_group) if name in self._states else Cells()

    def write(self, name: str, cells: Cells) -> None:
        """Put or delete cells in the open version."""
        self._known(name).write(cells)

    def _known(self, name: str) -> HeapState:
        if name not in self._states:
            raise OptionError(f"state {name!r} does not exist; declared are {sorted(self._states)}.")
        return self._states[name]

    def commit(self) -> "HeapSnapshot":
        """End the version: hold on to it, and begin a new one after it."""
        for cache in self._caches:
            cache.flush()
        snapshot = HeapSnapshot({name: (state, state.end_version()) for name, state in self._states.items()})
        self._leave()
        return snapshot

    def rollback(self) -> bool:
        """Write the old values of the open version back; whether there were any."""
        changed = [state.roll_back() for state in self._states.values()]
        self._undone()
        return any(changed)

    def undo_commit(self) -> None:
        """Write the old values of the open version and of the last committed one back."""
        for state in self._states.values():
            state.roll_back()
            state.undo_commit()
        self._undone()

    def _undone(self) -> None:
        self._leave()
        for cache in self._caches:
            cache.forget()

    def _leave(self) -> None:
        """No key is current: a handle that is used now must fail, not write somewhere."""
        self._context.key_group = -1
        for state in self._states.values():
            state.unbind()

    def settle(self) -> None:
        """Let go of what the last version replaced."""
        for state in self._states.values():
            state.settle()

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells, outside any version."""
        self._declare(descriptor, _KINDS[descriptor.kind]).load(cells)
        for cache in self._caches:
            cache.forget()

    def close(self) -> None:
        """Free everything."""
        self._states.clear()
        self._caches.clear()


class HeapSnapshot:
    """A committed version of a heap backend: a reference to what each state's tables were then."""

    def __init__(self, versions: Mapping[str, tuple[HeapState, Version]]) -> None:
        self._versions: Mapping[str, tuple[HeapState, Version]] | None = versions

    def changes(self) -> Iterator[tuple[str, Cells]]:
        """What the version changed, by state."""
        for name, (state, version) in self._held().items():
            changed = state.changes(version)
            if len(changed):
                yield name, changed

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group as of this version."""
        held = self._held()
        if name not in held:
            return Cells()
        state, version = held[name]
        return state.cells_as_of(version, key_group)

    def release(self) -> None:
        """Let the later versions go."""
        self._versions = None

    def _held(self) -> Mapping[str, tuple[HeapState, Version]]:
        if self._versions is None:
            raise OptionError("a snapshot was read after its release; read it first, and release it once.")
        return self._versions
