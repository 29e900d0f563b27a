"""The heap in huge pages, where the kernel has them: a lookup among millions of objects waits less for memory.

With ordinary pages of 4 KB a processor knows where a few thousand of them are, which is some megabytes; for every other
access it first walks through the page tables. A page of 2 MB takes the place of 512. So once the process has grown, a
thread of its own has the kernel put together what lies in ordinary pages.

Only memory that is there already is put together, to within a sixteenth: the process does not grow by pages that it
never used. What it frees later goes back in pieces of any size, as before.

Where /sys/kernel/mm/transparent_hugepage/enabled says "never" nothing is done, nor on kernels before Linux 6.1, which
do not know MADV_COLLAPSE.

Source: madvise(2); https://docs.kernel.org/admin-guide/mm/transhuge.html
"""

import ctypes
import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from millpond.state.backend.process_memory import PAGE_BYTES, resident

_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
_MAPS = Path("/proc/self/maps")
_MADV_COLLAPSE = 25
_LEAST_BYTES = 256 << 20
"""Of the process: below that there is little to gain."""
_GROWTH = 8
"""By this part of it the process must have grown since the last time."""
_UNUSED = 16
"""No more than this part of a huge page may be memory that was never used."""


class HugePages:
    """Puts the heap of this process into huge pages whenever it has grown.

    Args:
        own_bytes: what the process has in memory of its own.
        collapse: puts together what there is: in a thread of its own, one at a time.
    """

    def __init__(self, own_bytes: Callable[[], int], collapse: Callable[[], object]) -> None:
        self._own_bytes = own_bytes
        self._collapse = collapse
        self._last_bytes = 0
        self._under_way = threading.Lock()

    def look(self) -> None:
        """See whether the process has grown, and begin to put together what it grew by."""
        own = self._own_bytes()
        self._last_bytes = min(self._last_bytes, own)
        grown = own >= _LEAST_BYTES and own - self._last_bytes >= own // _GROWTH
        if grown and self._under_way.acquire(blocking=False):
            self._last_bytes = own
            threading.Thread(target=self._work, name="millpond-huge-pages", daemon=True).start()

    def wait(self) -> None:
        """Until nothing is under way."""
        with self._under_way:
            return

    def _work(self) -> None:
        try:
            self._collapse()
        finally:
            self._under_way.release()


def of_process(settings: Path = _SETTINGS) -> HugePages | None:
    """What does it for this process; None where there are no huge pages, or none are wanted."""
    try:
        wanted = "[never]" not in (settings / "enabled").read_text()
        page_bytes = int((settings / "hpage_pmd_size").read_text())
    except OSError:  # no Linux, or one that was built without
        return None
    return HugePages(lambda: resident().own, lambda: collapse(page_bytes)) if wanted else None


def collapse(page_bytes: int) -> int:
    """Put the memory of this process's own together in pages of so many bytes; how many it is in now.

    It pauses for as long as each took: meanwhile whoever needs memory that is new to the process waits.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    used = ctypes.create_string_buffer(page_bytes // PAGE_BYTES)
    pause = threading.Event()
    collapsed = 0
    for start, end in own_regions():
        # A huge page begins at a multiple of its size.
        for at in range(-(-start // page_bytes) * page_bytes, end - page_bytes + 1, page_bytes):
            # Where the memory is gone by now, mincore and madvise say so.
            if libc.mincore(at, page_bytes, used) or used.raw.count(1) < len(used) - len(used) // _UNUSED:
                continue
            started = time.perf_counter()
            if libc.madvise(at, page_bytes, _MADV_COLLAPSE) == 0:
                collapsed += 1
                pause.wait(time.perf_counter() - started)
            elif ctypes.get_errno() == errno.EINVAL:  # an older kernel, or one that may not here
                break
    return collapsed


def own_regions() -> Iterator[tuple[int, int]]:
    """Where memory begins and ends that belongs to this process alone, and to no file."""
    for line in _MAPS.read_text().splitlines():
        addresses, access, _, _, inode, *_ = line.split()
        if access == "rw-p" and inode == "0":
            start, end = addresses.split("-")
            yield int(start, 16), int(end, 16)


HUGE_PAGES = of_process()
"""Of this process."""
