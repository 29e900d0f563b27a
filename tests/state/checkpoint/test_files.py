"""Versions in files: whole or not there, through crashes, full disks, zombies, late arrivals and deletion."""

import os
import warnings
from pathlib import Path

import msgspec
import pytest

from millpond.errors import CorruptionError, OptionError, UnavailableError
from millpond.state.checkpoint import FileStorage, new_manifest
from tests.state.checkpoint.faulty_files import Disk
from tests.state.checkpoint.file_versions import BIRTH, KEY, a_commit, on, reader, stored, whole


@pytest.fixture
def disk():
    return Disk()


def test_a_folder_without_versions_has_none(tmp_path):
    storage = FileStorage(str(tmp_path / "not there"), 0, read_only=True)
    assert (storage.versions(), storage.manifest(), storage.manifest(3)) == ([], None, None)
    assert not (tmp_path / "not there").exists(), "who only reads leaves no trace"


def test_a_version_comes_back_as_it_was_put(tmp_path):
    first = a_commit(BIRTH, "one", based=[0, 1])
    second = a_commit(first.manifest, "two", based=[2, 3])
    storage = FileStorage(str(tmp_path), 0)
    storage.put(first)
    storage.put(second)
    for again in (storage, FileStorage(tmp_path.as_uri(), 0, read_only=True)):
        assert again.versions() == [1, 2]
        assert stored(again, 1) == whole(first)
        assert stored(again) == stored(again, 2)
        assert stored(again) == whole(first, second)


def test_shards_in_one_location_do_not_meet(tmp_path):
    for shard in (0, 1):
        manifest = new_manifest(f"lineage {shard}", shard, 2, 4, KEY)
        FileStorage(str(tmp_path), shard).put(a_commit(manifest, f"of {shard}", version=shard + 1))
    assert [FileStorage(str(tmp_path), shard).versions() for shard in (0, 1)] == [[1], [2]]


def test_files_and_their_names_are_synced_before_the_manifest_is_written(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync

    def remembering(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remembering)
    FileStorage(str(tmp_path), 0).put(a_commit(BIRTH, "one", based=[0]))
    folders = [str(path.relative_to(tmp_path)) for path in map(Path, synced) if path.is_dir()]
    in_shard = [f"shard-00000/{name}" for name in ("writers", "segments", "heads", "marks")]
    assert folders == ["shard-00000", ".", *in_shard]
    files = [path for path in synced if path.endswith((".segment", ".head", ".mark"))]
    assert [path.rpartition(".")[2] for path in files] == ["segment", "segment", "head", "mark"]
    assert synced.index(files[1]) < synced.index(str(tmp_path / "shard-00000/segments")) < synced.index(files[2])


@pytest.mark.parametrize("atomic", [False, True])
def test_a_full_disk_at_any_byte_leaves_the_earlier_version_and_then_goes_on(atomic):
    first = a_commit(BIRTH, "one", based=[0])
    second = a_commit(first.manifest, "two", based=[1, 2, 3])
    third = a_commit(first.manifest, "three", version=3, based=[1, 2, 3])
    size = sum(map(len, second.segments.values())) + len(second.manifest.encode())
    for space in range(0, size, 7):
        disk = Disk()
        files, storage = on(disk, atomic=atomic)
        storage.put(first)
        files.space = space
        with pytest.raises(UnavailableError, match=r"version 2 was not stored.*no space left"):
            storage.put(second)
        assert stored(reader(disk)) == whole(first)
        files.heal()
        storage.put(third)
        assert reader(disk).versions() == [1, 3], "the third was made from the first"
        assert stored(reader(disk)) == whole(first, third)


@pytest.mark.parametrize("atomic", [False, True])
def test_a_process_that_dies_at_any_step_leaves_one_whole_version(atomic):
    first = a_commit(BIRTH, "one", based=[0])
    second = a_commit(first.manifest, "two", based=[1, 2, 3])
    outcomes = set()
    for steps in range(40):
        disk = Disk()
        files, storage = on(disk, atomic=atomic)
        storage.put(first)
        files.operations = steps
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # deletion may fail: the version counts all the same
                storage.put(second)
            acknowledged = True
        except UnavailableError:
            acknowledged = False
        found = stored(on(disk)[1])
        outcomes.add((acknowledged, found[0].version))
        assert found in [whole(first), whole(first, second)]
    assert outcomes == {(False, 1), (False, 2), (True, 2)}


def test_a_version_that_timed_out_but_landed_does_no_harm(disk):
    files, storage = on(disk, atomic=True)
    first = a_commit(BIRTH, "one", based=[0, 1, 2, 3])
    storage.put(first)
    files.late = True
    with pytest.raises(UnavailableError, match="did not answer"):
        storage.put(a_commit(first.manifest, "two"))
    files.heal()
    third = a_commit(first.manifest, "three", version=3)
    storage.put(third)
    disk.land()
    assert reader(disk).versions() == [1, 3]
    assert stored(reader(disk)) == whole(first, third)


def test_a_writer_that_was_passed_by_is_refused_and_disturbs_nobody(disk):
    _, zombie = on(disk)
    first = a_commit(BIRTH, "one", attempt="zombie")
    zombie.put(first)
    _, successor = on(disk)
    assert stored(successor) == whole(first)
    with pytest.raises(UnavailableError, match="has taken over"):
        zombie.put(a_commit(first.manifest, "two, of the zombie", attempt="zombie"))
    second = a_commit(first.manifest, "two, of the successor", attempt="successor")
    successor.put(second)
    before = dict(disk.files)
    with pytest.raises(UnavailableError, match="has taken over"):
        zombie.put(a_commit(first.manifest, "three, of the zombie", version=3, attempt="zombie"))
    assert before.items() <= disk.files.items()
    assert stored(reader(disk)) == whole(first, second)


def test_a_manifest_of_the_same_version_written_late_by_a_zombie_does_not_win(disk):
    """The zombie looks for leases; the successor takes one, restores and stores; the zombie's manifest lands."""
    files, zombie = on(disk)
    first = a_commit(BIRTH, "one", attempt="zombie")
    zombie.put(first)
    second = a_commit(first.manifest, "successor", attempt="successor")
    seen = []

    def the_successor_comes():
        _, successor = on(disk)
        seen.append(successor.manifest())
        successor.put(second)

    manifest_is_opened = 3  # after the segment is opened, leases are listed, and manifests are not yet written
    files.at = {manifest_is_opened - 1: the_successor_comes}
    with pytest.raises(UnavailableError, match="has taken over"):
        zombie.put(a_commit(first.manifest, "zombie", attempt="zombie"))
    assert seen == [first.manifest]
    assert sum(path.rpartition("/")[2].startswith("000000000002") for path in disk.files if "/heads/" in path) == 2
    assert stored(reader(disk)) == whole(first, second)


@pytest.mark.parametrize("is_named", [True, False], ids=["with its lease", "whose lease was swept away"])
def test_what_a_later_writer_is_writing_is_not_deleted(disk, monkeypatch, is_named):
    _, zombie = on(disk, retain=1)
    first = a_commit(BIRTH, "one", attempt="zombie")
    zombie.put(first)
    delete = zombie._delete_superfluous
    written = {}

    def the_successor_writes_half_a_manifest_first(manifest, common):
        files, successor = on(disk, retain=1)
        half_done = a_commit(successor.manifest(), "three", based=[1], attempt="successor")
        files.space = sum(map(len, half_done.segments.values())) + len(half_done.manifest.encode()) // 2
        before = set(disk.files)
        with pytest.raises(UnavailableError, match="no space left"):
            successor.put(half_done)
        if not is_named:
            (lease,) = [path for path in disk.files if "/writers/" in path and path not in leases]
            del disk.files[lease]
        written.update({path: disk.files[path] for path in disk.files if path not in before})
        delete(manifest, common)

    leases = {path for path in disk.files if "/writers/" in path}
    monkeypatch.setattr(zombie, "_delete_superfluous", the_successor_writes_half_a_manifest_first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a zombie that sees the lease deletes nothing, and says so
        zombie.put(a_commit(first.manifest, "two", attempt="zombie"))
    assert len(written) == 3, "two segments and half a manifest"
    assert written.items() <= disk.files.items()


def test_going_back_to_an_earlier_version_passes_later_ones_by(disk):
    _, storage = on(disk)
    manifests = [BIRTH]
    for version in (1, 2, 3):
        commit = a_commit(manifests[-1], f"first try {version}", attempt="first")
        storage.put(commit)
        manifests.append(commit.manifest)
    _, again = on(disk)
    other = a_commit(again.manifest(1), "second try", version=2, attempt="second")
    again.put(other)
    assert reader(disk).versions() == [1, 2]
    assert reader(disk).manifest(2) == reader(disk).manifest() == other.manifest


def test_only_the_newest_versions_are_kept_and_what_they_need(disk):
    _, storage = on(disk, retain=2)
    manifest = BIRTH
    for version in range(1, 9):
        commit = a_commit(manifest, f"version {version}", based=[version % 4])
        storage.put(commit)
        manifest = commit.manifest
    assert reader(disk).versions() == [7, 8]
    needed = {ref.id for version in (7, 8) for ref in reader(disk).manifest(version).segments}
    there = {int(path.rpartition("/")[2][:12]) for path in disk.files if "/segments/" in path}
    assert there == needed


def test_files_that_millpond_did_not_write_are_left_alone(disk):
    strangers = {f"folder/shard-00000/{where}/notes.txt": b"mine" for where in ("heads", "segments", "writers")}
    disk.files |= strangers
    _, storage = on(disk, retain=1)
    manifest = BIRTH
    for version in range(1, 6):
        commit = a_commit(manifest, f"version {version}", based=[version % 4])
        storage.put(commit)
        manifest = commit.manifest
    assert strangers.items() <= disk.files.items()


def test_a_damaged_manifest_that_is_kept_stops_all_deletion(disk):
    _, storage = on(disk, retain=2)
    first = a_commit(BIRTH, "one")
    storage.put(first)
    path = next(path for path in disk.files if "/heads/" in path)
    disk.files[path] = disk.files[path][:-1] + b"?"
    before = dict(disk.files)
    with pytest.warns(UserWarning, match="old files could not be deleted"):
        storage.put(a_commit(first.manifest, "two", based=[0, 1, 2, 3]))
    assert before.items() <= disk.files.items()


def test_another_shards_versions_are_not_mixed_with(disk):
    _, storage = on(disk)
    storage.put(a_commit(BIRTH, "one"))
    _, stranger = on(disk)
    with pytest.raises(OptionError, match="another shard's versions"):
        stranger.put(a_commit(msgspec.structs.replace(BIRTH, lineage="another"), "one"))


def test_damage_is_told_with_the_files_name(disk):
    _, storage = on(disk)
    commit = a_commit(BIRTH, "one")
    storage.put(commit)
    whole = dict(disk.files)
    manifest_path = next(path for path in whole if "/heads/" in path)
    segment_path = next(path for path in whole if "/segments/" in path)
    disk.files[manifest_path] = whole[manifest_path][:-1] + b"?"
    with pytest.raises(CorruptionError, match=f"manifest {manifest_path} does not match its checksum"):
        reader(disk).manifest()
    disk.files = dict(whole)
    disk.files[segment_path] = whole[segment_path][:-1] + b"?"
    with pytest.raises(CorruptionError, match=f"file {segment_path} does not match its checksum"):
        stored(reader(disk))
    del disk.files[segment_path]
    with pytest.raises(CorruptionError, match=r"no file folder/shard-00000/segments/000000000000-.* is there"):
        stored(reader(disk))


def test_wrong_options_are_refused(tmp_path):
    with pytest.raises(OptionError, match="retain is 0"):
        FileStorage(str(tmp_path), 0, retain=0)
    with pytest.raises(OptionError, match="writer is 'a-b'"):
        FileStorage(str(tmp_path), 0, writer="a-b")
    with pytest.raises(OptionError, match="cannot be opened"):
        FileStorage("nonsense://bucket/state", 0)
    with pytest.raises(OptionError, match="read_only=True"):
        FileStorage(str(tmp_path), 0, read_only=True).put(a_commit(BIRTH, "one"))
