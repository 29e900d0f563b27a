"""The tables of one state on the heap, and the chain of versions that keeps snapshots unchanged.

The values that the handles read and write are here. There is one dictionary per key group, which always holds the
newest values (*live*). And there is one *undo* map per version and key group, which holds the old value of each cell
from the cell's first change in that version on (`millpond.state.heap.versions`). This one structure serves four ends:

- the keys of an undo map are exactly what its version changed;
- a rollback writes its values back;
- so does the revert of a committed version;
- a snapshot of an earlier version finds there the values that were replaced.

All these dictionaries have keys in their given form (`millpond.state.types.key_types`); cells have them as tuples.

Versions are linked forwards. A cell as of version N is what the first undo map after N says of it, or else the live
value. A snapshot refers to its version, and so to all later ones. Versions that no snapshot refers to are garbage.
So taking a snapshot costs nothing, and reading it from another thread needs no lock.

Invariant: the open version has a cell's old value before the live table is changed, and a linked undo map never loses
a cell. A reader copies the live table first and walks the chain afterwards, so it finds the old value of everything
that changed before it looked. Copying a dictionary is one step of the interpreter, and readers never iterate over
anything that may still grow.

Source: undo logs of multi-version databases. Flink's copy-on-write state table keeps versions per entry instead, which
costs every entry a field.
"""

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, Generic, TypeVar

from millpond.state.backend.protocols import ABSENT, Appended, Cells
from millpond.state.heap.versions import (
    EntryVersion,
    ListVersion,
    Table,
    Version,
    keep_entry,
    keep_list,
    kept_entries,
    later_versions,
    undo_after,
)
from millpond.state.types.key_types import as_row, as_rows, given_forms
from millpond.state.types.rows import Row

V = TypeVar("V", bound=Version)


def flat_cells(key_group: int, table: Table) -> Cells:
    """Return the cells in a key group's table of a value or list state."""
    return Cells([key_group] * len(table), as_rows(table), None, list(table.values()))


def entry_cells(key_group: int, table: Table) -> Cells:
    """Return the cells in a key group's table of a map state."""
    cells = Cells(map_keys=[])
    _add_entries(cells, key_group, table)
    return cells


class FlatTables(Generic[V]):
    """Tables with one cell per key: of value states, and of list states, whose cell is the whole list."""

    def __init__(self, new_version: type[V]) -> None:
        self._new_version = new_version
        self.live: dict[int, Table] = {}
        self.open = new_version()

    def changed(self) -> bool:
        """Return whether the open version changed anything."""
        return self.open.changed()

    def end_version(self) -> V:
        """Close the open version and link a new one after it."""
        closed = self.open
        closed.next = self.open = self._new_version()
        return closed

    def write(self, cells: Cells) -> None:
        """Put or delete cells in the open version."""
        for key_group, key, value in zip(cells.key_groups, given_forms(cells.keys), cells.values, strict=True):
            table = self.live.setdefault(key_group, {})
            self.open.keep(key_group, key, table)
            set_cell(table, key, value)

    def roll_back(self) -> None:
        """Write the old values of the open version back, and begin another version."""
        for key_group in self.open.undo:
            table = self.live[key_group]
            for key, old in self.open.old_values(key_group).items():
                set_cell(table, key, old)
        # Readers of earlier versions may be reading the undo map, so it stays in the chain as it is.
        self.end_version()

    def revert(self, version: Version) -> None:
        """Undo a closed version. This is a version of its own, whose changes nobody reads."""
        for key_group in version.undo:
            self.write(self._as_cells(key_group, version.old_values(key_group)))
        self.end_version()

    def keys(self) -> Iterator[tuple[int, Row]]:
        """Yield key group and key of every key."""
        for key_group in sorted(self.live):
            for key in list(self.live[key_group]):
                # The table is looked up each time, because the group may have moved to disk or back.
                if key in self.live[key_group]:
                    yield key_group, as_row(key)

    def cells(self, key_group: int) -> Cells:
        """Return every cell of a key group as it is now."""
        return self._as_cells(key_group, self.live.get(key_group, {}))

    def cells_as_of(self, version: Version, key_group: int) -> Cells:
        """Return every cell of a key group as of a closed version."""
        found = self._copied(self.live.get(key_group, {}))
        later = undo_after(version, key_group)
        for undo in reversed(later):
            found |= undo
        if later:
            found = {key: value for key, value in found.items() if value is not ABSENT}
        return self._as_cells(key_group, found)

    def changes_of(self, version: V) -> Cells:
        """Return the cells that a closed version changed, with their values as of it."""
        changed = Cells()
        for key_group, keys in sorted(version.changed_keys().items()):
            values = list(map(self.live[key_group].get, keys, repeat(ABSENT)))
            if later := undo_after(version, key_group):
                found = dict(zip(keys, values, strict=True))
                for newer in reversed(later):
                    found.update((key, newer[key]) for key in found.keys() & newer.keys())
                values = list(found.values())
            changed.key_groups.extend(repeat(key_group, len(keys)))
            changed.keys.extend(as_rows(keys))
            changed.values.extend(values)
        return changed

    def count_changes(self, version: V) -> int | None:
        """Return how many cells a closed version changed."""
        return sum(map(len, version.changed_keys().values()))

    @staticmethod
    def _copied(table: Table) -> Table:
        """Return what a table holds now, as a copy that later changes do not reach."""
        return table.copy()

    _as_cells = staticmethod(flat_cells)


class ListTables(FlatTables[ListVersion]):
    """Tables of list states. A live list grows in place, and an undo map says how long it was.

    A reader takes the length of a list, or a copy of it, before it walks the chain. So it does not see elements that
    are added afterwards, and the chain tells of those that were added before.
    """

    def write(self, cells: Cells) -> None:
        """Put, delete or extend lists in the open version. The lists given are copied."""
        for key_group, key, value in zip(cells.key_groups, given_forms(cells.keys), cells.values, strict=True):
            table = self.live.setdefault(key_group, {})
            if type(value) is Appended:
                self.grow(self.open.maps.setdefault(key_group, {}), table, key, value)
            else:
                self.open.keep(key_group, key, table)
                set_cell(table, key, value if value is ABSENT else list(value))

    @staticmethod
    def grow(undo: Table, table: Table, key: Any, values: list[Any]) -> None:
        """Extend a key's list in the open version. `undo` and `table` are those of its key group."""
        old = table.get(key, ABSENT)
        if not values:
            return
        keep_list(undo, key, old, replaced=False)
        if old is ABSENT:
            table[key] = list(values)
        else:
            old.extend(values)
            # The assignment tells a table on disk of the change.
            table[key] = old

    def cells(self, key_group: int) -> Cells:
        """Return every list of a key group as it is now."""
        return self._as_cells(key_group, self._copied(self.live.get(key_group, {})))

    def changes_of(self, version: ListVersion) -> Cells:
        """Return what a closed version changed: whole lists, or the elements that were added to them."""
        changed = Cells()
        for key_group, undo in sorted(version.maps.items()):
            now = dict(zip(undo, map(self.live[key_group].get, undo, repeat(ABSENT)), strict=True))
            found = {key: values if values is ABSENT else (values, len(values)) for key, values in now.items()}
            for later in reversed(list(later_versions(version))):
                newer = later.undo.get(key_group, {}).copy()
                for key in found.keys() & newer.keys():
                    old = newer[key]
                    found[key] = ABSENT if old is ABSENT else (old.values, old.length)
            changed.key_groups.extend(repeat(key_group, len(found)))
            changed.keys.extend(as_rows(found))
            changed.values.extend(_change(undo[key], now_and_length) for key, now_and_length in found.items())
        return changed

    def count_changes(self, version: ListVersion) -> int | None:
        """Return 0, or None if lists changed: the elements that were added to them are not counted."""
        return None if version.changed() else 0

    @staticmethod
    def _copied(table: Table) -> Table:
        return {key: values.copy() for key, values in table.copy().items()}


def _change(old: Any, now: Any) -> Any:
    """Return the change of a list: the whole list, or the elements that were added to it."""
    if now is ABSENT:
        return ABSENT
    values, length = now
    if old is ABSENT or old.replaced:
        return values[:length]
    return Appended(values[old.length : length])


class EntryTables(FlatTables[EntryVersion]):
    """Tables of map states: live tables and undo maps have a second level, by map key. Each entry is a cell.

    A key without entries is in no live table. A dictionary of entries may be replaced by another: entries that did
    not change in between are in both.
    """

    def write(self, cells: Cells) -> None:
        """Put or delete entries in the open version."""
        places = zip(cells.key_groups, given_forms(cells.keys), cells.map_keys or (), cells.values, strict=True)
        for key_group, key, map_key, value in places:
            table = self.live.setdefault(key_group, {})
            entries = table.get(key, {})
            keep_entry(self.open.maps.setdefault(key_group, {}), key, map_key, entries)
            set_entry(table, key, map_key, value)

    def roll_back(self) -> None:
        """Write the old entries of the open version back, and begin another version."""
        for key_group in self.open.maps:
            table = self.live[key_group]
            for key, old_entries in self.open.old_values(key_group).items():
                for map_key, old in old_entries.items():
                    set_entry(table, key, map_key, old)
        self.end_version()

    def cells_as_of(self, version: Version, key_group: int) -> Cells:
        """Return every entry of a key group as of a closed version."""
        outer = self.live.get(key_group, {}).copy()
        found = {key: entries.copy() for key, entries in outer.items()}
        for undo in reversed(undo_after(version, key_group)):
            for key, old_entries in undo.items():
                entries = found.get(key, {}) | old_entries.copy()
                found[key] = {map_key: value for map_key, value in entries.items() if value is not ABSENT}
        return self._as_cells(key_group, found)

    def changes_of(self, version: EntryVersion) -> Cells:
        """Return the entries that a closed version changed, with their values as of it."""
        changed = Cells(map_keys=[])
        for key_group, undo in sorted(version.maps.items()):
            table = self.live[key_group]
            found = {key: self._present(table.get(key, {}).copy(), kept_entries(old)) for key, old in undo.items()}
            for later in reversed(undo_after(version, key_group)):
                for key in found.keys() & later.keys():
                    entries, old_entries = found[key], later[key].copy()
                    entries.update((at, old_entries[at]) for at in entries.keys() & old_entries.keys())
            _add_entries(changed, key_group, found)
        return changed

    def count_changes(self, version: EntryVersion) -> int | None:
        """Return how many entries a closed version changed."""
        return sum(len(kept_entries(old)) for undo in version.maps.values() for old in undo.values())

    @staticmethod
    def _present(entries: Table, of: Iterable[Row]) -> Table:
        return {map_key: entries.get(map_key, ABSENT) for map_key in of}

    _as_cells = staticmethod(entry_cells)


def set_cell(table: Table, key: Any, value: Any) -> None:
    """Put a cell into a table, or delete it if the value is ABSENT."""
    if value is ABSENT:
        table.pop(key, None)
    else:
        table[key] = value


def set_entry(table: Table, key: Any, map_key: Row, value: Any) -> None:
    """Put an entry of a key's map into a table, or delete it if the value is ABSENT."""
    if value is not ABSENT:
        table.setdefault(key, {})[map_key] = value
        return
    entries = table.get(key)
    if entries is not None:
        entries.pop(map_key, None)
        drop_if_empty(table, key, entries)


def drop_if_empty(table: Table, key: Any, entries: Any) -> None:
    """Drop a key without entries from a live table. A table on disk has none to drop: it holds entries, not keys."""
    if type(table) is dict and not entries:
        del table[key]


def _add_entries(cells: Cells, key_group: int, table: Table) -> None:
    map_keys: list[Row] = cells.map_keys if cells.map_keys is not None else []
    for key, entries in table.items():
        cells.key_groups.extend(repeat(key_group, len(entries)))
        cells.keys.extend(repeat(as_row(key), len(entries)))
        map_keys.extend(entries)
        cells.values.extend(entries.values())
