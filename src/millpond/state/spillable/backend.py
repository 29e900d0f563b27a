"""The heap that spills: state as Python objects, of which cold key groups go to disk when memory runs short.

On the data path it stands where the heap backend does and is one, until the monitor says otherwise: the same
handles, undo maps and snapshots (`millpond.state.heap`). A key group on disk has tables that act as the
heap's dictionaries (`spilled_tables`), so what is decided once when a key group is entered is not asked again per get.

Between records the backend looks up, every few milliseconds of work: it counts what it holds, lets the monitor
look, and does a step of what there is to move or to write. A look takes no longer than `BUSY_SLICE_MS`, or
`URGENT_SLICE_MS` while memory is above the hard mark, but for the one step that is under way.

Invariant: a key group of all states together is on the heap or on disk. Spill files are caches: a write
that fails leaves its cells on the heap, and no key group is lost but with the process.

Threads: as every backend it belongs to one thread at a time, from the first `enter` of a version to its commit. Another
backend's thread may move key groups of this one while it rests in between; `_working` is held by whoever has it.

Source: FLIP-50, SpillableHeapKeyedStateBackend.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakSet

from millpond.errors import UnavailableError
from millpond.metrics import NO_METRICS, Recorder
from millpond.state.backend import Cells, KeyContext, ListState, MapState, RawCells, Snapshot, ValueState
from millpond.state.descriptor import StateDescriptor, StateKind
from millpond.state.heap import HeapBackend
from millpond.state.rows import Row
from millpond.state.spillable.accounting import SLOT_BYTES, RequestRates, StateSizes
from millpond.state.spillable.cell_bytes import Pair, cell_bytes
from millpond.state.spillable.counted_cells import CountedCells
from millpond.state.spillable.counted_value import CountedValue
from millpond.state.spillable.monitor import Monitor, process_monitor
from millpond.state.spillable.mover import Budget, Mover
from millpond.state.spillable.moves import STEP_CELLS, SpilledState
from millpond.state.spillable.options import SpillableSettings
from millpond.state.spillable.places import STATE_BYTES
from millpond.state.spillable.policy import GroupLoad
from millpond.state.spillable.snapshot import Held, SpillableSnapshot, raw_cells
from millpond.state.spillable.spill_file import SpillFile
from millpond.state.spillable.spill_files import SpillFiles
from millpond.state.spillable.spilled_tables import SpilledMapTable, SpilledTable

BUSY_SLICE_MS = 20
"""For how long a look moves key groups, and for how long it then leaves the stream alone."""

URGENT_SLICE_MS = 60
"""The same above the hard mark, where the stream has only the time from one look to the next."""

_LOOK_EVERY_MS = 5
_LOOK_SHARE = 50
"""Counting what there is takes at most this part of the time."""

_MOST_TURNS = 4096
_BUFFER_SHARE = 16
"""Changed cells of spilled groups may take this part of the memory limit before they are written."""


@dataclass(frozen=True)
class KeyGroupTemperature:
    """One key group, for a picture of how hot each is and where it lies.

    Attributes:
        key_group: its number.
        on_disk: whether it is spilled.
        bytes: on the heap, about; or in the spill file, exactly.
        rate: its requests, halved every minute.
    """

    key_group: int
    on_disk: bool
    bytes: int
    rate: float


@dataclass(frozen=True)
class SpillStats:
    """What a backend holds where, and what moving cost.

    Attributes:
        heap_groups: key groups with state on the heap.
        heap_bytes: what they take, about.
        disk_groups: key groups on disk.
        disk_bytes: of their pages.
        spills: key groups spilled since it was made.
        loads: key groups loaded.
        failures: moves and writes that did not work; what they were to move stayed where it was.
        spill_seconds: spent on spilling, and on writing what changed on disk.
        load_seconds: spent on loading.
        longest_block_ms: the longest time that one look kept the stream waiting.
        reason: of the last turn; "" before the first.
    """

    heap_groups: int
    heap_bytes: int
    disk_groups: int
    disk_bytes: int
    spills: int
    loads: int
    failures: int
    spill_seconds: float
    load_seconds: float
    longest_block_ms: float
    reason: str


class SpillableBackend:
    """A `KeyedStateBackend` on the heap that spills.

    Args:
        key_groups: of the shard.
        folder: for its spill files where the settings name no paths.
        settings: marks, ratios and intervals.
        monitor: watches the memory; the process's own unless given.
        clock_ns: monotonic nanoseconds, by which looks take turns with the stream.
        free_bytes: asks the disk of an open file for its space.

    Raises:
        OptionError: the memory limit is below what the process uses without state.

    >>> import tempfile
    >>> import pyarrow as pa
    >>> from millpond.state import StateKind
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
        self.key_groups = key_groups
        self.heap_bytes = 0
        self._settings = settings or SpillableSettings()
        self._folder = folder
        self._heap = HeapBackend(key_groups)
        self._context = self._heap.context
        self._enter = self._heap.enter
        self._monitor = monitor or process_monitor(self._settings)
        self._clock_ns = clock_ns
        self._recorder: Recorder = NO_METRICS
        self._states: dict[str, SpilledState] = {}
        self._sizes: dict[str, StateSizes] = {}
        self._values: dict[str, CountedValue] = {}
        self._rates = RequestRates(key_groups, self._now_ms())
        self._entered = self._rates.entered
        self._mover = Mover(
            self._states,
            self._context,
            self._spill_files({} if free_bytes is None else {"free_bytes": free_bytes}),
            Budget(self._settings.spill_bytes_per_second, clock_ns),
            self._group_bytes,
            clock_ns,
        )
        self._snapshots: WeakSet[SpillableSnapshot] = WeakSet()
        self._working = threading.Lock()
        self._has_it = False
        self._turns_left = 0
        self._turns = 1
        self._looked_ns = self._rest_until_ns = clock_ns()
        self._longest_block_ns = 0
        # Moves and seconds that the recorder has heard of.
        self._told: dict[str, tuple[int, float]] = {}
        # Whether a restore left key groups on disk that the monitor has not been told of.
        self._untold = False
        self._closed = False
        self._monitor.register(self)

    def _spill_files(self, given: dict[str, Any]) -> SpillFiles:
        settings, key_groups = self._settings, len(self.key_groups)
        return SpillFiles(
            settings.paths or [self._folder],
            lambda folder: SpillFile(folder, settings.chunk_bytes, key_groups, **given),
            self._now_ms,
            settings.trigger_interval_ms,
        )

    @property
    def context(self) -> KeyContext:
        """Whose state the handles speak of."""
        return self._context

    @property
    def shares_objects(self) -> bool:
        """Whether it keeps the very objects it was given: yes, on the heap."""
        return True

    def report_to(self, recorder: Recorder) -> None:
        """Have a recorder hear of what is where, and of moves, at every commit."""
        self._recorder = recorder

    def enter(self, key_group: int) -> None:
        """Bind every handle to the tables of one key group, wherever they are."""
        self._turns_left -= 1
        if self._turns_left < 0:
            self._look()
        self._enter(key_group)
        self._entered[key_group] += 1

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """The handle of a value state: one, however often it is declared."""
        handle = self._heap.declare_value(descriptor)
        self._declared(descriptor)
        return self._values.setdefault(descriptor.name, CountedValue(handle, self._turned_to))

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """The handle of a list state."""
        handle = self._heap.list_state(descriptor)
        self._declared(descriptor)
        return handle

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """The handle of a map state."""
        handle = self._heap.map_state(descriptor)
        self._declared(descriptor)
        return handle

    def _declared(self, descriptor: StateDescriptor) -> None:
        """What is declared late needs tables in the key groups that are on disk."""
        if descriptor.name not in self._states:
            with self._at_work():
                # A move under way knows nothing of this state.
                self._mover.put_off()
                heap = self._heap.states[descriptor.name]
                state = SpilledState(heap, cell_bytes(descriptor, len(self._states)))
                self._states[descriptor.name] = state
                self._sizes[descriptor.name] = StateSizes(state)
                for key_group, spilled in self._mover.spilled.items():
                    heap.tables.live[key_group] = state.table(spilled.file, spilled.database, key_group)
                    self._mover.rebind(key_group)

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Key group and key of every key that has this state now, each once."""
        return self._keys(name)

    def _keys(self, name: str) -> Iterator[tuple[int, Row]]:
        state = self._states.get(name)
        if state is not None:
            live = state.heap.tables.live
            for key_group in sorted(live):
                for key in list(live[key_group]):
                    # Asked anew each time: the group may have moved.
                    if key in live[key_group]:
                        yield key_group, key

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group as it is now."""
        state = self._states.get(name)
        # Looked up once: between two versions another thread may be moving the group.
        table = None if state is None else state.heap.tables.live.get(key_group)
        if isinstance(table, SpilledTable | SpilledMapTable):
            return table.cells()
        return self._heap.cells(name, key_group)

    def raw_cells(self, name: str, key_group: int) -> list[Pair] | None:
        """The same as bytes, in no order; None where the key group is on the heap. Only between two versions."""
        state = self._states.get(name)
        if state is None:
            return None
        return raw_cells(Held(state, state.heap.tables.open), key_group)

    def write(self, name: str, cells: Cells) -> None:
        """Put or delete cells in the open version."""
        self._written(len(cells))
        self._heap.write(name, cells)

    def raw(self, name: str) -> RawCells:
        """The cells of a declared state past its handle."""
        return CountedCells(self._heap.raw(name), self._entered, self._written)

    def _turned_to(self, key_group: int, keys: int) -> None:
        self._written(keys)
        self._entered[key_group] += keys

    def _written(self, cells: int) -> None:
        self._take()
        self._turns_left -= cells
        if self._turns_left < 0:
            self._look()

    def commit(self) -> Snapshot:
        """End the version. Nothing is read or copied, but for some samples that are weighed."""
        self._take()
        for sizes in self._sizes.values():
            sizes.weigh_changes()
        held = {name: Held(state, state.heap.tables.open) for name, state in self._states.items()}
        snapshot = SpillableSnapshot(self._heap.commit(), held)
        self._rates.add_changes(each.version for each in held.values())
        self._snapshots.add(snapshot)
        # What a backend at rest holds is asked for by those that work.
        self._count()
        self._rest()
        self._record()
        return snapshot

    def rollback(self) -> bool:
        """Write the old values of the open version back; whether there were any."""
        with self._at_work(rests=True):
            return self._heap.rollback()

    def undo_commit(self) -> None:
        """Take the last commit back, and what came after it."""
        with self._at_work(rests=True):
            self._heap.undo_commit()

    def settle(self) -> None:
        """The last commit is durable."""
        self._heap.settle()

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells as part of a restore. What does not fit is spilled as it comes."""
        with self._at_work(rests=True):
            self._declare_loaded(descriptor)
            self._heap.load(descriptor, cells)
            self._sizes[descriptor.name].weigh_loaded(cells)
            self._make_room()

    def load_raw(self, descriptor: StateDescriptor, key_group: int, pairs: Iterable[Pair]) -> None:
        """Put cells that are bytes as part of a restore, as `raw_cells` of a snapshot gave them.

        They go to disk as they are, where the key group is there or has nothing yet. Where it is on the heap, or no
        disk takes them, they are decoded. What fits is loaded from there once the first key group is entered.
        """
        pairs = list(pairs)
        with self._at_work(rests=True):
            self._declare_loaded(descriptor)
            form = self._states[descriptor.name].form
            try:
                spilled = self._mover.put_on_disk(key_group)
                if spilled is not None:
                    self._untold = True
                    table: Any = self._states[descriptor.name].heap.tables.live[key_group]
                    table.flush()
                    kept = sorted((form.prefix + at[STATE_BYTES:], stored) for at, stored in pairs)
                    for first in range(0, len(kept), STEP_CELLS):
                        spilled.file.write(spilled.database, kept[first : first + STEP_CELLS])
                    return
            except UnavailableError as error:
                self._mover.failed(None, f"key group {key_group} could not be restored to disk: {error}")
            self._heap.load(descriptor, form.cells(key_group, pairs))
            self._make_room()

    def _declare_loaded(self, descriptor: StateDescriptor) -> None:
        """Declare a state before its first cells come, so that they find the tables that its key groups have."""
        self._heap.load(descriptor, Cells(map_keys=[] if descriptor.kind is StateKind.MAP else None))
        self._declared(descriptor)

    def close(self) -> None:
        """Free everything. Idempotent."""
        if not self._closed:
            with self._at_work(rests=True):
                self._closed = True
                self._mover.close()
                self._heap.close()
                self._states.clear()
                self._sizes.clear()
                self._values.clear()
                self.heap_bytes = 0
                with contextlib.suppress(OSError):  # it was never made, or somebody else's files are in it
                    self._folder.rmdir()

    def spill_now(self, key_groups: Iterable[int]) -> None:
        """Spill key groups whole, without waiting for the monitor. Those on disk stay there.

        Raises:
            UnavailableError: no disk can take them; what could not be spilled is on the heap.
        """
        with self._at_work():
            for key_group in key_groups:
                self._mover.spill_now(key_group)

    def load_now(self, key_groups: Iterable[int]) -> None:
        """Load key groups whole, without waiting for the monitor. Those on the heap stay there."""
        with self._at_work():
            for key_group in key_groups:
                self._mover.load_now(key_group)

    def flush_now(self) -> None:
        """Write whatever has changed of the key groups on disk, without waiting until it is much."""
        with self._at_work():
            while self._mover.flush_step():
                continue

    def stats(self) -> SpillStats:
        """What is where, and what moving cost."""
        self._count()
        mover, on_disk = self._mover, self._mover.disk_bytes()
        return SpillStats(
            heap_groups=len([group for group in self.heap_groups() if group.heap_bytes]),
            heap_bytes=self.heap_bytes,
            disk_groups=len(on_disk),
            disk_bytes=sum(on_disk.values()),
            spills=mover.spills,
            loads=mover.loads,
            failures=mover.failures,
            spill_seconds=mover.spill_ns / 1e9,
            load_seconds=mover.load_ns / 1e9,
            longest_block_ms=self._longest_block_ns / 1e6,
            reason=mover.reason,
        )

    def temperatures(self) -> list[KeyGroupTemperature]:
        """Every key group, where it is and how busy."""
        self._rates.look(self._now_ms())
        on_disk = self._mover.disk_bytes()
        return [
            KeyGroupTemperature(
                key_group,
                key_group in on_disk,
                on_disk[key_group] if key_group in on_disk else self._group_bytes(key_group),
                self._rates.of(key_group),
            )
            for key_group in self.key_groups
        ]

    # What the monitor asks and tells: see `monitor.Spillable`.

    @property
    def moving(self) -> bool:
        """Whether it has not done yet what it was last told."""
        return self._mover.moving

    def heap_groups(self) -> list[GroupLoad]:
        """The key groups on the heap."""
        # Whoever asks may be another backend's thread: a request that is counted meanwhile may be lost.
        self._rates.look(self._now_ms())
        return [
            GroupLoad(key_group, self, self._group_bytes(key_group), self._rates.of(key_group))
            for key_group in self.key_groups
            if key_group not in self._mover.spilled
        ]

    def disk_groups(self) -> list[GroupLoad]:
        """The key groups on disk, with what they would take on the heap."""
        self._rates.look(self._now_ms())
        means = [sizes.mean.value for sizes in self._sizes.values() if sizes.mean.value]
        mean = sum(means) / len(means) if means else SLOT_BYTES
        return [
            GroupLoad(key_group, self, spilled.heap_bytes_now(mean), self._rates.of(key_group))
            for key_group, spilled in list(self._mover.spilled.items())
        ]

    def may_spill(self) -> bool:
        """Whether nothing hinders it."""
        return self._mover.files.able() and not self._waits_for_checkpoints()

    def move(self, to_spill: Iterable[int], to_load: Iterable[int], reason: str) -> None:
        """Take key groups on the list."""
        self._mover.plan(to_spill, to_load, reason)
        self._turns_left = 0

    def help_along(self, until_ns: int, *, urgent: bool) -> None:
        """Move what is to be moved in another backend's thread, if this one rests and no checkpoint reads it."""
        if self._working.acquire(blocking=False):
            try:
                if not self._closed and not self._in_use():
                    while self._clock_ns() < until_ns and self._mover.step(urgent=urgent):
                        continue
                    self._count()
            finally:
                self._working.release()

    # Looking up between records.

    def _look(self) -> None:
        """Count, let the monitor look, and do some of what there is to do."""
        started_ns = self._clock_ns()
        self._take()
        self._count()
        counted_ns = self._clock_ns()
        self._monitor.look()
        if self._untold:
            self._untold = False
            self._monitor.restored()
        self._work(started_ns)
        self._adapt(started_ns, counted_ns - started_ns)

    def _work(self, started_ns: int) -> None:
        self._let_pages_go()
        urgent = self._monitor.is_urgent
        until_ns = started_ns + (URGENT_SLICE_MS if urgent else BUSY_SLICE_MS) * 1_000_000
        if not urgent and started_ns < self._rest_until_ns:
            return
        self._settle_checkpoints()
        while self._clock_ns() < until_ns:
            self._let_pages_go()
            if self._buffered_bytes() > self._monitor.limit_bytes // _BUFFER_SHARE and self._mover.flush_step():
                continue
            if self._waits_for_checkpoints() or not self._mover.step(urgent=urgent):
                break
        for other in self._monitor.others(self):
            other.help_along(until_ns, urgent=urgent)
        self._rest_until_ns = 2 * self._clock_ns() - started_ns

    def _let_pages_go(self) -> None:
        if self._monitor.maps_too_much:
            self._mover.files.forget_pages()

    def _adapt(self, started_ns: int, counting_ns: int) -> None:
        """Look again after as many turns as take some milliseconds."""
        now_ns = self._clock_ns()
        self._longest_block_ns = max(self._longest_block_ns, now_ns - started_ns)
        wanted_ns = max(_LOOK_EVERY_MS * 1_000_000, _LOOK_SHARE * counting_ns)
        worked_ns, self._looked_ns = started_ns - self._looked_ns, now_ns
        if worked_ns < wanted_ns // 2:
            self._turns = min(_MOST_TURNS, self._turns * 2)
        elif worked_ns > wanted_ns:
            self._turns = max(1, self._turns * wanted_ns // worked_ns)
        self._turns_left = self._turns

    def _make_room(self) -> None:
        """In a restore nobody waits for a record: move until there is nothing left to move."""
        self._count()
        self._monitor.look()
        while self._mover.step(urgent=True):
            continue
        if self._buffered_bytes() > self._monitor.limit_bytes // _BUFFER_SHARE:
            while self._mover.flush_step():
                continue

    def _count(self) -> None:
        self._rates.look(self._now_ms())
        on_heap = sum(sizes.bytes_of(key_group) for sizes in self._sizes.values() for key_group in self.key_groups)
        self.heap_bytes = on_heap + self._buffered_bytes()

    def _group_bytes(self, key_group: int) -> int:
        return sum(sizes.bytes_of(key_group) for sizes in self._sizes.values())

    def _buffered_bytes(self) -> int:
        if not self._mover.spilled:
            return 0
        means = [sizes.mean.value for sizes in self._sizes.values()]
        return int(self._mover.changed_cells() * max([SLOT_BYTES, *means]))

    def _in_use(self) -> list[SpillableSnapshot]:
        """The snapshots that somebody may be reading."""
        return [snapshot for snapshot in self._snapshots if snapshot.in_use]

    def _waits_for_checkpoints(self) -> bool:
        if self._settings.cancel_checkpoint or self._monitor.is_urgent:
            return False
        return bool(self._in_use()) and not self._mover.is_loading

    def _settle_checkpoints(self) -> None:
        """Give checkpoints up that are read in the background, before a turn spills."""
        if self._settings.cancel_checkpoint and self._mover.to_spill:
            for snapshot in self._in_use():
                snapshot.give_up()

    def _now_ms(self) -> int:
        return self._clock_ns() // 1_000_000

    # Whose thread it is.

    def _take(self) -> None:
        """Begin to work on the state: from here to the end of the version nobody else moves key groups."""
        if not self._has_it:
            self._working.acquire()
            self._has_it = True

    def _rest(self) -> None:
        """The version is over: others may move key groups until the next one begins with a look."""
        self._turns_left = 0
        self._has_it = False
        self._working.release()

    @contextmanager
    def _at_work(self, *, rests: bool = False) -> Iterator[None]:
        """Work on the state, in a version or between two; `rests`, where that ends the version."""
        had_it = self._has_it
        self._take()
        try:
            yield
        except BaseException:
            # A version that was open is open still.
            if not had_it:
                self._rest()
            raise
        if rests or not had_it:
            self._rest()

    def _record(self) -> None:
        if self._recorder is NO_METRICS:
            return
        stats = self.stats()
        for name, groups, held in (
            ("heap", stats.heap_groups, stats.heap_bytes),
            ("disk", stats.disk_groups, stats.disk_bytes),
        ):
            self._recorder.gauge("millpond_spillable_key_groups", groups, name=name)
            self._recorder.gauge("millpond_spillable_bytes", held, name=name)
        for name, moves, seconds in (
            ("spill", stats.spills, stats.spill_seconds),
            ("load", stats.loads, stats.load_seconds),
        ):
            moved, spent = self._told.get(name, (0, 0.0))
            self._recorder.count("millpond_spillable_moves_total", moves - moved, name=name)
            self._recorder.count("millpond_spillable_seconds_total", seconds - spent, name=name)
            self._told[name] = (moves, seconds)
