"""The tables of a key group that is on disk. They act like the dictionaries of one on the heap.

A state's handles and its undo maps (`millpond.state.heap.states`, `millpond.state.heap.tables`) use the table of a key
group without knowing where it is. So every kind of state, timers included, is read and written while spilled, and
committed, undone and seen by snapshots, as on the heap. A key group on the heap pays nothing for this.

Changed cells are kept in `changed`, as objects or ABSENT, until they are written in a batch: then one write of a page
serves many cells. A read looks there first. Values and lists are kept there by their places, which a read has computed
already and the write needs.

Invariant: a cell is what `changed` says, else what the file says. It leaves `changed` only once the file has it. A
table whose group was loaded has its `successor` set before the file loses the cells. So a reader in another thread that
copies `changed` before it scans the file misses nothing that was there when it began. It finds later changes in the
undo maps.

Keys are in their given form here (`millpond.state.types.key_types`), as on the heap.

Tables and views are `MutableMapping`s. The methods that handles use are overridden for speed.
"""

import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from itertools import chain, islice
from typing import Any

from millpond.state.backend import lmdb_keys as places
from millpond.state.backend.cell_bytes import EntryBytes, FlatBytes
from millpond.state.backend.lmdb_keys import LongPlace
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.protocols import ABSENT, Cells
from millpond.state.heap.tables import entry_cells, flat_cells
from millpond.state.spillable.spill_file import SpillFile

_UNREAD: Any = object()
_WEIGHED = 64
"""Largest number of cells that are measured, of those written at once."""


class _Spilled:
    """Where a key group of one state is: its file, the database in that file, and the state's prefix.

    It has slots because there are many of it, so that what a record needs lies together.

    Attributes:
        cells_written: number of this state's cells in the file.
        bytes_written: about the bytes of all keys and values that ever went into the file: only some are measured.
    """

    __slots__ = ("_puts", "bytes_written", "cells_written", "changed", "database", "file", "key_group", "successor")

    changed: dict[Any, Any]

    def __init__(self, file: SpillFile, database: Any, key_group: int) -> None:
        self.successor: Any = None
        self.file = file
        self.database = database
        self.key_group = key_group
        self.cells_written = 0
        self.bytes_written = 0
        self._puts = 0

    def store(self, kept: Pairs | list[Pair], gone: Sequence[bytes] = (), *, append: bool = False) -> None:
        """Write cells of this state, see `SpillFile.write`, no more at once than one write may touch.

        If that fails, the first of them may be in the file.
        """
        at_once = len(kept) if append else self.file.most_touches
        for first in range(0, len(kept), at_once or 1):
            self.cells_written += self.file.write(self.database, kept[first : first + at_once], append=append)
        for first in range(0, len(gone), self.file.most_touches):
            self.cells_written += self.file.write(self.database, (), gone[first : first + self.file.most_touches])
        if kept:
            some = kept[:: 1 + len(kept) // _WEIGHED]
            self.bytes_written += len(kept) * sum(map(len, chain.from_iterable(some))) // len(some)
            self._puts += len(kept)

    def bytes_now(self) -> float:
        """Return about the bytes of keys and values in the file: its cells times the mean of all that were written."""
        return self.cells_written * self.bytes_written / self._puts if self._puts else 0.0

    def scanned(self, prefix: bytes) -> Iterator[Pair]:
        """Yield everything in the file under a prefix, in the order of places."""
        return chain.from_iterable(self.scanned_pieces(prefix))

    def scanned_pieces(self, prefix: bytes) -> Iterator[list[Pair]]:
        """Yield the same, some thousand cells at a time."""
        last = b""
        while found := self.file.scan(self.database, prefix, last):
            yield found
            last = found[-1][0]


class LastRead:
    """The last cell of a value or list state that was read from a file.

    A write of the same key often follows, and needs its place. There is one for all tables of the state. Each table is
    used so seldom that its own would have left the processor's cache by then.

    Attributes:
        cell: its key, place and value, and a token of its table that each flush replaces. So a value that another
            thread read before a flush is not used after it.
    """

    __slots__ = ("cell",)

    def __init__(self) -> None:
        self.cell: tuple[Any, bytes, Any, object] = (_UNREAD, b"", ABSENT, None)


class SpilledTable(_Spilled, MutableMapping[Any, Any]):
    """A table with one cell per key, of a value or list state."""

    __slots__ = ("_last_read", "_loads", "_place", "_read", "_since", "form")

    def __init__(self, form: FlatBytes, last_read: LastRead, file: SpillFile, database: Any, key_group: int) -> None:
        super().__init__(file, database, key_group)
        self.form = form
        self.changed: dict[bytes, Any] = {}
        self._read = file.get
        self._place = form.place
        self._loads = form.loads
        self._last_read = last_read
        self._since = object()

    def get(self, key: Any, default: Any = None) -> Any:
        """Return a key's cell, or the default."""
        last, since = self._last_read.cell, self._since
        was_read = last[0] is key
        at = last[1] if was_read else self._place(key)
        value = self.changed.get(at, _UNREAD)
        if value is _UNREAD:
            if was_read and last[3] is since:
                value = last[2]
            else:
                stored = self._read(self.database, at)
                if stored is None:
                    value = ABSENT if self.successor is None else self.successor.get(key, ABSENT)
                elif type(at) is LongPlace:
                    value = self.form.value(at, stored)
                else:
                    value = self._loads(stored)
                self._last_read.cell = (key, at, value, since)
        return default if value is ABSENT else value

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key, ABSENT)
        if value is ABSENT:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        at = self._place(key)
        value = self.changed.get(at, _UNREAD)
        if value is not _UNREAD:
            return value is not ABSENT
        if self._read(self.database, at) is not None:
            return True
        return self.successor is not None and key in self.successor

    def __setitem__(self, key: Any, value: Any) -> None:
        last = self._last_read.cell
        self.changed[last[1] if last[0] is key else self._place(key)] = value

    def __delitem__(self, key: Any) -> None:
        self[key] = ABSENT

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return a key's cell, to be changed in place."""
        value = self.get(key, ABSENT)
        value = self[key] = default if value is ABSENT else value
        return value

    def unwritten(self) -> dict[Any, Any]:
        """Return a copy of the cells to be written, by key, from any thread. Lists are copied: they grow in place."""
        return {
            places.key_of(at): value.copy() if type(value) is list else value
            for at, value in self.changed.copy().items()
        }

    def change(self, cells: Mapping[Any, Any]) -> None:
        """Change many cells, or delete those that are ABSENT."""
        self.changed.update(zip(map(self._place, cells), cells.values(), strict=True))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.copy())

    def copy(self) -> dict[Any, Any]:
        """Return every cell as a dictionary, from any thread."""
        changed = self.unwritten()
        found: dict[Any, Any] = {}
        self.form.add(found, self.scanned(self.form.prefix))
        if self.successor is not None:
            whole: dict[Any, Any] = self.successor.copy()
            return whole
        found |= changed
        return {key: value for key, value in found.items() if value is not ABSENT} if changed else found

    def cells(self) -> Cells:
        """Return every cell. Lists are copied, since one that was changed may still grow in place."""
        found = {key: value.copy() if type(value) is list else value for key, value in self.copy().items()}
        return flat_cells(self.key_group, found)

    def flush(self, most: int = sys.maxsize) -> int:
        """Write up to `most` changed cells. Return how many were written."""
        whole = most >= len(self.changed)
        cells = self.changed if whole else dict(islice(self.changed.items(), most))
        kept, gone = self.form.placed(*places.in_order(list(cells), list(cells.values())))
        self.store(kept, gone)
        self._since = object()
        if whole:
            self.changed = {}
        else:
            for at in cells:
                del self.changed[at]
        return len(cells)

    def changed_count(self) -> int:
        """Return how many cells are still to be written."""
        return len(self.changed)


class SpilledEntries(MutableMapping[Any, Any]):
    """The entries of one key. Each is read and written alone."""

    __slots__ = ("_key", "_prefix", "_table")

    def __init__(self, table: "SpilledMapTable", key: Any, prefix: bytes) -> None:
        self._table = table
        self._key = key
        self._prefix = prefix

    def get(self, map_key: Any, default: Any = None) -> Any:
        """Return the value of an entry, or the default."""
        table = self._table
        value = table.changed.get(self._key, places.NOTHING).get(map_key, _UNREAD)
        if value is _UNREAD:
            value = table.stored_entry(self._key, self._prefix, map_key)
        return default if value is ABSENT else value

    def __getitem__(self, map_key: Any) -> Any:
        value = self.get(map_key, ABSENT)
        if value is ABSENT:
            raise KeyError(map_key)
        return value

    def __contains__(self, map_key: object) -> bool:
        return self.get(map_key, ABSENT) is not ABSENT

    def __setitem__(self, map_key: Any, value: Any) -> None:
        table = self._table
        changed = table.changed.setdefault(self._key, {})
        if map_key not in changed:
            table.changed_entries += 1
        changed[map_key] = value

    def __delitem__(self, map_key: Any) -> None:
        self[map_key] = ABSENT

    def __iter__(self) -> Iterator[Any]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.copy())

    def __bool__(self) -> bool:
        table = self._table
        if table.changed.get(self._key) or table.successor is not None:
            return bool(self.copy())
        return bool(table.file.scan(table.database, self._prefix, most=1)) or (
            table.successor is not None and bool(self.copy())
        )

    def items(self) -> Any:
        """Return the entries as they are now."""
        return self.copy().items()

    def values(self) -> Any:
        """Return the values as they are now."""
        return self.copy().values()

    def copy(self) -> dict[Any, Any]:
        """Return the entries as a dictionary, from any thread."""
        table = self._table
        changed = table.changed.get(self._key, places.NOTHING)
        changed = dict(changed)
        loads = table.form.loads
        found = {map_key: loads(data) for _, map_key, data in table.form.decoded(table.scanned(self._prefix))}
        if table.successor is not None:
            return dict(table.successor.get(self._key, places.NOTHING))
        found |= changed
        return {map_key: value for map_key, value in found.items() if value is not ABSENT} if changed else found


class SpilledMapTable(_Spilled, MutableMapping[Any, Any]):
    """The table of a map state: for each key, a view of its entries. A key without entries has an empty view.

    Attributes:
        changed_entries: the number of entries in `changed`. Maintenance asks for it often.
    """

    __slots__ = ("_last", "_last_decoded", "_last_read", "_since", "changed_entries", "form")

    def __init__(self, form: EntryBytes, file: SpillFile, database: Any, key_group: int) -> None:
        super().__init__(file, database, key_group)
        self.form = form
        self.changed: dict[Any, dict[Any, Any]] = {}
        self.changed_entries = 0
        self._last: tuple[Any, bytes] = (_UNREAD, b"")
        self._since = object()
        self._last_read: tuple[Any, Any, Any, object] = (_UNREAD, None, ABSENT, None)
        self._last_decoded: tuple[Any, Any] = (None, ABSENT)

    def stored_entry(self, key: Any, prefix: bytes, map_key: Any) -> Any:
        """Return an entry as the file has it, or ABSENT. A timer that fires is read four times before it is removed."""
        last, since = self._last_read, self._since
        if last[0] is key and last[1] == map_key and last[3] is since:
            return last[2]
        at = places.entry_place(prefix, map_key)
        stored = self.file.get(self.database, at)
        if stored is None and self.successor is not None:
            return self.successor.get(key, places.NOTHING).get(map_key, ABSENT)
        value = ABSENT if stored is None else self._decoded(places.entry(at, stored).data)
        self._last_read = (key, map_key, value, since)
        return value

    def _decoded(self, data: bytes) -> Any:
        """Decode a value. Equal values in a row, such as those of timers, are one object in memory."""
        last = self._last_decoded
        if last[0] != data:
            last = self._last_decoded = (data, self.form.loads(data))
        return last[1]

    def get(self, key: Any, default: Any = None) -> Any:  # noqa: ARG002 - there always is a view
        """Return the entries of a key."""
        last = self._last
        if last[0] is not key:
            last = self._last = (key, self.form.entries(key))
        return SpilledEntries(self, key, last[1])

    __getitem__ = get

    def setdefault(self, key: Any, default: Any = None) -> Any:  # noqa: ARG002 - there always is a view
        """Return the entries of a key."""
        return self.get(key)

    def __contains__(self, key: object) -> bool:
        return bool(self.get(key))

    def __setitem__(self, key: Any, entries: Mapping[Any, Any]) -> None:
        # Deleted entries too, because the file may still have them.
        known = {*self.get(key).copy(), *self.changed.get(key, ())}
        self.change({key: dict.fromkeys(known, ABSENT) | dict(entries)})

    def __delitem__(self, key: Any) -> None:
        self[key] = {}

    def unwritten(self) -> dict[Any, dict[Any, Any]]:
        """Return a copy of the entries to be written, by key, from any thread."""
        return {key: entries.copy() for key, entries in self.changed.copy().items()}

    def change(self, cells: Mapping[Any, dict[Any, Any]]) -> None:
        """Change many entries, or delete those that are ABSENT: all that are to be written of their keys."""
        for key, entries in cells.items():
            self.changed_entries += len(entries) - len(self.changed.get(key, ()))
            self.changed[key] = entries

    def pop(self, key: Any, default: Any = None) -> Any:
        """Delete a key's entries. Return them as they were."""
        found = self.get(key).copy()
        del self[key]
        return found or default

    def __iter__(self) -> Iterator[Any]:
        return iter(self.copy())

    def __len__(self) -> int:
        return len(self.copy())

    def copy(self) -> dict[Any, dict[Any, Any]]:
        """Return every key's entries as dictionaries, from any thread."""
        changed = self.unwritten()
        found: dict[Any, dict[Any, Any]] = {}
        self.form.add(found, self.scanned(self.form.prefix))
        if self.successor is not None:
            return {key: dict(entries) for key, entries in self.successor.copy().items()}
        for key, entries in changed.items():
            whole = found.get(key, {}) | entries
            found[key] = {map_key: value for map_key, value in whole.items() if value is not ABSENT}
        return {key: entries for key, entries in found.items() if entries} if changed else found

    def cells(self) -> Cells:
        """Return every entry."""
        return entry_cells(self.key_group, self.copy())

    def flush(self, most: int = sys.maxsize) -> int:
        """Write changed entries of whole keys, until at least `most` are written. Return how many were written."""
        keys: list[Any] = []
        cells = 0
        for key, entries in self.changed.items():
            keys.append(key)
            cells += len(entries)
            if cells >= most:
                break
        kept, gone = self.form.pairs(self.changed, keys)
        kept.sort()
        self.store(kept, gone)
        self._since = object()
        if len(keys) == len(self.changed):
            self.changed = {}
        else:
            for key in keys:
                del self.changed[key]
        self.changed_entries -= cells
        return cells

    def changed_count(self) -> int:
        """Return how many entries are still to be written."""
        return self.changed_entries
