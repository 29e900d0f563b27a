"""The RocksDB backend: state as bytes in a database on local disk, for state larger than memory.

On the data path it takes the place of the heap backend, with the same versions. The checkpoint holds the durable
copy. So every backend creates its folder anew, and removes it when it closes.

Versions are made of RocksDB's own snapshots. A commit begins another set of changed db keys and takes a snapshot. It
reads, copies and flushes nothing, and costs the same for one changed cell and for a million. Whoever writes the delta
reads it later from that snapshot. A rollback writes back the value that the last committed snapshot has for every
changed key. Reverting a commit does the same with the snapshot before it. A `Snapshot` also has a cursor of its own,
for scans, which keeps the memtables and files of its time until it is released.

Invariant: `_snapshot` is the last committed version, and live data differs from it only in keys that are in a state's
`changed`. If the disk has no room for a rollback, the database stays ahead, and reads go through `unreverted`. So the
invariant holds for every reader. Nothing else is written until the old values are written back.

The trade-off: every get decodes and every update encodes. A cache in front (`LruStateCache`) saves both.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from millpond.errors import UnavailableError
from millpond.state.backend.declarations import Declarations, foreign_key_group, open_version
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.plain import PlainBackend, PlainSnapshot
from millpond.state.backend.protocols import Cells, ListState, MapState, RawCells, Snapshot, ValueState
from millpond.state.backend.timer_queue import TimersByTime
from millpond.state.rocksdb.changed_keys import ChangedKeys
from millpond.state.rocksdb.database import BLOCK_CACHE_BYTES, WRITE_BUFFER_BYTES, Database
from millpond.state.rocksdb.lists import RocksDbListState
from millpond.state.rocksdb.states import Change, RocksDbMapState, RocksDbState, RocksDbValueState
from millpond.state.rocksdb.timers import RocksDbTimerState, TimersInRocksDb
from millpond.state.rocksdb.unreverted import Unreverted
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.rows import Row
from millpond.state.types.timer_states import TIMER_STATES


class RocksDbBackend(PlainBackend):
    """A `KeyedStateBackend` over RocksDB.

    Args:
        key_groups: of the shard.
        folder: holds the files. It belongs to this backend while it is open; files of an earlier one are removed.
        write_buffer_bytes: size of each of RocksDB's buffers in memory.
        block_cache_bytes: size of RocksDB's cache of the blocks it read from files.

    Raises:
        UnavailableError: the folder is in use or cannot be written.
        MissingDependencyError: rocksdict is not installed.

    >>> import tempfile
    >>> import pyarrow as pa
    >>> backend = RocksDbBackend(range(128), Path(tempfile.mkdtemp()))
    >>> visits = backend.value_state(
    ...     StateDescriptor("visits", StateKind.VALUE, pa.schema([("count", pa.int64())])))
    >>> backend.enter(7)
    >>> backend.context.key = ("ann",)
    >>> visits.update((1,))
    >>> snapshot = backend.commit()
    >>> [(name, cells.keys, cells.values) for name, cells in snapshot.changes()]
    [('visits', [('ann',)], [(1,)])]
    >>> backend.close()
    """

    shares_objects = False
    """Whether it keeps the very objects it is given: no, it keeps bytes."""

    def __init__(
        self,
        key_groups: range,
        folder: Path,
        *,
        write_buffer_bytes: int = WRITE_BUFFER_BYTES,
        block_cache_bytes: int = BLOCK_CACHE_BYTES,
    ) -> None:
        self.key_groups = key_groups
        self._database = Database(folder, write_buffer_bytes, block_cache_bytes)
        self.context = KeyContext()
        """The current key, and the time."""
        self._declared = Declarations(_KINDS, self._make)
        self._states = self._declared.states
        self._snapshots: WeakSet[_RocksDbSnapshot] = WeakSet()
        self._snapshot: Any = self._database.snapshot()
        self._snapshot_before: Any = None
        self._unreverted: Unreverted | None = None

    def enter(self, key_group: int) -> None:
        """Make a key group of this shard the current one."""
        if key_group not in self.key_groups:
            raise foreign_key_group(key_group, self.key_groups)
        self.context.key_group = key_group

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """Return the handle of a value state."""
        return self._declared.declare(descriptor, RocksDbValueState)

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """Return the handle of a list state."""
        return self._declared.declare(descriptor, RocksDbListState)

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """Return the handle of a map state."""
        return self._declared.declare(descriptor, RocksDbMapState)

    def _make(self, kind: type[RocksDbState], descriptor: StateDescriptor) -> RocksDbState:
        kind = RocksDbTimerState if descriptor.name in TIMER_STATES else kind
        made = kind(descriptor, len(self._states), self.context, self._database)
        made.use(self._unreverted or self._database.handle)
        return made

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Yield key group and key of every key that has this state now, each once, in the order of the database."""
        state = self._states.get(name)
        return iter(()) if state is None else state.keys()

    def cells(self, name: str, key_group: int) -> Cells:
        """Return every cell of a state in one key group as it is now."""
        state = self._states.get(name)
        if state is None:
            return Cells()
        return state.cells_of(self._database.scan(state.group_prefix(key_group)))

    def write(self, name: str, cells: Cells) -> None:
        """Put or delete cells in the open version."""
        self._declared.find(name).write(cells)

    def raw(self, name: str) -> RawCells:
        """Return direct access to the cells of a declared state."""
        return self._declared.find(name)

    def timers_by_time(self, name: str, key_groups: range) -> TimersByTime:
        """Return the timers that a state holds now, in the order of time. They are read from the database, not kept."""
        state = self._declared.find(name)
        return (
            TimersInRocksDb(state) if isinstance(state, RocksDbTimerState) else super().timers_by_time(name, key_groups)
        )

    def commit(self) -> Snapshot:
        """End the version: begin other sets of changed keys and take a snapshot of the database."""
        if self._unreverted is not None:
            self._unreverted.put_back()
        # Both before anything changes: if one fails, the version stays open.
        taken = self._database.snapshot()
        snapshot = _RocksDbSnapshot(self._database, taken, self._states)
        snapshot.changed = {name: state.end_version() for name, state in self._states.items()}
        self._snapshot_before, self._snapshot = self._snapshot, taken
        self._snapshots.add(snapshot)
        self.context.leave()
        return snapshot

    def rollback(self) -> bool:
        """Write back the values of the last committed version. Return whether anything had changed. It needs no space.

        Raises:
            UnavailableError: RocksDB accepts no more writes, even if there is room. Restore into a new backend.
        """
        changed = any(state.changed for state in self._states.values())
        self._revert(self._snapshot, [(state, state.changed) for state in self._states.values()])
        for state in self._states.values():
            state.forget_changes()
        self.context.leave()
        return changed

    def undo_commit(self) -> None:
        """Revert the last commit: write back the values of the version before it."""
        self.rollback()
        if self._snapshot_before is None:
            return
        self._revert(self._snapshot_before, [(state, state.committed_changed) for state in self._states.values()])
        self._snapshot = self._snapshot_before
        self.acknowledge()

    def acknowledge(self) -> None:
        """Free what the last version replaced."""
        self._snapshot_before = None
        for state in self._states.values():
            state.committed_changed = ChangedKeys()

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells as part of a restore."""
        state = self._declared.restore(descriptor)
        if any(known.changed for known in self._states.values()):
            raise open_version(descriptor.name)
        self._database.write(*state.entries_of(cells))
        state.handed = {}
        self._snapshot = self._database.snapshot()
        self.acknowledge()

    def properties(self) -> dict[str, int]:
        """Return RocksDB's counters: `pending_compaction_bytes`, `running_compactions`, `sst_bytes` and others."""
        return self._database.properties()

    def close(self) -> None:
        """Release every snapshot, close the database and remove its files. Idempotent."""
        for snapshot in list(self._snapshots):
            snapshot.release()
        self._snapshot = self._snapshot_before = None
        self._unreverted = self._database.unreverted = None
        self.context.leave()
        self._states.clear()
        self._database.close()

    def _revert(self, version: Any, changed: Iterable[tuple[RocksDbState, ChangedKeys]]) -> None:
        """Write a version's values back, or have reads see them if they cannot be written."""
        rows = (at for state, cells in changed for at in state.rows_of(cells, version))
        keys = set(rows) if self._unreverted is None else self._unreverted.keys.union(rows)
        if not keys:
            return
        unreverted = Unreverted(self._database, version, keys, lambda: self._use(None))
        try:
            unreverted.put_back()
        except UnavailableError as error:
            if not self._database.takes_writes_again(error):
                raise
            # These writes are outstanding; until then reads go through `unreverted` and are correct.
            self._use(unreverted)

    def _use(self, unreverted: Unreverted | None) -> None:
        self._unreverted = self._database.unreverted = unreverted
        for state in self._states.values():
            state.use(unreverted or self._database.handle)


class _RocksDbSnapshot(PlainSnapshot):
    """One committed version: a snapshot of the database, and `changed`, the changes of each state in this version."""

    def __init__(
        self,
        database: Database,
        taken: Any,
        states: Mapping[str, RocksDbState],
    ) -> None:
        self.changed: dict[str, Change] = {}
        self._database = database
        self._taken = taken
        self._states = dict(states)
        self._cursor = database.cursor()
        self._scanning = threading.Lock()

    def states(self) -> Collection[str]:
        self._reader()
        return self._states.keys()

    def changes(self) -> Iterator[tuple[str, Cells]]:
        """Yield the changed cells, in the order of the database, a few hundred at a time."""
        read = partial(self._database.read_from, self._reader())
        for name, change in self.changed.items():
            for cells in change.cells(read):
                yield name, cells

    def cells(self, name: str, key_group: int) -> Cells:
        self._reader()
        if name not in self._states:
            return Cells()
        state = self._states[name]
        with self._scanning:
            return state.cells_of(self._database.scan(state.group_prefix(key_group), self._cursor))

    def release(self) -> None:
        """Let RocksDB drop what only this snapshot needed. Idempotent."""
        self._taken = self._cursor = None
        self._states = {}
        self.changed = {}

    def _reader(self) -> Any:
        if self._taken is None:
            raise UnavailableError(
                f"this snapshot of the state in {self._database.folder} was released, or its backend was closed; it "
                "cannot be read any more."
            )
        return self._taken


_KINDS: dict[StateKind, type[RocksDbState]] = {
    StateKind.VALUE: RocksDbValueState,
    StateKind.LIST: RocksDbListState,
    StateKind.MAP: RocksDbMapState,
}
