"""The heap of a process that grows is put into huge pages, and nothing else is."""

import mmap
import threading
from pathlib import Path

import pytest

from millpond.state import HeapBackend, heap
from millpond.state.heap.huge_pages import HugePages, collapse, of_process, own_regions

PAGE_SIZE = Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
HUGE = int(PAGE_SIZE.read_text()) if PAGE_SIZE.exists() else 2 << 20
MB = 1 << 20

real = pytest.mark.skipif(of_process() is None, reason="there are no huge pages here")


def private_memory(huge_pages: int) -> mmap.mmap:
    return mmap.mmap(-1, huge_pages * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def smaps_bytes(name: str) -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


@real
def test_memory_that_is_used_is_put_together_and_stays_what_it_was():
    with private_memory(9) as held:
        held[:] = bytes(range(256)) * (len(held) // 256)
        before = smaps_bytes("AnonHugePages:")
        collapsed = collapse(HUGE)
        if not collapsed:
            pytest.skip("this kernel does not put pages together")
        assert smaps_bytes("AnonHugePages:") - before >= 8 * HUGE
        assert held[:] == bytes(range(256)) * (len(held) // 256)


@real
def test_memory_that_was_hardly_used_is_left_alone():
    collapse(HUGE)
    with private_memory(9) as held:
        for at in range(0, len(held), HUGE // 2):
            held[at] = 1
        before = smaps_bytes("Anonymous:")
        collapse(HUGE)
        assert smaps_bytes("Anonymous:") - before < 4 * HUGE


@real
def test_regions_are_those_of_no_file():
    with private_memory(3) as held:
        held[:] = b"x" * len(held)
        regions = list(own_regions())
        assert sum(end - start for start, end in regions) >= len(held)
        assert all(start < end for start, end in regions)


class Process:
    """Its memory, and how often that was put together."""

    def __init__(self) -> None:
        self.own_bytes = 0
        self.collapsed = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.may_end.set()
        self.huge_pages = HugePages(lambda: self.own_bytes, self.collapse)

    def collapse(self) -> None:
        self.collapsed.release()
        assert self.may_end.wait(10)

    def looks(self, own_bytes: int) -> bool:
        """Whether it puts memory together at that size."""
        if self.may_end.is_set():
            self.huge_pages.wait()
        self.own_bytes = own_bytes
        self.huge_pages.look()
        return self.collapsed.acquire(timeout=0.2)


def test_a_small_process_is_left_alone():
    assert not Process().looks(200 * MB)


def test_it_happens_again_once_the_process_has_grown():
    process = Process()
    assert process.looks(300 * MB)
    assert not process.looks(320 * MB)
    assert process.looks(400 * MB)


def test_what_was_given_back_and_is_used_again_counts_as_growth():
    process = Process()
    assert process.looks(800 * MB)
    assert not process.looks(500 * MB)
    assert process.looks(700 * MB)


def test_it_happens_once_at_a_time():
    process = Process()
    process.may_end.clear()
    assert process.looks(300 * MB)
    assert not process.looks(600 * MB)
    process.may_end.set()
    assert process.looks(600 * MB)


@pytest.mark.parametrize(
    ("enabled", "wanted"), [("always [madvise] never", True), ("always madvise [never]", False), (None, False)]
)
def test_the_administrator_has_the_last_word(tmp_path, enabled, wanted):
    if enabled is not None:
        (tmp_path / "enabled").write_text(enabled)
        (tmp_path / "hpage_pmd_size").write_text(str(HUGE))
    assert (of_process(tmp_path) is not None) is wanted


def test_the_heap_looks_at_the_end_of_each_version(monkeypatch):
    process = Process()
    process.own_bytes = 300 * MB
    monkeypatch.setattr(heap.backend, "HUGE_PAGES", process.huge_pages)
    backend = HeapBackend(range(4))
    backend.commit().release()
    assert process.collapsed.acquire(timeout=10)
    backend.close()
