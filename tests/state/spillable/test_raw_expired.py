"""What has expired by its TTL is left out of the bytes that a checkpoint copies."""

from dataclasses import replace

from millpond.state import FileStorage
from millpond.state.checkpoint import Checkpointer, Shard, new_manifest, restore
from millpond.state.checkpoint.restoring import Version, newest_rows
from millpond.state.spi import HeapBackend, Ttl
from tests.state.spillable.raw_states import GROUPS, KEY, LONG, STATES, everything, raw_segments, use
from tests.state.spillable.restless import open_spillable

MORTAL = [replace(state, name=f"mortal-{state.name}", ttl=Ttl(100)) for state in STATES]


def use_mortals(backend, key_group, name, born_ms, *more_ms):
    """Give one key a mortal value of every kind, of one birth time or of several."""
    count, log, pages = backend.value_state(MORTAL[0]), backend.list_state(MORTAL[1]), backend.map_state(MORTAL[2])
    backend.enter(key_group)
    backend.context.key = (name,)
    count.update((1, born_ms))
    for each in (born_ms, *more_ms):
        log.append(((each, [name]), each))
        pages.put((f"page{each}",), ((each,), each))


LIVING = {
    "mortal-count": [(LONG + "young",), ("young",)],
    "mortal-log": [(LONG + "young",), ("mixed",), ("young",)],
    "mortal-pages": [(LONG + "young",), ("mixed",), ("young",)],
}


def with_mortals(backend):
    for prefix in ("", LONG):
        use_mortals(backend, 2, f"{prefix}old", 0, 7)
        use_mortals(backend, 2, f"{prefix}young", 950)
    use_mortals(backend, 2, "mixed", 5, 960, 900)
    return backend


def survivors(backend):
    found = {state.name: backend.cells(state.name, 2) for state in MORTAL}
    assert found["mortal-log"].values[found["mortal-log"].keys.index(("mixed",))] == [((960, ["mixed"]), 960)]
    pages = zip(found["mortal-pages"].keys, found["mortal-pages"].map_keys, strict=True)
    assert [map_key for key, map_key in pages if key == ("mixed",)] == [("page960",)]
    return {name: sorted(cells.keys) for name, cells in found.items()}


def test_what_has_expired_is_left_out_of_what_is_copied(tmp_path):
    backend = with_mortals(open_spillable(GROUPS, tmp_path / "state"))
    backend.spill_now([2])
    backend.context.now_ms = 1000
    storage = FileStorage(str(tmp_path / "checkpoints"), 0)
    checkpoints = Checkpointer(storage, backend, new_manifest("lineage", 0, 1, 4, KEY), MORTAL)
    checkpoints.write(checkpoints.begin(full=True))
    assert len(raw_segments(storage)) == len(storage.manifest().segments) == 3
    for other in (HeapBackend(GROUPS), open_spillable(GROUPS, tmp_path / "other")):
        restore(storage, other, MORTAL)
        assert survivors(other) == LIVING
        other.close()
    # The live state still has it, and is told where.
    assert len(backend.cells("mortal-count", 2)) == 5
    checkpoints.remove_expired()
    assert survivors(backend) == LIVING
    backend.close()


def test_nothing_is_left_out_where_the_ttl_asks_for_no_such_clean_up(tmp_path):
    kept = replace(STATES[0], name="n", ttl=Ttl(100, clean_up=()))
    backend = open_spillable(GROUPS, tmp_path / "state")
    state = backend.value_state(kept)
    backend.enter(2)
    backend.context.key = ("old",)
    state.update((1, 0))
    backend.spill_now([2])
    backend.context.now_ms = 1000
    storage = FileStorage(str(tmp_path / "checkpoints"), 0)
    checkpoints = Checkpointer(storage, backend, new_manifest("lineage", 0, 1, 4, KEY), [kept])
    checkpoints.write(checkpoints.begin(full=True))
    assert raw_segments(storage)
    other = HeapBackend(GROUPS)
    restore(storage, other, [kept])
    assert other.cells("n", 2).values == [(1, 0)]
    backend.close()


def test_a_shard_copies_what_is_alive_and_removes_the_rest(tmp_path):
    shard = Shard(new_manifest("lineage", 0, 1, 4, KEY), open_spillable(GROUPS, tmp_path / "state"))
    for state in (*STATES, *MORTAL):
        shard.declare(state)
    with_mortals(shard.backend)
    for number in range(8):
        use(shard.backend, number % 4, f"user{number}", number)
    shard.backend.spill_now(GROUPS)
    segments = dict(shard.commit("first").segments)
    shard.backend.context.now_ms = 1000
    assert shard.begin_at(shard.manifest)
    assert survivors(shard.backend) == LIVING
    commit = shard.commit("second")
    segments.update(commit.segments)
    bases = [ref for ref in commit.manifest.segments if ref.base]
    assert {ref.state for ref in bases} == {state.name for state in (*STATES, *MORTAL)}
    assert all(segments[ref.id].startswith(b"MPSR") for ref in bases)
    for other in (HeapBackend(GROUPS), open_spillable(GROUPS, tmp_path / "other")):
        restored = Shard(commit.manifest, other)
        restored.restore({at: memoryview(data) for at, data in segments.items()}, [*STATES, *MORTAL])
        assert everything(other) == everything(shard.backend)
        assert survivors(other) == LIVING
        other.close()
    version = Version(commit.manifest, {at: memoryview(data) for at, data in segments.items()})
    assert newest_rows(version, STATES[0], range(1, 2))["key.user"].to_pylist() == ["user1", "user5"]
    shard.backend.close()
