"""What this process uses of memory, what it may use, and what of it is free although the system does not know.

An adapter: the figures come from the operating system.
"""

import os
import resource
from collections.abc import Callable
from pathlib import Path

from millpond.state.spillable.process_memory import PAGE_BYTES, process_memory_bytes

_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_NO_LIMIT_BYTES = 1 << 60
"""The first version of cgroups writes "no limit" as a very large number."""


class ProcessMemory:
    """The memory of this process, told apart from what it has mapped of files since this was made.

    Calling it gives the bytes in use: its own, and those of the files mapped at first, such as libraries.
    """

    def __init__(self) -> None:
        self._mapped_at_first = process_memory_bytes().mapped

    def __call__(self) -> int:
        """The bytes in use."""
        now = process_memory_bytes()
        return now.own + min(now.mapped, self._mapped_at_first)

    def mapped_bytes(self) -> int:
        """The bytes of files that were mapped later."""
        return max(0, process_memory_bytes().mapped - self._mapped_at_first)


def memory_limit_bytes(
    hosts: int = 1, container_limits: tuple[Path, ...] = _CONTAINER_LIMITS, address_space: int | None = None
) -> int:
    """The least of what limits this process: its share of its container's or machine's memory, and its address space.

    Args:
        hosts: how many processes share the container. Spark has divided the address space already.
        container_limits: files in which the kernel says what the container may use.
        address_space: the limit of this process's own; RLIMIT_AS unless given.
    """
    shared = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    for path in container_limits:
        try:
            text = path.read_text().strip()
        except OSError:  # no such container, or none that may be asked
            continue
        if text.isdecimal() and int(text) < _NO_LIMIT_BYTES:
            shared = min(shared, int(text))
    own = resource.getrlimit(resource.RLIMIT_AS)[0] if address_space is None else address_space
    share = shared // hosts
    return share if own == resource.RLIM_INFINITY else min(share, own)


class UsedMemory:
    """What of the process's memory is in use: its size, less what was freed and has not been given back.

    Python's allocator keeps what is freed for the objects to come. So after a spill the process is as large as before,
    and what the spilled objects took is *free*. Objects that are made later use that up; so does whatever makes the
    process grow, since then it was not free, or not where it was needed; and what the system got back is free no
    longer.
    """

    def __init__(self, read_bytes: Callable[[], int]) -> None:
        self._read_bytes = read_bytes
        self._last_bytes = read_bytes()
        self._free_bytes = 0

    @property
    def process_bytes(self) -> int:
        """The size of the process at the last measurement."""
        return self._last_bytes

    @property
    def free_bytes(self) -> int:
        """What is believed to be free within the process."""
        return self._free_bytes

    def freed(self, estimated_bytes: int) -> None:
        """Count objects of about that size as freed since the last measurement."""
        self._free_bytes += estimated_bytes

    def measure(self, grown_bytes: int) -> int:
        """Measure the process, and return the bytes in use.

        Args:
            grown_bytes: by how much state on the heap grew since the last measurement, about.
        """
        now_bytes = self._read_bytes()
        change = now_bytes - self._last_bytes
        self._last_bytes = now_bytes
        self._free_bytes = max(0, self._free_bytes - max(abs(change), grown_bytes))
        return now_bytes - self._free_bytes
