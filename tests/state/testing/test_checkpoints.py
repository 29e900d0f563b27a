"""Checkpoints, crashes and rollbacks in the harness, against plain dictionaries."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from millpond.errors import OptionError
from millpond.state.checkpoint import Manifest, next_manifest
from millpond.state.checkpoint.format.savepoint_manifest import SavepointManifest
from millpond.state.testing.harness import Harness
from tests.state.diary import Diary, harness_of, state_of


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("entries", [0, 8])
@pytest.mark.parametrize("shards", [1, 3])
def test_after_a_crash_the_last_checkpoint_is_there_and_goes_on(backend, entries, shards):
    options = {"state.backend.type": backend, "state.backend.cache.max-entries-num": entries}
    with harness_of(shards, options=options) as harness:
        harness.process_many(range(100))
        harness.checkpoint()
        harness.process_many(range(100, 130))
        harness.checkpoint()
        stored = state_of(harness)
        harness.process_many(range(1000, 2000))
        harness.crash()
        done = harness.restore()
        assert (done.version, done.passed_over) == (2, ())
        assert state_of(harness) == stored
        harness.take_output()
        harness.process(101)
        assert harness.take_output() == [(1, 4)]
        harness.checkpoint(full=True)
        stored = state_of(harness)
        harness.crash()
        assert harness.restore().version == 3
        assert state_of(harness) == stored


def test_records_flow_while_a_checkpoint_is_written():
    with harness_of(2) as harness, ThreadPoolExecutor(1) as pool:
        written, expected = [], []
        for start in range(0, 1000, 100):
            harness.process_many(range(start, start + 100))
            expected.append(state_of(harness))
            written.append(pool.submit(harness.begin_checkpoint().write))
        assert [len(each.result()) for each in written] == [2] * 10
        for version in (10, 9, 8):
            harness.restore(version)
            assert state_of(harness) == expected[version - 1]
        with pytest.raises(OptionError, match="no checkpoint 7 that every shard has"):
            harness.restore(7)


def test_checkpoints_that_were_begun_and_not_written_are_lost_in_a_crash():
    with harness_of(2) as harness:
        harness.process(1)
        harness.checkpoint()
        harness.process(2)
        begun = harness.begin_checkpoint()
        harness.crash()
        harness.restore()
        assert harness.state("count") == {1: 1}
        with pytest.raises(OptionError, match="checkpoint 2 is not the oldest one begun"):
            begun.write()


def test_an_aborted_checkpoint_loses_nothing_and_the_order_is_kept():
    with harness_of(2) as harness:
        harness.process(1)
        first = harness.begin_checkpoint()
        harness.process(2)
        second = harness.begin_checkpoint()
        with pytest.raises(OptionError, match="checkpoint 2 is not the oldest one begun: \\[1, 2\\]"):
            second.write()
        first.abort()
        second.write()
        with pytest.raises(OptionError, match="over already"):
            first.abort()
        harness.crash()
        assert harness.restore().version == 2
        assert harness.state("count") == {1: 1, 2: 1}


def test_timers_watermark_and_their_order_outlive_a_crash():
    with harness_of(3, storage=None) as harness:
        for record, at_ms in ((1, 30), (2, 10), (3, 20)):
            harness.process(record, at_ms=at_ms)
        harness.advance_watermark(5)
        harness.checkpoint()
        harness.advance_watermark(100)
        assert [fired[2] for fired in harness.take_output()[3:]] == [20, 30, 40]
        harness.crash()
        assert harness.restore().watermark_ms == harness.watermark_ms == 5
        harness.process(4, at_ms=5)
        assert harness.late_records == 1
        harness.advance_watermark(100)
        assert [fired[2] for fired in harness.take_output()] == [20, 30, 40]


def test_a_new_harness_goes_on_from_a_folder(tmp_path):
    with harness_of(2, storage=str(tmp_path)) as first:
        first.process_many(range(100))
        first.checkpoint()
        stored = state_of(first)
    with harness_of(2, options={"state.checkpoint-storage": str(tmp_path), "state.backend.type": "rocksdb"}) as second:
        second.restore()
        assert state_of(second) == stored
    with harness_of(2, storage=str(tmp_path)) as third, pytest.raises(OptionError, match=r"holds checkpoints already"):
        third.checkpoint()
    with harness_of(3, storage=str(tmp_path)) as other:
        with pytest.raises(OptionError, match="no checkpoint that every shard has"):
            other.restore()
        other.process(1)
        assert other.state("count") == {1: 1}
    with harness_of(1, storage=str(tmp_path)) as other, pytest.raises(OptionError, match="written by 2 shards"):
        other.restore()


class Remembering:
    """A value that lives for 10 ms, and a timer of the processing time after 20 ms."""

    def open(self, states):
        self.last = states.value("last", int, ttl=10)

    def process(self, key, record, context):
        self.last.update(record)
        context.processing_timers.register(context.processing_ms + 20)

    def on_timer(self, key, timer, context):
        yield key, timer.at_ms


def remembering(folder):
    return Harness(Remembering, key=int, key_type=int, shards=2, storage=f"{folder}/stored")


def restored(harness, by, folder):
    if by == "checkpoint":
        assert harness.restore().processing_ms == 1000
    else:
        harness.restore_savepoint(f"{folder}/saved")


@pytest.fixture
def remembered(tmp_path):
    """A checkpoint and a savepoint of the processing time 1000."""
    with remembering(tmp_path) as harness:
        harness.advance_processing_time(1000)
        harness.process_many([1, 2])
        harness.checkpoint()
        harness.savepoint(f"{tmp_path}/saved")
    return tmp_path


@pytest.mark.parametrize("by", ["checkpoint", "savepoint"])
def test_a_new_harness_goes_on_at_the_processing_time_that_was_stored(remembered, by):
    with remembering(remembered) as harness:
        restored(harness, by, remembered)
        assert harness.processing_ms == 1000
        for at_ms, alive, fired in ((1009, True, []), (1010, False, []), (1020, False, [(1, 1020), (2, 1020)])):
            harness.advance_processing_time(at_ms)
            harness.checkpoint()
            assert (harness.state("last") == {1: 1, 2: 2}) is alive
            assert sorted(harness.take_output()) == fired


@pytest.mark.parametrize("by", ["checkpoint", "savepoint"])
def test_processing_timers_that_came_due_while_nothing_ran_fire_with_the_first_advance(remembered, by):
    with remembering(remembered) as harness:
        restored(harness, by, remembered)
        harness.advance_processing_time(5000)
        assert sorted(harness.take_output()) == [(1, 1020), (2, 1020)]


@pytest.mark.parametrize("by", ["checkpoint", "savepoint"])
def test_a_restore_goes_back_in_processing_time_so_that_records_can_be_given_again(remembered, by):
    with remembering(remembered) as harness:
        harness.advance_processing_time(9000)
        restored(harness, by, remembered)
        assert harness.processing_ms == 1000
        harness.advance_processing_time(1005)
        harness.process(1)
        harness.advance_processing_time(1012)
        assert harness.state("last") == {1: 1}, "its life began at the restored time"
        harness.rollback()
        assert harness.processing_ms == 1000


@pytest.mark.parametrize("by", ["checkpoint", "savepoint"])
def test_where_a_ttl_is_added_lives_begin_at_the_stored_processing_time(tmp_path, by):
    class Immortal(Remembering):
        def open(self, states):
            self.last = states.value("last", int)

    with Harness(Immortal, key=int, key_type=int, shards=2, storage=f"{tmp_path}/stored") as harness:
        harness.advance_processing_time(1000)
        harness.process(1)
        harness.checkpoint()
        harness.savepoint(f"{tmp_path}/saved")
    with remembering(tmp_path) as harness:
        restored(harness, by, tmp_path)
        for at_ms, left in ((1009, {1: 1}), (1010, {})):
            harness.advance_processing_time(at_ms)
            assert harness.state("last") == left


@pytest.mark.parametrize("by", ["checkpoint", "savepoint"])
def test_what_was_stored_without_a_processing_time_leaves_the_harness_its_own(tmp_path, by, monkeypatch):
    """As releases did before: nothing expires and no timer fires early in a harness that begins at 0."""

    encode = msgspec.msgpack.encode

    def as_before(plain):
        if isinstance(plain, Manifest | SavepointManifest):
            plain = {name: value for name, value in msgspec.structs.asdict(plain).items() if name != "processing_ms"}
        return encode(plain)

    with monkeypatch.context() as patched:
        patched.setattr(msgspec.msgpack, "encode", as_before)
        patched.setattr(next_manifest, "check_restores", lambda manifest: None)
        with remembering(tmp_path) as harness:
            harness.advance_processing_time(1000)
            harness.process(1)
            harness.checkpoint()
            harness.savepoint(f"{tmp_path}/saved")
    with remembering(tmp_path) as harness:
        if by == "checkpoint":
            assert harness.restore().processing_ms == 0
        else:
            harness.restore_savepoint(f"{tmp_path}/saved")
        for at_ms, alive, fired in ((0, True, []), (1009, True, []), (1010, False, []), (1020, False, [(1, 1020)])):
            harness.advance_processing_time(at_ms)
            assert (harness.state("last") == {1: 1}) is alive
            assert harness.take_output() == fired


def test_rollback_goes_back_to_where_the_last_checkpoint_was_begun():
    class Poisoned(Diary):
        def process(self, key, record, context):
            yield from super().process(key, record, context)
            if record == 666:
                raise ZeroDivisionError

    with Harness(Poisoned, key=lambda record: record % 50, key_type=int, shards=2) as harness:
        harness.process_many(range(10))
        harness.process(11, at_ms=1)
        harness.checkpoint()
        stored, given = state_of(harness), 11
        harness.process(12, at_ms=2)
        harness.advance_processing_time(5)
        with pytest.raises(ZeroDivisionError):
            harness.process_many([13, 666, 14])
        with pytest.raises(OptionError, match="failed before"):
            harness.checkpoint()
        harness.rollback()
        assert state_of(harness) == stored
        assert (harness.watermark_ms, harness.processing_ms) == (-1, 0)
        assert len(harness.take_output()) == given
        for _ in range(2):
            harness.advance_watermark(100)
            harness.advance_watermark(100)
            assert harness.take_output() == [(11, "timer", 11)]
            harness.rollback()


def test_rollback_before_any_checkpoint_goes_back_to_the_start_and_none_helps_after_a_crash():
    with harness_of() as harness:
        harness.process(1)
        harness.rollback()
        assert harness.state("count") == {}
        harness.crash()
        with pytest.raises(OptionError, match=r"lost.*restore\(\)"):
            harness.rollback()


def test_a_version_that_is_not_stored_is_refused_before_anything_is_lost():
    with harness_of(2) as harness:
        harness.process_many(range(10))
        harness.checkpoint()
        harness.process(1)
        with pytest.raises(OptionError, match=r"no checkpoint 99 that every shard has; there are \[1\]"):
            harness.restore(99)
        assert harness.state("count")[1] == 2
        harness.process(1)
        harness.checkpoint()
        assert harness.restore().version == 2
        assert harness.state("count")[1] == 3


def test_a_checkpoint_that_is_refused_before_it_begins_leaves_the_operator_usable(tmp_path):
    with harness_of(storage=str(tmp_path)) as first:
        first.process(1)
        first.checkpoint()
    with harness_of(storage=str(tmp_path)) as other:
        other.process(2)
        with pytest.raises(OptionError, match="holds checkpoints already"):
            other.checkpoint()
        other.process(2)
        assert other.state("count") == {2: 2}


def test_a_rollback_takes_late_records_back_too():
    with harness_of() as harness:
        harness.advance_watermark(10)
        harness.process(1, at_ms=5)
        harness.checkpoint()
        harness.process(2, at_ms=6)
        assert harness.late_records == 2
        harness.rollback()
        assert harness.late_records == 1
        harness.restore()
        assert harness.late_records == 0
