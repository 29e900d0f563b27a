"""The heap backend's tables: what each state holds, and how it remembers what it held before.

The structure is a live table per key group and a chain of *versions*, each with an *undo map*. The
first change of a cell in a version puts its old value into the undo map, so:

- the undo map's keys are what the version changed: its delta;
- writing the old values back undoes the version;
- a cell as of version N is the first old value found in the versions after N, else the live value.

The chain links forward only, and only snapshots hold on to its older versions: what no snapshot needs
is garbage, without any counting.

A snapshot may be read in one thread while another changes the state, without a lock. The writer puts
the old value into the undo map before it changes the table; the reader reads the table before it looks
into the undo maps. Whichever comes first, the reader gets the value of its version. Whole dictionaries
are only ever read by `dict.copy`, which no other thread can interrupt.

Mutable values (lists, dictionaries, objects) are handed out as private copies, one per cell and
version, kept in `handed` until the version ends; the table keeps the original, which may belong to a
snapshot. After an `update` in the same version the table's value is the caller's own.

Source of the idea: Flink's CopyOnWriteStateMap, which FLIP-325 builds on, and undo logs in databases.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any

from millpond.errors import OptionError
from millpond.state.backend import ABSENT, Cells, KeyContext
from millpond.state.descriptor import StateDescriptor
from millpond.state.rows import Row, RowCodec

_Table = dict[Row, Any]


class Version:
    """What one version replaced, by key group, and what it handed out."""

    __slots__ = ("handed", "next", "undo")

    def __init__(self) -> None:
        self.undo: dict[int, _Table] = {}
        self.handed: _Table = {}
        self.next: Version | None = None

    def later_undos(self, key_group: int) -> list[_Table]:
        """The undo maps after this version that may hold its values, the latest first."""
        found: list[_Table] = []
        version = self.next
        while version is not None:
            undo = version.undo.get(key_group)
            if undo:
                found.append(undo)
            version = version.next
        found.reverse()
        return found


class _CurrentCell:
    """Names a value in errors by its state and the current key."""

    def __init__(self, what: str, context: KeyContext) -> None:
        self._what = what
        self._context = context

    def __str__(self) -> str:
        return f"{self._what} of key {self._context.key!r}"


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


class HeapState:
    """What the three kinds share: tables and undo maps by key group, flat unless a kind says otherwise."""

    def __init__(self, descriptor: StateDescriptor, context: KeyContext) -> None:
        self.descriptor = descriptor
        self._context = context
        self._codec = descriptor.codec(_CurrentCell(f"state {descriptor.name!r}", context))
        self._check = self._codec.check
        self._copy = self._codec.copy
        self._mutable = self._codec.mutable
        self._tables: dict[int, _Table] = {}
        self._version = Version()
        self._committed: Version | None = None
        self._table: Any
        self._undo: Any
        self.unbind()

    def bind(self, key_group: int) -> None:
        self._table = self._tables.setdefault(key_group, {})
        self._undo = self._version.undo.setdefault(key_group, {})

    def unbind(self) -> None:
        self._table = self._undo = _NoKeyGroup(self.descriptor.name)

    def end_version(self) -> Version:
        self._committed = self._version
        self._begin_version()
        return self._committed

    def _begin_version(self) -> None:
        ended = self._version
        ended.handed = {}
        self._version = ended.next = Version()

    def roll_back(self) -> bool:
        """Undo the open version. Its undo map stays as it is, since a snapshot may be reading it."""
        undo = self._version.undo
        changed = any(undo.values())
        if changed:
            self._revert(undo)
            self._begin_version()
        self._version.handed = {}
        return changed

    def undo_commit(self) -> None:
        """Undo the last committed version, as a change of its own, so that its snapshot stays what it is."""
        if self._committed is not None:
            for key_group, old_values in self._committed.undo.items():
                self._change(key_group, old_values)
            self._begin_version()
        self._committed = None

    def settle(self) -> None:
        self._committed = None

    def _revert(self, undo: Mapping[int, _Table]) -> None:
        for key_group, old_values in undo.items():
            _set_all(self._tables[key_group], old_values)

    def _change(self, key_group: int, values: _Table) -> None:
        """Set cells of one key group in the open version."""
        table = self._tables.setdefault(key_group, {})
        undo = self._version.undo.setdefault(key_group, {})
        for key in values:
            if key not in undo:
                undo[key] = table.get(key, ABSENT)
            self._version.handed.pop(key, None)
        _set_all(table, values)

    def write(self, cells: Cells) -> None:
        by_group: dict[int, _Table] = {}
        for key_group, key, value in zip(cells.key_groups, cells.keys, cells.values, strict=True):
            by_group.setdefault(key_group, {})[key] = value
        for key_group, values in by_group.items():
            self._change(key_group, values)

    def load(self, cells: Cells) -> None:
        for key_group, key, value in zip(cells.key_groups, cells.keys, cells.values, strict=True):
            _set(self._tables.setdefault(key_group, {}), key, value)

    def keys(self, key_group: int) -> list[Row]:
        return list(self._tables.get(key_group, ()))

    def cells(self, key_group: int) -> Cells:
        return _as_cells(key_group, self._tables.get(key_group, {}))

    def cells_as_of(self, version: Version, key_group: int) -> Cells:
        table = self._tables.get(key_group, {}).copy()
        for undo in version.later_undos(key_group):
            _set_all(table, undo.copy())
        return _as_cells(key_group, table)

    def changes(self, version: Version) -> Cells:
        changed = Cells()
        for key_group, undo in sorted(version.undo.items()):
            values = list(map(self._tables[key_group].get, undo, repeat(ABSENT)))
            for later in version.later_undos(key_group):
                values = [later.get(key, value) for key, value in zip(undo, values, strict=True)]
            changed.key_groups.extend(repeat(key_group, len(undo)))
            changed.keys.extend(undo)
            changed.values.extend(values)
        return changed

    def exists(self) -> bool:
        return self._context.key in self._table

    def clear(self) -> None:
        key, table = self._context.key, self._table
        if key in table:
            self._undo.setdefault(key, table[key])
            del table[key]


class HeapValueState(HeapState):
    """One value per key."""

    def get(self) -> Any:
        key = self._context.key
        value = self._table.get(key)
        if self._mutable and value is not None and key not in self._undo:
            handed = self._version.handed
            if key not in handed:
                handed[key] = self._copy(value)
            return handed[key]
        return value

    def update(self, value: Any) -> None:
        checked = self._check(value)
        key, table, undo = self._context.key, self._table, self._undo
        if key not in undo:
            undo[key] = table.get(key, ABSENT)
        table[key] = checked


class HeapListState(HeapState):
    """Lists are changed in place after a version's first touch, which leaves the old list to the undo map."""

    def get(self) -> Iterator[Any]:
        key = self._context.key
        values: Iterable[Any] = self._table.get(key, ())
        if not self._mutable:
            return iter(tuple(values))
        handed = self._version.handed
        if key not in handed:
            handed[key] = [self._copy(value) for value in values]
        return iter(tuple(handed[key]))

    def put(self, values: Iterable[Any]) -> None:
        checked = [self._check(value) for value in values]
        key, table, undo = self._context.key, self._table, self._undo
        if key not in undo:
            undo[key] = table.get(key, ABSENT)
        self._version.handed.pop(key, None)
        table[key] = checked

    def append(self, value: Any) -> None:
        self.extend((value,))

    def extend(self, values: Iterable[Any]) -> None:
        checked = [self._check(value) for value in values]
        key, table, undo = self._context.key, self._table, self._undo
        if key not in undo:
            old = undo[key] = table.get(key, ABSENT)
            table[key] = checked.copy() if old is ABSENT else [*old, *checked]
        else:
            table.setdefault(key, []).extend(checked)
        if key in self._version.handed:
            self._version.handed[key].extend(checked)

    def clear(self) -> None:
        super().clear()
        self._version.handed.pop(self._context.key, None)


class HeapMapState(HeapState):
    """Tables, undo maps and what is handed out have a second level, by map key: entries change, and travel, alone."""

    def __init__(self, descriptor: StateDescriptor, context: KeyContext) -> None:
        super().__init__(descriptor, context)
        if descriptor.map_key_schema is None:
            raise OptionError(f"state {descriptor.name!r} is a {descriptor.kind} state and has no map keys.")
        what = _CurrentCell(f"key of map state {descriptor.name!r}", context)
        self._check_key = RowCodec(descriptor.map_key_schema, what).check_key()

    def get(self, map_key: Row) -> Any:
        checked_key = self._check_key(map_key)
        value = self._table.get(self._context.key, {}).get(checked_key)
        return self._handed_out(checked_key, value) if self._mutable else value

    def _handed_out(self, map_key: Row, value: Any) -> Any:
        key = self._context.key
        if value is None or map_key in self._undo.get(key, ()):
            return value
        handed = self._version.handed.setdefault(key, {})
        if map_key not in handed:
            handed[map_key] = self._copy(value)
        return handed[map_key]

    def contains(self, map_key: Row) -> bool:
        return self._check_key(map_key) in self._table.get(self._context.key, ())

    def put(self, map_key: Row, value: Any) -> None:
        checked_key, checked = self._check_key(map_key), self._check(value)
        key = self._context.key
        entries = self._table.get(key)
        undo = self._undo.setdefault(key, {})
        if checked_key not in undo:
            undo[checked_key] = ABSENT if entries is None else entries.get(checked_key, ABSENT)
        if entries is None:
            self._table[key] = {checked_key: checked}
        else:
            entries[checked_key] = checked

    def remove(self, map_key: Row) -> None:
        key, checked_key = self._context.key, self._check_key(map_key)
        entries = self._table.get(key, {})
        if checked_key in entries:
            self._undo.setdefault(key, {}).setdefault(checked_key, entries[checked_key])
            del entries[checked_key]
            if not entries:
                del self._table[key]

    def items(self) -> Iterator[tuple[Row, Any]]:
        entries = tuple(self._table.get(self._context.key, {}).items())
        if not self._mutable:
            return iter(entries)
        return iter([(map_key, self._handed_out(map_key, value)) for map_key, value in entries])

    def clear(self) -> None:
        key = self._context.key
        entries = self._table.get(key)
        if entries:
            undo = self._undo.setdefault(key, {})
            for map_key, value in entries.items():
                undo.setdefault(map_key, value)
            del self._table[key]

    def _revert(self, undo: Mapping[int, _Table]) -> None:
        for key_group, old_entries in undo.items():
            for key, old_values in old_entries.items():
                _set_entries(self._tables[key_group], key, old_values)

    def _change(self, key_group: int, values: _Table) -> None:
        table = self._tables.setdefault(key_group, {})
        undo = self._version.undo.setdefault(key_group, {})
        for key, new_values in values.items():
            entries, old_values = table.get(key, {}), undo.setdefault(key, {})
            for map_key in new_values:
                if map_key not in old_values:
                    old_values[map_key] = entries.get(map_key, ABSENT)
            self._version.handed.pop(key, None)
            _set_entries(table, key, new_values)

    def write(self, cells: Cells) -> None:
        by_group: dict[int, _Table] = {}
        map_keys = cells.map_keys or []
        for key_group, key, map_key, value in zip(cells.key_groups, cells.keys, map_keys, cells.values, strict=True):
            by_group.setdefault(key_group, {}).setdefault(key, {})[map_key] = value
        for key_group, values in by_group.items():
            self._change(key_group, values)

    def load(self, cells: Cells) -> None:
        map_keys = cells.map_keys or []
        for key_group, key, map_key, value in zip(cells.key_groups, cells.keys, map_keys, cells.values, strict=True):
            _set_entries(self._tables.setdefault(key_group, {}), key, {map_key: value})

    def cells(self, key_group: int) -> Cells:
        return _as_entry_cells(key_group, self._tables.get(key_group, {}))

    def cells_as_of(self, version: Version, key_group: int) -> Cells:
        table = {key: entries.copy() for key, entries in self._tables.get(key_group, {}).copy().items()}
        for undo in version.later_undos(key_group):
            for key, old_values in undo.copy().items():
                _set_entries(table, key, old_values.copy())
        return _as_entry_cells(key_group, table)

    def changes(self, version: Version) -> Cells:
        changed = Cells(map_keys=[])
        for key_group, undo in sorted(version.undo.items()):
            values = {key: self._entries(key_group, key, old_values) for key, old_values in undo.items()}
            for later in version.later_undos(key_group):
                for key in values.keys() & later.keys():
                    values[key] |= {at: later[key][at] for at in values[key].keys() & later[key].keys()}
            for key, entries in values.items():
                _add_entries(changed, key_group, key, entries)
        return changed

    def _entries(self, key_group: int, key: Row, map_keys: Iterable[Row]) -> _Table:
        entries = self._tables[key_group].get(key, {})
        return {map_key: entries.get(map_key, ABSENT) for map_key in map_keys}


def _set(table: _Table, key: Row, value: Any) -> None:
    if value is ABSENT:
        table.pop(key, None)
    else:
        table[key] = value


def _set_all(table: _Table, values: _Table) -> None:
    for key, value in values.items():
        _set(table, key, value)


def _set_entries(table: _Table, key: Row, values: _Table) -> None:
    entries = table.get(key, {})
    _set_all(entries, values)
    _set(table, key, entries or ABSENT)


def _as_cells(key_group: int, table: _Table) -> Cells:
    return Cells([key_group] * len(table), list(table), None, list(table.values()))


def _as_entry_cells(key_group: int, table: _Table) -> Cells:
    found = Cells(map_keys=[])
    for key, entries in table.items():
        _add_entries(found, key_group, key, entries)
    return found


def _add_entries(cells: Cells, key_group: int, key: Row, entries: Mapping[Row, Any]) -> None:
    cells.key_groups.extend(repeat(key_group, len(entries)))
    cells.keys.extend(repeat(key, len(entries)))
    if cells.map_keys is not None:
        cells.map_keys.extend(entries)
    cells.values.extend(entries.values())
