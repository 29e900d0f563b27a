"""Key groups on disk are copied into checkpoints as bytes, and restored to disk or into any other backend."""

import signal
import subprocess
import sys
import textwrap

import pyarrow as pa
import pytest

from millpond.errors import OptionError
from millpond.state import FileStorage, Harness, Savepoint, TwoLayer, WriteBack, write_savepoint
from millpond.state.checkpoint import Checkpointer, Shard, ShardState, new_manifest, restore
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.spi import HeapBackend, LruStateCache, StateDescriptor, StateKind
from millpond.state.wrappers.cached_values import CachedValues
from millpond.state.wrappers.undo import UndoableBackend
from tests.state.spillable.raw_states import GROUPS, KEY, LONG, STATES, checkpointer, everything, raw_segments, use
from tests.state.spillable.restless import open_spillable


@pytest.fixture
def backend(tmp_path):
    backend = open_spillable(GROUPS, tmp_path / "state")
    for number in range(200):
        use(backend, number % 4, LONG if number % 40 == 0 else f"user{number}", number)
    yield backend
    backend.close()


@pytest.mark.parametrize("into", ["heap", "rocksdb", "spillable"])
def test_what_was_copied_restores_into_any_backend(backend, tmp_path, into):
    backend.spill_now([1, 3])
    storage = FileStorage(str(tmp_path / "checkpoints"), 0)
    checkpoints = checkpointer(storage, backend)
    checkpoints.write(checkpoints.begin(full=True))
    assert {ref.state for ref in raw_segments(storage)} == {"count", "log", "pages"}
    assert {group for ref in raw_segments(storage) for group in (ref.first_group, ref.last_group)} == {1, 3}
    opened = {
        "heap": lambda: HeapBackend(GROUPS),
        "rocksdb": lambda: RocksDbBackend(GROUPS, tmp_path / "other"),
        "spillable": lambda: open_spillable(GROUPS, tmp_path / "other"),
    }[into]()
    restore(FileStorage(str(tmp_path / "checkpoints"), 0), opened, STATES)
    assert everything(opened) == everything(backend)
    if into == "spillable":
        assert sorted(opened._migrator.spilled) == [1, 3]
    opened.close()


def test_a_copy_is_of_its_version_whatever_comes_after(backend, tmp_path):
    backend.spill_now(GROUPS)
    storage = FileStorage(str(tmp_path / "checkpoints"), 0)
    checkpoints = checkpointer(storage, backend)
    expected = everything(backend)
    pending = checkpoints.begin(full=True)
    for number in range(0, 300, 3):
        use(backend, number % 4, f"user{number}", number + 1000)
    backend.enter(1)
    backend.context.key = ("user1",)
    for state in (backend.value_state(STATES[0]), backend.list_state(STATES[1]), backend.map_state(STATES[2])):
        state.clear()
    backend.flush_now()
    backend.commit().release()
    backend.load_now([2])
    use(backend, 3, "user3", 7)
    checkpoints.write(pending)
    assert len(raw_segments(storage)) >= 3
    other = HeapBackend(GROUPS)
    restore(storage, other, STATES)
    assert everything(other) == expected


def test_incremental_checkpoints_have_raw_bases_and_plain_deltas(backend, tmp_path):
    backend.spill_now(GROUPS)
    storage = FileStorage(str(tmp_path / "checkpoints"), 0)
    checkpoints = checkpointer(storage, backend)
    checkpoints.write(checkpoints.begin())
    for turn in range(6):
        for number in range(turn, 200, 9):
            use(backend, number % 4, f"user{number}", number + turn)
        if turn == 3:
            backend.load_now([0, 1])
        stats = checkpoints.write(checkpoints.begin())
        assert not stats.full
        other = open_spillable(GROUPS, tmp_path / f"other{turn}")
        restore(storage, other, STATES)
        assert everything(other) == everything(backend)
        other.close()
    kinds = {(ref.base, storage.segment(ref).startswith(b"MPSR")) for ref in storage.manifest().segments}
    assert kinds >= {(True, True), (False, False)}
    assert (False, True) not in kinds


def test_a_restore_loads_what_fits_and_leaves_the_rest_on_disk(backend, tmp_path):
    backend.spill_now(GROUPS)
    storage = FileStorage(str(tmp_path / "checkpoints"), 0)
    checkpoints = checkpointer(storage, backend)
    checkpoints.write(checkpoints.begin(full=True))
    roomy = open_spillable(GROUPS, tmp_path / "roomy")
    restore(storage, roomy, STATES)
    assert sorted(roomy._migrator.spilled) == [0, 1, 2, 3]
    roomy.enter(0)
    assert roomy._migrator.spilled == {}
    assert roomy.stats().reason == "restore"
    small = open_spillable(GROUPS, tmp_path / "small", load_start_ratio=1e-7, load_end_ratio=2.5e-5)
    restore(storage, small, STATES)
    small.enter(0)
    assert 0 < len(small._migrator.spilled) < 4
    assert everything(small) == everything(roomy) == everything(backend)
    roomy.close()
    small.close()


def test_a_savepoint_of_a_stored_version_decodes_what_was_copied(backend, tmp_path):
    backend.spill_now([0, 2])
    storage = FileStorage(str(tmp_path / "checkpoints"), 0)
    checkpoints = checkpointer(storage, backend)
    checkpoints.write(checkpoints.begin(full=True))
    write_savepoint(str(tmp_path / "savepoint"), [ShardState.of_storage(storage)])
    other = HeapBackend(GROUPS)
    Shard(new_manifest("other", 0, 1, 4, KEY), other).start_from(Savepoint.open(str(tmp_path / "savepoint")), STATES, 0)
    assert everything(other) == everything(backend)


def test_a_restore_under_a_wider_type_reads_what_was_copied(tmp_path):
    narrow = StateDescriptor("n", StateKind.VALUE, pa.schema([("n", pa.int32())]))
    wide = StateDescriptor("n", StateKind.VALUE, pa.schema([("n", pa.int64()), ("new", pa.string())]))
    backend = open_spillable(GROUPS, tmp_path / "state")
    state = backend.value_state(narrow)
    backend.enter(2)
    backend.context.key = ("ann",)
    state.update((5,))
    backend.spill_now([2])
    storage = FileStorage(str(tmp_path / "checkpoints"), 0)
    checkpoints = Checkpointer(storage, backend, new_manifest("lineage", 0, 1, 4, KEY), [narrow])
    checkpoints.write(checkpoints.begin(full=True))
    assert raw_segments(storage)
    other = open_spillable(GROUPS, tmp_path / "other")
    restore(storage, other, [wide])
    assert other.cells("n", 2).values == [(5, None)]
    other.close()
    backend.close()


WRAPPERS = {
    "lru of 1": lambda inner: LruStateCache(inner, max_entries=1),
    "lru of 40": lambda inner: LruStateCache(inner, max_entries=40),
    "lru of all": lambda inner: LruStateCache(inner, max_entries=10_000),
    "write-back": lambda inner: CachedValues(inner, WriteBack(max_size=40)),
    "two-layer": lambda inner: CachedValues(inner, TwoLayer(max_size=10, max_size_l2=40)),
    "undoable": UndoableBackend,
    "undoable write-back": lambda inner: UndoableBackend(CachedValues(inner, WriteBack(max_size=10_000))),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_shard_copies_what_is_spilled_behind(wrapper, tmp_path):
    """Caches, and the undoing of calls, whatever they still hold back of the groups that are copied."""
    inner = open_spillable(GROUPS, tmp_path / "state")
    shard = Shard(new_manifest("lineage", 0, 1, 4, KEY), WRAPPERS[wrapper](inner))
    for state in STATES:
        shard.declare(state)
    segments = {}
    for turn in range(12):
        if turn:
            assert shard.begin_at(shard.manifest)
        for number in range(turn, 200, 1 + turn):
            use(shard.backend, number % 4, LONG if number % 40 == 0 else f"user{number}", number + turn)
        for number in range(turn, 200, 31):
            shard.backend.enter(number % 4)
            shard.backend.context.key = (f"user{number}",)
            shard.backend.value_state(STATES[0]).clear()
            shard.backend.map_state(STATES[2]).remove((f"user{number}",))
        inner.spill_now([turn % 4, (turn + 1) % 4])
        commit = shard.commit(f"turn{turn}")
        segments.update(commit.segments)
        bases = [ref for ref in commit.manifest.segments if ref.base]
        other = WRAPPERS[wrapper](open_spillable(GROUPS, tmp_path / f"other{turn}"))
        Shard(commit.manifest, other).restore({at: memoryview(data) for at, data in segments.items()}, STATES)
        assert everything(other) == everything(shard.backend)
        other.close()
    assert bases
    assert all(segments[ref.id].startswith(b"MPSR") for ref in bases)
    shard.backend.close()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_checkpoint_copies_what_is_spilled_behind(wrapper, tmp_path):
    inner = open_spillable(GROUPS, tmp_path / "state")
    backend = WRAPPERS[wrapper](inner)
    for number in range(200):
        use(backend, number % 4, f"user{number}", number)
    storage = FileStorage(str(tmp_path / "checkpoints"), 0)
    checkpoints = checkpointer(storage, backend)
    checkpoints.write(checkpoints.begin(full=True))
    inner.spill_now(GROUPS)
    for number in range(0, 200, 7):
        use(backend, number % 4, f"user{number}", number + 1000)
    pending = checkpoints.begin(full=True)
    expected = everything(backend)
    for number in range(0, 200, 3):
        use(backend, number % 4, f"user{number}", number + 2000)
    checkpoints.write(pending)
    assert all(storage.segment(ref).startswith(b"MPSR") for ref in storage.manifest().segments)
    other_inner = open_spillable(GROUPS, tmp_path / "other")
    other = WRAPPERS[wrapper](other_inner)
    restore(storage, other, STATES)
    assert sorted(other_inner._migrator.spilled) == [0, 1, 2, 3], "bytes went to disk as they were"
    assert everything(other) == expected
    backend.close()
    other.close()


def test_a_cache_forgets_what_it_knew_of_bytes_that_are_restored(backend, tmp_path):
    backend.spill_now(GROUPS)
    pairs = {(state.name, group): backend.raw_cells(state.name, group) for state in STATES for group in GROUPS}
    expected = everything(backend)
    cache = LruStateCache(open_spillable(GROUPS, tmp_path / "other"), max_entries=10_000)
    for number in range(200):
        use(cache, number % 4, f"user{number}", -1)
    cache.commit().release()
    for state in STATES:
        for group in GROUPS:
            cache.load_raw(state, group, pairs[state.name, group])
    cache.enter(1)
    cache.context.key = ("user1",)
    assert cache.value_state(STATES[0]).get() == 1
    found = everything(cache)
    assert all(set(cells) <= set(found[where]) for where, cells in expected.items())
    use(cache, 1, "user1", 5)
    with pytest.raises(OptionError, match="while a version is open"):
        cache.load_raw(STATES[0], 1, pairs["count", 1])
    cache.close()


def test_what_a_savepoint_brought_is_copied_where_it_is_spilled(backend, tmp_path):
    storage = FileStorage(str(tmp_path / "checkpoints"), 0)
    checkpoints = checkpointer(storage, backend)
    checkpoints.write(checkpoints.begin(full=True))
    write_savepoint(str(tmp_path / "savepoint"), [ShardState.of_storage(storage)])
    inner = open_spillable(GROUPS, tmp_path / "other")
    shard = Shard(new_manifest("other", 0, 1, 4, KEY), inner)
    shard.start_from(Savepoint.open(str(tmp_path / "savepoint")), STATES)
    inner.spill_now(GROUPS)
    commit = shard.commit("first")
    assert all(data.startswith(b"MPSR") for data in commit.segments.values())
    restored = HeapBackend(GROUPS)
    Shard(commit.manifest, restored).restore({at: memoryview(data) for at, data in commit.segments.items()}, STATES)
    assert everything(restored) == everything(backend)
    inner.close()


def backend_of(harness):
    """What spills, beneath the caches that an operator may put in front of its states."""
    return harness._shards.shards[0].backend._inner


def test_a_harness_checkpoints_crashes_and_goes_on(tmp_path):
    class Count:
        def open(self, states):
            self.seen = states.value("seen", int, default=0)

        def process(self, key, record, context):
            self.seen.update(self.seen.get() + 1)
            context.event_timers.register(self.seen.get() * 10)

        def on_timer(self, key, timer, context):
            yield key, timer.at_ms

    options = {"state.backend.type": "spillable", "state.backend.spillable.chunk-size": "1mb"}
    words = [f"word{number % 50}" for number in range(500)]
    with Harness(Count, key=lambda word: word, key_type=str, options=options, storage=str(tmp_path)) as harness:
        harness.process_many(words)
        backend_of(harness).spill_now(range(0, 128, 2))
        harness.checkpoint()
        harness.process_many(words)
        harness.restore()
        assert backend_of(harness)._migrator.spilled, "bytes go to disk as they are"
        assert harness.state("seen") == dict.fromkeys(words, 10)
        backend_of(harness).spill_now(range(0, 128, 3))
        harness.advance_watermark(30)
        assert sorted(harness.take_output()) == sorted((word, at) for word in set(words) for at in (10, 20, 30))
        harness.rescale(3)
        assert harness.state("seen") == dict.fromkeys(words, 10)


def test_a_process_that_is_killed_while_a_group_moves_leaves_nothing_and_the_next_one_restores(tmp_path):
    program = f"""
        import os, signal
        from pathlib import Path
        from millpond.state import FileStorage
        from tests.state.spillable import raw_states as t
        from tests.state.spillable.restless import open_spillable
        from millpond.state.spillable import migration as moves
        backend = open_spillable(t.GROUPS, Path({str(tmp_path)!r}) / "state")
        for number in range(200):
            t.use(backend, number % 4, f"user{{number}}", number)
        backend.spill_now([0])
        storage = FileStorage({str(tmp_path / "checkpoints")!r}, 0)
        checkpoints = t.checkpointer(storage, backend)
        checkpoints.write(checkpoints.begin())
        use = moves.Spill if "DIRECTION" == "spill" else moves.Load
        step = use.step
        def killed(self):
            step(self)
            os.kill(os.getpid(), signal.SIGKILL)
        use.step = killed
        backend.spill_now([1]) if "DIRECTION" == "spill" else backend.load_now([0])
    """
    for direction in ("spill", "load"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program).replace("DIRECTION", direction)],
            timeout=60,
            check=False,
            capture_output=True,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert list((tmp_path / "state").iterdir()) == []
    other = open_spillable(GROUPS, tmp_path / "state")
    restore(FileStorage(str(tmp_path / "checkpoints"), 0), other, STATES)
    assert sum(len(other.cells("count", key_group)) for key_group in GROUPS) == 200
    other.close()
