"""A hash table from 64-bit hashes to slots, which is searched a batch at a time.

The column cache uses it. A slot is the number of an entry, from 0. The invariant: **a hash has at most one
slot**, and a search that starts at the hash's first place reaches it before any free place.

It is open addressing with linear probing, in two arrays. All hashes of a batch are searched together: each round
looks at one place per hash, and a hash drops out once it finds itself or a free place. A removed hash leaves a
mark, so that searches continue past it. When used places and marks fill three fifths of the arrays, they are
rebuilt without marks.

Source: Knuth, The Art of Computer Programming, volume 3, section 6.4.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from millpond.lookup.column_cache.key_hash import Hashes

Slots: TypeAlias = npt.NDArray[np.int64]

_FREE, _REMOVED = -1, -2
_LEAST_BITS = 10
_HASH_BITS = 64
_FULL = 0.6
_ROOM = 2.5
"""The least number of places per entry after a rebuild."""


def grown(array: npt.NDArray[np.int64], last: int, fill: int) -> npt.NDArray[np.int64]:
    """Return an array indexed by slot with room for the slot `last`; at least doubled, with `fill`, if it must grow."""
    if last < len(array):
        return array
    more = max(last + 1 - len(array), len(array))
    return np.concatenate((array, np.full(more, fill, np.int64)))


class HashIndex:
    """A map from hashes to slots.

    >>> index = HashIndex()
    >>> index.add(np.array([7, 8], np.uint64), np.array([0, 1]))
    >>> index.remove(np.array([7], np.uint64))
    >>> index.find(np.array([8, 7], np.uint64)).tolist()
    [1, -1]
    """

    def __init__(self) -> None:
        self._entries = self._taken = 0
        self._build(np.zeros(0, np.uint64), np.zeros(0, np.int64))

    def __len__(self) -> int:
        return self._entries

    def find(self, hashes: Hashes) -> Slots:
        """Return the slot of every hash, or -1 if it is not there."""
        places = self._places(hashes)
        found = np.full(len(hashes), _FREE, np.int64)
        there = places >= 0
        found[there] = self._slots[places[there]]
        return found

    def add(self, hashes: Hashes, slots: Slots) -> None:
        """Add distinct hashes that are not there yet, with their slots."""
        if self._taken + len(hashes) > _FULL * len(self._slots):
            used = np.flatnonzero(self._slots >= 0)
            more = np.concatenate((self._hashes[used], hashes))
            self._build(more, np.concatenate((self._slots[used], slots)))
            return
        self._put(hashes, slots)

    def remove(self, hashes: Hashes) -> None:
        """Remove distinct hashes, all of which must be there."""
        self._slots[self._places(hashes)] = _REMOVED
        self._entries -= len(hashes)

    def _build(self, hashes: Hashes, slots: Slots) -> None:
        bits = max(_LEAST_BITS, int(len(hashes) * _ROOM).bit_length())
        self._shift, self._last = np.uint64(_HASH_BITS - bits), (1 << bits) - 1
        self._hashes = np.zeros(1 << bits, np.uint64)
        self._slots: npt.NDArray[np.int32 | np.int64] = np.full(
            1 << bits, _FREE, np.int32 if len(hashes) < 1 << 30 else np.int64
        )
        self._entries = self._taken = 0
        self._put(hashes, slots)

    def _home(self, hashes: Hashes) -> Slots:
        return (hashes >> self._shift).astype(np.int64)

    def _places(self, hashes: Hashes) -> Slots:
        """Return the place of every hash, or -1 if it is not there."""
        at = self._home(hashes)
        slots = self._slots[at]
        hit = (self._hashes[at] == hashes) & (slots >= 0)
        result: Slots = np.where(hit, at, -1)
        # Most hashes end here. The others are followed by position, which costs less than masks of all hashes.
        seeking = np.flatnonzero(~hit & (slots != _FREE))
        at, sought = at[seeking], hashes[seeking]
        while len(seeking):
            at = at + 1 & self._last
            slots = self._slots[at]
            hit = (self._hashes[at] == sought) & (slots >= 0)
            result[seeking[hit]] = at[hit]
            further = np.flatnonzero(~hit & (slots != _FREE))
            seeking, sought, at = seeking[further], sought[further], at[further]
        return result

    def _put(self, hashes: Hashes, slots: Slots) -> None:
        at = self._home(hashes)
        self._entries += len(hashes)
        while len(slots):
            before = self._slots[at]
            free = np.flatnonzero(before < 0)
            # Several hashes may want the same place: the one written last gets it.
            self._slots[at[free]] = slots[free]
            won = free[self._slots[at[free]] == slots[free]]
            self._hashes[at[won]] = hashes[won]
            self._taken += int(np.count_nonzero(before[won] == _FREE))
            lost = np.ones(len(slots), np.bool_)
            lost[won] = False
            at, hashes, slots = at[lost] + 1 & self._last, hashes[lost], slots[lost]
