"""Moves a key group to disk or back, in small steps between the records of the stream.

A move copies first and switches last. While cells are copied, the group stays where it is, and is used and changed
there. The undo maps of the versions since then tell what changed after copying began. The switch replaces the group's
tables in one step, with the present values of the changed cells.

Invariant: a key group is on the heap or on disk, never both. Until the switch the copy does not count, and is discarded
if the move fails; after it the original does not count. A process that dies during a move loses no more than it does at
any other time, since neither heap nor spill file outlives it.
"""

import contextlib
import heapq
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

from millpond.errors import MillpondError, UnavailableError
from millpond.state.backend.cell_bytes import EntryBytes, FlatBytes
from millpond.state.backend.pairs import Pair
from millpond.state.backend.protocols import ABSENT
from millpond.state.heap.states import HeapState
from millpond.state.heap.tables import set_cell, set_entry
from millpond.state.heap.versions import kept_entries, later_versions
from millpond.state.spillable.accounting import StateSizes
from millpond.state.spillable.spill_file import SpillFile
from millpond.state.spillable.spilled_tables import LastRead, SpilledMapTable, SpilledTable
from millpond.state.types.descriptor import StateKind
from millpond.state.types.rows import Row

STEP_CELLS = 2_000
"""Cells that one step copies, which takes a few milliseconds."""

RUN_CELLS = 25_000
"""Entries that are sorted before they are written. The pages of a group of at most this many are filled in order. In a
larger group, each run is inserted between the entries of the earlier runs."""

_READ_AT_ONCE = 10_000
"""Log entries that one step turns into undo maps: changes of one key each, or of as many keys as changed at once."""

_SORTED_AT_ONCE = 8_000
"""Keys that one step sorts, which takes some milliseconds."""

_STEP_BYTES = 1 << 20
"""Approximate bytes that one transaction writes."""


class SpilledState(NamedTuple):
    """A state that may be spilled: on the heap, and as bytes."""

    heap: HeapState
    form: FlatBytes | EntryBytes
    last_read: LastRead
    sizes: StateSizes

    @property
    def is_map(self) -> bool:
        """Whether its cells are entries of a map."""
        return self.heap.descriptor.kind is StateKind.MAP

    def table(self, file: SpillFile, database: Any, key_group: int) -> Any:
        """Create the table of a key group on disk."""
        if isinstance(self.form, EntryBytes):
            return SpilledMapTable(self.form, file, database, key_group)
        return SpilledTable(self.form, self.last_read, file, database, key_group)


def heap_bytes(states: Iterable[SpilledState], key_group: int) -> int:
    """Return the estimated bytes of a key group on the heap; 0 if it is on disk."""
    return sum(state.sizes.bytes_of(key_group) for state in states)


class Migration(ABC):
    """What both directions share. Call `step` until it returns that the group has moved.

    Attributes:
        key_group: the group that moves.
        cells: how many cells were copied so far.
        bytes: size of their keys and values in the file.
    """

    def __init__(self, states: Iterable[SpilledState], key_group: int) -> None:
        self.key_group = key_group
        self.cells = 0
        self.bytes = 0
        self._states = list(states)
        # Tells a generator that ended from one that failed, which would look the same.
        self._copied = False
        # Changes from here on are in the undo maps of these versions and of those after them.
        self._since = [state.heap.tables.open for state in self._states]
        self._steps = self._copying()

    def step(self) -> bool:
        """Copy some cells, and at last switch. Return whether the group has moved. A MillpondError means it has not."""
        if next(self._steps, None) is not None:
            return False
        if not self._copied:
            raise UnavailableError(f"the copying of key group {self.key_group} failed before.")
        if self._reads_logs():
            return False
        self._switch()
        return True

    def abandon(self) -> None:
        """Discard the copy."""
        self._steps.close()

    @abstractmethod
    def _copying(self) -> Generator[bool, None, None]:
        """Copy, one step's work per yield. Set `_copied` at the end."""

    @abstractmethod
    def _switch(self) -> None:
        """Put the copy, with the changes since, in place of the original."""

    def _reads_logs(self) -> bool:
        """Make undo maps of some changes since, so that the switch finds few left. Return whether there may be more."""
        versions = chain.from_iterable((since, *later_versions(since)) for since in self._since)
        return any(version.read_some(_READ_AT_ONCE) for version in versions)

    def _changed(self, position: int) -> dict[Any, set[Row]]:
        """Return the keys of a state that changed since, with the map keys of their entries."""
        since = self._since[position]
        is_map = self._states[position].is_map
        changed: dict[Any, set[Row]] = {}
        for version in (since, *later_versions(since)):
            # A copy, because readers in other threads may make the open version's map grow.
            for key, old in version.undo.get(self.key_group, {}).copy().items():
                entries = changed.setdefault(key, set())
                if is_map:
                    entries.update(kept_entries(old))
        return changed


class Spill(Migration):
    """A move from the heap into a file."""

    def __init__(self, states: Iterable[SpilledState], key_group: int, file: SpillFile) -> None:
        super().__init__(states, key_group)
        self.file = file
        self.database = file.database(key_group)
        # Removes what a failed move could not remove.
        file.empty(self.database)
        self._tables = [state.table(file, self.database, key_group) for state in self._states]

    def abandon(self) -> None:
        """Discard the copy, as far as the file can be written."""
        super().abandon()
        _emptied(self.file, self.database)

    def _copying(self) -> Generator[bool, None, None]:
        for state, copy in zip(self._states, self._tables, strict=True):
            table: Mapping[Any, Any] = state.heap.tables.live.get(self.key_group, {})
            if isinstance(state.form, FlatBytes):
                yield from self._copied_in_order(state.form, table, copy)
            else:
                yield from self._copied_by_runs(state.form, table, copy)
        self._copied = True

    def _copied_in_order(self, form: FlatBytes, table: Mapping[Any, Any], copy: Any) -> Iterator[bool]:
        """Copy cells in the order of their places, so that pages are filled one after the other and written once."""
        remaining, runs = iter(list(table)), []
        while run := list(islice(remaining, _SORTED_AT_ONCE)):
            run.sort(key=form.place)
            runs.append(run)
            yield True
        # Places are computed twice, because keeping them would take as much memory as the state.
        keys = heapq.merge(*runs, key=form.place)
        while piece := list(islice(keys, STEP_CELLS)):
            yield from self._write(copy, form.pairs(table, piece)[0], in_order=True)

    def _copied_by_runs(self, form: EntryBytes, table: Mapping[Any, Any], copy: Any) -> Iterator[bool]:
        """Copy entries, of which one key may have any number. Some thousand at a time are sorted."""
        remaining, in_order = iter(list(table)), True
        while run := list(islice(remaining, RUN_CELLS)):
            pairs: list[Pair] = []
            for piece in _pieces(table, run):
                pairs += form.pairs(piece, piece)[0]
                yield True
                if len(pairs) >= RUN_CELLS:
                    yield from self._write(copy, pairs, in_order=in_order)
                    pairs, in_order = [], False
            yield from self._write(copy, pairs, in_order=in_order)
            in_order = False

    def _write(self, copy: Any, pairs: list[Pair], *, in_order: bool) -> Iterator[bool]:
        pairs.sort()
        for first in range(0, len(pairs), STEP_CELLS):
            for part, size in _by_size(pairs[first : first + STEP_CELLS]):
                copy.store(part, append=in_order)
                self.cells += len(part)
                self.bytes += size
                yield True

    def _switch(self) -> None:
        for position, (state, copy) in enumerate(zip(self._states, self._tables, strict=True)):
            live = state.heap.tables.live
            old: Mapping[Any, Any] = live.get(self.key_group, {})
            changed: dict[Any, Any] = {}
            for key, map_keys in self._changed(position).items():
                if state.is_map:
                    entries = old.get(key, {})
                    changed[key] = {map_key: entries.get(map_key, ABSENT) for map_key in map_keys}
                else:
                    changed[key] = old.get(key, ABSENT)
            copy.change(changed)
            live[self.key_group] = copy


class Load(Migration):
    """A move from a file onto the heap."""

    def __init__(self, states: Iterable[SpilledState], key_group: int) -> None:
        super().__init__(states, key_group)
        self._spilled: list[Any] = [state.heap.tables.live[key_group] for state in self._states]
        self._found: list[dict[Any, Any]] = [{} for _ in self._states]

    def _copying(self) -> Generator[bool, None, None]:
        for state, spilled, found in zip(self._states, self._spilled, self._found, strict=True):
            pairs = spilled.scanned(spilled.form.prefix)
            while piece := list(islice(pairs, STEP_CELLS)):
                state.form.add(found, piece)
                self.cells += len(piece)
                self.bytes += sum(len(at) + len(stored) for at, stored in piece)
                yield True
        self._copied = True

    def _switch(self) -> None:
        for position, (state, spilled, found) in enumerate(zip(self._states, self._spilled, self._found, strict=True)):
            changed = self._changed(position)
            for key, unwritten in spilled.unwritten().items():
                changed.setdefault(key, set()).update(unwritten if state.is_map else ())
            for key, map_keys in changed.items():
                if state.is_map:
                    entries = spilled.get(key)
                    for map_key in map_keys:
                        set_entry(found, key, map_key, entries.get(map_key, ABSENT))
                else:
                    set_cell(found, key, spilled.get(key, ABSENT))
        for state, spilled, found in zip(self._states, self._spilled, self._found, strict=True):
            state.heap.tables.live[self.key_group] = found
            spilled.successor = found
        # Only now: from here on a reader of the file asks the successor too.
        _emptied(self._spilled[0].file, self._spilled[0].database)


def _pieces(table: Mapping[Any, Any], keys: list[Any]) -> Iterator[dict[Any, Any]]:
    """Yield tables of some of the entries, about as many as one step copies."""
    piece: dict[Any, Any] = {}
    cells = 0
    for key in keys:
        entries = list(table.get(key, {}).items())
        for first in range(0, len(entries), STEP_CELLS):
            piece[key] = dict(entries[first : first + STEP_CELLS])
            cells += len(piece[key])
            if cells >= STEP_CELLS:
                yield piece
                piece, cells = {}, 0
    if piece:
        yield piece


def _by_size(pairs: list[Pair]) -> Iterator[tuple[list[Pair], int]]:
    """Yield parts of about the size that one transaction writes, with their bytes. A larger cell goes alone."""
    part: list[Pair] = []
    size = 0
    for pair in pairs:
        part.append(pair)
        size += len(pair[0]) + len(pair[1])
        if size >= _STEP_BYTES:
            yield part, size
            part, size = [], 0
    if part:
        yield part, size


def _emptied(file: SpillFile, database: Any) -> None:
    """Delete a group's copy, if the disk permits. Otherwise the group's next spill does it first."""
    with contextlib.suppress(MillpondError):
        file.empty(database)
