"""The heap backend: state as plain Python objects, one dictionary per state and key group.

On the data path, a keyed operator's state lives here as long as its host does. The checkpoint holds the durable
copy (see `millpond.state.checkpoint`).

A version consists of the undo maps of its states: the cells in them changed, and can be undone. A commit only
replaces them by empty ones, so it costs the same for one changed cell and for a million. Whoever writes the checkpoint
reads the snapshot later, in any thread, from tables that the next records change. `millpond.state.heap.tables`
explains why that is correct.

Invariant: for every cell, either the open version has its old value, or its live value is the committed one.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from millpond.errors import UnavailableError
from millpond.state.backend.declarations import Declarations, foreign_key_group, open_version
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.plain import PlainBackend, PlainSnapshot
from millpond.state.backend.protocols import Cells, ListState, MapState, RawCells, Snapshot, ValueState
from millpond.state.heap.states import BoundState, HeapListState, HeapMapState, HeapState, HeapValueState
from millpond.state.heap.tables import FlatTables
from millpond.state.heap.versions import Version
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.rows import Row


class HeapBackend(PlainBackend):
    """A `KeyedStateBackend` over Python dictionaries.

    Args:
        key_groups: of the shard.

    >>> import pyarrow as pa
    >>> backend = HeapBackend(range(128))
    >>> visits = backend.value_state(
    ...     StateDescriptor("visits", StateKind.VALUE, pa.schema([("count", pa.int64())])))
    >>> backend.enter(7)
    >>> backend.context.key = ("ann",)
    >>> visits.update((1,))
    >>> snapshot = backend.commit()
    >>> backend.enter(7)
    >>> backend.context.key = ("ann",)
    >>> visits.update((2,))
    >>> [(name, cells.keys, cells.values) for name, cells in snapshot.changes()]
    [('visits', [('ann',)], [(1,)])]
    >>> backend.rollback()
    True
    >>> backend.cells("visits", 7).values
    [(1,)]
    """

    shares_objects = True
    """Whether it keeps the very objects it is given: yes."""

    def __init__(self, key_groups: range) -> None:
        self.key_groups = key_groups
        self.context = KeyContext()
        """The current key, and the time."""
        self._declared = Declarations(_KINDS, self._make)
        self.states = self._declared.states
        """Every declared state, by name: for a backend that moves tables elsewhere."""
        self.bound: list[BoundState] = []
        """The handles that `enter` binds, for a wrapper that replaces `enter`."""
        self.enter: Callable[[int], None] = _entering(self.context, key_groups, self.bound)
        """Bind every handle to the dictionaries of one key group."""

    def rebind(self, key_group: int) -> None:
        """Bind the handles again to a key group's dictionaries, if it is the current one."""
        if self.context.key_group == key_group:
            for state in self.bound:
                state.bind(key_group)

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """Return the handle of a value state."""
        return self.declare_value(descriptor)

    def declare_value(self, descriptor: StateDescriptor) -> HeapValueState:
        """Return the same with its heap type, which has batch access: for a wrapper that counts accesses."""
        return self._declared.declare(descriptor, HeapValueState)

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """Return the handle of a list state."""
        return self._declared.declare(descriptor, HeapListState)

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """Return the handle of a map state."""
        return self._declared.declare(descriptor, HeapMapState)

    def _make(self, kind: type[HeapState], descriptor: StateDescriptor) -> HeapState:
        made = kind(descriptor, self.context)
        if isinstance(made, BoundState):
            self.bound.append(made)
            if self.context.key_group in self.key_groups:
                made.bind(self.context.key_group)
        return made

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Yield key group and key of every key that has this state now, each once."""
        state = self.states.get(name)
        return iter(()) if state is None else state.tables.keys()

    def cells(self, name: str, key_group: int) -> Cells:
        """Return every cell of a state in one key group as it is now."""
        state = self.states.get(name)
        return Cells() if state is None else state.tables.cells(key_group)

    def write(self, name: str, cells: Cells) -> None:
        """Put or delete cells in the open version."""
        self._declared.find(name).write(cells)

    def raw(self, name: str) -> RawCells:
        """Return direct access to the cells of a declared state."""
        return self._declared.find(name)

    def commit(self) -> Snapshot:
        """End the version. This reads and copies nothing."""
        versions = {name: (state.tables, state.end_version()) for name, state in self.states.items()}
        self.context.leave()
        return _HeapSnapshot(versions)

    def rollback(self) -> bool:
        """Write the old values of the open version back. Return whether there were any."""
        changed = any(state.tables.changed() for state in self.states.values())
        for state in self.states.values():
            state.tables.roll_back()
        self._undone()
        return changed

    def undo_commit(self) -> None:
        """Revert the last committed version: write its old values back."""
        for state in self.states.values():
            state.tables.roll_back()
            if state.last is not None:
                state.tables.revert(state.last)
        self.acknowledge()
        self._undone()

    def acknowledge(self) -> None:
        """Free what the last version replaced."""
        for state in self.states.values():
            state.last = None

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells as part of a restore, as a version whose changes nobody reads."""
        state = self._declared.restore(descriptor)
        if any(known.tables.changed() for known in self.states.values()):
            raise open_version(descriptor.name)
        state.tables.write(cells)
        state.tables.end_version()
        self.acknowledge()
        self._undone()

    def close(self) -> None:
        """Free everything. A handle that is used afterwards fails like one without a current key."""
        for state in self.states.values():
            state.leave_version()
        self.states.clear()
        self.bound.clear()
        self.context.leave()

    def _undone(self) -> None:
        for state in self.states.values():
            state.leave_version()
        self.context.leave()


def _entering(context: KeyContext, key_groups: range, bound: list[BoundState]) -> Callable[[int], None]:
    """Return `enter` as a function over local variables, which is faster than over attributes."""
    first, stop = key_groups.start, key_groups.stop

    def enter(key_group: int) -> None:
        if not first <= key_group < stop:
            raise foreign_key_group(key_group, key_groups)
        context.key_group = key_group
        if bound:
            for state in bound:
                state.bind(key_group)

    return enter


class _HeapSnapshot(PlainSnapshot):
    """One committed version: for each state, its tables and the version in their chain."""

    def __init__(self, versions: dict[str, tuple[FlatTables[Any], Version]]) -> None:
        self._versions: dict[str, tuple[FlatTables[Any], Version]] | None = versions

    def states(self) -> Collection[str]:
        return self._readable().keys()

    def changes(self) -> Iterator[tuple[str, Cells]]:
        """Yield the changed cells, each state in one piece."""
        for name, (tables, version) in self._readable().items():
            cells = tables.changes_of(version)
            if len(cells):
                yield name, cells

    def changed_cells(self) -> Mapping[str, int] | None:
        """Return how many cells of each state the version changed; None if lists did."""
        changed: dict[str, int] = {}
        for name, (tables, version) in self._readable().items():
            of_state = tables.count_changes(version)
            if of_state is None:
                return None
            changed[name] = of_state
        return changed

    def cells(self, name: str, key_group: int) -> Cells:
        versions = self._readable()
        if name not in versions:
            return Cells()
        tables, version = versions[name]
        return tables.cells_as_of(version, key_group)

    def release(self) -> None:
        """Drop the version, so that what only this snapshot held is garbage. Idempotent."""
        self._versions = None

    def _readable(self) -> dict[str, tuple[FlatTables[Any], Version]]:
        if self._versions is None:
            raise UnavailableError("this snapshot of the state was released; it cannot be read any more.")
        return self._versions


_KINDS: dict[StateKind, type[HeapState]] = {
    StateKind.VALUE: HeapValueState,
    StateKind.LIST: HeapListState,
    StateKind.MAP: HeapMapState,
}
