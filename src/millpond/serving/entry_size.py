"""How many bytes a cached entry takes in memory, learnt from real entries of each plan.

Place on the data path: called by a cache for each entry that it takes. Walking every object of an entry
is exact and costs more than decoding did. So the first entries are walked and then one now and then, ever
more rarely up to one of `_MOST_BETWEEN`. The others are weighed by a number that is at hand (the bytes of the
stored row, the cells of a closed part) times what one such unit took in those that were walked. Each cache
has its own weigher: how a row's bytes turn into objects depends on the plan's cells.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

CACHE_BYTES = 270
"""What the structures of a cache take for an entry: places in its tables, links and counters."""

_FIRST_WALKED = 64
_SHARE_BETWEEN = 32
"""Entries between two that are walked: those that were seen by then, divided by this."""
_MOST_BETWEEN = 1_000
_LEAST_INT, _MOST_INT = -5, 256
"""Whole numbers that exist once in a process."""


class EntrySize:
    """The weigher of one cache; safe to use under its lock.

    Args:
        units: how large an entry is, as a number that is at hand.
        parts: what of an entry belongs to it alone.
        owns_key: whether the key belongs to this cache, and not to another that has it too.

    >>> weigh = EntrySize(units=len, parts=tuple)
    >>> weigh(b"EWR", ["x" * 1000]) - weigh(b"EWR", ["x" * 360])
    640
    """

    __slots__ = ("_bytes", "_lock", "_next", "_owns_key", "_parts", "_seen", "_units", "_units_of")

    def __init__(
        self, units: Callable[[Any], int], parts: Callable[[Any], tuple[Any, ...]], *, owns_key: bool = True
    ) -> None:
        self._units_of = units
        self._parts = parts
        self._owns_key = owns_key
        self._lock = threading.Lock()
        self._seen = self._next = self._bytes = self._units = 0

    def __call__(self, key: bytes, entry: Any) -> int:
        """Give the bytes that an entry takes with its key."""
        fixed = CACHE_BYTES + _rounded(sys.getsizeof(entry)) + (_rounded(sys.getsizeof(key)) if self._owns_key else 0)
        units = self._units_of(entry)
        with self._lock:
            self._seen += 1
            if self._seen >= self._next or not self._units:
                self._next = self._seen + 1
                if self._seen >= _FIRST_WALKED:
                    self._next = self._seen + min(max(1, self._seen // _SHARE_BETWEEN), _MOST_BETWEEN)
                walked = object_bytes(self._parts(entry))
                self._bytes += walked
                self._units += units
                return fixed + walked
            return fixed + units * self._bytes // self._units


def object_bytes(parts: tuple[Any, ...]) -> int:
    """Give the bytes of some objects and all they hold, each once; what exists once in a process is free.

    >>> object_bytes((1, None, True, ()))
    0
    >>> object_bytes(((1000, 1000.5),)) > 80
    True
    """
    seen: set[int] = set()
    pending = list(parts)
    total = 0
    while pending:
        thing = pending.pop()
        if thing is None or thing is True or thing is False:
            continue
        kind = type(thing)
        if kind is int and _LEAST_INT <= thing <= _MOST_INT:
            continue
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if kind is tuple and not thing:
            continue
        total += _rounded(sys.getsizeof(thing))
        if kind in (int, float, str, bytes):
            continue
        if isinstance(thing, dict):
            pending.extend(thing)
            pending.extend(thing.values())
        elif isinstance(thing, tuple | list | set | frozenset):
            pending.extend(thing)
        elif isinstance(thing, msgspec.Struct):
            pending.extend(getattr(thing, name) for name in thing.__struct_fields__)
    return total


def _rounded(size: int) -> int:
    """Round up to what the allocator gives out."""
    return (size + 15) & ~15
