"""The memory limit of a state host: the limit that Spark sets on its Python workers, which hosts inherit.

Spark divides `spark.executor.pyspark.memory` by the executor's cores and limits each worker's address space
to that. A process that a worker starts inherits the limit. It counts mapped memory, not used memory: shared
libraries and whole LMDB maps are in it. So a limit that suits a worker may leave a host no room for state.
A host reports that when it starts, and does not fail in the middle of a batch. A host that runs out of room
later, for instance because user code or a library leaks, is replaced when it has no batch to run.
"""

import resource
from pathlib import Path

from millpond.errors import UnavailableError

MINIMUM_BYTES = 64 << 20
"""Bytes that must be left for state when a host has started."""

_SETTING = "spark.executor.pyspark.memory"


def memory_limit_bytes() -> int | None:
    """Return the limit of this process's address space in bytes, or None."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def mapped_bytes() -> int | None:
    """Return the bytes of address space that this process maps; None where the system does not tell."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else None


def check_memory_limit(limit: int | None, mapped: int | None) -> None:
    """Refuse a limit that leaves no room for state.

    >>> check_memory_limit(None, 900 << 20)
    >>> check_memory_limit(1000 << 20, 980 << 20)
    Traceback (most recent call last):
    millpond.errors.UnavailableError: a state host may map 1000 MiB (spark.executor.pyspark.memory, divided by the \
executor's cores) and its libraries map 980 MiB; at least 64 MiB must be left for state. Set \
spark.executor.pyspark.memory to more, or leave it out.
    """
    if limit is not None and mapped is not None and limit - mapped < MINIMUM_BYTES:
        raise UnavailableError(
            f"a state host may map {limit >> 20} MiB ({_SETTING}, divided by the executor's cores) and its libraries "
            f"map {mapped >> 20} MiB; at least {MINIMUM_BYTES >> 20} MiB must be left for state. Set {_SETTING} to "
            "more, or leave it out."
        )


def is_nearly_full(room_at_start: int | None, limit: int | None, mapped: int | None) -> bool:
    """Whether less than a tenth of the room at start is left, or less than `MINIMUM_BYTES`. Arguments are in bytes.

    >>> is_nearly_full(2000 << 20, 3000 << 20, 2790 << 20), is_nearly_full(2000 << 20, 3000 << 20, 2801 << 20)
    (False, True)
    >>> is_nearly_full(None, None, 2801 << 20)
    False
    """
    if room_at_start is None or limit is None or mapped is None:
        return False
    return limit - mapped < max(MINIMUM_BYTES, room_at_start // 10)


def memory_limit_hint() -> str:
    """Return a sentence on the limit for the error of a process that may have died of it; empty without a limit."""
    limit = memory_limit_bytes()
    if limit is None:
        return ""
    return f" It may map no more than {limit >> 20} MiB ({_SETTING}, divided by the executor's cores)."


def out_of_memory(error: MemoryError) -> UnavailableError:
    """Return the error of a batch whose host has run out of memory."""
    limit = memory_limit_bytes()
    bound = "the machine has no more" if limit is None else f"it may map {limit >> 20} MiB, from {_SETTING}"
    return UnavailableError(
        f"the state host has no more memory ({bound}): {error or 'MemoryError'}. Its other shards' state was given "
        "up, to be restored when it is asked for. If that does not help, keep state on disk with "
        'StateConfig(backend="rocksdb"), take more shards or smaller batches, or raise the limit.'
    )
