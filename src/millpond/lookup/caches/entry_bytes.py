"""How many bytes a cached entry takes, for `max-bytes` and `numCachedBytes`.

An entry is a key, its rows, and what the cache's own tables need for them. The estimate is meant to be
within 0.8 to 1.3 of what the process takes. Two things make that hard, and are seen to:

- **Nested values** (lists, dictionaries, objects) are walked through.
- **Shared values**: a source may answer with the same row for many keys, or with the same text in many
  rows. An object that others hold too is charged to this entry in part: by one over the number of its
  holders, as Python counts references. While a cache is full, these parts add up to the object.

The invariant: the estimate is made once, when the entry is put, from what is there then.
"""

from collections import Counter
from collections.abc import Callable
from sys import getrefcount, getsizeof

from millpond.cache import deep_size
from millpond.cache.api import Policy
from millpond.cache.weight import ENTRY_BYTES
from millpond.lookup.functions.function import Key, Row

_TABLES_BYTES = 210
"""An entry in the tables of values, weights and order, half of whose places are free; and the weight."""

_TINY_LFU_BYTES = 50
"""What W-TinyLFU has more than LRU: the segment of each key, and its share of the sketch."""

_EXPIRY_BYTES = 125
"""An entry in an ordered table of deadlines, and the deadline."""

_WORD = 16
"""What Python's allocator rounds up to."""

_FLAT = {str, bytes, int, float, bool, type(None)}
_OF_A_VALUE = 2
"""References to a value beside the row's, while it is looked at: the variable's, and the argument's."""

_OF_A_ROW = 2
"""The same for a row, beside its places in the cached rows and in the list that these were made of."""


def entry_weigher(expiries: int, policy: Policy = "lru") -> Callable[[Key, tuple[Row, ...]], int]:
    """What weighs the entries of a cache with so many kinds of expiry and this policy.

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
    """What the allocator makes of a size."""
    return size + _WORD - 1 & -_WORD
