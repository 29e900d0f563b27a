"""What a disk does to a heap that spills: it is full, fills up, fails, vanishes, or may not be written."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from millpond.errors import CorruptionError, UnavailableError
from millpond.state.spillable.migration import Spill
from tests.state.spillable.conftest import COUNT, GROUPS, LIMIT, everything, filled, maintain, on_disk, put


def test_a_full_disk_leaves_state_on_the_heap_says_so_and_is_tried_again_later(world):
    free = [0]
    backend = world.open(free_bytes=lambda _: free[0])
    filled(backend)
    expected = everything(backend)
    world.extra = LIMIT // 2
    with pytest.warns(RuntimeWarning, match=r"no room for state.*stays on the heap.*trigger-interval"):
        maintain(backend)
    assert on_disk(backend) == []
    assert backend.stats().failures == 1
    free[0] = 1 << 40
    world.extra += LIMIT // 64
    maintain(backend)
    assert on_disk(backend) == []
    world.ms += 60_000
    maintain(backend)
    assert on_disk(backend) != []
    assert everything(backend) == expected


def test_a_disk_that_fills_up_in_the_middle_of_a_move_leaves_the_group_on_the_heap(world):
    free = [1 << 21]
    backend = world.open(free_bytes=lambda _: free[0])
    filled(backend, per_group=3000)
    backend._migrator.files.next()
    free[0] = 0
    with pytest.warns(RuntimeWarning, match="key group 3 could not be moved"), pytest.raises(UnavailableError):
        backend.spill_now([3])
    assert on_disk(backend) == []
    assert len(everything(backend)) == 24_000
    free[0] = 1 << 40
    world.ms += 60_000
    backend.spill_now([3])
    assert on_disk(backend) == [3]
    assert len(everything(backend)) == 24_000


def test_changes_that_a_full_disk_does_not_take_stay_on_the_heap(world):
    free = [1 << 40]
    backend = world.open(free_bytes=lambda _: free[0])
    filled(backend)
    backend.spill_now([3])
    free[0] = 0
    put(backend, 3, [f"new-{number}" for number in range(3000)])
    with pytest.warns(RuntimeWarning, match="changes of a key group could not be written"):
        backend.flush_now()
    assert backend._migrator.changed_cells() == 3000
    free[0] = 1 << 40
    world.ms += 60_000
    backend.flush_now()
    assert backend._migrator.changed_cells() == 0
    assert len(everything(backend)) == 11_000


def test_paths_take_turns_and_one_that_fails_is_passed_over(world):
    places = [world.folder / name for name in ("a", "b")]
    world.watch(paths=tuple(places))
    backend = world.open()
    filled(backend)
    backend.spill_now([0, 1, 2, 3])
    assert [backend._migrator.spilled[key_group].file.folder.name for key_group in range(4)] == ["a", "b", "a", "b"]
    backend._migrator.files.failed(backend._migrator.spilled[1].file)
    backend.spill_now([4, 5])
    assert [backend._migrator.spilled[key_group].file.folder.name for key_group in (4, 5)] == ["a", "a"]
    world.ms += 60_000
    backend.spill_now([6, 7])
    assert {backend._migrator.spilled[key_group].file.folder.name for key_group in (6, 7)} == {"a", "b"}


def test_a_path_that_cannot_be_used_is_passed_over_too(world):
    (world.folder / "taken").write_text("a file")
    world.watch(paths=(world.folder / "taken", world.folder / "good"))
    backend = world.open()
    filled(backend)
    backend.spill_now(GROUPS)
    assert {each.file.folder.name for each in backend._migrator.spilled.values()} == {"good"}


def test_a_path_that_vanishes_is_no_trouble_for_what_is_there_and_made_again_for_what_comes(world):
    places = [world.folder / name for name in ("a", "b")]
    world.watch(paths=tuple(places))
    backend = world.open()
    filled(backend)
    backend.spill_now([0])
    shutil.rmtree(places[0])
    backend.spill_now([1, 2])
    put(backend, 0, ["0-1"], length=7)
    backend.flush_now()
    assert {backend._migrator.spilled[group].file.folder.name for group in (0, 2)} == {"a"}
    assert everything(backend)["0-1",] == "0-1...."
    backend.load_now([0, 1, 2])
    assert len(everything(backend)) == 8000
    backend.close()
    other = world.open()
    filled(other)
    other.spill_now([0, 1])
    assert sorted(path.name for path in world.folder.iterdir()) == ["a", "b"]


def test_a_read_only_path_is_passed_over_and_tried_again(world, monkeypatch):
    places = [world.folder / name for name in ("a", "b")]
    world.watch(paths=tuple(places))
    backend = world.open()
    filled(backend)
    opened = Path.open

    def read_only(path, *args, **named):
        if path.parent == places[0]:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", read_only)
        backend.spill_now([0, 1, 2])
        assert {backend._migrator.spilled[group].file.folder.name for group in range(3)} == {"b"}
    backend.spill_now([3, 4])
    assert {backend._migrator.spilled[group].file.folder.name for group in (3, 4)} == {"b"}
    world.ms += 60_000
    backend.spill_now([5, 6])
    assert {backend._migrator.spilled[group].file.folder.name for group in (5, 6)} == {"a", "b"}
    assert len(everything(backend)) == 8000


def test_without_any_path_state_stays_on_the_heap_and_it_says_which_paths(world, monkeypatch):
    world.watch(paths=(world.folder / "a", world.folder / "b"))
    backend = world.open()
    filled(backend)

    def read_only(path, *_args, **_named):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", read_only)
        world.extra = LIMIT // 2
        with pytest.warns(RuntimeWarning, match=r"nothing can be spilled: .*/a: .*Read-only.*/b: .*Read-only"):
            maintain(backend)
    assert on_disk(backend) == []
    assert len(everything(backend)) == 8000


def test_a_disk_that_fails_while_a_group_is_loaded_leaves_it_on_disk(world, monkeypatch):
    backend = world.open()
    filled(backend)
    backend.spill_now([3])
    file = backend._migrator.spilled[3].file

    def failing(*_args, **_named):
        raise UnavailableError("the disk failed")

    with monkeypatch.context() as patch:
        patch.setattr(file, "scan", failing)
        with pytest.warns(RuntimeWarning, match="the disk failed"):
            backend.load_now([3])
    assert on_disk(backend) == [3]
    assert len(everything(backend)) == 8000
    with monkeypatch.context() as patch:
        patch.setattr(file, "empty", failing)
        backend.load_now([3])
    put(backend, 3, ["3-1"], length=7)
    backend.enter(3)
    backend.context.key = ("3-2",)
    backend.value_state(COUNT).clear()
    backend.spill_now([3])
    assert len(everything(backend)) == 7999
    assert everything(backend)["3-1",] == "3-1...."


def test_a_move_that_is_interrupted_does_not_count_as_done(world, monkeypatch):
    backend = world.open()
    filled(backend)
    form = backend._states["count"].form
    with monkeypatch.context() as patch:
        patch.setattr(form, "dumps", lambda _value: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            backend.spill_now([3])
    assert on_disk(backend) == []
    assert len(everything(backend)) == 8000
    move = Spill(backend._states.values(), 3, backend._migrator.files.next())
    with monkeypatch.context() as patch:
        patch.setattr(form, "dumps", lambda _value: 1 // 0)
        assert not move.step()  # puts keys in order
        with pytest.raises(ZeroDivisionError):
            move.step()
    with pytest.raises(UnavailableError, match="failed before"):
        move.step()
    assert len(everything(backend)) == 8000


def damage(backend):
    """Flip a bit in every page of a backend's file, as of a disk that is read again."""
    (file,) = backend._migrator.files._files.values()
    file._seals.check_again()
    with Path(f"/proc/self/fd/{file._pages.fileno()}").open("r+b", buffering=0) as disk:
        for place in range(3_000, os.fstat(disk.fileno()).st_size, 4_096):
            os.pwrite(disk.fileno(), bytes([os.pread(disk.fileno(), 1, place)[0] ^ 8]), place)


@pytest.mark.parametrize("does", ["loads", "spills", "asks what can be loaded", "forgets pages"])
def test_a_damaged_file_is_met_by_its_own_backend_and_by_no_other(world, does):
    """Another backend of the process moves its key groups, and would fail for ever with what is not its own."""
    damaged, other = world.open(), world.open()
    filled(damaged).release()
    damaged.spill_now([2, 3])
    damaged.commit().release()
    filled(other).release()
    damage(damaged)
    if does == "loads":
        damaged._maintenance.move([], [2, 3], "asked for")
    elif does == "spills":
        damaged._maintenance.move([4, 5], [], "asked for")
    elif does == "forgets pages":
        world.mapped = LIMIT
    else:
        other._maintenance.untold = True
    maintain(other)
    put(other, 1, ["one more"])
    other.commit().release()
    assert not damaged._maintenance.moving, "its moves would keep the monitor from any other"
    damaged.enter(2)
    damaged.context.key = ("2-1",)
    with pytest.raises(CorruptionError, match="is damaged"):
        damaged.value_state(COUNT).get()
