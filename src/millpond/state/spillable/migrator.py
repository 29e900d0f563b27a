"""Keeps track of a backend's key groups on disk, and moves key groups there and back, one step at a time.

Three kinds of work wait here: key groups to spill, key groups to load, and changed cells of spilled groups to write.
Each is done in steps of a few milliseconds, as long as the caller has time. So the stream never waits for a whole key
group.

A disk that fails costs nothing but room. The group or the cells stay on the heap, with a warning. The path is skipped
until the trigger interval has passed, and then tried again.
"""

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from millpond.errors import UnavailableError
from millpond.state.spillable.migration import Load, Spill, SpilledState, heap_bytes
from millpond.state.spillable.spill_file import SpillFile
from millpond.state.spillable.spill_files import SpillFiles

FLUSH_CELLS = 8_000
"""Changed cells of one key group that one step writes."""


@dataclass(frozen=True)
class SpilledGroup:
    """A key group on disk.

    Attributes:
        file: the file it is in.
        database: its cells in that file.
        heap_bytes: about what it took on the heap when it was spilled; 0 if it was never there.
        cells: how many cells it had then.
    """

    file: SpillFile
    database: Any
    heap_bytes: int
    cells: int

    def heap_bytes_now(self, mean_cell_bytes: float) -> int:
        """Return what it would take on the heap; by the mean cell of all states if it was never there."""
        now = self.file.size(self.database).cells
        return int(now * (self.heap_bytes / self.cells if self.cells else mean_cell_bytes))


class Budget:
    """A budget of bytes per second for writing. Up to one second's worth can be saved up."""

    def __init__(self, bytes_per_second: int, clock_ns: Callable[[], int]) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock_ns = clock_ns
        self._left = float(bytes_per_second)
        self._counted_ns = clock_ns()

    def allows(self) -> bool:
        """Return whether there is any left."""
        now_ns = self._clock_ns()
        earned = (now_ns - self._counted_ns) / 1e9 * self._bytes_per_second
        self._left = min(self._bytes_per_second, self._left + earned)
        self._counted_ns = now_ns
        return self._left > 0

    def spend(self, written_bytes: int) -> None:
        """Subtract bytes that were written."""
        self._left -= written_bytes


class Migrator:
    """The key groups of one backend that are on disk, and the outstanding work.

    Args:
        states: all states, by name. The backend adds to it.
        rebind: called with a key group that has moved, so that handles bound to it are bound anew.
    """

    def __init__(
        self,
        states: Mapping[str, SpilledState],
        rebind: Callable[[int], None],
        files: SpillFiles,
        budget: Budget,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.spilled: dict[int, SpilledGroup] = {}
        self.files = files
        self.reason = ""
        self.spills = self.loads = self.failures = 0
        self.spill_ns = self.load_ns = 0
        self._states = states
        self._rebind = rebind
        self._budget = budget
        self._clock_ns = clock_ns
        self._to_spill: deque[int] = deque()
        self._to_load: deque[int] = deque()
        self._move: Spill | Load | None = None

    @property
    def moving(self) -> bool:
        """Whether any planned move is left."""
        return self._move is not None or bool(self._to_spill) or bool(self._to_load)

    @property
    def to_spill(self) -> bool:
        """Whether the next move is to disk."""
        return isinstance(self._move, Spill) or bool(self._to_spill)

    @property
    def is_loading(self) -> bool:
        """Whether the next move is from disk."""
        return self.moving and not self.to_spill

    def plan(self, to_spill: Iterable[int], to_load: Iterable[int], reason: str) -> None:
        """Add key groups to the lists of those to move."""
        self._to_spill.extend(to_spill)
        self._to_load.extend(to_load)
        self.reason = reason

    def step(self, *, urgent: bool) -> bool:
        """Do one step of what is planned. Return False if there is nothing, or nothing that may be done now.

        Below the hard mark (`urgent` is False), spilling keeps to its bytes per second.
        """
        if self.to_spill and not urgent and not self._budget.allows():
            return False
        if self._move is None:
            self._move = self._begun()
        if self._move is None:
            return False
        self._advance(self._move)
        return True

    def spill_now(self, key_group: int) -> None:
        """Spill a whole key group. If an UnavailableError is raised, which says why, it is on the heap."""
        self.put_off()
        if key_group not in self.spilled:
            self._move = Spill(self._states.values(), key_group, self.files.next())
            failures = self.failures
            while self._move is not None:
                self._advance(self._move)
            if self.failures > failures:
                raise UnavailableError(f"key group {key_group} could not be spilled; it is on the heap.")

    def load_now(self, key_group: int) -> None:
        """Load a whole key group."""
        self.put_off()
        if key_group in self.spilled:
            self._move = Load(self._states.values(), key_group)
            while self._move is not None:
                self._advance(self._move)

    def put_off(self) -> None:
        """Abandon the present move, and put it first on its list, to be done anew later."""
        move, self._move = self._move, None
        if move is not None:
            move.abandon()
            (self._to_spill if isinstance(move, Spill) else self._to_load).appendleft(move.key_group)

    def forget_plan(self) -> None:
        """Drop all planned moves."""
        self.put_off()
        self._to_spill.clear()
        self._to_load.clear()

    def changed_cells(self) -> int:
        """Return how many cells of spilled groups are still to be written."""
        return sum(self._table(state, key_group).changed_count() for key_group in self.spilled for state in self._all())

    def flush_step(self) -> bool:
        """Write changed cells of the table that has most of them. Return False if nothing can be written."""
        most, largest, where = 0, None, None
        for key_group, spilled in self.spilled.items():
            for state in self._all():
                table = self._table(state, key_group)
                count = table.changed_count()
                if count > most and self.files.may_write(spilled.file):
                    most, largest, where = count, table, spilled
        if largest is None or where is None:
            return False
        started_ns, bytes_before = self._clock_ns(), largest.bytes_written
        try:
            largest.flush(FLUSH_CELLS)
            self._budget.spend(largest.bytes_written - bytes_before)
        except UnavailableError as error:
            self.failed(where.file, f"changes of a key group could not be written to disk: {error}")
            return False
        finally:
            self.spill_ns += self._clock_ns() - started_ns
        return True

    def put_on_disk(self, key_group: int) -> SpilledGroup | None:
        """Return a key group on disk, created there if it is empty; None if it has cells on the heap."""
        if key_group not in self.spilled:
            if any(state.heap.tables.live.get(key_group) for state in self._all()):
                return None
            file = self.files.next()
            spill = Spill(self._all(), key_group, file)
            while not spill.step():
                continue
            self.spilled[key_group] = SpilledGroup(file, spill.database, 0, 0)
        return self.spilled[key_group]

    def disk_bytes(self) -> dict[int, int]:
        """Return the bytes of the pages of every key group on disk."""
        return {
            key_group: spilled.file.size(spilled.database).bytes for key_group, spilled in list(self.spilled.items())
        }

    def close(self) -> None:
        """Close the files."""
        self.forget_plan()
        self.spilled.clear()
        self.files.close()

    def _all(self) -> Iterable[SpilledState]:
        return self._states.values()

    @staticmethod
    def _table(state: SpilledState, key_group: int) -> Any:
        return state.heap.tables.live[key_group]

    def _begun(self) -> Spill | Load | None:
        """Begin the next move on the lists; None if there is none, or no disk to spill to."""
        while self._to_spill:
            key_group = self._to_spill.popleft()
            if key_group in self.spilled:
                continue
            try:
                return Spill(self._states.values(), key_group, self.files.next())
            except UnavailableError as error:
                self._to_spill.clear()
                self.failed(None, str(error))
        while self._to_load:
            key_group = self._to_load.popleft()
            if key_group in self.spilled:
                return Load(self._states.values(), key_group)
        return None

    def _advance(self, move: Spill | Load) -> None:
        started_ns, bytes_before = self._clock_ns(), move.bytes
        # The switch ends the group's time on the heap, so its size, which the switch frees, is taken before.
        taken_bytes = heap_bytes(self._all(), move.key_group) if isinstance(move, Spill) else 0
        try:
            done = move.step()
        except UnavailableError as error:
            self._move = None
            move.abandon()
            self._to_spill.clear()
            file = move.file if isinstance(move, Spill) else None
            self.failed(file, f"key group {move.key_group} could not be moved: {error}")
            return
        except BaseException:
            self._move = None
            move.abandon()
            raise
        spent_ns = self._clock_ns() - started_ns
        if isinstance(move, Spill):
            self.spill_ns += spent_ns
            self._budget.spend(move.bytes - bytes_before)
        else:
            self.load_ns += spent_ns
        if done:
            self._move = None
            self._moved(move, taken_bytes)

    def _moved(self, move: Spill | Load, heap_bytes: int) -> None:
        if isinstance(move, Spill):
            self.spilled[move.key_group] = SpilledGroup(move.file, move.database, heap_bytes, move.cells)
            self.spills += 1
        else:
            del self.spilled[move.key_group]
            self.loads += 1
        self._rebind(move.key_group)

    def failed(self, file: SpillFile | None, what: str) -> None:
        """Warn that something could not be written, and have its path skipped for a while."""
        self.failures += 1
        if file is not None:
            self.files.failed(file)
        warnings.warn(
            f"{what} State stays on the heap meanwhile; spilling is tried again after "
            "state.backend.spillable.trigger-interval.",
            RuntimeWarning,
            stacklevel=2,
        )
