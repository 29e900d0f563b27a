"""Estimates how many bytes a cached entry takes in memory, from entries that were measured.

Place on the data path: a cache calls its weigher for each entry that it takes. Walking every object of an entry is
exact, but costs more than decoding the entry. So only the first entries are walked, and after them a sample that
becomes sparser, down to one in `_MOST_BETWEEN`. Every other entry is estimated: its units (the bytes of the stored
row, the cells of a closed part) times the mean bytes per unit of the walked entries. Each cache has its own weigher,
because the memory that a row's bytes take as objects depends on the plan's cells.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

CACHE_BYTES = 270
"""What a cache itself uses per entry, in bytes: slots in its tables, links and counters."""

_FIRST_WALKED = 64
_SHARE_BETWEEN = 32
"""The gap between two walked entries is the number of entries seen so far divided by this."""
_MOST_BETWEEN = 1_000
_LEAST_INT, _MOST_INT = -5, 256
"""The range of integers that CPython keeps once per process."""


class EntrySize:
    """The weigher of one cache; safe to use under the cache's lock.

    Args:
        units: returns the size of an entry in units that are cheap to read.
        parts: returns the objects of an entry that no other entry shares.
        owns_key: whether the key's bytes count here; False if another cache already counts them.

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
        """Return the bytes that an entry and its key take."""
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
    """Return the bytes of some objects and everything they contain, each object once.

    None, booleans, small integers and the empty tuple exist once in a process and count nothing.

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
    """Round up to 16 bytes, the allocator's unit."""
    return (size + 15) & ~15
