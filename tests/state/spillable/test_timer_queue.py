"""A queue of timers of which memory holds a few, against a dictionary of all."""

import os
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millpond.errors import CorruptionError
from millpond.state.backend.timer_queue import DueTimer
from millpond.state.spillable import timer_runs
from millpond.state.spillable.timer_queue import SpillingTimerQueue
from tests.state.conformance.subjects import IN_MEMORY
from tests.state.lengths import of_length

KEYS = [("ann",), (None,), ("zoe", 1.5)]
timers = st.builds(DueTimer, st.integers(-2, 3), st.integers(0, 1), st.sampled_from(KEYS))
limits = st.integers(-3, 4)


class QueueAgainstADictionary(RuleBasedStateMachine):
    """`live` has the number of each timer that is set; `begun` what was due, and has not been given yet."""

    def __init__(self):
        super().__init__()
        self.small = mock.patch.multiple(timer_runs, BLOCK_ENTRIES=2, MERGED_RUNS=2)
        self.small.start()
        self.folder = TemporaryDirectory(dir=IN_MEMORY)
        self.folders = [Path(self.folder.name)]
        self.queue = SpillingTimerQueue(self.folders, 2)
        self.live, self.number, self.begun = {}, 0, []

    @initialize(some=st.lists(timers, max_size=9, unique=True))
    def build(self, some):
        self.number = len(some)
        self.live = {timer: number for number, timer in enumerate(some, 1)}
        self.queue.close()
        self.queue = SpillingTimerQueue(self.folders, 2, some)

    def teardown(self):
        self.queue.close()
        self.small.stop()
        self.folder.cleanup()

    def _add(self, timer):
        if timer not in self.live:
            self.number += 1
            self.live[timer] = self.number
            self.queue.add(timer)

    def _remove(self, timer):
        if self.live.pop(timer, None) is not None:
            self.queue.remove(timer)

    def _due(self, limit):
        due = [timer for timer in self.live if timer.expiry_ms <= limit]
        return sorted(due, key=lambda timer: (timer.expiry_ms, self.live[timer]))

    @rule(some=st.lists(timers, max_size=6))
    def set_some(self, some):
        for timer in some:
            self._add(timer)

    @rule(some=st.lists(timers, max_size=6))
    def delete_some(self, some):
        for timer in some:
            self._remove(timer)

    @rule(limit=limits, changes=st.lists(st.tuples(st.booleans(), timers), max_size=6))
    def work_off_what_is_due(self, limit, changes):
        expected, given, remaining = self._due(limit), [], iter(changes)
        for timer in self.queue.up_to(limit):
            given.append(timer)
            for sets, other in islice(remaining, 1):
                (self._add if sets else self._remove)(other)
            self._remove(timer)
        assert given == expected

    @rule(limit=limits)
    def begin_to_go_through_what_is_due(self, limit):
        self.begun.append((iter(self.queue.up_to(limit)), self._due(limit)))

    @rule(data=st.data())
    def go_on_with_what_was_due(self, data):
        if self.begun:
            due, expected = self.begun.pop(data.draw(st.integers(0, len(self.begun) - 1)))
            count = data.draw(st.integers(0, 3))
            assert list(islice(due, count)) == expected[:count]
            if expected[count:]:
                self.begun.append((due, expected[count:]))
            else:
                assert list(due) == []

    @rule()
    def fail_to_write(self):
        """A file stands where a folder should."""
        blocked = Path(self.folder.name) / "file"
        blocked.touch()
        self.folders[:] = [blocked]

    @rule()
    def write_to_the_second_folder(self):
        self.fail_to_write()
        self.folders.append(Path(self.folder.name) / "second")

    @invariant()
    def the_first_is_the_earliest(self):
        first = self.queue.first()
        assert ([] if first is None else [first]) == self._due(9)[:1]


QueueAgainstADictionary.TestCase.settings = of_length(examples=100, steps=30)
TestQueueAgainstADictionary = pytest.mark.filterwarnings("ignore:timers could not be spilled")(
    QueueAgainstADictionary.TestCase
)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(timer_runs, "BLOCK_ENTRIES", 16)


def timer_of(number, count):
    """A timer at a time of its own; numbers that follow each other are far apart in time."""
    return DueTimer(number * 7_919 % count, number % 4, (number,))


@pytest.mark.usefixtures("small_blocks")
def test_memory_holds_a_bounded_part_while_timers_are_set_fire_and_are_deleted(tmp_path):
    count, in_memory = 20_000, 100
    queue = SpillingTimerQueue([tmp_path], in_memory)
    # Each run has a block in memory, and fewer than 16 of each size are open.
    bound = 3 * in_memory + 1 + 16 * 16 * 3
    most = 0
    for number in range(count):
        queue.add(timer_of(number, count))
        most = max(most, len(queue))
    for at, timer in enumerate(queue.up_to(count // 2 - 1)):
        assert timer.expiry_ms == at
        queue.remove(timer)
        most = max(most, len(queue))
    deleted = [number for number in range(count) if timer_of(number, count).expiry_ms >= count // 2 and number % 3]
    for number in deleted:
        queue.remove(timer_of(number, count))
        # Notes of deleted timers are spilled too.
        most = max(most, len(queue) - 16 * 16 * 3)
    assert most <= bound
    left = [timer_of(number, count) for number in range(0, count, 3)]
    assert list(queue.up_to(count)) == sorted(timer for timer in left if timer.expiry_ms >= count // 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_blocks")
def test_a_timer_that_is_set_and_deleted_again_and_again_leaves_a_bounded_number_of_entries(tmp_path):
    queue = SpillingTimerQueue([tmp_path], 100)
    for number in range(1_000):
        queue.add(timer_of(number, 1_000))
    for number in range(20_000):
        # As of a session, whose timer moves on with each event.
        queue.remove(timer_of(number, 1_000) if number < 1_000 else DueTimer(number, 0, ("ann",)))
        queue.add(DueTimer(1_000 + number, 0, ("ann",)))
    assert queue.in_runs <= 2 * 1_000 + 2 * 100
    assert len(queue) <= 3 * 100 + 1 + 16 * 16 * 3


def test_timers_that_no_disk_takes_stay_in_memory_and_are_told_of(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(RuntimeWarning, match=r"timers could not be spilled to .*file: .* Make room"):
        queue = SpillingTimerQueue([tmp_path / "file"], 10, [timer_of(number, 100) for number in range(100)])
    assert [timer.expiry_ms for timer in queue.up_to(100)] == list(range(100))
    assert queue.in_runs == 0


def test_a_run_is_refused_whichever_of_its_bytes_is_altered(tmp_path):
    entries = [(at_ms, at_ms, 0, b"key") for at_ms in range(20)]
    run = timer_runs.Run([tmp_path], lambda: iter(entries))
    found, end = run.block(0)
    assert list(map(tuple, found)) == entries
    assert end == run.size
    for at in range(run.size):
        whole = os.pread(run._file, 1, at)
        os.pwrite(run._file, bytes([whole[0] ^ 0x80]), at)
        with pytest.raises(CorruptionError, match=r"are damaged: .* restore"):
            run.block(0)
        os.pwrite(run._file, whole, at)
    assert run.block(0) == (found, end)
