"""Segments that wait for their version: in memory up to a limit, then in a file that nobody else sees."""

import gc
import os
import tempfile

import pyarrow as pa
import pytest

from millpond.errors import CorruptionError, UnavailableError
from millpond.state.checkpoint import Checkpointer, FileStorage, Shard, new_manifest, restore, segment_spool
from millpond.state.checkpoint.restoring import StoredSegments, in_order
from millpond.state.checkpoint.segment_spool import SegmentSpool
from millpond.state.spi import HeapBackend, StateDescriptor, StateKind

KEY = pa.schema([("user", pa.string())])
COUNT = StateDescriptor("count", StateKind.VALUE, pa.schema([("n", pa.int64())]))


def filled(backend, keys, number=0):
    count = backend.value_state(COUNT)
    for key in range(keys):
        backend.enter(key % len(backend.key_groups))
        backend.context.key = (f"user {key}",)
        count.update((number + key,))
    return backend


def contents(backend):
    cells = [backend.cells("count", group) for group in backend.key_groups]
    return {key: value for each in cells for key, value in zip(each.keys, each.values, strict=True)}


def open_files():
    return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0  # noqa: PTH110, PTH208


@pytest.mark.parametrize("memory_bytes", [0, 3, 10, 1 << 20])
def test_bytes_come_back_as_they_were_wherever_they_wait(memory_bytes):
    spool = SegmentSpool(memory_bytes)
    kept = {data: spool.keep(data) for data in (b"", b"one", b"three", b"x" * 100, b"y")}
    assert [read() for read in reversed(kept.values())] == list(reversed(kept))


def test_the_file_has_no_name_and_is_closed_with_the_last_that_reads_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gc.collect()
    before = open_files()
    read = SegmentSpool(memory_bytes=0).keep(b"data")
    assert not list(tmp_path.iterdir())
    assert read() == b"data"
    assert open_files() == before + 1
    del read
    gc.collect()
    assert open_files() == before


def test_a_disk_that_takes_nothing_is_named(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UnavailableError, match=r"could not wait in a file.*No space left"):
        SegmentSpool(memory_bytes=0).keep(b"data")


def test_an_altered_or_cut_segment_is_not_given_out(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = SegmentSpool(memory_bytes=0)
    first, second = spool.keep(b"a segment"), spool.keep(b"the next one")
    for bit in range(8 * len(b"a segment")):
        os.pwrite(spool._file, bytes([b"a segment"[bit // 8] ^ 1 << bit % 8]), bit // 8)
        with pytest.raises(CorruptionError, match=r"not as it was written.*restore"):
            first()
        os.pwrite(spool._file, b"a segment", 0)
    assert (first(), second()) == (b"a segment", b"the next one")
    os.truncate(spool._file, 12)
    with pytest.raises(CorruptionError, match="3 bytes, expected 12"):
        second()
    assert first() == b"a segment"


@pytest.fixture
def nothing_in_memory(monkeypatch):
    """Every segment goes through a file."""
    monkeypatch.setattr(SegmentSpool.__init__, "__defaults__", (0,))


@pytest.mark.usefixtures("nothing_in_memory")
@pytest.mark.parametrize("full", [False, True])
def test_a_checkpoint_whose_segments_waited_in_a_file_restores(tmp_path, full):
    manifest = new_manifest("lineage", 0, 1, 8, KEY)
    backend = HeapBackend(manifest.key_groups)
    checkpointer = Checkpointer(FileStorage(str(tmp_path), 0), backend, manifest, [COUNT])
    for number in range(3):
        filled(backend, 100, number)
        checkpointer.write(checkpointer.begin(full=full))
    again = HeapBackend(manifest.key_groups)
    restore(FileStorage(str(tmp_path), 0), again, [COUNT])
    assert contents(again) == contents(backend)


@pytest.mark.usefixtures("nothing_in_memory")
def test_a_shard_is_restored_from_segments_that_come_one_by_one_in_their_order():
    stored, asked = {}, []
    shard = Shard(new_manifest("lineage", 0, 1, 8, KEY), HeapBackend(range(8)))
    for number in range(4):
        assert shard.begin_at(shard.manifest)
        shard.declare(COUNT)
        filled(shard.backend, 50 * (number + 1), number)
        commit = shard.commit(f"token {number}")
        while shard.prepare_bases():
            continue
        stored = {at: data for at, data in {**stored, **commit.segments}.items() if at not in commit.dropped}

    class Arriving:
        def get(self, segment_id):
            asked.append(segment_id)
            return stored[segment_id]

    again = Shard(shard.manifest, HeapBackend(range(8)))
    again.restore(Arriving(), [COUNT])
    assert asked == [ref.id for ref in in_order(shard.manifest)]
    assert contents(again.backend) == contents(shard.backend)


def test_the_segments_of_a_stored_version_are_read_when_they_are_asked_for(tmp_path):
    manifest = new_manifest("lineage", 0, 1, 8, KEY)
    checkpointer = Checkpointer(
        FileStorage(str(tmp_path), 0), filled(HeapBackend(manifest.key_groups), 10), manifest, [COUNT]
    )
    checkpointer.write(checkpointer.begin())
    storage = FileStorage(str(tmp_path), 0, read_only=True)
    segments = StoredSegments(storage, storage.manifest())
    assert set(segments) == {ref.id for ref in storage.manifest().segments}
    for path in (tmp_path / "shard-00000" / "segments").iterdir():
        path.unlink()
    with pytest.raises(CorruptionError, match=r"is missing|is there"):
        segments[next(iter(segments))]


def test_a_spool_keeps_no_more_in_memory_than_it_may():
    assert segment_spool.MEMORY_BYTES <= 16 << 20
    spool = SegmentSpool(memory_bytes=10)
    for _ in range(3):
        spool.keep(b"12345")
    assert spool._end == 5
