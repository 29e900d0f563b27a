"""Checkpoints in the harness that are damaged, or that only some shards could begin or store."""

import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millpond.errors import CorruptionError, OptionError, UnavailableError
from millpond.state.checkpoint import FileStorage
from millpond.state.spi import HeapBackend
from millpond.state.testing.harness import Harness
from tests.state.diary import harness_of, state_of
from tests.state.failing_storage import Failing
from tests.state.lengths import of_length


def _damage(folder: Path, shard: int) -> None:
    newest = max((folder / f"shard-{shard:05d}" / "segments").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")


def test_a_damaged_checkpoint_is_passed_over_by_all_shards_only_when_asked(tmp_path):
    with harness_of(2, storage=str(tmp_path)) as harness:
        expected = []
        for start in range(0, 300, 100):
            harness.process_many(range(start, start + 100))
            harness.checkpoint(full=True)
            expected.append(state_of(harness))
        _damage(tmp_path, shard=1)
        with pytest.raises(CorruptionError, match="shard 1"):
            harness.restore()
        done = harness.restore(fall_back=True)
        assert done.version == 2
        assert len(done.passed_over) == 1
        assert state_of(harness) == expected[1]
        harness.process(1)
        harness.checkpoint()
        stored = state_of(harness)
        harness.crash()
        assert harness.restore().version == 4
        assert state_of(harness) == stored


@pytest.mark.parametrize("left", [0, 40, None], ids=["emptied", "cut off", "deleted"])
def test_a_manifest_that_is_damaged_is_passed_over_only_when_asked(tmp_path, left):
    with harness_of(2, storage=str(tmp_path)) as harness:
        for start in (0, 10):
            harness.process_many(range(start, start + 10))
            harness.checkpoint()
        manifest = max((tmp_path / "shard-00001" / "heads").iterdir())
        data = manifest.read_bytes()
        manifest.unlink()
        if left is not None:
            manifest.write_bytes(data[:left])
        with pytest.raises(CorruptionError, match=manifest.name):
            harness.restore()
        done = harness.restore(fall_back=True)
        assert done.version == 1
        assert manifest.name in done.passed_over[0]
        assert harness.state("count") == dict.fromkeys(range(10), 1)


@contextmanager
def checkpointed(folder):
    """Three shards with one checkpoint, which keep two versions; and the set of the shards whose storage fails."""
    failing = set()
    with harness_of(3, storage=lambda number: Failing(FileStorage(str(folder), number, retain=2), failing)) as harness:
        harness.process_many(range(50))
        harness.checkpoint()
        yield harness, failing


def test_a_shard_that_fails_for_long_holds_the_others_back_so_that_all_keep_a_version_in_common(tmp_path):
    with checkpointed(tmp_path) as (harness, failing):
        stored = state_of(harness)
        failing.add(1)
        for _ in range(4):
            harness.process_many(range(50))
            with pytest.raises(OSError, match="no space"):
                harness.checkpoint()
        harness.crash()
        assert harness.restore().version == 1
        assert state_of(harness) == stored


def test_shards_that_fail_in_turn_keep_a_version_in_common(tmp_path):
    with checkpointed(tmp_path) as (harness, failing):
        stored = state_of(harness)
        for shard in (2, 1, 0, 2, 1):
            failing.clear()
            failing.add(shard)
            harness.process_many(range(50))
            with pytest.raises(OSError, match="no space"):
                harness.checkpoint()
        harness.crash()
        assert harness.restore().version == 1
        assert state_of(harness) == stored
        failing.clear()
        for _ in range(3):
            harness.process_many(range(50))
            harness.checkpoint()
        for shard in range(3):
            assert len(list((tmp_path / f"shard-{shard:05d}" / "heads").iterdir())) == 2


def test_after_a_checkpoint_that_only_some_shards_stored_all_count_alike(tmp_path):
    failing = set()
    with harness_of(2, storage=lambda number: Failing(FileStorage(str(tmp_path), number), failing)) as harness:
        harness.process_many(range(50))
        harness.checkpoint()
        failing.add(1)
        with pytest.raises(OSError, match="no space"):
            harness.checkpoint()
        failing.clear()
        harness.restore()
        harness.process_many(range(50))
        harness.checkpoint()
        stored = state_of(harness)
        harness.crash()
        assert harness.restore().version == 3
        assert state_of(harness) == stored


class ShardsThatFail(RuleBasedStateMachine):
    """Storages fail, each when it likes; whatever a checkpoint said was stored is what a crash leaves, or newer."""

    @initialize(shards=st.integers(1, 3))
    def start(self, shards):
        self.failing = set()
        self.folder = tempfile.TemporaryDirectory()
        self.harness = harness_of(
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
