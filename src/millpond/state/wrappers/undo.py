"""A backend in which one key's call can be undone, while the rest of the open version stays.

On the data path it stands between user code and a backend that can undo only whole versions. An operator that sets
failed calls aside begins a `Call` before it calls user code, and undoes it if user code fails. Then everything the call
changed in its key's states, timers included, is as it was before.

Before a call's first change to a cell, the handle notes what the cell held. Undoing writes that back. So a failed call
costs what it changed, and a successful one costs a read of each cell it changes. A list is copied once per call.

Invariant: a call is undone only while no later call has used its key, and before the version ends.
"""

# ruff: noqa: D102 - the protocols in backend/ say what the methods do
from collections.abc import Callable, Iterable
from typing import Any

from millpond.state.backend.protocols import (
    KeyedStateBackend,
    ListState,
    MapState,
    Snapshot,
    ValueState,
)
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.rows import Row
from millpond.state.wrappers.forwarding import ForwardingBackend


class Call:
    """The changes of one call, by state and cell: how to write each cell back."""

    __slots__ = ("_backend", "_key", "_key_group", "_noted")

    def __init__(self, backend: KeyedStateBackend) -> None:
        self._backend = backend
        self._key_group = backend.context.key_group
        self._key = backend.context.key
        self._noted: dict[tuple[int, Row | None], Callable[[], None]] = {}

    def has(self, state: object, map_key: Row | None = None) -> bool:
        """Return whether a cell was noted already."""
        return (id(state), map_key) in self._noted

    def note(self, state: object, map_key: Row | None, put_back: Callable[[], None]) -> None:
        """Note how to write a cell back."""
        self._noted[id(state), map_key] = put_back

    def undo(self) -> None:
        """Write everything back. The call's key is current afterwards."""
        self._backend.enter(self._key_group)
        self._backend.context.key = self._key
        for put_back in self._noted.values():
            put_back()
        self._noted.clear()


class UndoableBackend(ForwardingBackend):
    """A `KeyedStateBackend` over another one, in which calls can be undone.

    >>> import pyarrow as pa
    >>> from millpond.state.types.descriptor import StateKind
    >>> from millpond.state.heap.backend import HeapBackend
    >>> backend = UndoableBackend(HeapBackend(range(8)))
    >>> seen = backend.value_state(StateDescriptor("seen", StateKind.VALUE, pa.schema([("count", pa.int64())])))
    >>> backend.enter(3)
    >>> backend.context.key = ("ada",)
    >>> seen.update((1,))
    >>> call = backend.begin_call()
    >>> seen.update((2,))
    >>> call.undo()
    >>> seen.get()
    (1,)
    """

    def __init__(self, inner: KeyedStateBackend) -> None:
        super().__init__(inner)
        self.call: Call | None = None

    def begin_call(self) -> Call:
        """Begin a call for the current key. The call before it can still be undone."""
        self.call = Call(self._inner)
        return self.call

    def end_call(self) -> None:
        """End the call: changes from now on belong to no call."""
        self.call = None

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        return _UndoableValue(self, self._inner.value_state(descriptor))

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        return _UndoableList(self, self._inner.list_state(descriptor))

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        return _UndoableMap(self, self._inner.map_state(descriptor))

    def commit(self) -> Snapshot:
        """End the version. No call can be undone any more."""
        self.call = None
        return self._inner.commit()

    def rollback(self) -> bool:
        self.call = None
        return self._inner.rollback()

    def undo_commit(self) -> None:
        self.call = None
        self._inner.undo_commit()


class _UndoableValue:
    __slots__ = ("_backend", "_state", "exists", "get")

    def __init__(self, backend: UndoableBackend, state: ValueState) -> None:
        self._backend = backend
        self._state = state
        self.exists = state.exists
        self.get = state.get

    def update(self, value: Any) -> None:
        self._note()
        self._state.update(value)

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        self._note()
        return self._state.update_with(change)

    def add(self, number: Any) -> Any:
        self._note()
        return self._state.add(number)

    def clear(self) -> None:
        self._note()
        self._state.clear()

    def _note(self) -> None:
        call, state = self._backend.call, self._state
        if call is None or call.has(state):
            return
        if state.exists():
            before = state.get()
            call.note(state, None, lambda: state.update(before))
        else:
            call.note(state, None, state.clear)


class _UndoableList:
    __slots__ = ("_backend", "_state", "exists", "get")

    def __init__(self, backend: UndoableBackend, state: ListState) -> None:
        self._backend = backend
        self._state = state
        self.exists = state.exists
        self.get = state.get

    def put(self, values: Iterable[Any]) -> None:
        self._note()
        self._state.put(values)

    def append(self, value: Any) -> None:
        self._note()
        self._state.append(value)

    def extend(self, values: Iterable[Any]) -> None:
        self._note()
        self._state.extend(values)

    def clear(self) -> None:
        self._note()
        self._state.clear()

    def _note(self) -> None:
        call, state = self._backend.call, self._state
        if call is None or call.has(state):
            return
        if state.exists():
            before = list(state.get())
            call.note(state, None, lambda: state.put(before))
        else:
            call.note(state, None, state.clear)


class _UndoableMap:
    __slots__ = ("_backend", "_state", "contains", "exists", "get", "items")

    def __init__(self, backend: UndoableBackend, state: MapState) -> None:
        self._backend = backend
        self._state = state
        self.exists = state.exists
        self.get = state.get
        self.contains = state.contains
        self.items = state.items

    def put(self, map_key: Row, value: Any) -> None:
        self._note(map_key)
        self._state.put(map_key, value)

    def remove(self, map_key: Row) -> None:
        self._note(map_key)
        self._state.remove(map_key)

    def clear(self) -> None:
        for map_key in [map_key for map_key, _ in self._state.items()]:
            self._note(map_key)
        self._state.clear()

    def _note(self, map_key: Row) -> None:
        call, state = self._backend.call, self._state
        if call is None or call.has(state, map_key):
            return
        if state.contains(map_key):
            before = state.get(map_key)
            call.note(state, map_key, lambda: state.put(map_key, before))
        else:
            call.note(state, map_key, lambda: state.remove(map_key))
