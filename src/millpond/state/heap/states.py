"""The handles of states on the heap, which every record of a keyed operator goes through.

The handle of a value state looks up its table by the current key group each time (`hot_path`). The handles of lists and
maps use more dictionaries, so they are bound to those of a key group when it is entered.

Immutable values are handed out as they are. Of a mutable value, `get` hands out a private copy. It is made once per
cell and version, and kept in `handed` until the version ends. The original stays in the table, for snapshots, until
an update replaces it.

An object given to an update belongs to the caller too. So `check` makes another object of a mutable one, and the table
keeps that. Later gets in the version return the caller's own object. So a change to either object becomes state only by
an update.
"""

# ruff: noqa: D102 - the protocols in backend/protocols.py say what the methods do
from collections.abc import Iterable, Iterator
from typing import Any

from millpond.state.backend.current_key import NoKeyGroup, Who, no_current_key
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.protocols import ABSENT, Cells, cells_at
from millpond.state.backend.sums import PlainValue, Sums
from millpond.state.heap.batch_access import ManyInTables
from millpond.state.heap.hot_path import HeapHotPath
from millpond.state.heap.tables import EntryTables, FlatTables, ListTables, drop_if_empty
from millpond.state.heap.versions import (
    EntryVersion,
    ListVersion,
    LoggedVersion,
    Table,
    Version,
    keep_entry,
    keep_list,
)
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.key_types import given_form, given_forms
from millpond.state.types.rows import Row, RowCodec

_NO_ENTRIES: Table = {}


class HeapState:
    """What the handles of the three kinds of state share."""

    tables: FlatTables[Any]

    def __init__(self, descriptor: StateDescriptor, context: KeyContext) -> None:
        self.descriptor = descriptor
        self.last: Version | None = None
        self._context = context
        codec = descriptor.codec(Who(f"state {descriptor.name!r}", context))
        self._check = codec.check
        self._copy = codec.copy
        self._mutable = codec.mutable
        self._gives_back = descriptor.serializer is not None
        self._handed_out: dict[int, dict[Any, Any]] = {}
        self.tables = self._new_tables()

    def _new_tables(self) -> FlatTables[Any]:
        raise NotImplementedError

    def leave_version(self) -> None:
        """Forget the private copies, so that none is handed out again."""
        self._handed_out = {}

    def end_version(self) -> Version:
        """Close the open version and keep it as `last`, so that it can be reverted."""
        self.last = self.tables.end_version()
        self.leave_version()
        return self.last

    def write(self, cells: Cells) -> None:
        """Put or delete cells in the open version, and forget their private copies."""
        self.tables.write(cells)
        if self._handed_out:
            for key_group, key in zip(cells.key_groups, given_forms(cells.keys), strict=True):
                self._handed_out.get(key_group, {}).pop(key, None)

    def place(self, key_group: int, cell: Any) -> tuple[int, Any]:
        return key_group, cell

    def read(self, place: tuple[int, Any]) -> Any:
        key_group, cell = place
        return self.tables.live.get(key_group, {}).get(given_form(cell))

    def read_all(self, places: list[tuple[int, Any]]) -> list[Any]:
        return list(map(self.read, places))

    def put_all(self, places: list[tuple[int, Any]], values: list[Any]) -> None:
        self.write(cells_at(places, values, is_map=False))

    def of_key(self, key_group: int, key: Row) -> Cells:
        value = self.read((key_group, key))
        return Cells() if value is None else Cells([key_group], [key], None, [value])


class HeapValueState(HeapState, PlainValue):
    """One value per key. If its values cannot be changed in place, the methods are those of `HeapHotPath`."""

    tables: FlatTables[LoggedVersion]

    def __init__(self, descriptor: StateDescriptor, context: KeyContext) -> None:
        super().__init__(descriptor, context)
        self._live = self.tables.live
        self._sums = Sums(descriptor, self._check)
        self._hot = hot = HeapHotPath(context, self._live, self._table, self._check, self._sums)
        self._many = None if self._mutable else ManyInTables(self.tables, self._sums)
        if not self._mutable:
            self.get = hot.get  # type: ignore[method-assign]
            self.update = hot.update  # type: ignore[method-assign]
            self.update_with = hot.update_with  # type: ignore[method-assign]
            if self._sums.kind is not None:
                self.add = hot.add  # type: ignore[method-assign]
        self._hot.begin_version(self.tables.open.log)

    def _new_tables(self) -> FlatTables[LoggedVersion]:
        return FlatTables(LoggedVersion)

    def leave_version(self) -> None:
        """Forget the private copies, and log into the version that is open."""
        super().leave_version()
        self._hot.begin_version(self.tables.open.log)

    def many(self) -> ManyInTables | None:
        """Return batch access; None if a value that is handed out could be changed."""
        return self._many

    def exists(self) -> bool:
        return given_form(self._context.key) in self._table()

    def get(self) -> Any:
        value = self._hot.get()
        if value is None:
            return None
        key, handed = given_form(self._context.key), self._handed()
        if key not in handed:
            handed[key] = self._copy(value)
        return handed[key]

    def update(self, value: Any) -> None:
        self._hot.update(value)
        key, handed = given_form(self._context.key), self._handed()
        if self._gives_back:
            handed[key] = value
        else:
            handed.pop(key, None)

    def clear(self) -> None:
        key, table = given_form(self._context.key), self._table()
        if key in table:
            self.tables.open.keep(self._context.key_group, key, table)
            del table[key]
            if self._mutable:
                self._handed().pop(key, None)

    def _table(self) -> Table:
        key_group = self._context.key_group
        if key_group < 0:
            raise no_current_key(f"state {self.descriptor.name!r}")
        return self._live.setdefault(key_group, {})

    def _handed(self) -> dict[Any, Any]:
        return self._handed_out.setdefault(self._context.key_group, {})


class BoundState(HeapState):
    """A handle that is bound to the dictionaries of the entered key group, and to none while no group is entered."""

    def __init__(self, descriptor: StateDescriptor, context: KeyContext) -> None:
        super().__init__(descriptor, context)
        self._table: Any
        self._undo: Any
        self._handed: Any
        self._unbind()

    def bind(self, key_group: int) -> None:
        """Bind to the dictionaries of a key group."""
        live, undo = self.tables.live, self.tables.open.maps
        # Without `setdefault`, for speed: this runs for each record of another key group than the last one's.
        if key_group not in live:
            live[key_group] = {}
        if key_group not in undo:
            undo[key_group] = {}
        self._table, self._undo = live[key_group], undo[key_group]
        if self._mutable:
            self._handed = self._handed_out.setdefault(key_group, {})

    def leave_version(self) -> None:
        """Unbind: while no key group is entered, a use of the handle must fail instead of writing anywhere."""
        super().leave_version()
        self._unbind()

    def _unbind(self) -> None:
        self._table = self._undo = self._handed = NoKeyGroup(self.descriptor.name)

    def exists(self) -> bool:
        return given_form(self._context.key) in self._table


class HeapListState(BoundState):
    """Lists, which grow in place. The undo map says how long they were before (see `ListTables`).

    Of mutable elements, a second list is handed out. It copies the live list as far as that was read.
    """

    tables: ListTables

    def _new_tables(self) -> ListTables:
        return ListTables(ListVersion)

    def read(self, place: tuple[int, Any]) -> Any:
        values = super().read(place)
        return None if values is None else list(values)  # it may grow in place

    def get(self) -> Iterator[Any]:
        key = given_form(self._context.key)
        values = self._table.get(key, ())
        if self._mutable and values:
            handed = self._handed.setdefault(key, [])
            handed.extend(map(self._copy, values[len(handed) :]))
            values = handed
        return iter(tuple(values))

    def put(self, values: Iterable[Any]) -> None:
        given = list(values)
        checked = list(map(self._check, given))
        key, table = given_form(self._context.key), self._table
        keep_list(self._undo, key, table.get(key, ABSENT), replaced=True)
        table[key] = checked
        if self._mutable:
            self._handed[key] = given if self._gives_back else []

    def clear(self) -> None:
        key, table = given_form(self._context.key), self._table
        if key in table:
            keep_list(self._undo, key, table[key], replaced=True)
            del table[key]
            if self._mutable:
                self._handed.pop(key, None)

    def append(self, value: Any) -> None:
        self.extend((value,))

    def extend(self, values: Iterable[Any]) -> None:
        given = list(values)
        checked = list(map(self._check, given))
        key = given_form(self._context.key)
        self.tables.grow(self._undo, self._table, key, checked)
        if checked and self._gives_back and self._mutable and key in self._handed:
            self._handed[key].extend(given)


class HeapMapState(BoundState):
    """Maps, whose tables and undo maps have a second level, by map key: an entry changes, and is copied, alone."""

    def __init__(self, descriptor: StateDescriptor, context: KeyContext) -> None:
        super().__init__(descriptor, context)
        who = Who(f"map key of state {descriptor.name!r}", context)
        self._check_key = RowCodec(descriptor.map_key_schema, who).check_key()

    def _new_tables(self) -> EntryTables:
        return EntryTables(EntryVersion)

    def write(self, cells: Cells) -> None:
        self.tables.write(cells)
        if self._handed_out:
            for key_group, key, map_key in zip(
                cells.key_groups, given_forms(cells.keys), cells.map_keys or (), strict=True
            ):
                self._handed_out.get(key_group, {}).get(key, {}).pop(map_key, None)

    def read(self, place: tuple[int, Any]) -> Any:
        key_group, (key, map_key) = place
        return self.tables.live.get(key_group, {}).get(given_form(key), {}).get(map_key)

    def put_all(self, places: list[tuple[int, Any]], values: list[Any]) -> None:
        self.write(cells_at(places, values, is_map=True))

    def of_key(self, key_group: int, key: Row) -> Cells:
        entries = self.tables.live.get(key_group, {}).get(given_form(key), {})
        return Cells([key_group] * len(entries), [key] * len(entries), list(entries), list(entries.values()))

    def get(self, map_key: Row) -> Any:
        at = self._check_key(map_key)
        value = self._table.get(given_form(self._context.key), {}).get(at)
        return value if value is None or not self._mutable else self._private(at, value)

    def _private(self, map_key: Row, value: Any) -> Any:
        handed = self._handed.setdefault(given_form(self._context.key), {})
        if map_key not in handed:
            handed[map_key] = self._copy(value)
        return handed[map_key]

    def contains(self, map_key: Row) -> bool:
        return self._check_key(map_key) in self._table.get(given_form(self._context.key), ())

    def put(self, map_key: Row, value: Any) -> None:
        at, checked, key = self._check_key(map_key), self._check(value), given_form(self._context.key)
        entries = self._table.get(key)
        keep_entry(self._undo, key, at, _NO_ENTRIES if entries is None else entries)
        if entries is None:
            self._table[key] = {at: checked}
        else:
            entries[at] = checked
        if self._mutable:
            if self._gives_back:
                self._handed.setdefault(key, {})[at] = value
            else:
                self._handed.get(key, {}).pop(at, None)

    def remove(self, map_key: Row) -> None:
        key, at = given_form(self._context.key), self._check_key(map_key)
        entries: Table = self._table.get(key, {})
        if at in entries:
            keep_entry(self._undo, key, at, entries)
            del entries[at]
            drop_if_empty(self._table, key, entries)
            if self._mutable:
                self._handed.get(key, {}).pop(at, None)

    def items(self) -> Iterator[tuple[Row, Any]]:
        entries: Table = self._table.get(given_form(self._context.key), {})
        if not self._mutable:
            return iter(tuple(entries.items()))
        return iter([(at, self._private(at, value)) for at, value in entries.items()])

    def clear(self) -> None:
        key = given_form(self._context.key)
        entries = self._table.get(key)
        if entries:
            whole = dict(entries.items())
            for at in whole:
                keep_entry(self._undo, key, at, whole)
            del self._table[key]
            if self._mutable:
                self._handed.pop(key, None)
