"""Savepoints: whole or refused, readable by anybody, restored at any number of shards and into any backend."""

import json

import duckdb
import pyarrow as pa
import pytest

from millpond.errors import CorruptionError, OptionError, UnavailableError
from millpond.state.checkpoint import (
    Checkpointer,
    FileStorage,
    Savepoint,
    ShardState,
    new_manifest,
    restore,
    write_savepoint,
)
from millpond.state.checkpoint.starting import load_savepoint
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind
from millpond.state.types.key_groups import key_group_of, key_groups_of, max_parallelism, shard_of
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer, pickle_serializer
from millpond.state.types.timer_states import TIMERS
from millpond.state.types.ttl import Ttl
from tests.state.checkpoint.faulty_files import Disk, FaultyFiles

KEY = pa.schema([("user", pa.string())])
NUMBER = pa.schema([("number", pa.int64())])
STATES = [
    StateDescriptor("count", StateKind.VALUE, NUMBER, ttl=Ttl(1000)),
    StateDescriptor("log", StateKind.LIST, pa.schema([("words", pa.list_(pa.string())), ("wait", pa.duration("us"))])),
    StateDescriptor("visits/äö", StateKind.MAP, NUMBER, pa.schema([("page", pa.string())])),
    StateDescriptor("profile", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(dict)),
    StateDescriptor("pickled", StateKind.LIST, OBJECT_SCHEMA, serializer=pickle_serializer()),
    TIMERS,
]
USERS = [f"user {number}" for number in range(300)]


def backend_of(kind, groups, folder):
    backend = (
        HeapBackend(groups) if kind == "heap" else RocksDbBackend(groups, folder / f"{groups.start}-{groups.stop}")
    )
    return backend, declared(backend)


def declared(backend, states=STATES):
    make = {"value": backend.value_state, "list": backend.list_state, "map": backend.map_state}
    return {state.name: make[state.kind](state) for state in states}


def filled(shards, *, kind="heap", folder=None, states=STATES, users=USERS):
    """Each shard's manifest, backend, and the cells of all, by state, key group, key and map key."""
    parallelism, everything, found = max_parallelism(shards), {}, []
    groups = {user: key_group_of((user,), [pa.string()], parallelism) for user in users}
    for shard in range(shards):
        manifest = new_manifest(f"lineage {shard}", shard, shards, parallelism, KEY)
        backend, handles = backend_of(kind, manifest.key_groups, folder)
        for number, user in enumerate(users):
            if shard_of(groups[user], shards, parallelism) == shard:
                backend.enter(groups[user])
                backend.context.key = (user,)
                handles["count"].update(((number,), 7))
                handles["log"].append(([user], None))
                handles["visits/äö"].put(("/",), (number,))
                handles["visits/äö"].put((None,), (None,))
                handles["profile"].update({"name": user, "friends": [number]})
                handles["pickled"].append(frozenset([number]))
                handles[TIMERS.name].put((number,), (True,))
        everything |= contents(backend, manifest.key_groups)
        found.append((manifest, backend))
    return found, everything


def contents(backend, groups, states=STATES):
    found = {}
    for state in states:
        for group in groups:
            cells = backend.cells(state.name, group)
            for key, at, value in zip(cells.keys, cells.map_keys or [None] * len(cells), cells.values, strict=True):
                found[state.name, group, key, at] = value
    return found


def saved(location, shards, states=STATES, **options):
    parts = (ShardState.of_snapshot(manifest, backend.commit(), states) for manifest, backend in shards)
    return write_savepoint(location, parts, **options)


def loaded(savepoint, backend, states=(), shard=0, shards=1):
    """A savepoint's rows in a backend: the manifest of the shard that begins with them, and its states."""
    manifest = new_manifest("new", shard, shards, savepoint.contents.max_parallelism, KEY)
    return manifest, load_savepoint(savepoint, manifest, backend, states, None)


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4), (5, 7), (7, 5)])
def test_state_follows_its_key_groups_to_any_number_of_shards(old, new):
    shards, everything = filled(old)
    filesystem = FaultyFiles(Disk()).filesystem()
    saved("folder", shards, filesystem=filesystem)
    savepoint = Savepoint.open("folder", filesystem=filesystem)
    assert savepoint.contents.max_parallelism == max_parallelism(old)
    found = {}
    for shard in range(new):
        groups = key_groups_of(shard, new, max_parallelism(old))
        backend = HeapBackend(groups)
        declared(backend)
        manifest, _ = loaded(savepoint, backend, STATES, shard, new)
        assert (manifest.key_groups, manifest.max_parallelism) == (groups, max_parallelism(old))
        here = contents(backend, groups)
        assert not here.keys() & found.keys()
        found |= here
    assert found == everything
    assert {state for state, *_ in found} == {state.name for state in STATES}


@pytest.mark.parametrize(("source", "target"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_a_savepoint_goes_from_any_backend_to_any_other(source, target, tmp_path):
    shards, everything = filled(1, kind=source, folder=tmp_path / "source")
    savepoint = saved(str(tmp_path / "savepoint"), shards)
    backend, _ = backend_of(target, range(128), tmp_path / "target")
    loaded(savepoint, backend, STATES)
    assert contents(backend, range(128)) == everything
    for _, opened in [*shards, (None, backend)]:
        opened.close()


def test_what_a_savepoint_brought_is_in_the_first_checkpoint(tmp_path):
    shards, everything = filled(2)
    savepoint = saved(str(tmp_path / "savepoint"), shards)
    backend, _ = backend_of("heap", range(128), tmp_path)
    manifest, states = loaded(savepoint, backend, STATES)
    checkpointer = Checkpointer(FileStorage(str(tmp_path), 0), backend, manifest, states)
    assert checkpointer.write(checkpointer.begin()).full
    again, _ = backend_of("heap", range(128), tmp_path)
    restore(FileStorage(str(tmp_path), 0), again, STATES)
    assert contents(again, range(128)) == everything


def test_a_stored_version_becomes_a_savepoint(tmp_path):
    shards, everything = filled(2)
    parts = []
    for manifest, backend in shards:
        storage = FileStorage(str(tmp_path / "checkpoints"), manifest.shard)
        checkpointer = Checkpointer(storage, backend, manifest, STATES)
        checkpointer.write(checkpointer.begin(42))
        backend.enter(manifest.key_groups.start)
        backend.context.key = ("gone",)
        handle = declared(backend)["count"]
        handle.update(((1,), 1))
        checkpointer.write(checkpointer.begin(43 + manifest.shard))
        backend.enter(manifest.key_groups.start)
        backend.context.key = ("gone",)
        handle.clear()
        checkpointer.write(checkpointer.begin(44 + manifest.shard))
        parts.append(ShardState.of_storage(storage))
    savepoint = write_savepoint(str(tmp_path / "savepoint"), parts)
    assert savepoint.contents.watermark_ms == 44, "the lowest of the shards'"
    backend, _ = backend_of("heap", range(128), tmp_path)
    loaded(savepoint, backend, STATES)
    assert contents(backend, range(128)) == everything


def test_a_state_that_nobody_declares_is_restored_as_it_is_stored(tmp_path):
    shards, everything = filled(1)
    savepoint = saved(str(tmp_path), shards)
    backend = HeapBackend(range(128))
    manifest, states = loaded(savepoint, backend)
    again = write_savepoint(str(tmp_path / "again"), [ShardState.of_snapshot(manifest, backend.commit(), states)])
    other, _ = backend_of("heap", range(128), tmp_path)
    loaded(again, other, STATES)
    assert contents(other, range(128)) == everything


def test_a_changed_schema_is_refused_with_both_before_anything_is_loaded(tmp_path):
    shards, _ = filled(1)
    savepoint = saved(str(tmp_path), shards)
    changed = StateDescriptor("log", StateKind.LIST, pa.schema([("words", pa.int64())]))
    backend = HeapBackend(range(128))
    with pytest.raises(OptionError) as caught:
        loaded(savepoint, backend, [*STATES[:1], changed, *STATES[2:]])
    assert "list<" in str(caught.value)
    assert "int64" in str(caught.value)
    assert contents(backend, range(128)) == {}


def test_duckdb_reads_a_savepoint_without_millpond(tmp_path):
    shards, _ = filled(2)
    saved(str(tmp_path), shards)
    rows = duckdb.read_parquet(f"{tmp_path}/state-count/*.parquet").project('"key.user", "value.number"').fetchall()
    assert sorted(rows) == sorted((user, number) for number, user in enumerate(USERS))
    profile = duckdb.read_parquet(f"{tmp_path}/state-profile/*.parquet").project('"key.user", json').fetchall()
    assert {user: json.loads(text) for user, text in profile} == {
        user: {"name": user, "friends": [number]} for number, user in enumerate(USERS)
    }


def test_every_altered_cut_or_missing_file_is_refused_by_its_name():
    disk, (shards, _) = Disk(), filled(1)
    filesystem = FaultyFiles(disk).filesystem()
    saved("folder", shards, filesystem=filesystem)
    whole = dict(disk.files)
    for path, data in whole.items():
        for damaged in (
            None,
            b"",
            data[:-1],
            data[: len(data) // 2] + b"\x00" + data[len(data) // 2 + 1 :],
            data + b"x",
        ):
            if damaged == data:
                continue
            disk.files = (
                {**whole, path: damaged} if damaged is not None else {at: whole[at] for at in whole if at != path}
            )
            backend = HeapBackend(range(128))
            with pytest.raises(CorruptionError, match=path.replace("$", r"\$").replace(".", r"\.")):
                loaded(Savepoint.open("folder", filesystem=filesystem), backend)
            assert all(not len(backend.cells(state.name, group)) for state in STATES for group in range(128))


def test_writing_that_fails_at_any_step_leaves_no_savepoint():
    shards, _ = filled(2, users=USERS[:10])
    parts = [ShardState.of_snapshot(manifest, backend.commit(), STATES) for manifest, backend in shards]
    for steps in range(100):
        disk = Disk()
        files = FaultyFiles(disk)
        files.operations = steps
        try:
            write_savepoint("folder", parts, filesystem=files.filesystem())
        except UnavailableError:
            with pytest.raises(CorruptionError, match="manifest folder/MANIFEST"):
                Savepoint.open("folder", filesystem=FaultyFiles(disk).filesystem())
        else:
            break
    assert 10 < steps < 99
    assert Savepoint.open("folder", filesystem=FaultyFiles(disk).filesystem()).contents.files


def test_a_savepoint_is_never_written_over_anything(tmp_path):
    shards, _ = filled(1)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(OptionError, match="is not empty"):
        saved(str(tmp_path), shards)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_shards_that_do_not_make_one_operator_are_refused(tmp_path):
    (first, second), _ = filled(2)
    (lonely,), _ = filled(1)
    with pytest.raises(OptionError, match=r"expected every shard once, got \[1\]"):
        saved(str(tmp_path / "missing"), [second])
    with pytest.raises(OptionError, match="does not go with shard 0 of 2"):
        saved(str(tmp_path / "twice"), [first, first])
    with pytest.raises(OptionError, match="does not go with shard 1 of 2"):
        saved(str(tmp_path / "mixed"), [second, lonely])
    with pytest.raises(OptionError, match="got \\[\\]"):
        write_savepoint(str(tmp_path / "none"), [])
