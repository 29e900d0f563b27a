"""Timers against a plain set: what is due, in what order, through commits, rollbacks and undos."""

import copy
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millpond.errors import OptionError
from millpond.state.checkpoint import Shard, new_manifest
from millpond.state.spi import HeapBackend
from millpond.state.types.timer_states import TIMERS
from tests.state.conformance.subjects import IN_MEMORY, lru, rocksdb, spillable
from tests.state.lengths import of_length

KEY = pa.schema([("user", pa.string())])
GROUPS = range(2)


class TimersAgainstASet(RuleBasedStateMachine):
    """`live` holds (expiry, key group, key) of every timer that is set, with the number that it was set as."""

    keeps_order = False  # of timers of one time, whatever is undone

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory(dir=IN_MEMORY)
        self.opened = 0
        self.shard = self._shard(new_manifest("lineage", 0, 1, 2, KEY))
        assert self.shard.begin_at(self.shard.manifest)
        self.live, self.committed, self.commits, self.number = {}, {}, 0, 0

    def backend(self, folder):
        return HeapBackend(GROUPS)

    def _shard(self, manifest):
        self.opened += 1
        return Shard(manifest, self.backend(Path(self.folder.name) / str(self.opened)))

    def teardown(self):
        self.shard.backend.close()
        self.folder.cleanup()

    def _at(self, group, user):
        self.shard.timers  # noqa: B018 - declares the state before the group is entered
        self.shard.backend.enter(group)
        self.shard.backend.context.key = (f"{group}-{user}",)
        return group, self.shard.backend.context.key

    def _due(self, limit):
        """Every timer that is due, in its order."""
        due = [timer for timer in self.live if timer[0] <= limit]
        return sorted(due, key=lambda timer: (timer[0], self.live[timer]))

    def _check(self, given, expected):
        """What was due: in the order of time, each once, and where that is kept in the order in which they were set."""
        assert [timer.expiry_ms for timer in given] == [expiry for expiry, *_ in expected]
        if self.keeps_order:
            assert [tuple(timer) for timer in given] == expected
        else:
            assert sorted(map(tuple, given)) == sorted(expected)

    @rule(group=st.sampled_from(GROUPS), user=st.integers(0, 1), at=st.integers(0, 2))
    def register(self, group, user, at):
        self.number += 1
        self.live.setdefault((at, *self._at(group, user)), self.number)
        self.shard.timers.register(at)

    @rule(group=st.sampled_from(GROUPS), user=st.integers(0, 1), at=st.integers(0, 2))
    def delete(self, group, user, at):
        self.live.pop((at, *self._at(group, user)), None)
        self.shard.timers.delete(at)

    @rule(group=st.sampled_from(GROUPS), user=st.integers(0, 1))
    def list_those_of_a_key(self, group, user):
        at = self._at(group, user)
        assert list(self.shard.timers.of_key()) == sorted(expiry for expiry, *of in self.live if tuple(of) == at)

    @rule(limit=st.integers(-1, 3))
    def ask_what_is_due(self, limit):
        self._check(list(self.shard.timers.due(limit)), self._due(limit))

    @rule(limit=st.integers(-1, 3))
    def work_off_what_is_due(self, limit):
        expected, given = self._due(limit), []
        for due in self.shard.timers.due(limit):
            given.append(due)
            self.shard.backend.enter(due.key_group)
            self.shard.backend.context.key = due.key
            self.shard.timers.delete(due.expiry_ms)
        self._check(given, expected)
        self.live = {timer: number for timer, number in self.live.items() if timer[0] > limit}

    @rule(limit=st.integers(-1, 3), changes=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=5))
    def change_timers_while_those_due_are_gone_through(self, limit, changes):
        expected, given, remaining = self._due(limit), [], iter(changes)
        for due in self.shard.timers.due(limit):
            given.append(due)
            for sets, at in islice(remaining, 2):
                self.shard.backend.enter(due.key_group)
                self.shard.backend.context.key = due.key
                timer = (at, due.key_group, due.key)
                if sets:
                    self.number += 1
                    self.live.setdefault(timer, self.number)
                    self.shard.timers.register(at)
                else:
                    self.live.pop(timer, None)
                    self.shard.timers.delete(at)
        self._check(given, expected)

    @rule(limit=st.integers(-1, 3), taken=st.integers(0, 2))
    def stop_in_the_midst_of_those_due(self, limit, taken):
        expected = self._due(limit)
        given = list(islice(self.shard.timers.due(limit), taken))
        assert [timer.expiry_ms for timer in given] == [expiry for expiry, *_ in expected[:taken]]

    @rule()
    def commit(self):
        self.commits += 1
        self.shard.commit(f"attempt {self.commits}")
        self.committed = copy.copy(self.live)
        assert self.shard.begin_at(self.shard.manifest)

    @rule()
    def rollback(self):
        self.shard.rollback()
        self.live = copy.copy(self.committed)

    @rule(asked=st.booleans())
    def commit_and_be_undone(self, asked):
        self.commits += 1
        manifest = self.shard.manifest
        self.shard.commit(f"attempt {self.commits}")
        if asked:
            self.shard.timers.next_expiry_ms()
        assert self.shard.begin_at(manifest)
        self.live = copy.copy(self.committed)

    @rule()
    def take_a_snapshot_that_is_read_after_more_changes(self):
        self.commits += 1
        snapshot = self.shard.backend.commit()
        expected = {timer for timer in self.live if timer[0] <= 3}
        self.work_off_what_is_due(limit=1)
        found = set()
        for group in GROUPS:
            cells = snapshot.cells(TIMERS.name, group)
            assert all(value == (True,) for value in cells.values)
            places = zip(cells.key_groups, cells.keys, cells.map_keys or (), strict=True)
            found |= {(expiry, at, key) for at, key, (expiry,) in places}
        assert found == expected
        snapshot.release()
        # Nobody has written this version.
        self.shard.backend.rollback()
        self.shard.backend.undo_commit()
        self.shard.timers.forget_queue()
        self.live = copy.copy(self.committed)

    @rule()
    def restore_from_all_there_is(self):
        self.commits += 1
        self.shard.write_anew()
        commit = self.shard.commit(f"attempt {self.commits}")
        restored = self._shard(commit.manifest)
        restored.restore(commit.segments)
        assert restored.begin_at(commit.manifest)
        self.shard.backend.close()
        self.shard = restored
        # They are set anew in the order in which they were written, which is open.
        given = list(restored.timers.due(3))
        assert {tuple(timer) for timer in given} == self.live.keys()
        assert [timer.expiry_ms for timer in given] == sorted(timer.expiry_ms for timer in given)
        self.live = {tuple(timer): number for number, timer in enumerate(given)}
        self.number = len(given)
        self.committed = copy.copy(self.live)

    @invariant()
    def memory_is_bounded_by_the_timers_that_are_set(self):
        queue = self.shard.timers._queue
        assert queue is None or len(queue) <= self.most_entries()

    def most_entries(self):
        return 2 * len(self.live)

    @rule()
    def the_next_one_is_the_earliest(self):
        assert self.shard.timers.next_expiry_ms() == min((expiry for expiry, *_ in self.live), default=None)


class TimersInRocksDb(TimersAgainstASet):
    keeps_order = True

    def backend(self, folder):
        return rocksdb(GROUPS, folder)


class TimersBehindACache(TimersInRocksDb):
    def backend(self, folder):
        return lru(rocksdb, max_entries=2)(GROUPS, folder)


class TimersThatSpill(TimersAgainstASet):
    IN_MEMORY = 2

    def backend(self, folder):
        backend = spillable(GROUPS, folder)
        backend._backend._timers_in_memory = self.IN_MEMORY
        return backend

    def most_entries(self):
        # Blocks that are being read hold deleted timers too, and each of these has a note: up to `IN_MEMORY` are
        # deleted, or as many as are set.
        return 3 * len(self.live) + 2 * self.IN_MEMORY


TimersAgainstASet.TestCase.settings = of_length(examples=60, steps=30)
TestTimersAgainstASet = TimersAgainstASet.TestCase
for machine in (TimersInRocksDb, TimersBehindACache, TimersThatSpill):
    # A database is opened for each example.
    machine.TestCase.settings = settings(
        of_length(examples=30, steps=30), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
    )
TestTimersInRocksDb = TimersInRocksDb.TestCase
TestTimersBehindACache = TimersBehindACache.TestCase
TestTimersThatSpill = TimersThatSpill.TestCase


def test_a_timer_set_deleted_and_set_again_is_due_once():
    shard = Shard(new_manifest("lineage", 0, 1, 2, KEY), HeapBackend(GROUPS))
    timers = shard.timers
    assert timers.next_expiry_ms() is None
    shard.backend.enter(1)
    shard.backend.context.key = ("ann",)
    timers.register(5)
    timers.delete(5)
    timers.register(5)
    assert [tuple(timer) for timer in timers.due(9)] == [(5, 1, ("ann",))]
    assert [tuple(timer) for timer in timers.due(9)] == [(5, 1, ("ann",))]


def _standing_at_ann():
    shard = Shard(new_manifest("lineage", 0, 1, 2, KEY), HeapBackend(GROUPS))
    assert shard.begin_at(shard.manifest)
    timers = shard.timers
    shard.backend.enter(1)
    shard.backend.context.key = ("ann",)
    return shard, timers


def test_timers_of_the_open_version_are_due_when_they_are_first_asked_for():
    _, timers = _standing_at_ann()
    timers.register(7)
    timers.register(3)
    timers.delete(7)
    assert timers.next_expiry_ms() == 3
    assert [tuple(timer) for timer in timers.due(9)] == [(3, 1, ("ann",))]


def test_asking_for_timers_leaves_the_current_key_as_it_was():
    shard, timers = _standing_at_ann()
    timers.register(3)
    shard.backend.enter(0)
    shard.backend.context.key = ("bob",)
    timers.register(5)
    for ask in (lambda: timers.due(9), timers.next_expiry_ms):
        ask()
        assert (shard.backend.context.key_group, shard.backend.context.key) == (0, ("bob",))
        assert list(timers.of_key()) == [5]


def test_restored_timers_are_due_though_the_queue_was_asked_before_the_restore():
    shard, timers = _standing_at_ann()
    timers.register(3)
    commit = shard.commit("attempt")
    restored = Shard(commit.manifest, HeapBackend(GROUPS))
    assert restored.timers.next_expiry_ms() is None
    restored.restore(commit.segments)
    assert [tuple(timer) for timer in restored.timers.due(9)] == [(3, 1, ("ann",))]


def test_a_timer_that_is_set_and_deleted_again_and_again_leaves_no_entries():
    shard, timers = _standing_at_ann()
    timers.register(0)
    assert timers.next_expiry_ms() == 0
    for at in range(1, 20_001):
        timers.register(at)
        timers.delete(at)
        assert len(timers._queue) <= 2
    shard.commit("attempt")
    assert timers.next_expiry_ms() == 0
    assert len(timers._queue) == 1


@pytest.mark.parametrize("time", [None, 1.5, 1.0, "5", 1 << 63, -(1 << 63) - 1])
def test_a_time_that_no_timer_can_have_is_refused_and_named_when_it_is_set(time):
    _, timers = _standing_at_ann()
    for call in (timers.register, timers.delete):
        with pytest.raises(OptionError, match=r"the time of a timer of key \('ann',\) is .*expected a .*number of ms"):
            call(time)
    assert timers.due(1 << 64) == []


@pytest.mark.parametrize("time", [(1 << 63) - 1, -(1 << 63), np.int32(7)])
def test_the_first_and_the_last_time_of_64_bits_are_timers(time):
    shard, timers = _standing_at_ann()
    timers.register(time)
    commit = shard.commit("attempt")
    restored = Shard(commit.manifest, HeapBackend(GROUPS))
    restored.restore(commit.segments)
    assert [timer.expiry_ms for timer in restored.timers.due((1 << 63) - 1)] == [time]


def test_a_timer_without_a_time_in_an_older_checkpoint_is_never_due():
    shard, timers = _standing_at_ann()
    timers.register(3)
    shard.backend.map_state(TIMERS).put((None,), (True,))
    commit = shard.commit("attempt")
    restored = Shard(commit.manifest, HeapBackend(GROUPS))
    restored.restore(commit.segments)
    assert [timer.expiry_ms for timer in restored.timers.due((1 << 63) - 1)] == [3]
