"""The file that spilled key groups lie in."""

import fcntl
import os
import random
import resource
import subprocess
import sys
import textwrap

import pytest

from millpond.errors import CorruptionError, UnavailableError
from millpond.state.spillable.memory import ProcessMemory
from millpond.state.spillable.spill_file import FAULT_BYTES, SpillFile, remove_abandoned

MB = 1 << 20


@pytest.fixture
def file(tmp_path):
    file = SpillFile(tmp_path / "spill", MB, 4)
    yield file
    file.close()


def pairs(count, size=100):
    return [(b"%08d" % number, bytes([number % 256]) * size) for number in range(count)]


def test_what_is_written_is_read_and_scanned_in_order(file):
    database = file.database(7)
    file.write(database, pairs(10))
    file.write(database, [(b"00000003", b"new")], gone=[b"00000004"])
    assert file.get(database, b"00000003") == b"new"
    assert file.get(database, b"00000004") is None
    assert [at for at, _ in file.scan(database, b"", most=3)] == [b"00000000", b"00000001", b"00000002"]
    assert [at for at, _ in file.scan(database, b"0000000", b"00000003")] == [b"0000000%d" % n for n in range(5, 10)]
    assert file.scan(database, b"x") == []
    assert file.scan(database, b"", b"00000009") == []


def test_key_groups_are_apart_and_emptied_at_once(file):
    one, two = file.database(1), file.database(2)
    file.write(one, pairs(100))
    file.write(two, pairs(50))
    file.empty(one)
    assert (file.size(one), file.size(two).cells) == ((0, 0), 50)
    assert file.get(one, b"00000001") is None
    assert file.get(two, b"00000001") is not None


def test_a_file_whose_first_pages_were_overwritten_is_damaged_and_not_just_out_of_room(file):
    """What is only unavailable is kept; what is damaged is given up, and restored from the checkpoint."""
    database = file.database(1)
    file.write(database, pairs(100))
    os.pwrite(file._file.fileno(), b"\xa5" * 2 * resource.getpagesize(), 0)
    with pytest.raises(CorruptionError, match=r"is damaged.*restore"):
        file.get(database, b"00000001")
    with pytest.raises(CorruptionError, match=r"is damaged.*restore"):
        file.write(database, pairs(1))


def test_the_file_grows_by_steps_and_uses_room_again(file):
    database = file.database(1)
    file.write(database, pairs(30_000))
    held = file.size(database).bytes
    assert held > 3 * MB
    descriptor = file._file.fileno()
    for _ in range(5):
        file.empty(database)
        file.write(database, pairs(30_000))
    assert os.fstat(descriptor).st_size < 3 * held


def test_the_disk_is_looked_at_before_each_step(tmp_path):
    free = [10 * MB]
    file = SpillFile(tmp_path, MB, 1, free_bytes=lambda _: free[0])
    database = file.database(0)
    file.write(database, pairs(1000))
    free[0] = MB // 2
    with pytest.raises(UnavailableError, match=r"chunk-size is 1,048,576 bytes, and 524,288 are free"):
        file.write(database, pairs(30_000))
    assert file.size(database).cells == 1000
    free[0] = 10 * MB
    file.write(database, pairs(30_000))
    assert file.size(database).cells == 30_000
    file.close()


def test_a_disk_without_room_for_the_first_step_is_refused(tmp_path):
    with pytest.raises(UnavailableError, match="no room for state"):
        SpillFile(tmp_path, MB, 1, free_bytes=lambda _: 5)
    assert list(tmp_path.iterdir()) == []


def test_pages_in_memory_are_let_go_of_and_read_again(file):
    database = file.database(1)
    file.write(database, pairs(100_000))
    memory = ProcessMemory()
    assert len(file.scan(database, b"", most=100_000)) == 100_000
    assert memory.mapped_bytes() > 5 * MB
    file.forget_pages()
    assert memory.mapped_bytes() < 5 * MB
    assert file.get(database, b"00000003") == b"\3" * 100


def test_what_is_mapped_between_two_looks_is_bounded(tmp_path):
    memory = ProcessMemory()
    most = [0]

    def forget():
        mapped = memory.mapped_bytes()
        most[0] = max(most[0], mapped)
        if mapped > 2 * MB:
            file.forget_pages()

    file = SpillFile(tmp_path, 64 * MB, 4, most_touches=16, on_many_touches=forget)
    database = file.database(1)
    file.write(database, pairs(300_000))
    before = memory.mapped_bytes()
    assert before < 2 * MB
    drawn = random.Random(5).choices(range(300_000), k=5_000)
    for number in drawn:
        assert file.get(database, b"%08d" % number) is not None
    found, last = 0, b""
    while some := file.scan(database, b"", last):
        assert len(some) <= 16
        found, last = found + len(some), some[-1][0]
    assert found == 300_000
    # A leaf of the tree, and a branch on the way to it.
    assert 2 * MB < most[0] < 2 * MB + 2 * 17 * FAULT_BYTES + before
    file.close()
    file.forget_pages()


def test_a_scan_of_few_cells_reads_few_whatever_lies_behind_them(tmp_path):
    told = []
    file = SpillFile(tmp_path, 64 * MB, 4, most_touches=4_000, on_many_touches=lambda: told.append(1))
    database = file.database(1)
    file.write(database, pairs(2_000, size=8))
    for _ in range(50):
        assert [at for at, _ in file.scan(database, b"0000010")] == [b"0000010%d" % n for n in range(10)]
    assert not told
    file.close()


def test_a_large_value_is_looked_after_at_once(tmp_path):
    told = []
    file = SpillFile(tmp_path, 64 * MB, 4, most_touches=16, on_many_touches=lambda: told.append(1))
    database = file.database(1)
    file.write(database, [(b"large", bytes(4 * MB))])
    for _ in range(4):
        assert len(file.get(database, b"large")) == 4 * MB
    assert len(told) == 4
    file.close()


def test_cells_that_do_not_come_in_order_are_not_appended(file):
    database = file.database(1)
    file.write(database, pairs(10))
    with pytest.raises(Exception, match="did not come in order"):
        file.write(database, [(b"00000005", b"x")], append=True)
    assert file.get(database, b"00000005") == b"\5" * 100


def test_the_file_has_no_name_while_it_is_open(tmp_path):
    file = SpillFile(tmp_path, MB, 1)
    assert list(tmp_path.iterdir()) == []
    file.close()
    file.close()


def test_a_file_works_on_where_its_folder_has_vanished(tmp_path):
    folder = tmp_path / "gone"
    file = SpillFile(folder, MB, 1)
    folder.rmdir()
    database = file.database(0)
    file.write(database, pairs(30_000))
    assert file.size(database).cells == 30_000
    file.close()


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UnavailableError, match=r"taken.*spillable\.paths"):
        SpillFile(tmp_path / "taken", MB, 1)


def test_what_a_killed_process_left_is_removed_and_what_one_holds_is_not(tmp_path):
    (tmp_path / "millpond-spill-dead").write_bytes(b"left")
    (tmp_path / "somebody-else").write_bytes(b"kept")
    with (tmp_path / "millpond-spill-held").open("xb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert [path.name for path in remove_abandoned(tmp_path)] == ["millpond-spill-dead"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["millpond-spill-held", "somebody-else"]
    SpillFile(tmp_path, MB, 1).close()
    assert [path.name for path in tmp_path.iterdir()] == ["somebody-else"]


def test_a_write_that_the_disk_refuses_half_way_leaves_everything_as_it_was(tmp_path):
    """The system's own limit on a file's size: a write that fails in the middle, as on a full disk."""
    program = f"""
        import resource
        from pathlib import Path
        from millpond.errors import CorruptionError, UnavailableError
        from millpond.state.spillable.spill_file import SpillFile
        pairs = [(b"%08d" % number, b"x" * 100) for number in range(20_000)]
        file = SpillFile(Path({str(tmp_path)!r}), {MB}, 1)
        database = file.database(0)
        file.write(database, pairs[:1000])
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
        try:
            file.write(database, pairs)
        except UnavailableError as error:
            print("refused", file.size(database).cells, file.get(database, b"00000999") == b"x" * 100)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        file.write(database, pairs)
        print("later", file.size(database).cells)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "refused 1000 True\nlater 20000\n", done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
