"""Measures the memory of this process and its limit, and estimates how much of it is free but not returned.

An adapter: the figures come from the operating system.
"""

import os
import resource
from collections.abc import Callable
from pathlib import Path

from millpond.state.spillable.process_memory import PAGE_BYTES, process_memory_bytes

_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_NO_LIMIT_BYTES = 1 << 60
"""Limits from this on mean none: version 1 of cgroups writes "no limit" as a very large number."""


class ProcessMemory:
    """The memory of this process, apart from the files that were mapped after this object was made.

    A call returns the bytes in use: the process's own, and those of the files mapped before, such as libraries.
    """

    def __init__(self) -> None:
        self._mapped_at_first = process_memory_bytes().mapped

    def __call__(self) -> int:
        """Return the bytes in use."""
        now = process_memory_bytes()
        return now.own + min(now.mapped, self._mapped_at_first)

    def mapped_bytes(self) -> int:
        """Return the bytes in memory of files that were mapped later."""
        return max(0, process_memory_bytes().mapped - self._mapped_at_first)


def memory_limit_bytes(
    hosts: int = 1, container_limits: tuple[Path, ...] = _CONTAINER_LIMITS, address_space: int | None = None
) -> int:
    """Return the memory that this process may use.

    This is its share of the container's or machine's memory, or its own address space if that is smaller.

    Args:
        hosts: how many processes share the container. The address space is not divided, because Spark already did.
        container_limits: files in which the kernel publishes the container's limit.
        address_space: the limit of this process's address space; RLIMIT_AS unless given.
    """
    shared = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    for path in container_limits:
        try:
            text = path.read_text().strip()
        except OSError:  # not in such a container, or the file cannot be read
            continue
        if text.isdecimal() and int(text) < _NO_LIMIT_BYTES:
            shared = min(shared, int(text))
    own = resource.getrlimit(resource.RLIMIT_AS)[0] if address_space is None else address_space
    share = shared // hosts
    return share if own == resource.RLIM_INFINITY else min(share, own)


class UsedMemory:
    """The memory in use: the size of the process, less the memory that was freed within it.

    Python's allocator keeps freed memory for later objects. So after a spill the process is as large as before, and the
    memory of the spilled objects is *free*. The estimate of free memory falls in three cases. New objects use it. If
    the process grows, the memory was not free, or not where it was needed. If the process shrinks, the memory went
    back to the operating system.

    Attributes:
        process_bytes: the size of the process at the last measurement.
        free_bytes: the estimated bytes that are free within the process.
    """

    def __init__(self, read_bytes: Callable[[], int]) -> None:
        self._read_bytes = read_bytes
        self.process_bytes = read_bytes()
        self.free_bytes = 0

    def freed(self, estimated_bytes: int) -> None:
        """Add objects of about this size that were freed since the last measurement."""
        self.free_bytes += estimated_bytes

    def measure(self, grown_bytes: int) -> int:
        """Measure the process, and return the bytes in use.

        Args:
            grown_bytes: approximate growth of the state on the heap since the last measurement.
        """
        now_bytes = self._read_bytes()
        change = now_bytes - self.process_bytes
        self.process_bytes = now_bytes
        self.free_bytes = max(0, self.free_bytes - max(abs(change), grown_bytes))
        return now_bytes - self.free_bytes
