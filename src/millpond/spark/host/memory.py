"""The memory that a state host may use: the limit that Spark gives its Python workers, which hosts inherit.

`spark.executor.pyspark.memory` becomes a limit on a worker's address space, divided by the executor's
cores, and whatever the worker starts has the same. It counts what is mapped, not what is used: shared
libraries, and the map of an LMDB file in full. So a limit that a worker can live with may leave a host
no room for state, and a host says so when it starts instead of failing in the middle of a batch. A host whose room has
gone, to user code or a library that leaks, is replaced while it is at rest.
"""

import resource
from pathlib import Path

from millpond.errors import UnavailableError

MINIMUM_BYTES = 64 << 20
"""What must be left for state when a host has started."""

_SETTING = "spark.executor.pyspark.memory"


def memory_limit_bytes() -> int | None:
    """The limit of this process's address space, or None."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def mapped_bytes() -> int | None:
    """The address space that this process has; None where the system does not tell."""
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
    """Whether a host that had so much room left when it started has less than a tenth of it, or too little for state.

    >>> is_nearly_full(2000 << 20, 3000 << 20, 2790 << 20), is_nearly_full(2000 << 20, 3000 << 20, 2801 << 20)
    (False, True)
    >>> is_nearly_full(None, None, 2801 << 20)
    False
    """
    if room_at_start is None or limit is None or mapped is None:
        return False
    return limit - mapped < max(MINIMUM_BYTES, room_at_start // 10)


def memory_limit_hint() -> str:
    """What to say of the limit where a process may have died of it; nothing where there is none."""
    limit = memory_limit_bytes()
    if limit is None:
        return ""
    return f" It may map no more than {limit >> 20} MiB ({_SETTING}, divided by the executor's cores)."


def out_of_memory(error: MemoryError) -> UnavailableError:
    """What a batch fails with when its host has no more memory."""
    limit = memory_limit_bytes()
    bound = "the machine has no more" if limit is None else f"it may map {limit >> 20} MiB, from {_SETTING}"
    return UnavailableError(
        f"the state host has no more memory ({bound}): {error or 'MemoryError'}. Its other shards' state was given "
        "up, to be restored when it is asked for. If that does not help, keep state on disk with "
        'StateConfig(backend="rocksdb"), take more shards or smaller batches, or raise the limit.'
    )
