"""Estimates the bytes of a cached entry, for `max-bytes` and `numCachedBytes`.

An entry consists of a key, its rows, and its share of the cache's own tables. The estimate should be 0.8 to 1.3
times the memory that the process uses. Two cases need care:

- **Nested values** (lists, dictionaries, objects) are walked through.
- **Shared values**: a source may return the same row for many keys, or the same text in many rows. An entry is
  charged the bytes of an object divided by the number of its holders, by Python's reference count. In a full
  cache these parts add up to the object.

The invariant: the estimate is made once, when the entry is put, from the references at that time.
"""

from collections import Counter
from collections.abc import Callable
from sys import getrefcount, getsizeof

from millpond.cache import deep_size
from millpond.cache.api import Policy
from millpond.cache.weight import ENTRY_BYTES
from millpond.lookup.functions.function import Key, Row

_TABLES_BYTES = 210
"""Bytes of an entry in the tables of values, weights and order, half of whose places are free, and of the weight."""

_TINY_LFU_BYTES = 50
"""Additional bytes of an entry with W-TinyLFU: the segment of its key, and its share of the sketch."""

_EXPIRY_BYTES = 125
"""Bytes of an entry in an ordered table of deadlines, and of the deadline."""

_WORD = 16
"""Python's allocator rounds sizes up to a multiple of this many bytes."""

_FLAT = {str, bytes, int, float, bool, type(None)}
_OF_A_VALUE = 2
"""Temporary references to a value while it is weighed: the variable, and the argument of `getrefcount`."""

_OF_A_ROW = 2
"""Temporary references to a row. Its places in the cached rows and in the list they were made from come on top."""


def entry_weigher(expiries: int, policy: Policy = "lru") -> Callable[[Key, tuple[Row, ...]], int]:
    """Return the weigher for a cache with this number of kinds of expiry and this policy.

    >>> weigh = entry_weigher(expiries=0)
    >>> weigh((1,), ((b"x" * 1_000_000,),)) > 1_000_000, weigh((1,), ()) < 400
    (True, True)
    """
    tables = _TABLES_BYTES + expiries * _EXPIRY_BYTES + (_TINY_LFU_BYTES if policy == "w-tinylfu" else 0)

    def weigh(key: Key, rows: tuple[Row, ...]) -> int:
        total = tables + _rounded(getsizeof(key))
        for value in key:
            total += _rounded(getsizeof(value))
        if not rows:
            return total
        total += _rounded(getsizeof(rows))
        if len(rows) == 1:
            return total + _row(rows[0]) // max(1, getrefcount(rows[0]) - _OF_A_ROW)
        times = Counter(map(id, rows))
        for row in {id(row): row for row in rows}.values():
            holders = getrefcount(row) - _OF_A_ROW - 2 * times[id(row)]
            total += _row(row) // max(1, holders)
        return total

    return weigh


def _row(row: Row) -> int:
    total = _rounded(getsizeof(row))
    for value in row:
        if type(value) in _FLAT:
            total += _rounded(getsizeof(value)) // max(1, getrefcount(value) - _OF_A_VALUE)
        else:
            total += deep_size(None, value) - ENTRY_BYTES
    return total


def _rounded(size: int) -> int:
    """Round a size up as the allocator does."""
    return size + _WORD - 1 & -_WORD
