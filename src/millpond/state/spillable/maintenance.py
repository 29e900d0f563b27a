"""Maintenance of a backend between records: it counts its state, has the monitor check memory, and moves key groups.

A run starts every few milliseconds of work, or sooner where much is written. It takes at most `BUSY_SLICE_MS`, or
`URGENT_SLICE_MS` while memory is above the hard mark; the step that is under way is finished. Afterwards the stream has
the same time for itself. The number of records between two runs follows from how long the last ones took, so the clock
is not read for each record.

Invariant: key groups move only in a maintenance run, or where the backend is told to move them at once. If a backend's
file is damaged, no other backend of the process fails: the one that owns the file finds it when it next uses it.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from weakref import WeakSet

from millpond.errors import CorruptionError, UnavailableError
from millpond.state.spillable.migrator import Migrator
from millpond.state.spillable.monitor import Monitor
from millpond.state.spillable.options import SpillableSettings
from millpond.state.spillable.ownership import Ownership
from millpond.state.spillable.policy import GroupLoad
from millpond.state.spillable.snapshot import SpillableSnapshot
from millpond.state.spillable.statistics import Statistics

BUSY_SLICE_MS = 20
"""How long a run moves key groups, and how long it then leaves the stream alone."""

URGENT_SLICE_MS = 60
"""The duration of a run above the hard mark. The stream then has only the time between two runs."""

_RUN_EVERY_MS = 10

_STILL_WRITTEN = 0.95
"""The estimate of the bytes that a record writes is kept by this factor in each run that measures fewer."""

_COUNTING_SHARE = 50
"""Counting takes at most one part in this many of the time."""

_OWNERS_ALONE = (CorruptionError, UnavailableError)
"""What only the backend that owns a file may raise about it, in its own thread."""

_MOST_RECORDS = 4096
_BUFFER_SHARE = 16
"""Changed cells of spilled groups may take the memory limit divided by this before they are written."""


class Maintenance:
    """The maintenance of one backend, and that backend as the monitor sees it.

    Attributes:
        snapshots: the snapshots that may still be read; the backend adds to them.
        untold: whether a restore left key groups on disk that were not reported to the monitor.
        longest_block_ns: the duration of the longest run.
    """

    def __init__(
        self,
        statistics: Statistics,
        migrator: Migrator,
        monitor: Monitor,
        owner: Ownership,
        settings: SpillableSettings,
        maintain_soon: Callable[[], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self.snapshots: WeakSet[SpillableSnapshot] = WeakSet()
        self.untold = False
        self.longest_block_ns = 0
        self._statistics = statistics
        self._migrator = migrator
        self._monitor = monitor
        self._owner = owner
        self._settings = settings
        self._maintain_soon = maintain_soon
        self._clock_ns = clock_ns
        self._records = 1
        self._process_bytes = monitor.used.process_bytes
        self._bytes_per_record = 0.0
        self._ended_ns = self._rest_until_ns = clock_ns()
        self._closed = False
        monitor.register(self)

    @property
    def heap_bytes(self) -> int:
        """Approximate bytes of the backend's state on the heap."""
        return self._statistics.heap_bytes

    @property
    def moving(self) -> bool:
        """Whether planned moves are left."""
        return self._migrator.moving

    def heap_groups(self) -> list[GroupLoad]:
        """Return the key groups on the heap."""
        return self._statistics.heap_groups(self)

    def disk_groups(self) -> list[GroupLoad]:
        """Return the key groups on disk, with the bytes that they would take on the heap; none from a damaged file."""
        with suppress(*_OWNERS_ALONE):
            return self._statistics.disk_groups(self)
        return []

    def may_spill(self) -> bool:
        """Return whether the backend can spill: a disk is usable, and no checkpoint must be waited for."""
        return self._migrator.files.able() and not self._waits_for_checkpoints()

    def move(self, to_spill: Iterable[int], to_load: Iterable[int], reason: str) -> None:
        """Plan to move key groups, and make the next record run maintenance. Called under the monitor's lock."""
        self._migrator.plan(to_spill, to_load, reason)
        self._maintain_soon()

    def forget_pages(self) -> None:
        """Unmap the pages of the backend's files, unless they are damaged."""
        with suppress(*_OWNERS_ALONE):
            self._migrator.files.forget_pages()

    def help_along(self, until_ns: int, *, urgent: bool) -> None:
        """Do planned moves in another backend's thread, if this backend rests and no checkpoint reads its state."""
        with self._owner.borrowed() as mine:
            if mine and not self._closed and not self._in_use():
                try:
                    while self._clock_ns() < until_ns and self._migrator.step(urgent=urgent):
                        continue
                except _OWNERS_ALONE:
                    # While moves are planned, the monitor begins no pass.
                    self._migrator.forget_plan()
                self._statistics.count()

    def run(self) -> int:
        """Count, have the monitor check, move and write for a time slice; return the records until the next run."""
        started_ns = self._clock_ns()
        self._statistics.count()
        counted_ns = self._clock_ns()
        self._monitor.check()
        if self.untold:
            self.untold = False
            self._monitor.restored()
        self._work(started_ns)
        return self._adapted(started_ns, counted_ns - started_ns)

    def make_room(self) -> None:
        """Do all planned moves, during a restore, where no record waits."""
        self._statistics.count()
        self._monitor.check()
        while self._migrator.step(urgent=True):
            continue
        if self._buffers_much():
            while self._migrator.flush_step():
                continue

    def close(self) -> None:
        """End maintenance: the backend moves no more key groups, and its state counts as empty."""
        self._closed = True
        self._statistics.heap_bytes = 0

    def _work(self, started_ns: int) -> None:
        self._monitor.check_mapped()
        self._migrator.files.check_again_if_due()
        urgent = self._monitor.is_urgent
        until_ns = started_ns + (URGENT_SLICE_MS if urgent else BUSY_SLICE_MS) * 1_000_000
        if not urgent and started_ns < self._rest_until_ns:
            return
        self._give_up_checkpoints()
        while self._clock_ns() < until_ns:
            # Both, since a stream that writes to cold key groups could fill the buffer as fast as it is written.
            flushed = self._buffers_much() and self._migrator.flush_step()
            moved = not self._waits_for_checkpoints() and self._migrator.step(urgent=urgent)
            if not (flushed or moved):
                break
        for other in self._monitor.others(self):
            other.help_along(until_ns, urgent=urgent)
        self._rest_until_ns = 2 * self._clock_ns() - started_ns

    def _buffers_much(self) -> bool:
        return self._statistics.buffered_bytes() > self._monitor.limit_bytes // _BUFFER_SHARE

    def _adapted(self, started_ns: int, counting_ns: int) -> int:
        """Return the records until the next run: some milliseconds of work, or fewer where they write much."""
        process_bytes = self._monitor.used.process_bytes
        grown, self._process_bytes = process_bytes - self._process_bytes, process_bytes
        self._bytes_per_record = bytes_per_record = max(
            1, _STILL_WRITTEN * self._bytes_per_record, grown / self._records
        )
        now_ns = self._clock_ns()
        self.longest_block_ns = max(self.longest_block_ns, now_ns - started_ns)
        wanted_ns = max(_RUN_EVERY_MS * 1_000_000, _COUNTING_SHARE * counting_ns)
        worked_ns, self._ended_ns = started_ns - self._ended_ns, now_ns
        if worked_ns < wanted_ns // 2:
            self._records = min(_MOST_RECORDS, self._records * 2)
        elif worked_ns > wanted_ns:
            self._records = max(1, self._records * wanted_ns // worked_ns)
        self._records = max(1, min(self._records, int(self._monitor.check_every_bytes // bytes_per_record)))
        return self._records

    def _in_use(self) -> list[SpillableSnapshot]:
        """Return the snapshots that may still be read."""
        return [snapshot for snapshot in self.snapshots if snapshot.in_use]

    def _waits_for_checkpoints(self) -> bool:
        if self._settings.cancel_checkpoint or self._monitor.is_urgent:
            return False
        return bool(self._in_use()) and not self._migrator.is_loading

    def _give_up_checkpoints(self) -> None:
        """Give up checkpoints that are read in the background, before key groups are spilled."""
        if self._settings.cancel_checkpoint and self._migrator.to_spill:
            for snapshot in self._in_use():
                snapshot.give_up()
