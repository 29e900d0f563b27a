"""The heap that spills: state as Python objects, whose cold key groups go to disk when memory runs short.

Place on the data path: in place of the heap backend, with the same handles, undo maps and snapshots
(`millpond.state.heap.backend`). The tables of a key group on disk act as the heap's dictionaries (`spilled_tables`).
Handles are bound to tables when a key group is entered, so a get does not check where the group is.

The order of timers over all key groups is kept separately, and spills by itself (`timer_queue`).

Invariant: all states of a key group are on the heap, or all are on disk. Spill files are caches: a write that fails
leaves its cells on the heap, and a key group is only lost with the process.

Key groups move between records (`maintenance`). Like every backend, this one belongs to one thread at a time, from the
first `enter` of a version to its commit. Between versions, another backend's thread may move its key groups
(`ownership`).

Source: FLIP-50, SpillableHeapKeyedStateBackend.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from millpond.errors import UnavailableError
from millpond.metrics import Recorder
from millpond.state.backend.cell_bytes import cell_bytes
from millpond.state.backend.lmdb_keys import STATE_BYTES
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.protocols import Cells, ListState, MapState, RawCells, Snapshot, ValueState
from millpond.state.backend.timer_queue import TimersByTime, timers_in
from millpond.state.heap.backend import HeapBackend
from millpond.state.spillable.accounting import StateSizes
from millpond.state.spillable.counted_cells import CountedCells
from millpond.state.spillable.counted_value import CountedValue
from millpond.state.spillable.maintenance import Maintenance
from millpond.state.spillable.maintenance_countdown import MaintenanceCountdown
from millpond.state.spillable.migration import STEP_CELLS, SpilledState
from millpond.state.spillable.migrator import Budget, Migrator
from millpond.state.spillable.monitor import Monitor, process_monitor
from millpond.state.spillable.options import SpillableSettings
from millpond.state.spillable.ownership import Ownership
from millpond.state.spillable.snapshot import Held, SpillableSnapshot, raw_cells
from millpond.state.spillable.spill_file import SpillFile, import_lmdb
from millpond.state.spillable.spill_files import SpillFiles
from millpond.state.spillable.spill_metrics import SpillMetrics
from millpond.state.spillable.spilled_tables import LastRead, SpilledMapTable, SpilledTable
from millpond.state.spillable.statistics import SpillStats, Statistics
from millpond.state.spillable.timer_queue import SpillingTimerQueue
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.rows import Row

_TIMERS_SHARE = 16
"""The timers held in memory may take the memory limit divided by this."""

_TIMER_BYTES = 512
"""Approximate bytes of one timer in memory."""

_FEWEST_TIMERS = 4_096
"""The number of timers that are held in memory however low the limit is."""


class SpillableBackend:
    """A `KeyedStateBackend` on the heap that spills.

    Args:
        key_groups: the key groups of the shard.
        folder: the folder of its spill files, if the settings name no paths.
        settings: marks, ratios and intervals.
        monitor: checks the memory; by default the monitor of the process.
        clock_ns: monotonic nanoseconds, which divide the time between maintenance and the stream.
        free_bytes: returns the free space of the disk of an open file.

    Raises:
        OptionError: the memory limit is below what the process uses without state.
        MissingDependencyError: lmdb is not installed.

    >>> import tempfile
    >>> import pyarrow as pa
    >>> from millpond.state.spi import StateKind
    >>> backend = SpillableBackend(range(128), Path(tempfile.mkdtemp()))
    >>> visits = backend.value_state(
    ...     StateDescriptor("visits", StateKind.VALUE, pa.schema([("count", pa.int64())])))
    >>> backend.enter(7)
    >>> backend.context.key = ("ann",)
    >>> visits.update((1,))
    >>> backend.spill_now([7])
    >>> visits.get(), backend.stats().disk_groups
    ((1,), 1)
    >>> backend.load_now([7])
    >>> visits.get(), backend.stats().disk_groups
    ((1,), 0)
    >>> backend.close()
    """

    shares_objects = True
    """Whether it keeps the very objects it is given: yes, on the heap."""

    def __init__(
        self,
        key_groups: range,
        folder: Path,
        settings: SpillableSettings | None = None,
        *,
        monitor: Monitor | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        free_bytes: Callable[[int], int] | None = None,
    ) -> None:
        import_lmdb()  # fail at the start if it is missing, not when memory runs short
        self.key_groups = key_groups
        settings = settings or SpillableSettings()
        monitor = monitor or process_monitor(settings)
        self._folder = folder
        self._heap = HeapBackend(key_groups)
        self.context = self._heap.context
        """The current key, and the time."""
        self._states: dict[str, SpilledState] = {}
        self._values: dict[str, CountedValue] = {}

        def clock_ms() -> int:
            return clock_ns() // 1_000_000

        given: dict[str, Any] = {} if free_bytes is None else {"free_bytes": free_bytes}
        self._migrator = Migrator(
            self._states,
            self._heap.rebind,
            SpillFiles(
                settings.paths or [folder],
                lambda path: SpillFile(
                    path,
                    settings.chunk_bytes,
                    len(key_groups),
                    most_touches=monitor.most_touches,
                    on_many_touches=monitor.check_mapped,
                    clock_ms=clock_ms,
                    **given,
                ),
                clock_ms,
                settings.trigger_interval_ms,
            ),
            Budget(settings.spill_bytes_per_second, clock_ns),
            clock_ns,
        )
        self._statistics = Statistics(key_groups, self._states, self._migrator, clock_ms)
        self._entered = self._statistics.entered
        self._countdown = MaintenanceCountdown(
            key_groups, self.context, self._heap.bound, self._entered, self._maintain
        )
        self.enter: Callable[[int], None] = self._countdown.enter
        """Bind every handle to the tables of one key group, on the heap or on disk."""
        self._owner = Ownership(self._countdown.maintain_soon)
        self._maintenance = Maintenance(
            self._statistics,
            self._migrator,
            monitor,
            self._owner,
            settings,
            self._countdown.maintain_soon,
            clock_ns,
        )
        self._metrics = SpillMetrics(self._migrator, self.stats, clock_ns)
        self._timer_folders = settings.paths or (folder,)
        self._timers_in_memory = max(_FEWEST_TIMERS, monitor.limit_bytes // _TIMERS_SHARE // _TIMER_BYTES)
        self._closed = False

    def report_to(self, recorder: Recorder) -> None:
        """Report sizes and moves to a recorder: at most once a second, moves at every commit, and both on `close`."""
        self._metrics.report_to(recorder)

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """Return the handle of a value state. Later declarations return the same handle."""
        handle = self._heap.declare_value(descriptor)
        self._declared(descriptor)
        return self._values.setdefault(descriptor.name, CountedValue(handle, self._before_run))

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """Return the handle of a list state."""
        handle = self._heap.list_state(descriptor)
        self._declared(descriptor)
        return handle

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """Return the handle of a map state."""
        handle = self._heap.map_state(descriptor)
        self._declared(descriptor)
        return handle

    def _declared(self, descriptor: StateDescriptor) -> None:
        """Register a newly declared state, and create its tables in the key groups that are on disk."""
        if descriptor.name not in self._states:
            with self._owner.at_work():
                # A move in progress does not include this state.
                self._migrator.put_off()
                heap = self._heap.states[descriptor.name]
                state = SpilledState(heap, cell_bytes(descriptor, len(self._states)), LastRead(), StateSizes(heap))
                self._states[descriptor.name] = state
                for key_group, spilled in self._migrator.spilled.items():
                    heap.tables.live[key_group] = state.table(spilled.file, spilled.database, key_group)
                    self._heap.rebind(key_group)

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Yield key group and key of every key that has this state now, each once."""
        return self._heap.keys(name)

    def cells(self, name: str, key_group: int) -> Cells:
        """Return every cell of a state in one key group as it is now."""
        state = self._states.get(name)
        # Looked up only once, because another thread may move the group between two versions.
        table = None if state is None else state.heap.tables.live.get(key_group)
        if isinstance(table, SpilledTable | SpilledMapTable):
            return table.cells()
        return self._heap.cells(name, key_group)

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Return the same as bytes, in the order of places; None if the group is on the heap. Only between versions."""
        state = self._states.get(name)
        if state is None:
            return None
        return raw_cells(Held(state, state.heap.tables.open), key_group)

    def write(self, name: str, cells: Cells) -> None:
        """Put or delete cells in the open version."""
        self._written(len(cells))
        self._heap.write(name, cells)

    def raw(self, name: str) -> RawCells:
        """Return direct access to the cells of a declared state."""
        return CountedCells(self._heap.raw(name), self._entered, self._written)

    def _before_run(self, key_group: int, keys: int) -> None:
        self._written(keys)
        self._entered[key_group] += keys

    def _written(self, cells: int) -> None:
        self._owner.take()
        self._countdown.written(cells)

    def timers_by_time(self, name: str, key_groups: range) -> TimersByTime:
        """Return a queue filled from the state's cells. A part is in memory, the rest beside the spill files."""
        return SpillingTimerQueue(self._timer_folders, self._timers_in_memory, timers_in(self.cells, name, key_groups))

    def commit(self) -> Snapshot:
        """End the version. This reads and copies nothing, but weighs some samples."""
        self._owner.take()
        for state in self._states.values():
            state.sizes.weigh_changes()
        held = {name: Held(state, state.heap.tables.open) for name, state in self._states.items()}
        snapshot = SpillableSnapshot(self._heap.commit(), held)
        self._statistics.add_changes(each.version for each in held.values())
        self._maintenance.snapshots.add(snapshot)
        # Counted before the backend rests, because other backends' maintenance reads its size.
        self._statistics.count()
        self._metrics.tell_moves()
        self._metrics.tell_if_due()
        self._owner.rest()
        return snapshot

    def rollback(self) -> bool:
        """Write the old values of the open version back. Return whether there were any."""
        with self._owner.at_work(rests=True):
            return self._heap.rollback()

    def undo_commit(self) -> None:
        """Revert the last commit, and the changes after it."""
        with self._owner.at_work(rests=True):
            self._heap.undo_commit()

    def acknowledge(self) -> None:
        """Take note that the last commit is durable."""
        self._heap.acknowledge()

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells as part of a restore. Key groups that do not fit into memory are spilled at once."""
        with self._owner.at_work(rests=True):
            self._declare_loaded(descriptor)
            self._heap.load(descriptor, cells)
            self._states[descriptor.name].sizes.weigh_loaded(cells)
            self._maintenance.make_room()

    def load_raw(self, descriptor: StateDescriptor, key_group: int, pairs: Iterable[Pair]) -> None:
        """Put cells as part of a restore, as bytes that `raw_cells` of a snapshot returned.

        If the key group is on disk or empty, they are written to disk as they are. If it is on the heap, or no disk
        takes them, they are decoded. What fits into memory is loaded after the first key group is entered.
        """
        pairs = list(pairs)
        with self._owner.at_work(rests=True):
            self._declare_loaded(descriptor)
            form = self._states[descriptor.name].form
            try:
                spilled = self._migrator.put_on_disk(key_group)
                if spilled is not None:
                    self._maintenance.untold = True
                    table: Any = self._states[descriptor.name].heap.tables.live[key_group]
                    table.flush()
                    kept = sorted((form.prefix + at[STATE_BYTES:], stored) for at, stored in pairs)
                    for first in range(0, len(kept), STEP_CELLS):
                        table.store(kept[first : first + STEP_CELLS])
                    return
            except UnavailableError as error:
                self._migrator.failed(None, f"key group {key_group} could not be restored to disk: {error}")
            self._heap.load(descriptor, form.cells(key_group, pairs))
            self._maintenance.make_room()

    def _declare_loaded(self, descriptor: StateDescriptor) -> None:
        """Declare a state before its first cells are loaded, so that its key groups have their tables."""
        self._heap.load(descriptor, Cells(map_keys=[] if descriptor.kind is StateKind.MAP else None))
        self._declared(descriptor)

    def close(self) -> None:
        """Free everything. Idempotent."""
        if not self._closed:
            with self._owner.at_work(rests=True):
                self._closed = True
                self._metrics.tell()
                self._maintenance.close()
                self._migrator.close()
                self._heap.close()
                self._states.clear()
                self._values.clear()
                with contextlib.suppress(OSError):  # it was never created, or contains other files
                    self._folder.rmdir()

    def spill_now(self, key_groups: Iterable[int]) -> None:
        """Spill key groups whole, without waiting for the monitor. Those on disk stay there.

        Raises:
            UnavailableError: no disk can take them; the key groups that were not spilled are on the heap.
        """
        with self._owner.at_work():
            for key_group in key_groups:
                self._migrator.spill_now(key_group)

    def load_now(self, key_groups: Iterable[int]) -> None:
        """Load key groups whole, without waiting for the monitor. Those on the heap stay there."""
        with self._owner.at_work():
            for key_group in key_groups:
                self._migrator.load_now(key_group)

    def flush_now(self) -> None:
        """Write all changed cells of the key groups on disk at once."""
        with self._owner.at_work():
            while self._migrator.flush_step():
                continue

    def stats(self) -> SpillStats:
        """Return how much state is on the heap and on disk, and the cost of moves."""
        return self._statistics.stats(self._maintenance.longest_block_ns)

    def temperatures(self) -> pa.Table:
        """Return every key group and state: where it is, how large, and how busy. See `statistics.TEMPERATURES`."""
        return self._statistics.temperatures()

    def _maintain(self) -> int:
        self._owner.take()
        records = self._maintenance.run()
        self._metrics.tell_if_due()
        return records
