"""Reads the resident memory of this process from the operating system: an adapter."""

import contextlib
import os
from typing import NamedTuple

from millpond.errors import MissingDependencyError

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_STATM = "/proc/self/statm"
_STATM_BYTES = 256
"""An upper bound on the length of that file."""


class ProcessMemoryBytes(NamedTuple):
    """The bytes of this process in memory: its own, and those of files that it maps."""

    own: int
    mapped: int


def process_memory_bytes() -> ProcessMemoryBytes:
    """Return the bytes in memory. If the system does not distinguish mapped files, all count as the process's own."""
    with contextlib.suppress(FileNotFoundError):
        file = os.open(_STATM, os.O_RDONLY)
        try:
            _, in_memory, shared = os.read(file, _STATM_BYTES).split(maxsplit=3)[:3]
        finally:
            os.close(file)
        return ProcessMemoryBytes((int(in_memory) - int(shared)) * PAGE_BYTES, int(shared) * PAGE_BYTES)
    try:
        import psutil
    except ImportError as error:
        raise MissingDependencyError(
            "the state backend 'spillable' needs psutil to know its memory here: pip install 'millpond[spillable]'"
        ) from error
    return ProcessMemoryBytes(psutil.Process().memory_info().rss, 0)
