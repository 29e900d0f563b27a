"""What was acknowledged has a mark: a manifest that is cut off or gone is told from one that was never stored."""

import pytest

from millpond.errors import CorruptionError
from tests.state.checkpoint.faulty_files import Disk
from tests.state.checkpoint.file_versions import BIRTH, a_commit, on, reader, stored, whole


@pytest.fixture
def disk():
    return Disk()


def three_versions(disk, **options):
    """Three versions, and the paths of their manifests."""
    _, storage = on(disk, **options)
    commits, manifest = [], BIRTH
    for version in (1, 2, 3):
        commits.append(a_commit(manifest, f"version {version}"))
        storage.put(commits[-1])
        manifest = commits[-1].manifest
    return commits, sorted(path for path in disk.files if "/heads/" in path)


@pytest.mark.parametrize("left", [0, 10, -1, None], ids=["emptied", "cut off", "a byte short", "deleted"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_manifest_that_was_acknowledged_and_is_cut_off_or_deleted_is_damage_and_is_named(disk, left, at):
    commits, manifests = three_versions(disk)
    data = disk.files.pop(manifests[at])
    if left is not None:
        disk.files[manifests[at]] = data[:left]
    assert reader(disk).versions() == [1, 2, 3]
    for version in (1, 2, 3):
        if version == at + 1:
            with pytest.raises(CorruptionError, match=manifests[at]):
                reader(disk).manifest(version)
        else:
            assert stored(reader(disk), version) == whole(*commits[:version])


def test_who_falls_back_from_a_damaged_manifest_goes_on_and_leaves_it_behind(disk):
    commits, manifests = three_versions(disk)
    del disk.files[manifests[2]]
    _, again = on(disk, retain=2)
    other = a_commit(again.manifest(2), "another third", version=4)
    again.put(other)
    assert reader(disk).versions() == [2, 4]
    assert stored(reader(disk)) == whole(*commits[:2], other)
    assert sum("/marks/" in path for path in disk.files) == sum("/heads/" in path for path in disk.files) == 2


def test_a_manifest_that_is_cut_off_before_it_was_acknowledged_is_passed_over(disk):
    _, manifests = three_versions(disk)
    del disk.files[manifests[2].replace("heads/", "marks/").replace(".head", ".mark")]
    disk.files[manifests[2]] = disk.files[manifests[2]][:10]
    assert reader(disk).versions() == [1, 2]


def test_a_whole_manifest_needs_no_mark(disk):
    """Who crashed between manifest and mark may have its version found; earlier releases wrote no marks at all."""
    commits, _ = three_versions(disk)
    for path in [path for path in disk.files if "/marks/" in path]:
        del disk.files[path]
    assert reader(disk).versions() == [1, 2, 3]
    assert stored(reader(disk)) == whole(*commits)


def test_a_mark_that_came_after_a_higher_writer_had_deleted_its_manifest_is_no_damage(disk):
    _, manifests = three_versions(disk)
    late = manifests[2].replace("heads/", "marks/").replace(".head", ".mark")
    _, higher = on(disk, retain=1)
    higher.put(a_commit(higher.manifest(), "four", version=4))
    assert late not in disk.files
    disk.files[late] = b""
    assert reader(disk).versions() == [4]
    assert higher.manifest().version == reader(disk).manifest().version == 4


def test_a_mark_goes_before_its_manifest(disk):
    three_versions(disk)
    files, storage = on(disk, retain=1)
    manifest = storage.manifest()
    deleted = []
    files.delete_file = lambda path: deleted.append(path.rpartition(".")[2])
    storage.put(a_commit(manifest, "four", version=4))
    assert deleted[:6] == ["mark"] * 3 + ["head"] * 3
