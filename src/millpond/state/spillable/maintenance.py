"""What a backend does between records: it looks up, every few milliseconds of work, or sooner where much is written.

A *look* counts what there is, lets the monitor look, and does a step of what there is to move or to write. It takes
no longer than `BUSY_SLICE_MS`, or `URGENT_SLICE_MS` while memory is above the hard mark, but for the one step that is
under way; then the stream has as long for itself. How many records there are from one look to the next follows from how
long the last ones took: the clock is not read per record.

Invariant: key groups move in looks alone, or where the backend is told to move them at once.
"""

from collections.abc import Callable, Iterable
from weakref import WeakSet

from millpond.state.spillable.migrator import Migrator
from millpond.state.spillable.monitor import Monitor
from millpond.state.spillable.options import SpillableSettings
from millpond.state.spillable.ownership import Ownership
from millpond.state.spillable.policy import GroupLoad
from millpond.state.spillable.snapshot import SpillableSnapshot
from millpond.state.spillable.statistics import Statistics

BUSY_SLICE_MS = 20
"""For how long a look moves key groups, and for how long it then leaves the stream alone."""

URGENT_SLICE_MS = 60
"""The same above the hard mark, where the stream has only the time from one look to the next."""

_LOOK_EVERY_MS = 10
_STILL_WRITTEN = 0.95
"""Of the bytes that turns are believed to write, at each look that finds fewer."""
_LOOK_SHARE = 50
"""Counting what there is takes at most this part of the time."""

_MOST_TURNS = 4096
_BUFFER_SHARE = 16
"""Changed cells of spilled groups may take this part of the memory limit before they are written."""


class Maintenance:
    """One backend's, and what the monitor asks and tells of that: see `monitor.Spillable`.

    Args:
        statistics: counts.
        migrator: moves.
        monitor: looks at the process.
        owner: whose thread has the backend.
        settings: whether checkpoints that are read in the background are given up when a turn spills.
        look_soon: has the backend look before its next record.
        clock_ns: monotonic nanoseconds.

    Attributes:
        snapshots: those that somebody may be reading; the backend adds to them.
        untold: whether a restore left key groups on disk that the monitor has not been told of.
        longest_block_ns: the longest time that a look took.
    """

    def __init__(
        self,
        statistics: Statistics,
        migrator: Migrator,
        monitor: Monitor,
        owner: Ownership,
        settings: SpillableSettings,
        look_soon: Callable[[], None],
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
        self._look_soon = look_soon
        self._clock_ns = clock_ns
        self._turns = 1
        self._process_bytes = monitor.used.process_bytes
        self._bytes_per_turn = 0.0
        self._looked_ns = self._rest_until_ns = clock_ns()
        self._closed = False
        monitor.register(self)

    @property
    def heap_bytes(self) -> int:
        """What its state takes on the heap, about."""
        return self._statistics.heap_bytes

    @property
    def moving(self) -> bool:
        """Whether it has not done yet what it was last told."""
        return self._migrator.moving

    def heap_groups(self) -> list[GroupLoad]:
        """The key groups on the heap."""
        return self._statistics.heap_groups(self)

    def disk_groups(self) -> list[GroupLoad]:
        """The key groups on disk, with what they would take on the heap."""
        return self._statistics.disk_groups(self)

    def may_spill(self) -> bool:
        """Whether nothing hinders it."""
        return self._migrator.files.able() and not self._waits_for_checkpoints()

    def move(self, to_spill: Iterable[int], to_load: Iterable[int], reason: str) -> None:
        """Take key groups on the list."""
        self._migrator.plan(to_spill, to_load, reason)
        self._look_soon()

    def let_pages_go(self) -> None:
        """Forget the pages of its files."""
        self._migrator.files.forget_pages()

    def help_along(self, until_ns: int, *, urgent: bool) -> None:
        """Move what is to be moved in another backend's thread, if this one rests and no checkpoint reads it."""
        with self._owner.borrowed() as mine:
            if mine and not self._closed and not self._in_use():
                while self._clock_ns() < until_ns and self._migrator.step(urgent=urgent):
                    continue
                self._statistics.count()

    def look(self) -> int:
        """Count, let the monitor look, and do some of what there is to do; after how many records to look again."""
        started_ns = self._clock_ns()
        self._statistics.count()
        counted_ns = self._clock_ns()
        self._monitor.look()
        if self.untold:
            self.untold = False
            self._monitor.restored()
        self._work(started_ns)
        return self._adapted(started_ns, counted_ns - started_ns)

    def make_room(self) -> None:
        """In a restore nobody waits for a record: move until there is nothing left to move."""
        self._statistics.count()
        self._monitor.look()
        while self._migrator.step(urgent=True):
            continue
        if self._buffers_much():
            while self._migrator.flush_step():
                continue

    def close(self) -> None:
        """Nothing is to be moved any more."""
        self._closed = True
        self._statistics.heap_bytes = 0

    def _work(self, started_ns: int) -> None:
        self._monitor.look_at_maps()
        urgent = self._monitor.is_urgent
        until_ns = started_ns + (URGENT_SLICE_MS if urgent else BUSY_SLICE_MS) * 1_000_000
        if not urgent and started_ns < self._rest_until_ns:
            return
        self._settle_checkpoints()
        while self._clock_ns() < until_ns:
            if self._buffers_much() and self._migrator.flush_step():
                continue
            if self._waits_for_checkpoints() or not self._migrator.step(urgent=urgent):
                break
        for other in self._monitor.others(self):
            other.help_along(until_ns, urgent=urgent)
        self._rest_until_ns = 2 * self._clock_ns() - started_ns

    def _buffers_much(self) -> bool:
        return self._statistics.buffered_bytes() > self._monitor.limit_bytes // _BUFFER_SHARE

    def _adapted(self, started_ns: int, counting_ns: int) -> int:
        """Look again after as many turns as take some milliseconds, or write so many bytes that it matters sooner."""
        process_bytes = self._monitor.used.process_bytes
        grown, self._process_bytes = process_bytes - self._process_bytes, process_bytes
        self._bytes_per_turn = bytes_per_turn = max(1, _STILL_WRITTEN * self._bytes_per_turn, grown / self._turns)
        now_ns = self._clock_ns()
        self.longest_block_ns = max(self.longest_block_ns, now_ns - started_ns)
        wanted_ns = max(_LOOK_EVERY_MS * 1_000_000, _LOOK_SHARE * counting_ns)
        worked_ns, self._looked_ns = started_ns - self._looked_ns, now_ns
        if worked_ns < wanted_ns // 2:
            self._turns = min(_MOST_TURNS, self._turns * 2)
        elif worked_ns > wanted_ns:
            self._turns = max(1, self._turns * wanted_ns // worked_ns)
        self._turns = max(1, min(self._turns, int(self._monitor.look_every_bytes // bytes_per_turn)))
        return self._turns

    def _in_use(self) -> list[SpillableSnapshot]:
        """The snapshots that somebody may be reading."""
        return [snapshot for snapshot in self.snapshots if snapshot.in_use]

    def _waits_for_checkpoints(self) -> bool:
        if self._settings.cancel_checkpoint or self._monitor.is_urgent:
            return False
        return bool(self._in_use()) and not self._migrator.is_loading

    def _settle_checkpoints(self) -> None:
        """Give checkpoints up that are read in the background, before a turn spills."""
        if self._settings.cancel_checkpoint and self._migrator.to_spill:
            for snapshot in self._in_use():
                snapshot.give_up()
