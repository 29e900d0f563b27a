"""A base segment of several key groups, of which one has a newer base: for that one it says nothing any more."""

import pyarrow as pa
import pytest

from millpond.state.checkpoint import Shard, new_manifest
from millpond.state.checkpoint import shard as shard_module
from millpond.state.checkpoint.restoring import Version, newest_rows
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind

USER, NUMBER = pa.schema([("user", pa.string())]), pa.schema([("n", pa.int64())])
COUNT = StateDescriptor("count", StateKind.VALUE, NUMBER)
GROUPS = {"ann": 0, "bob": 0, "cid": 1}


def set_to(shard, user, number):
    shard.backend.enter(GROUPS[user])
    shard.backend.context.key = (user,)
    state = shard.backend.value_state(COUNT)
    if number is None:
        state.clear()
    else:
        state.update((number,))


@pytest.fixture
def stored(monkeypatch):
    """A manifest whose older base has a key that was deleted since, and its segments."""
    owed = [100, 100, 1, 1]
    monkeypatch.setattr(shard_module, "owed_rows", lambda *_: owed[0])
    manifest = new_manifest("lineage", 0, 1, 2, USER)
    shard, segments = Shard(manifest, HeapBackend(manifest.key_groups)), {}
    shard.declare(COUNT)
    for user in GROUPS:
        set_to(shard, user, 1)
    first = shard.commit("first")
    owed[0] = 1
    assert shard.begin_at(first.manifest)
    set_to(shard, "ann", None)
    set_to(shard, "bob", 2)
    second = shard.commit("second")
    assert shard.begin_at(second.manifest)
    set_to(shard, "cid", 3)
    third = shard.commit("third")
    for commit in (first, second, third):
        segments |= commit.segments
    manifest = third.manifest
    older = [ref for ref in manifest.segments if ref.base and min(manifest.base_versions) == ref.version]
    assert any(ref.first_group < ref.last_group for ref in older), "a base of both key groups is still needed"
    assert len(set(manifest.base_versions)) > 1, "one of them has a newer base"
    return manifest, {ref.id: segments[ref.id] for ref in manifest.segments}


def test_a_restore_does_not_bring_back_what_a_newer_base_left_out(stored):
    manifest, segments = stored
    shard = Shard(manifest, HeapBackend(manifest.key_groups))
    shard.restore(segments, [COUNT])
    cells = [shard.backend.cells("count", group) for group in manifest.key_groups]
    assert {key[0]: value[0] for each in cells for key, value in zip(each.keys, each.values, strict=True)} == {
        "bob": 2,
        "cid": 3,
    }


def test_a_reader_does_not_show_what_a_newer_base_left_out(stored):
    rows = newest_rows(Version(*stored), COUNT).to_pylist()
    assert {row["key.user"]: row["value.n"] for row in rows} == {"bob": 2, "cid": 3}
