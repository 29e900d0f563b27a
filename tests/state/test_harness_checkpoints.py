"""Checkpoints, crashes, rollbacks and rescaling in the harness, against plain dictionaries."""

import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.errors import CorruptionError, OptionError, UnavailableError
from millpond.state import HeapBackend
from millpond.state.checkpoint import FileStorage
from millpond.state.harness import Harness
from tests.state.lengths import of_length


class Diary:
    """One of each kind of state, and a timer ten ms after a record's time."""

    def open(self, states):
        self.count = states.value("count", int, default=0)
        self.seen = states.list("seen", int)
        self.parities = states.map("parities", str, int)

    def process(self, key, record, context):
        self.count.update(self.count.get() + 1)
        self.seen.append(record)
        self.parities.put("odd" if record % 2 else "even", record)
        if context.at_ms is not None:
            context.event_timers.register(context.at_ms + 10)
        yield key, self.count.get()

    def on_timer(self, key, timer, context):
        yield key, "timer", timer.at_ms


def _harness(shards=1, **changes):
    return Harness(Diary, key=lambda record: record % 50, key_type=int, shards=shards, **changes)


def _state(harness):
    return {name: harness.state(name) for name in ("count", "seen", "parities")}


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("entries", [0, 8])
@pytest.mark.parametrize("shards", [1, 3])
def test_after_a_crash_the_last_checkpoint_is_there_and_goes_on(backend, entries, shards):
    options = {"state.backend.type": backend, "state.backend.cache.max-entries-num": entries}
    with _harness(shards, options=options) as harness:
        harness.process_many(range(100))
        harness.checkpoint()
        harness.process_many(range(100, 130))
        harness.checkpoint()
        stored = _state(harness)
        harness.process_many(range(1000, 2000))
        harness.crash()
        done = harness.restore()
        assert (done.version, done.passed_over) == (2, ())
        assert _state(harness) == stored
        harness.take_output()
        harness.process(101)
        assert harness.take_output() == [(1, 4)]
        harness.checkpoint(full=True)
        stored = _state(harness)
        harness.crash()
        assert harness.restore().version == 3
        assert _state(harness) == stored


def test_records_flow_while_a_checkpoint_is_written():
    with _harness(2) as harness, ThreadPoolExecutor(1) as pool:
        written, expected = [], []
        for start in range(0, 1000, 100):
            harness.process_many(range(start, start + 100))
            expected.append(_state(harness))
            written.append(pool.submit(harness.begin_checkpoint().write))
        assert [len(each.result()) for each in written] == [2] * 10
        for version in (10, 9, 8):
            harness.restore(version)
            assert _state(harness) == expected[version - 1]
        with pytest.raises(OptionError, match="no checkpoint 7 that every shard has"):
            harness.restore(7)


def test_checkpoints_that_were_begun_and_not_written_are_lost_in_a_crash():
    with _harness(2) as harness:
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
    with _harness(2) as harness:
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
    with _harness(3, storage=None) as harness:
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
    with _harness(2, storage=str(tmp_path)) as first:
        first.process_many(range(100))
        first.checkpoint()
        stored = _state(first)
    with _harness(2, options={"state.checkpoint-storage": str(tmp_path), "state.backend.type": "rocksdb"}) as second:
        second.restore()
        assert _state(second) == stored
    with _harness(2, storage=str(tmp_path)) as third, pytest.raises(OptionError, match=r"holds checkpoints already"):
        third.checkpoint()
    with _harness(3, storage=str(tmp_path)) as other:
        with pytest.raises(OptionError, match="no checkpoint that every shard has"):
            other.restore()
        with pytest.raises(OptionError, match="state was lost"):
            other.process(1)
    with _harness(1, storage=str(tmp_path)) as other, pytest.raises(OptionError, match="written by 2 shards"):
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


@pytest.mark.parametrize("by", ["checkpoint", "savepoint"])
def test_in_a_new_harness_whose_processing_time_begins_anew_nothing_expires_or_fires_early(tmp_path, by):
    def harness():
        return Harness(Remembering, key=int, key_type=int, storage=f"{tmp_path}/stored")

    with harness() as first:
        first.advance_processing_time(1000)
        first.process(1)
        first.checkpoint()
        first.savepoint(f"{tmp_path}/saved")
    with harness() as second:
        if by == "checkpoint":
            second.restore()
        else:
            second.restore_savepoint(f"{tmp_path}/saved")
        assert second.processing_ms == 0
        for at_ms, alive, fired in ((0, True, []), (1009, True, []), (1010, False, []), (1020, False, [(1, 1020)])):
            second.advance_processing_time(at_ms)
            second.checkpoint()
            assert (second.state("last") == {1: 1}) is alive
            assert second.take_output() == fired


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
        stored, given = _state(harness), 11
        harness.process(12, at_ms=2)
        harness.advance_processing_time(5)
        with pytest.raises(ZeroDivisionError):
            harness.process_many([13, 666, 14])
        with pytest.raises(OptionError, match="failed before"):
            harness.checkpoint()
        harness.rollback()
        assert _state(harness) == stored
        assert (harness.watermark_ms, harness.processing_ms) == (-1, 0)
        assert len(harness.take_output()) == given
        for _ in range(2):
            harness.advance_watermark(100)
            harness.advance_watermark(100)
            assert harness.take_output() == [(11, "timer", 11)]
            harness.rollback()


def test_rollback_before_any_checkpoint_goes_back_to_the_start_and_none_helps_after_a_crash():
    with _harness() as harness:
        harness.process(1)
        harness.rollback()
        assert harness.state("count") == {}
        harness.crash()
        with pytest.raises(OptionError, match=r"lost.*restore\(\)"):
            harness.rollback()


def _damage(folder: Path, shard: int) -> None:
    newest = max((folder / f"shard-{shard:05d}" / "segments").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")


def test_a_damaged_checkpoint_is_passed_over_by_all_shards_only_when_asked(tmp_path):
    with _harness(2, storage=str(tmp_path)) as harness:
        expected = []
        for start in range(0, 300, 100):
            harness.process_many(range(start, start + 100))
            harness.checkpoint(full=True)
            expected.append(_state(harness))
        _damage(tmp_path, shard=1)
        with pytest.raises(CorruptionError, match="shard 1"):
            harness.restore()
        done = harness.restore(fall_back=True)
        assert done.version == 2
        assert len(done.passed_over) == 1
        assert _state(harness) == expected[1]
        harness.process(1)
        harness.checkpoint()
        stored = _state(harness)
        harness.crash()
        assert harness.restore().version == 4
        assert _state(harness) == stored


class Failing:
    """A storage whose `put` fails while it is told to."""

    def __init__(self, storage, failing):
        self._storage, self._failing = storage, failing
        self.name, self.versions, self.head = storage.name, storage.versions, storage.head
        self.segment = storage.segment

    def put(self, commit):
        if commit.head.shard in self._failing:
            raise OSError("no space left")
        self._storage.put(commit)


def test_a_shard_that_fails_for_long_holds_the_others_back_so_that_all_keep_a_version_in_common(tmp_path):
    failing = set()
    with _harness(3, storage=lambda number: Failing(FileStorage(str(tmp_path), number, retain=2), failing)) as harness:
        harness.process_many(range(50))
        harness.checkpoint()
        stored = _state(harness)
        failing.add(1)
        for _ in range(4):
            harness.process_many(range(50))
            with pytest.raises(OSError, match="no space"):
                harness.checkpoint()
        harness.crash()
        assert harness.restore().version == 1
        assert _state(harness) == stored


def test_after_a_checkpoint_that_only_some_shards_stored_all_count_alike(tmp_path):
    failing = set()
    with _harness(2, storage=lambda number: Failing(FileStorage(str(tmp_path), number), failing)) as harness:
        harness.process_many(range(50))
        harness.checkpoint()
        failing.add(1)
        with pytest.raises(OSError, match="no space"):
            harness.checkpoint()
        failing.clear()
        harness.restore()
        harness.process_many(range(50))
        harness.checkpoint()
        stored = _state(harness)
        harness.crash()
        assert harness.restore().version == 3
        assert _state(harness) == stored


class ShardsThatFail(RuleBasedStateMachine):
    """Storages fail, each when it likes; whatever a checkpoint said was stored is what a crash leaves, or newer."""

    @initialize(shards=st.integers(1, 3))
    def start(self, shards):
        self.failing = set()
        self.folder = tempfile.TemporaryDirectory()
        self.harness = _harness(
            shards, storage=lambda number: Failing(FileStorage(self.folder.name, number, retain=2), self.failing)
        )
        self.shards, self.next, self.live, self.moments, self.stored = shards, 0, Counter(), {}, 0

    def teardown(self):
        if hasattr(self, "harness"):
            self.harness.close()
            self.folder.cleanup()

    @rule(shard=st.integers(0, 2))
    def fail(self, shard):
        self.failing.add(shard)

    @rule()
    def mend(self):
        self.failing.clear()

    @rule(records=st.lists(st.integers(0, 9), max_size=5))
    def process(self, records):
        self.harness.process_many(records)
        self.live.update(records)

    @rule(full=st.booleans())
    def checkpoint(self, full):
        begun = self.harness.begin_checkpoint(full=full)
        self.moments[begun.version] = self.live.copy()
        if self.failing & set(range(self.shards)):
            with pytest.raises(OSError, match="no space"):
                begun.write()
        else:
            begun.write()
            self.stored = begun.version

    @precondition(lambda self: self.stored)
    @rule()
    def crash_and_restore(self):
        self.harness.crash()
        version = self.harness.restore().version
        assert version >= self.stored
        self.live = self.moments[version].copy()
        self.stored = version

    @invariant()
    def counts_are_those_of_the_records(self):
        if hasattr(self, "harness"):
            assert self.harness.state("count") == self.live


ShardsThatFail.TestCase.settings = of_length(examples=15, steps=20)
test_shards_that_fail_alone_never_leave_half_a_checkpoint = ShardsThatFail.TestCase


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (15, 77), (77, 15)])
def test_rescaling_keeps_every_count_and_every_timer(before, after):
    with _harness(before) as harness:
        for record in range(200):
            harness.process(record, at_ms=record)
        harness.process_many(range(200, 300))
        harness.advance_watermark(5)
        expected = _state(harness)
        harness.take_output()
        harness.rescale(after)
        assert _state(harness) == expected
        harness.process_many(range(50))
        harness.checkpoint()
        expected = _state(harness)
        harness.crash()
        assert harness.restore().watermark_ms == 5
        assert _state(harness) == expected
        assert harness.state("count") == dict.fromkeys(range(50), 7)
        harness.advance_watermark(1000)
        assert [fired[2] for fired in harness.take_output()] == list(range(10, 210))


def test_the_first_checkpoint_after_rescaling_holds_everything_even_if_one_before_it_failed(tmp_path):
    failing = {0}
    with _harness(2) as harness:
        harness.process_many(range(100))
        expected = _state(harness)
        harness.rescale(3, storage=lambda number: Failing(FileStorage(str(tmp_path), number), failing))
        with pytest.raises(OSError, match="no space"):
            harness.checkpoint()
        failing.clear()
        harness.checkpoint()
        harness.crash()
        harness.restore()
        assert _state(harness) == expected


@pytest.mark.parametrize(
    ("before", "after", "backend"), [(4, 2, "rocksdb"), (2, 4, "rocksdb"), (15, 77, "heap"), (77, 15, "heap")]
)
def test_a_savepoint_is_restored_by_any_number_of_shards_of_any_backend(tmp_path, before, after, backend):
    location = str(tmp_path / "savepoint")
    with _harness(before) as harness:
        for record in range(100):
            harness.process(record, at_ms=record)
        harness.checkpoint()
        harness.process_many(range(100, 150))
        harness.advance_watermark(5)
        harness.savepoint(location)
        expected, layout = _state(harness), harness.max_parallelism
        harness.process(1)
    with _harness(1, options={"state.backend.type": backend}, max_parallelism=256) as other:
        other.process(1)
        other.restore_savepoint(location, shards=after)
        assert (_state(other), other.watermark_ms, other.max_parallelism) == (expected, 5, layout)
        assert other.take_output() == []
        other.advance_watermark(1000)
        assert [fired[2] for fired in other.take_output()] == list(range(10, 110))


def test_the_first_checkpoint_after_a_savepoint_holds_everything(tmp_path):
    with _harness(2) as harness:
        harness.process_many(range(100))
        harness.savepoint(str(tmp_path / "savepoint"))
        harness.process_many(range(100))
        harness.restore_savepoint(str(tmp_path / "savepoint"))
        harness.process(3)
        harness.checkpoint()
        expected = _state(harness)
        harness.crash()
        harness.restore()
        assert _state(harness) == expected
        assert harness.state("count") == {key: 3 if key == 3 else 2 for key in range(50)}


def test_state_under_another_key_is_refused_and_what_is_in_memory_stays(tmp_path):
    with _harness(2, storage=str(tmp_path / "checkpoints")) as harness:
        harness.process(1)
        harness.checkpoint()
        harness.savepoint(str(tmp_path / "savepoint"))
    with Harness(Diary, key=str, key_type=str, shards=2, storage=str(tmp_path / "checkpoints")) as other:
        other.process(5)
        with pytest.raises(OptionError, match=r"savepoint is keyed by \(int64\), and the operator's key_type is \(str"):
            other.restore_savepoint(str(tmp_path / "savepoint"))
        with pytest.raises(OptionError, match="128 key groups"):
            _harness().restore_savepoint(str(tmp_path / "savepoint"), shards=129)
        assert other.state("count") == {"5": 1}
        with pytest.raises(OptionError, match=r"keyed by \(int64\)"):
            other.restore()


def test_shards_without_a_key_group_are_refused():
    with pytest.raises(OptionError, match="max_parallelism is 4 with 5 shards"):
        _harness(5, max_parallelism=4)
    with _harness(2, max_parallelism=4) as harness, pytest.raises(OptionError, match="max_parallelism is 4 with 5"):
        harness.rescale(5)


class Counting:
    def open(self, states):
        self.seen = states.value("seen", int, default=0)

    def process(self, key, record, context):
        self.seen.update(self.seen.get() + 1)


class _FailsToCommitOnce:
    """A heap backend whose next commit fails."""

    def __init__(self, key_groups):
        self._backend = HeapBackend(key_groups)
        self.fails = False

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def commit(self):
        if self.fails:
            self.fails = False
            raise UnavailableError("the second shard's disk is full.")
        return self._backend.commit()


def test_a_checkpoint_that_only_some_shards_could_begin_is_given_up_and_a_restore_makes_them_one(tmp_path):
    backends = []

    def backend(key_groups):
        backends.append(_FailsToCommitOnce(key_groups))
        return backends[-1]

    names = [f"user {number}" for number in range(20)]
    with Harness(Counting, key=str, key_type=str, shards=2, backend=backend, storage=str(tmp_path)) as harness:
        harness.process_many(names)
        harness.checkpoint()
        harness.process_many(names)
        backends[1].fails = True
        with pytest.raises(UnavailableError, match="disk is full"):
            harness.checkpoint()
        with pytest.raises(OptionError, match="restore"):
            harness.rollback()
        harness.restore()
        harness.process_many(names)
        harness.checkpoint()
        assert harness.state("seen") == dict.fromkeys(names, 2)
