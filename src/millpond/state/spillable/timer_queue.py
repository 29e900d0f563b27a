"""The timers of a heap that spills, in the order of time: those due next in memory, the others on disk.

The cells of timers are with their key groups, on the heap or on disk. This queue is their order over all key groups,
and memory holds a bounded part of it, the *head*. Once the head has more timers than that, its later half is sorted and
written to disk as a run (`timer_runs`). The first timer is the first one of head and runs.

A run cannot give up an entry in its middle. So the deletion of a timer that is in a run is noted, with a number later
than the entry's. An entry whose timer has a later note is skipped. Notes are spilled in the same way, and merged with
the entries as time advances. A timer that fires is the first of the runs, and needs no note. Once more than half of the
entries have notes, and more than memory holds, all runs are rewritten without them.

If no disk accepts a run, timers stay in memory, and the next run is tried when there are twice as many.

Invariants: a timer that is set is either in `_head`, or has one entry in a run with a number above that of its last
note. Once the entries of deleted timers are more than memory holds, they are at most half of the entries on disk.
"""

import heapq
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType

from millpond.state.backend.timer_queue import DueTimer
from millpond.state.spillable.timer_runs import Entry, Runs
from millpond.state.types.ordered_keys import decode_key, encode_key
from millpond.state.types.times import LAST_MS

_Timer = tuple[int, int, bytes]
"""Time, key group and key: an entry without its number."""

_NONE: Mapping[_Timer, int] = MappingProxyType({})


class Deletions:
    """Timers that were deleted while they were in a run, each with its note's number. Asked in the order of time."""

    __slots__ = ("_at_ms", "_found", "notes", "runs")

    def __init__(
        self, runs: Runs, notes: Mapping[_Timer, int] = _NONE, found: Mapping[_Timer, int] = _NONE, at_ms: int = 0
    ) -> None:
        self.runs = runs
        self.notes = dict(notes)
        # Notes of the time that was asked for last, and perhaps of later times.
        self._found = dict(found)
        self._at_ms = at_ms

    def has(self, entry: Entry) -> bool:
        """Return whether the timer of an entry was deleted after it was set."""
        at_ms, number, key_group, key = entry
        if at_ms != self._at_ms:
            self._turn(at_ms)
        while (note := self.runs.peek()) is not None and note[0] <= at_ms:
            self.runs.pop()
            # Earlier notes are of entries that were passed already.
            if note[0] == at_ms:
                timer = note[0], note[2], note[3]
                self._found[timer] = max(note[1], self._found.get(timer, note[1]))
        timer = at_ms, key_group, key
        return max(self.notes.get(timer, -1), self._found.get(timer, -1)) > number

    def _turn(self, at_ms: int) -> None:
        if self._found and at_ms > self._at_ms:
            self._found = {timer: number for timer, number in self._found.items() if timer[0] >= at_ms}
        self._at_ms = at_ms

    def spill(self, first_ms: int) -> None:
        """Write the notes in memory to disk. Notes before `first_ms`, whose entries were passed, are dropped.

        Raises:
            OSError: no disk accepts them. Nothing has changed.
        """
        left = [(timer[0], number, *timer[1:]) for timer, number in self.notes.items() if timer[0] >= first_ms]
        if left:
            self.runs.add(sorted(left))
        self.notes = {}

    def copy(self) -> "Deletions":
        """Return a copy of the present notes, which is asked independently."""
        return Deletions(self.runs.copy(), self.notes, self._found, self._at_ms)

    def in_memory(self) -> int:
        """Return the number of entries in memory."""
        return len(self.notes) + len(self._found) + self.runs.in_memory()


class SpillingTimerQueue:
    """`TimersByTime` that keeps a part of the timers in memory.

    Args:
        folders: for what is spilled; the first one that accepts it is used.
        in_memory: how many timers memory holds at most, beside the blocks that are being read.
        timers: those that are set.

    >>> import tempfile
    >>> from pathlib import Path
    >>> queue = SpillingTimerQueue([Path(tempfile.mkdtemp())], in_memory=4)
    >>> for at_ms in range(10):
    ...     queue.add(DueTimer(9 - at_ms, 0, ("ann",)))
    >>> queue.remove(DueTimer(8, 0, ("ann",)))
    >>> [timer.expiry_ms for timer in queue.up_to(9)], queue.in_runs
    ([0, 1, 2, 3, 4, 5, 6, 7, 9], 6)
    """

    def __init__(self, folders: Sequence[Path], in_memory: int, timers: Iterable[DueTimer] = ()) -> None:
        self._folders = folders
        self._in_memory = self._spill_at = self._note_at = self._anew_at = in_memory
        self._number = 0
        self._head: dict[DueTimer, int] = {}
        # The timers of the head in their order, and some that were deleted since.
        self._order: list[tuple[int, int, DueTimer]] = []
        self._runs = Runs(folders)
        self._deletions = Deletions(Runs(folders))
        self._deleted = 0
        self.in_runs = 0
        """Entries on disk that were not passed yet, those of deleted timers included."""
        self._add_many(iter(timers))

    def _add_many(self, timers: Iterator[DueTimer]) -> None:
        """Add timers to an empty queue: as many as memory may hold are sorted once, and are a run."""
        while len(some := list(islice(timers, self._in_memory))) == self._in_memory:
            entries = sorted((at_ms, self._next_number(), group, encode_key(key)) for at_ms, group, key in some)
            try:
                self._runs.add(entries)
            except OSError:
                break  # `add` tries again, and tells of it
            self.in_runs += len(entries)
        for timer in chain(some, timers):
            self.add(timer)

    def __len__(self) -> int:
        """Return the number of entries in memory."""
        return len(self._order) + self._runs.in_memory() + self._deletions.in_memory()

    def add(self, timer: DueTimer) -> None:
        """Add a timer that was not set."""
        self._head[timer] = number = self._next_number()
        heapq.heappush(self._order, (timer.expiry_ms, number, timer))
        if len(self._head) > self._spill_at:
            self._spill()

    def remove(self, timer: DueTimer) -> None:
        """Remove a timer that was set."""
        if self._head.pop(timer, None) is not None:
            if len(self._order) > 2 * len(self._head):
                self._order = [entry for entry in self._order if self._head.get(entry[2]) == entry[1]]
                heapq.heapify(self._order)
            return
        at_ms, key_group, key = timer.expiry_ms, timer.key_group, encode_key(timer.key)
        front = self._first_in_runs()
        if front is not None and (front[0], front[2], front[3]) == (at_ms, key_group, key):
            self._pass()
            return
        self._deletions.notes[at_ms, key_group, key] = self._next_number()
        self._deleted += 1
        if 2 * self._deleted > self.in_runs and self._deleted > self._anew_at:
            self._write_anew()
        elif len(self._deletions.notes) > self._note_at:
            self._spill_notes()

    def first(self) -> DueTimer | None:
        """Return the earliest timer, or None."""
        order, front = self._order, self._first_in_runs()
        while order and self._head.get(order[0][2]) != order[0][1]:
            heapq.heappop(order)
        if order and (front is None or order[0][:2] < front[:2]):
            return order[0][2]
        return None if front is None else _timer(front)

    def up_to(self, limit_ms: int) -> Iterable[DueTimer]:
        """Return every timer at or before the limit that is set at the time of the call, read one by one."""
        head = []
        while self._order and self._order[0][0] <= limit_ms:
            entry = heapq.heappop(self._order)
            if self._head.get(entry[2]) == entry[1]:
                head.append(entry)
        for entry in head:
            heapq.heappush(self._order, entry)
        front = self._first_in_runs()
        if front is None or front[0] > limit_ms:
            return [timer for _, _, timer in head]
        runs = _living(self._runs.copy(), self._deletions.copy(), limit_ms)
        both = heapq.merge(head, ((entry[0], entry[1], _timer(entry)) for entry in runs))
        return (timer for _, _, timer in both)

    def close(self) -> None:
        """Free the space, once no iteration over due timers reads it."""
        self._runs, self._deletions = Runs(self._folders), Deletions(Runs(self._folders))
        self._head, self._order = {}, []
        self.in_runs = self._deleted = 0

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _first_in_runs(self) -> Entry | None:
        """Return the first entry on disk whose timer is set."""
        while (entry := self._runs.peek()) is not None and self._deleted and self._deletions.has(entry):
            self._pass()
            self._deleted -= 1
        return entry

    def _pass(self) -> None:
        self._runs.pop()
        self.in_runs -= 1

    def _spill(self) -> None:
        """Write the later half of the head to disk."""
        entries = sorted((timer.expiry_ms, number, timer) for timer, number in self._head.items())
        kept = len(entries) // 2
        later = [(at_ms, number, timer.key_group, encode_key(timer.key)) for at_ms, number, timer in entries[kept:]]
        try:
            self._runs.add(later)
        except OSError as error:
            self._spill_at = 2 * len(self._head)
            self._tell(error)
            return
        self._spill_at = self._in_memory
        self.in_runs += len(later)
        # A sorted list is a heap.
        self._order = entries[:kept]
        self._head = {timer: number for _, number, timer in self._order}

    def _spill_notes(self) -> None:
        first = self._runs.peek()
        try:
            self._deletions.spill(LAST_MS if first is None else first[0])
        except OSError as error:
            self._note_at = 2 * len(self._deletions.notes)
            self._tell(error)
        else:
            self._note_at = self._in_memory

    def _write_anew(self) -> None:
        """Rewrite all runs as one, without the deleted timers."""
        runs = Runs(self._folders)
        try:
            written = runs.write(lambda: _living(self._runs.copy(), self._deletions.copy()))
        except OSError as error:
            self._anew_at = 2 * self._deleted
            self._tell(error)
            return
        self._runs, self._deletions = runs, Deletions(Runs(self._folders))
        self.in_runs, self._deleted, self._anew_at = written, 0, self._in_memory

    def _tell(self, error: OSError) -> None:
        folders = ", ".join(map(str, self._folders))
        warnings.warn(
            f"timers could not be spilled to {folders}: {error}. They stay in memory. Make room, or let "
            "state.backend.spillable.paths name a folder on a larger disk.",
            RuntimeWarning,
            stacklevel=2,
        )


def _living(runs: Runs, deletions: Deletions, limit_ms: int | None = None) -> Iterator[Entry]:
    """Yield the entries of timers that are set, up to a limit."""
    for entry in runs:
        if limit_ms is not None and entry[0] > limit_ms:
            return
        if not deletions.has(entry):
            yield entry


def _timer(entry: Entry) -> DueTimer:
    return DueTimer(entry[0], entry[2], decode_key(entry[3]))
