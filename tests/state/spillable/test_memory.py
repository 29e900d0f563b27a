"""What the process uses and may use."""

import gc
import mmap
import resource

import pytest

from millpond.state.spillable.gc_pauses import GcPauses
from millpond.state.spillable.memory import ProcessMemory, UsedMemory, memory_limit_bytes
from millpond.state.spillable.process_memory import process_memory_bytes


class Process:
    def __init__(self, size=100):
        self.size = size

    def __call__(self):
        return self.size


def test_the_process_grows_with_what_it_holds():
    before = process_memory_bytes().own
    held = bytes(64 << 20).replace(b"\0", b"x")
    assert len(held) <= process_memory_bytes().own - before < 3 * len(held)


def test_what_is_mapped_of_a_file_is_not_in_use(tmp_path):
    used = ProcessMemory()
    before, mapped = used(), used.mapped_bytes()
    with (tmp_path / "file").open("wb") as file:
        for _ in range(32):  # in one piece it could come from memory that was freed before, and stay in use
            file.write(bytes(1 << 20))
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert sum(view[at] for at in range(0, len(view), 4096)) == 0
        assert used.mapped_bytes() - mapped >= 30 << 20
        assert used() - before < 8 << 20


def test_memory_that_was_freed_and_not_given_back_is_not_in_use():
    process = Process()
    used = UsedMemory(process)
    process.size = 200
    assert used.measure(100) == 200
    used.freed(60)
    assert used.measure(0) == 140


def test_what_is_made_later_uses_up_what_was_free():
    process = Process(200)
    used = UsedMemory(process)
    used.freed(60)
    assert used.measure(40) == 180
    assert used.measure(40) == 200
    assert used.free_bytes == 0


def test_what_the_system_got_back_is_free_no_longer():
    process = Process(200)
    used = UsedMemory(process)
    used.freed(60)
    process.size = 140
    assert used.measure(0) == 140


def test_a_process_that_grows_all_the_same_had_nothing_free():
    process = Process(200)
    used = UsedMemory(process)
    used.freed(60)
    process.size = 260
    assert used.measure(0) == 260


def test_the_container_s_limit_is_shared_by_the_hosts(tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text("800000000\n")
    assert memory_limit_bytes(4, (limit,), resource.RLIM_INFINITY) == 200_000_000


def test_a_container_without_a_limit_has_the_machine_s_memory(tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    huge = tmp_path / "memory.limit_in_bytes"
    huge.write_text("9223372036854771712\n")
    machine = memory_limit_bytes(1, (), resource.RLIM_INFINITY)
    assert memory_limit_bytes(1, (limit, huge, tmp_path / "missing"), resource.RLIM_INFINITY) == machine > 1 << 27


def test_the_address_space_is_this_process_s_own(tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text("800000000\n")
    assert memory_limit_bytes(2, (limit,), 100_000_000) == 100_000_000


def test_the_mean_pause_is_that_of_the_generation_that_stops_longest():
    now = [0]
    pauses = GcPauses(lambda: now[0])
    for generation, each_ms in ((0, 1), (0, 3), (2, 4_000), (2, 2_000)):
        pauses.heard("start", {"generation": generation})
        now[0] += each_ms * 1_000_000
        pauses.heard("stop", {"generation": generation})
    assert pauses.take_mean_ms() == 3_000
    assert pauses.take_mean_ms() == 0


def test_pauses_are_heard_from_the_collector_until_nobody_listens():
    ticks = iter(range(0, 10_000_000_000, 1_000_000))
    pauses = GcPauses(lambda: next(ticks))
    listener = gc.callbacks[-1]
    gc.collect()
    assert pauses.take_mean_ms() == pytest.approx(1)
    del pauses
    assert listener not in gc.callbacks
