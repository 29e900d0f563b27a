"""The heap backend: state as plain Python objects, one dictionary per state and key group.

On the data path this is where a keyed operator's state lives while its host does; Spark's state
store holds the durable copy (see `millpond.state.checkpoint`).

One structure serves three ends. The first change of a cell in a version puts its old value into the
version's *undo* map. A rollback writes the old values back. The keys of the undo map are exactly the
cells that changed, so the delta is read off it. And a later change of the same cell costs one
dictionary test.

Invariant: for every cell, either it is in the undo map, or its live value is the committed one.

Values are immutable tuples and are handed out as they are. Where a schema nests lists or maps, a
value is copied when it goes in and when it comes out, so that user code can never change state
behind the undo map's back.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, TypeVar

from millpond.errors import OptionError
from millpond.state.backend import ABSENT, Cells, KeyContext, ListState, MapState, ValueState
from millpond.state.descriptor import StateDescriptor, StateKind
from millpond.state.rows import Row, RowCodec

_Table = dict[Row, Any]
S = TypeVar("S", bound="_HeapState")


class HeapBackend:
    """A `KeyedStateBackend` over Python dictionaries.

    >>> import pyarrow as pa
    >>> backend = HeapBackend(range(128))
    >>> visits = backend.value_state(
    ...     StateDescriptor("visits", StateKind.VALUE, pa.schema([("count", pa.int64())])))
    >>> backend.enter(7)
    >>> backend.context.key = ("ann",)
    >>> visits.update((1,))
    >>> changed = backend.commit()
    >>> changed["visits"].keys, changed["visits"].values
    ([('ann',)], [(1,)])
    >>> backend.enter(7)
    >>> visits.update((2,))
    >>> backend.rollback()
    True
    >>> backend.enter(7)
    >>> visits.get()
    (1,)
    """

    def __init__(self, key_groups: range) -> None:
        self.key_groups = key_groups
        self._context = KeyContext()
        self._states: dict[str, _HeapState] = {}

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
        return self._declare(descriptor, _HeapValueState)

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """The handle of a list state."""
        return self._declare(descriptor, _HeapListState)

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """The handle of a map state."""
        return self._declare(descriptor, _HeapMapState)

    def _declare(self, descriptor: StateDescriptor, kind: type[S]) -> S:
        known = self._states.get(descriptor.name)
        if known is None:
            known = self._states[descriptor.name] = kind(descriptor, self._context)
        if known.descriptor != descriptor or not isinstance(known, kind):
            raise OptionError(
                f"state {descriptor.name!r} is held as [{known.descriptor.describe()}] and was declared again as "
                f"[{descriptor.describe()}]. Give the new state another name."
            )
        return known

    def commit(self) -> Mapping[str, Cells]:
        """End the version: the cells in the undo maps, with their present values."""
        changed = {name: state.commit() for name, state in self._states.items()}
        return {name: cells for name, cells in changed.items() if len(cells)}

    def rollback(self) -> bool:
        """Write the old values of the open version back; whether there were any."""
        changed = any(undo for state in self._states.values() for undo in state.undo.values())
        for state in self._states.values():
            state.revert(state.undo)
            state.undo = {}
            state.unbind()
        return changed

    def undo_commit(self) -> None:
        """Write the old values of the last committed version back."""
        self.rollback()
        for state in self._states.values():
            state.revert(state.committed_undo)
            state.committed_undo = {}

    def settle(self) -> None:
        """Let go of what the last version replaced."""
        for state in self._states.values():
            state.committed_undo = {}

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group."""
        state = self._states.get(name)
        return Cells() if state is None else state.cells(key_group)

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells, outside any version."""
        kinds = {StateKind.VALUE: _HeapValueState, StateKind.LIST: _HeapListState, StateKind.MAP: _HeapMapState}
        self._declare(descriptor, kinds[descriptor.kind]).load(cells)

    def close(self) -> None:
        """Free everything."""
        self._states.clear()


class _NoKeyGroup:
    """Stands where a table would while no key group is entered, and refuses every use by name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object) -> Any:
        raise OptionError(
            f"state {self._name!r} was used without a current key. Use it only inside the calls that are made for a "
            "key, not in init() or close()."
        )

    get = pop = setdefault = __contains__ = __getitem__ = __setitem__ = _refuse


class _HeapState:
    """What the three kinds share: tables and undo maps by key group, flat unless a kind says otherwise."""

    def __init__(self, descriptor: StateDescriptor, context: KeyContext) -> None:
        self.descriptor = descriptor
        self._context = context
        self._codec = RowCodec(descriptor.value_schema, f"state {descriptor.name!r}")
        self._check = self._codec.check
        self._tables: dict[int, _Table] = {}
        self.undo: dict[int, _Table] = {}
        self.committed_undo: dict[int, _Table] = {}
        self._table: Any
        self._undo: Any
        self.unbind()

    def bind(self, key_group: int) -> None:
        self._table = self._tables.setdefault(key_group, {})
        self._undo = self.undo.setdefault(key_group, {})

    def unbind(self) -> None:
        """No key group is entered: a handle that is used now must fail, not write somewhere."""
        self._table = self._undo = _NoKeyGroup(self.descriptor.name)

    def commit(self) -> Cells:
        changed = Cells()
        for key_group, undo in sorted(self.undo.items()):
            table = self._tables[key_group]
            changed.key_groups.extend(repeat(key_group, len(undo)))
            changed.keys.extend(undo)
            changed.values.extend(map(table.get, undo, repeat(ABSENT)))
        self.committed_undo, self.undo = self.undo, {}
        self.unbind()
        return changed

    def revert(self, undo: dict[int, _Table]) -> None:
        for key_group, old_values in undo.items():
            table = self._tables[key_group]
            for key, old in old_values.items():
                if old is ABSENT:
                    table.pop(key, None)
                else:
                    table[key] = old

    def cells(self, key_group: int) -> Cells:
        table = self._tables.get(key_group, {})
        return Cells([key_group] * len(table), list(table), None, list(table.values()))

    def load(self, cells: Cells) -> None:
        for key_group, key, value in zip(cells.key_groups, cells.keys, cells.values, strict=True):
            table = self._tables.setdefault(key_group, {})
            if value is ABSENT:
                table.pop(key, None)
            else:
                table[key] = value

    def exists(self) -> bool:
        return self._context.key in self._table

    def clear(self) -> None:
        key, table = self._context.key, self._table
        if key in table:
            self._undo.setdefault(key, table[key])
            del table[key]


class _HeapValueState(_HeapState):
    def get(self) -> Row | None:
        value: Row | None = self._table.get(self._context.key)
        return copy.deepcopy(value) if self._codec.mutable else value

    def update(self, value: Row) -> None:
        checked = self._check(value)
        key, table, undo = self._context.key, self._table, self._undo
        if key not in undo:
            undo[key] = table.get(key, ABSENT)
        table[key] = checked


class _HeapListState(_HeapState):
    """Lists are changed in place after a version's first touch, which leaves the old list to the undo map."""

    def get(self) -> Iterator[Row]:
        values: Iterable[Row] = self._table.get(self._context.key, ())
        return iter(copy.deepcopy(tuple(values)) if self._codec.mutable else tuple(values))

    def put(self, values: Iterable[Row]) -> None:
        checked = [self._check(value) for value in values]
        key, table, undo = self._context.key, self._table, self._undo
        if key not in undo:
            undo[key] = table.get(key, ABSENT)
        table[key] = checked

    def append(self, value: Row) -> None:
        self.extend((value,))

    def extend(self, values: Iterable[Row]) -> None:
        checked = [self._check(value) for value in values]
        key, table, undo = self._context.key, self._table, self._undo
        if key not in undo:
            old = undo[key] = table.get(key, ABSENT)
            table[key] = checked if old is ABSENT else [*old, *checked]
        else:
            table.setdefault(key, []).extend(checked)


class _HeapMapState(_HeapState):
    """Tables and undo maps have a second level, by map key: entries change, and travel, alone."""

    def __init__(self, descriptor: StateDescriptor, context: KeyContext) -> None:
        super().__init__(descriptor, context)
        self._check_key = RowCodec(_map_key_schema(descriptor), f"key of map state {descriptor.name!r}").check_key()

    def get(self, map_key: Row) -> Row | None:
        value: Row | None = self._table.get(self._context.key, {}).get(self._check_key(map_key))
        return copy.deepcopy(value) if self._codec.mutable else value

    def contains(self, map_key: Row) -> bool:
        return self._check_key(map_key) in self._table.get(self._context.key, ())

    def put(self, map_key: Row, value: Row) -> None:
        checked_key, checked = self._check_key(map_key), self._check(value)
        entries = self._table.setdefault(self._context.key, {})
        undo = self._undo.setdefault(self._context.key, {})
        if checked_key not in undo:
            undo[checked_key] = entries.get(checked_key, ABSENT)
        entries[checked_key] = checked

    def remove(self, map_key: Row) -> None:
        key, checked_key = self._context.key, self._check_key(map_key)
        entries = self._table.get(key, {})
        if checked_key in entries:
            self._undo.setdefault(key, {}).setdefault(checked_key, entries.pop(checked_key))
            if not entries:
                del self._table[key]

    def items(self) -> Iterator[tuple[Row, Row]]:
        entries = tuple(self._table.get(self._context.key, {}).items())
        return iter(copy.deepcopy(entries) if self._codec.mutable else entries)

    def clear(self) -> None:
        key = self._context.key
        entries = self._table.pop(key, None)
        if entries:
            undo = self._undo.setdefault(key, {})
            for map_key, value in entries.items():
                undo.setdefault(map_key, value)

    def commit(self) -> Cells:
        changed = Cells(map_keys=[])
        for key_group, undo in sorted(self.undo.items()):
            for key, old_entries in undo.items():
                entries = self._tables[key_group].get(key, {})
                _add_entries(changed, key_group, key, {at: entries.get(at, ABSENT) for at in old_entries})
        self.committed_undo, self.undo = self.undo, {}
        self.unbind()
        return changed

    def revert(self, undo: dict[int, _Table]) -> None:
        for key_group, old_entries in undo.items():
            table = self._tables[key_group]
            for key, old_values in old_entries.items():
                entries = table.get(key, {}) | old_values
                table[key] = {at: value for at, value in entries.items() if value is not ABSENT}
                if not table[key]:
                    del table[key]

    def cells(self, key_group: int) -> Cells:
        found = Cells(map_keys=[])
        for key, entries in self._tables.get(key_group, {}).items():
            _add_entries(found, key_group, key, entries)
        return found

    def load(self, cells: Cells) -> None:
        map_keys = cells.map_keys or []
        for key_group, key, map_key, value in zip(cells.key_groups, cells.keys, map_keys, cells.values, strict=True):
            table = self._tables.setdefault(key_group, {})
            entries = table.setdefault(key, {})
            if value is ABSENT:
                entries.pop(map_key, None)
            else:
                entries[map_key] = value
            if not entries:
                del table[key]


def _add_entries(cells: Cells, key_group: int, key: Row, entries: Mapping[Row, Any]) -> None:
    cells.key_groups.extend(repeat(key_group, len(entries)))
    cells.keys.extend(repeat(key, len(entries)))
    if cells.map_keys is not None:
        cells.map_keys.extend(entries)
    cells.values.extend(entries.values())


def _map_key_schema(descriptor: StateDescriptor) -> Any:
    if descriptor.map_key_schema is None:
        raise OptionError(f"state {descriptor.name!r} is a {descriptor.kind} state and has no map keys.")
    return descriptor.map_key_schema
