"""Counts short reuse distances over all keys, in bursts.

A sample of the keys (`reuse_distances`) contains some of the hottest keys only by chance, and these have the short
distances. But short distances also pass within a short time. So from time to time all keys are recorded for a while, a
*burst*, in an LRU list of `MOST_KEYS` keys. Once the list is full, or after `_MOST_WARMING` requests, each distance
below `MOST_KEYS` is exact, and is counted until the burst ends.

The pause between two bursts grows with each burst, up to `_MOST_REST` times its length. So there are counts early, and
later the bursts cost little.

The data structure is that of `reuse_distances`, except that the least recently used key is dropped.
"""

from array import array
from bisect import bisect_left
from math import log2
from typing import Final

import numpy as np
import numpy.typing as npt

from millpond.cache.curves.reuse_distances import PER_OCTAVE

MOST_KEYS: Final = 1_536
_MOST_WARMING = 8 * MOST_KEYS
_COUNTED = 2 * MOST_KEYS
_REST_GROWS = 3
_MOST_REST = 95
_BUCKETS = 12 * PER_OCTAVE


class NearDistances:
    """Counts of the reuse distances below `MOST_KEYS`.

    Attributes:
        is_on: whether a burst is under way, so that `use` needs every key.
        counted: the number of counted requests, hits and misses. `age` halves it.
    """

    __slots__ = (
        "_bursts",
        "_counts",
        "_hashes",
        "_left",
        "_next",
        "_now",
        "_order",
        "_recency",
        "_uses",
        "counted",
        "is_on",
    )

    def __init__(self) -> None:
        self._counts = array("d", bytes(8 * _BUCKETS))
        self.counted = 0.0
        self._bursts = 0
        self._next = 0.0
        self.is_on = False
        self._clear()

    def _clear(self) -> None:
        self._hashes = array("q")
        self._uses = array("I")
        self._recency = array("I")
        self._order = array("q")
        self._now = 0
        self._left = _COUNTED

    def begin_if_due(self, requests: float) -> bool:
        """Begin a burst if one is due after this number of requests. Return whether a burst is under way."""
        if not self.is_on and requests >= self._next:
            self.is_on = True
        return self.is_on

    def use(self, spread: int, requests: float) -> None:
        """Record the request of a key during a burst. The key is given by its hash."""
        hashes, uses, recency, order = self._hashes, self._uses, self._recency, self._order
        counts = len(recency) == MOST_KEYS or self._now >= _MOST_WARMING
        self._now = now = self._now + 1
        place = bisect_left(hashes, spread)
        if place < len(hashes) and hashes[place] == spread:
            used = bisect_left(recency, uses[place])
            if counts:
                self._counts[int(log2(len(recency) - used + 0.5) * PER_OCTAVE)] += 1
            del recency[used], order[used]
            uses[place] = now
        else:
            hashes.insert(place, spread)
            uses.insert(place, now)
        recency.append(now)
        order.append(spread)
        if len(order) > MOST_KEYS:
            gone = bisect_left(hashes, order[0])
            del hashes[gone], uses[gone], recency[0], order[0]
        if counts:
            self.counted += 1
            self._left -= 1
            if not self._left:
                self._bursts += 1
                self._next = requests + self._now * min(_REST_GROWS * self._bursts + 1, _MOST_REST)
                self.is_on = False
                self._clear()

    def counts(self, buckets: int) -> npt.NDArray[np.float64]:
        """Return the counts by distance, in the first `buckets` buckets of `reuse_distances`."""
        return np.pad(np.array(self._counts[:]), (0, buckets - _BUCKETS))

    def age(self) -> None:
        """Halve all counts so far."""
        self._counts = array("d", (count / 2 for count in self._counts))
        self.counted /= 2
        self._next /= 2
