"""Lists that grow: checkpoints cost what was added, and whoever reads them finds the whole lists."""

import random

import pyarrow as pa
import pytest

from millpond.state.checkpoint import Checkpointer, FileStorage, Shard, new_manifest, restore
from millpond.state.checkpoint.owed_bases import Written, owed_rows
from millpond.state.checkpoint.reader import StateReader
from millpond.state.spi import (
    HeapBackend,
    LruStateCache,
    RocksDbBackend,
    SpillableBackend,
    StateDescriptor,
    StateKind,
    Ttl,
)

KEY = pa.schema([("user", pa.string())])
LOG = StateDescriptor("log", StateKind.LIST, pa.schema([("data", pa.binary())]))
MORTAL = StateDescriptor("log", StateKind.LIST, pa.schema([("data", pa.binary())]), ttl=Ttl(1 << 40))
BORN = new_manifest("lineage", 0, 1, 16, KEY)
GROUPS = BORN.key_groups
BACKENDS = {
    "heap": lambda folder: HeapBackend(GROUPS),
    "spillable": lambda folder: SpillableBackend(GROUPS, folder / "spilled"),
    "rocksdb": lambda folder: RocksDbBackend(GROUPS, folder / "rocksdb"),
    "lru": lambda folder: LruStateCache(HeapBackend(GROUPS), max_entries=1000),
}


class Lists:
    """Random appends to lists of some users, beside a dictionary of them."""

    def __init__(self, backend, users, descriptor=LOG):
        self.backend, self.users, self.mortal = backend, users, descriptor.ttl is not None
        self.log = backend.list_state(descriptor)
        self.rng, self.added_bytes, self.lists = random.Random(7), 0, {}

    def at(self, user):
        self.backend.enter(user % len(GROUPS))
        self.backend.context.key = (f"user {user}",)

    def append(self, elements):
        for _ in range(elements):
            user, data = self.rng.randrange(self.users), self.rng.randbytes(100)
            self.at(user)
            self.log.append(((data,), 0) if self.mortal else (data,))
            self.lists.setdefault(f"user {user}", []).append(data)
            self.added_bytes += len(data)

    def change(self):
        """Replace or drop a list now and then: then a delta has it whole."""
        user = self.rng.randrange(self.users)
        self.at(user)
        if self.rng.random() < 0.5:
            self.log.clear()
            self.lists.pop(f"user {user}", None)
        else:
            self.log.put([(b"new",)])
            self.lists[f"user {user}"] = [b"new"]


@pytest.mark.parametrize("users", [4, 200])
@pytest.mark.parametrize("kind", BACKENDS)
def test_checkpoints_cost_at_most_twice_the_bytes_that_were_added(kind, users, tmp_path):
    lists = Lists(BACKENDS[kind](tmp_path), users)
    checkpoints = Checkpointer(FileStorage(str(tmp_path / "stored"), 0), lists.backend, BORN, [LOG])
    written = 0
    for _ in range(40):
        lists.append(500)
        written += checkpoints.write(checkpoints.begin()).bytes
    lists.backend.close()
    assert written <= 2 * lists.added_bytes


@pytest.mark.parametrize("kind", BACKENDS)
def test_versions_on_spark_cost_at_most_twice_the_bytes_that_were_added(kind, tmp_path):
    lists = Lists(BACKENDS[kind](tmp_path), 50)
    shard = Shard(BORN, lists.backend)
    shard.declare(LOG)
    written = 0
    for version in range(40):
        assert shard.begin_at(shard.manifest)
        lists.append(500)
        written += sum(map(len, shard.commit(f"attempt {version}").segments.values()))
    held = sum(ref.bytes for ref in shard.manifest.segments)
    lists.backend.close()
    assert written <= 2 * lists.added_bytes
    assert held <= 3 * lists.added_bytes, "the log is bounded"


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("descriptor", [LOG, MORTAL], ids=["for-ever", "ttl"])
def test_every_version_is_read_and_restored_with_whole_lists(kind, descriptor, tmp_path):
    lists = Lists(BACKENDS[kind](tmp_path), 20, descriptor)
    storage = FileStorage(str(tmp_path / "stored"), 0)
    checkpoints = Checkpointer(storage, lists.backend, BORN, [descriptor])
    expected = {}
    for round_ in range(12):
        lists.append(lists.rng.randrange(40))
        if not lists.mortal:
            lists.change()
        begun = checkpoints.begin()
        if round_ % 4 == 2:
            checkpoints.abort(begun)
            continue
        version = checkpoints.write(begun).version
        expected[version] = {user: list(elements) for user, elements in lists.lists.items()}
    reader = StateReader(str(tmp_path / "stored"))
    assert expected.keys() >= set(reader.versions())
    for version in reader.versions():
        found = {row["key.user"]: row["value"] for row in reader.arrow("log", version).to_pylist()}
        assert {user: [one["data"] for one in row] for user, row in found.items()} == expected[version]
        for again, opened in BACKENDS.items():
            folder = tmp_path / f"{version}-{again}"
            folder.mkdir()
            backend = opened(folder)
            restore(storage, backend, [descriptor], version=version)
            cells = [backend.cells("log", group) for group in GROUPS]
            values = {key: value for each in cells for (key,), value in zip(each.keys, each.values, strict=True)}
            first = (lambda one: one[0][0]) if lists.mortal else (lambda one: one[0])
            assert {user: list(map(first, value)) for user, value in values.items()} == expected[version]
            backend.close()
    lists.backend.close()


def test_bases_are_owed_once_there_are_bytes_for_a_key_group():
    assert owed_rows(BORN, [Written("log", 7, 1000)]) == 7
    lists = Lists(HeapBackend(GROUPS), 16)
    shard = Shard(BORN, lists.backend)
    shard.declare(LOG)
    assert shard.begin_at(shard.manifest)
    lists.append(1600)
    shard.commit("first")
    assert shard.begin_at(shard.manifest)
    shard.commit("second")
    manifest = shard.manifest
    assert owed_rows(manifest) == 0
    of_group = sum(ref.bytes for ref in manifest.segments if ref.base or ref.state == "log") // len(GROUPS)
    for groups in (0.5, 1.5, 3.5):
        owed = owed_rows(manifest, [Written("other", 1, int(groups * of_group))])
        assert owed == max(0, round(int(groups) - 0.5))


def test_a_ttl_that_is_removed_ends_what_was_added_and_not_what_it_was_added_to():
    mortal = StateDescriptor("log", StateKind.LIST, LOG.value_schema, ttl=Ttl(10))
    shard = Shard(BORN, HeapBackend(GROUPS))
    shard.declare(mortal)
    log, segments = shard.backend.list_state(mortal), {}
    for number, (data, since) in enumerate(((b"alive", 45), (b"over", 0))):
        assert shard.begin_at(shard.manifest)
        shard.backend.enter(3)
        shard.backend.context.key = ("ann",)
        log.append(((data,), since))
        commit = shard.commit(f"attempt {number}")
        segments |= commit.segments
    restored = Shard(commit.manifest, HeapBackend(GROUPS))
    restored.restore(segments, [LOG], now_ms=50)
    assert restored.backend.cells("log", 3).values == [[(b"alive",)]]
