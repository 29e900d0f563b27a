"""A key group on its way to disk or back, in small steps between the records of the stream.

A move copies first and switches last. While cells are copied the group stays where it is, and is used and
changed there; what was changed since the copying began is told by the undo maps of the versions since. The switch
replaces the group's tables in one step, with those cells as they are now.

Invariant: a key group is on the heap or on disk, never both: until the switch the copy counts for nothing, and is
thrown away if the move fails; after it the original does. A process that dies at any time loses what a process that
dies loses, since neither heap nor spill file outlives it.
"""

import contextlib
import heapq
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from millpond.errors import MillpondError, UnavailableError
from millpond.state.backend.cell_bytes import EntryBytes, FlatBytes
from millpond.state.backend.pairs import Pair
from millpond.state.backend.protocols import ABSENT
from millpond.state.heap.states import HeapState
from millpond.state.heap.versions import Version
from millpond.state.spillable.spill_file import SpillFile
from millpond.state.spillable.spilled_tables import LastRead, SpilledMapTable, SpilledTable
from millpond.state.types.descriptor import StateKind
from millpond.state.types.rows import Row

STEP_CELLS = 2_000
"""Cells that one step copies: a few milliseconds."""

RUN_CELLS = 25_000
"""Entries that are put in order before they are written. A group of no more fills its pages; of a larger one each run
goes between the entries of those before it."""

_READ_AT_ONCE = 10_000
"""Entries of a log that a step makes undo maps of: changes of one key each, or of as many as came at once."""

_SORTED_AT_ONCE = 8_000
"""Keys that one step puts in order: some milliseconds."""

_STEP_BYTES = 1 << 20
"""Of what one transaction writes, about."""


class SpilledState(NamedTuple):
    """A state that may be spilled: on the heap, and as bytes."""

    heap: HeapState
    form: FlatBytes | EntryBytes
    last_read: LastRead

    @property
    def is_map(self) -> bool:
        """Whether its cells are entries."""
        return self.heap.descriptor.kind is StateKind.MAP

    def table(self, file: SpillFile, database: Any, key_group: int) -> Any:
        """The table of a key group on disk."""
        if isinstance(self.form, EntryBytes):
            return SpilledMapTable(self.form, file, database, key_group)
        return SpilledTable(self.form, self.last_read, file, database, key_group)


class Migration(ABC):
    """What both directions share: `step` until it says that the group is where it was to go.

    Attributes:
        key_group: which one moves.
        cells: how many cells were copied so far.
        bytes: of their keys and values in the file.
    """

    def __init__(self, states: Iterable[SpilledState], key_group: int) -> None:
        self.key_group = key_group
        self.cells = 0
        self.bytes = 0
        self._states = list(states)
        # A generator that failed looks like one that came to its end.
        self._copied = False
        # From here on: what changes is in the undo maps of these versions and of those after them.
        self._since = [state.heap.tables.open for state in self._states]
        self._steps = self._copying()

    def step(self) -> bool:
        """Copy some cells; at last switch. A MillpondError says why it did not work: the group is where it was."""
        if next(self._steps, None) is not None:
            return False
        if not self._copied:
            raise UnavailableError(f"the copying of key group {self.key_group} failed before.")
        if self._reads_logs():
            return False
        self._switch()
        return True

    def abandon(self) -> None:
        """Throw the copy away."""
        self._steps.close()

    @abstractmethod
    def _copying(self) -> Generator[bool, None, None]:
        """The work of a step at a time; `_copied` at its end."""

    @abstractmethod
    def _switch(self) -> None:
        """Put the copy, with what was changed meanwhile, where the original is."""

    def _reads_logs(self) -> bool:
        """Make undo maps of some of what was changed meanwhile in any key group, so that the switch finds few left."""
        for since in self._since:
            version: Version | None = since
            while version is not None:
                if version.read_some(_READ_AT_ONCE):
                    return True
                version = version.next
        return False

    def _changed(self, position: int) -> dict[Any, set[Row]]:
        """The keys of a state that were changed meanwhile, with the map keys of their entries."""
        version: Version | None = self._since[position]
        is_map = self._states[position].is_map
        changed: dict[Any, set[Row]] = {}
        while version is not None:
            # A copy: of the open version, readers in other threads may make it grow.
            for key, old in version.undo.get(self.key_group, {}).copy().items():
                entries = changed.setdefault(key, set())
                if is_map:
                    entries.update(old)
            version = version.next
        return changed


class Spill(Migration):
    """From the heap into a file."""

    def __init__(self, states: Iterable[SpilledState], key_group: int, file: SpillFile) -> None:
        super().__init__(states, key_group)
        self.file = file
        self.database = file.database(key_group)
        # What a move that failed could not take away again.
        file.empty(self.database)
        self._tables = [state.table(file, self.database, key_group) for state in self._states]

    def abandon(self) -> None:
        """Throw the copy away, as far as the file can be written."""
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
        """Cells in the order of their places: so pages are filled one after the other, and written once."""
        remaining, runs = iter(list(table)), []
        while run := list(islice(remaining, _SORTED_AT_ONCE)):
            run.sort(key=form.place)
            runs.append(run)
            yield True
        # Places are made twice, since to keep them would take as much memory as the state.
        keys = heapq.merge(*runs, key=form.place)
        while piece := list(islice(keys, STEP_CELLS)):
            yield from self._write(copy, form.pairs(table, piece)[0], in_order=True)

    def _copied_by_runs(self, form: EntryBytes, table: Mapping[Any, Any], copy: Any) -> Iterator[bool]:
        """Entries, of which one key may have any number: some thousand at a time are put in order."""
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
    """From a file onto the heap."""

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
            for key, entries in spilled.unwritten().items():
                changed.setdefault(key, set()).update(entries if state.is_map else ())
            for key, map_keys in changed.items():
                if state.is_map:
                    _overlay_entries(found, key, spilled.get(key), map_keys)
                else:
                    _overlay(found, key, spilled.get(key, ABSENT))
        for state, spilled, found in zip(self._states, self._spilled, self._found, strict=True):
            state.heap.tables.live[self.key_group] = found
            spilled.successor = found
        # Only now: whoever reads the file from here on asks the successor too.
        _emptied(self._spilled[0].file, self._spilled[0].database)


def _overlay(found: dict[Any, Any], key: Any, value: Any) -> None:
    if value is ABSENT:
        found.pop(key, None)
    else:
        found[key] = value


def _overlay_entries(found: dict[Any, Any], key: Any, now: Any, map_keys: Iterable[Row]) -> None:
    entries = found.setdefault(key, {})
    for map_key in map_keys:
        _overlay(entries, map_key, now.get(map_key, ABSENT))
    if not entries:
        del found[key]


def _pieces(table: Mapping[Any, Any], keys: list[Any]) -> Iterator[dict[Any, Any]]:
    """Tables of some of the entries, of about as many as one step copies."""
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
    """Parts of about as many bytes as one transaction writes, with their bytes; a cell that is larger goes alone."""
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
    """Delete a group's copy, if the disk lets us; the next spill of the group begins with that again."""
    with contextlib.suppress(MillpondError):
        file.empty(database)
