"""The RocksDB backend: state as bytes in a database on local disk, for state larger than memory.

On the data path it stands where the heap backend does, with the same versions; the checkpoint holds the
durable copy, so the folder is made anew by every backend and goes with it.

RocksDB's own snapshots do the work of versions. A commit swaps the set of changed db keys for an empty
one and takes a snapshot: it reads, copies and flushes nothing, and costs the same for one changed cell and
for a million. The delta is read from that snapshot later, by whoever writes it. A rollback puts back, for
every changed key, what the last committed snapshot has; taking a commit back does the same with the
snapshot before it. A `Snapshot` has a cursor of its own beside the database's snapshot, for scans; it holds
on to the memtables and files of its time until it is released.

Invariant: `head` is the last committed version, and live data differs from it only in keys that are in a
state's `changed`. Where the disk has no room for a rollback, the database stays ahead and is read through
`unreverted`, so that this holds for whoever reads; nothing is written before it is caught up with.

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
from millpond.state.backend.plain import PlainBackend, PlainSnapshot
from millpond.state.backend.protocols import Cells, KeyContext, ListState, MapState, RawCells, Snapshot, ValueState
from millpond.state.backend.timer_queue import TimersByTime
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
        folder: where its files are, this backend's alone while it is open; what an earlier one left there goes.
        write_buffer_bytes: of each of RocksDB's buffers in memory.
        block_cache_bytes: of RocksDB's cache of what it read from files.

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
        self._context = KeyContext()
        self._declared = Declarations(_KINDS, self._make)
        self._states = self._declared.states
        self._snapshots: WeakSet[_RocksDbSnapshot] = WeakSet()
        self._manifest: Any = self._database.snapshot()
        self._before_manifest: Any = None
        self._unreverted: Unreverted | None = None

    @property
    def context(self) -> KeyContext:
        """Whose state the handles speak of."""
        return self._context

    @property
    def shares_objects(self) -> bool:
        """Whether it keeps the very objects it was given: no, it keeps bytes."""
        return False

    def enter(self, key_group: int) -> None:
        """Turn to a key group of this shard."""
        if key_group not in self.key_groups:
            raise foreign_key_group(key_group, self.key_groups)
        self._context.key_group = key_group

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """The handle of a value state."""
        return self._declared.declare(descriptor, RocksDbValueState)

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """The handle of a list state."""
        return self._declared.declare(descriptor, RocksDbListState)

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """The handle of a map state."""
        return self._declared.declare(descriptor, RocksDbMapState)

    def _make(self, kind: type[RocksDbState], descriptor: StateDescriptor) -> RocksDbState:
        kind = RocksDbTimerState if descriptor.name in TIMER_STATES else kind
        made = kind(descriptor, len(self._states), self._context, self._database)
        made.use(self._unreverted or self._database.handle)
        return made

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Key group and key of every key that has this state now, each once, in the order of the database."""
        state = self._states.get(name)
        return iter(()) if state is None else state.keys()

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group as it is now."""
        state = self._states.get(name)
        if state is None:
            return Cells()
        return state.cells_of(self._database.scan(state.group_prefix(key_group)))

    def write(self, name: str, cells: Cells) -> None:
        """Put or delete cells in the open version."""
        self._declared.find(name).write(cells)

    def raw(self, name: str) -> RawCells:
        """The cells of a declared state past its handle."""
        return self._declared.find(name)

    def timers_by_time(self, name: str, key_groups: range) -> TimersByTime:
        """The timers that a state holds now, in the order of time: read from the database, none of them in memory."""
        state = self._declared.find(name)
        return (
            TimersInRocksDb(state) if isinstance(state, RocksDbTimerState) else super().timers_by_time(name, key_groups)
        )

    def commit(self) -> Snapshot:
        """End the version: swap the sets of changed keys and take a snapshot of the database."""
        if self._unreverted is not None:
            self._unreverted.put_back()
        # Both at once: what fails here leaves the version open.
        taken = self._database.snapshot()
        snapshot = _RocksDbSnapshot(self._database, taken, self._states)
        snapshot.changed = {name: state.end_version() for name, state in self._states.items()}
        self._before_manifest, self._manifest = self._manifest, taken
        self._snapshots.add(snapshot)
        self._leave()
        return snapshot

    def rollback(self) -> bool:
        """Put back what the last committed version has; whether there was any change. It needs no space.

        Raises:
            UnavailableError: RocksDB takes no more writes, with room or without. Restore into a new backend.
        """
        changed = any(state.changed for state in self._states.values())
        self._revert(self._manifest, [(state, state.changed) for state in self._states.values()])
        for state in self._states.values():
            state.forget_changes()
        self._leave()
        return changed

    def undo_commit(self) -> None:
        """Put back what the version before the last committed one has."""
        self.rollback()
        if self._before_manifest is None:
            return
        self._revert(self._before_manifest, [(state, state.committed_changed) for state in self._states.values()])
        self._manifest = self._before_manifest
        self.acknowledge()

    def acknowledge(self) -> None:
        """Let go of what the last version replaced."""
        self._before_manifest = None
        for state in self._states.values():
            state.committed_changed = set()

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells as part of a restore."""
        state = self._declared.restore(descriptor)
        if any(known.changed for known in self._states.values()):
            raise open_version(descriptor.name)
        self._database.write(*state.entries_of(cells))
        state.handed = {}
        self._manifest = self._database.snapshot()
        self.acknowledge()

    def properties(self) -> dict[str, int]:
        """RocksDB's counters: `pending_compaction_bytes`, `running_compactions`, `sst_bytes` and others."""
        return self._database.properties()

    def close(self) -> None:
        """Release every snapshot, close the database and remove its files. Idempotent."""
        for snapshot in list(self._snapshots):
            snapshot.release()
        self._manifest = self._before_manifest = None
        self._unreverted = self._database.unreverted = None
        self._leave()
        self._states.clear()
        self._database.close()

    def _revert(self, version: Any, changed: Iterable[tuple[RocksDbState, Collection[Any]]]) -> None:
        """Have the database hold a version again, or be read as if it did."""
        rows = (at for state, cells in changed for at in state.rows_of(cells, version))
        keys = set(rows) if self._unreverted is None else self._unreverted.keys.union(rows)
        if not keys:
            return
        unreverted = Unreverted(self._database, version, keys, self._reverted)
        try:
            unreverted.put_back()
        except UnavailableError as error:
            if not self._database.takes_writes_again(error):
                raise
            # What could not be written is owed: reads are right all the same.
            self._use(unreverted)

    def _reverted(self) -> None:
        self._use(None)

    def _use(self, unreverted: Unreverted | None) -> None:
        self._unreverted = self._database.unreverted = unreverted
        for state in self._states.values():
            state.use(unreverted or self._database.handle)

    def _leave(self) -> None:
        self._context.key_group = -1
        self._context.key = ()


class _RocksDbSnapshot(PlainSnapshot):
    """One committed version: the database as it was, and `changed`, what the version changed of each state."""

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
        """The names of the states."""
        self._reader()
        return self._states.keys()

    def changes(self) -> Iterator[tuple[str, Cells]]:
        """The changed cells, in the order of the database, a few hundred at a time."""
        read = partial(self._database.read_from, self._reader())
        for name, change in self.changed.items():
            for cells in change.cells(read):
                yield name, cells

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group as of this version."""
        self._reader()
        if name not in self._states:
            return Cells()
        state = self._states[name]
        with self._scanning:
            return state.cells_of(self._database.scan(state.group_prefix(key_group), self._cursor))

    def release(self) -> None:
        """Let RocksDB drop what only this version needed. Idempotent."""
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
