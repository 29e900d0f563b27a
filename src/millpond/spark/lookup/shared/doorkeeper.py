"""Which keys the near cache lacked not long ago: a memory of hashes that is allowed to be wrong.

The near cache keeps a key that it lacks for the second time. A key of a long tail, which comes once, would push out a
hotter one. The invariant: **a hash that was among the last `span` noted ones is remembered**. Others may be: those
from a little longer ago, and a few that share a place with one of these.

Two tables of flags have a place for every hash. The first takes what is noted. When that is `span` hashes, it becomes
the second, which is forgotten.

Source: the doorkeeper of TinyLFU (Einziger, Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy",
2017); Bloom filters that are buffered in turn (Chang, Feng and Li, "Approximate caches for packet classification",
2004).
"""

import numpy as np
import numpy.typing as npt

from millpond.lookup.column_cache.key_hash import Hashes

_PLACES = 16
"""The least number of places for each hash of a full table, so that about one in 16 unknown hashes seems known."""

_HASH_BITS = 64


class Doorkeeper:
    """The hashes noted lately.

    >>> doorkeeper = Doorkeeper(span=4)
    >>> doorkeeper.note(np.array([1 << 60, 2 << 60], np.uint64)).tolist()
    [False, False]
    >>> doorkeeper.note(np.array([2 << 60, 3 << 60], np.uint64)).tolist()
    [True, False]
    """

    def __init__(self, span: int) -> None:
        self._bits = (span * _PLACES - 1).bit_length()
        self._span = span
        self._noted = 0
        self._current, self._before = self._empty(), self._empty()

    @property
    def span(self) -> int:
        """The number of hashes that are remembered at least."""
        return self._span

    @property
    def nbytes(self) -> int:
        """The bytes of both tables."""
        return self._current.nbytes + self._before.nbytes

    def note(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Note distinct hashes. Return which of them had been noted lately."""
        places = (hashes >> np.uint64(_HASH_BITS - self._bits)).astype(np.int64)
        known: npt.NDArray[np.bool_] = self._current[places] | self._before[places]
        self._current[places] = True
        self._noted += len(hashes)
        if self._noted >= self._span:
            self._current, self._before, self._noted = self._empty(), self._current, 0
        return known

    def _empty(self) -> npt.NDArray[np.bool_]:
        return np.zeros(1 << self._bits, np.bool_)
