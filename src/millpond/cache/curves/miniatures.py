"""Estimates the hit rate of W-TinyLFU at several sizes, with miniature caches that simulate it.

Place on the data path: part of the recording of a cache (`recording`). The hits of W-TinyLFU do not follow from reuse
distances, so the policy is simulated on a sample of the keys (`millpond.cache.miniature`).

The simulated sizes are doublings around the cache's present size. The largest miniature has `_MOST_ENTRIES` entries.
So the present size determines the share of keys that is sampled, and the memory is bounded. The share is never larger
than that of the reuse distances, because a key without a distance cannot be compared with LRU. When that share falls,
smaller miniatures replace the present ones.

With so few keys, the hit rate depends strongly on which keys are sampled. The hit rate of LRU on the same sample has
the same error. So a miniature measures how many *more* hits it has than LRU of its size on the same requests. This
difference is added to the curve of LRU, which is exact in expectation. Between the sizes it is interpolated, and below
them it is constant. Above them, `recording` scales it down to zero at room for every key.

More requests do not correct a sample of the wrong keys, and a miniature costs some microseconds a request. So after
every `_COUNTED_USES` uses the miniatures *rest* for `_REST` times as many requests. After a rest their contents differ
from those of a cache in use. So the next `_WARMING` uses per entry are not counted.

The miniatures keep the initial window size of the policy. The real cache adapts its window to its load, and with a
large window it is LRU. So a negative difference is counted as zero.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from millpond.cache.miniature import LEAST_HASH, Miniature, limit_of

_MOST_ENTRIES = 128
_MOST_SHARE = 0.25
_COUNTED_USES = 1 << 13
_REST = 3
_WARMING = 10
FACTORS: Final = (0.25, 0.5, 1.0, 2.0)
"""The simulated sizes, as factors of the present size."""


class Miniatures:
    """Simulates W-TinyLFU at several sizes around the present one, compared with LRU on the same requests.

    Args:
        entries: the present size in entries.
        began: the number of requests before.
        most_share: the share of the keys whose reuse distances are known.

    Attributes:
        limit: hashes below this are sampled; none while the miniatures rest.
        entries: the present size, around which the simulated sizes lie.

    >>> Miniatures(102_400).sizes()
    [25600.0, 51200.0, 102400.0, 204800.0]
    """

    __slots__ = (
        "_began",
        "_caches",
        "_counted",
        "_counts",
        "_gains",
        "_left",
        "_rests_until",
        "_share",
        "_sizes",
        "entries",
        "limit",
    )

    def __init__(self, entries: int, *, began: float = 0.0, most_share: float = 1.0) -> None:
        self.entries = max(1, entries)
        self._gains = [0.0] * len(FACTORS)
        # Requests counted in former spans, and where the present span began. LRU begins empty too, so no warming.
        self._counted = 0.0
        self._began = self._rests_until = began
        self._counts = True
        self._left = _COUNTED_USES
        self._make(min(_MOST_SHARE, most_share, _MOST_ENTRIES / (FACTORS[-1] * self.entries)))

    def _make(self, share: float) -> None:
        self._share = share
        self.limit = limit_of(share)
        small = [max(1, round(self.entries * factor * share)) for factor in FACTORS]
        self._caches = [Miniature(size) for size in small]
        self._sizes = [size / share for size in small]

    def use(self, spread: int, distance: float, requests: float) -> None:
        """Request a sampled key from every miniature.

        Args:
            spread: the key's hash.
            distance: its reuse distance, which decides whether LRU hits.
            requests: the number of requests so far.
        """
        if self._counts:
            gains, weight = self._gains, 1 / self._share
            for place, cache in enumerate(self._caches):
                gains[place] += weight * (cache.use(spread) - (distance <= self._sizes[place]))
        else:
            for cache in self._caches:
                cache.use(spread)
        self._used(1, requests)

    def use_together(self, spreads: Sequence[int], distances: Sequence[float], requests: float) -> None:
        """Request several sampled keys, which are all looked up before any of them is put; see `use`."""
        weight = 1 / self._share if self._counts else 0.0
        for place, cache in enumerate(self._caches):
            size = self._sizes[place]
            lru = sum([distance <= size for distance in distances])
            self._gains[place] += weight * (cache.use_together(spreads) - lru)
        self._used(len(spreads), requests)

    def _used(self, keys: int, requests: float) -> None:
        self._left -= keys
        if self._left <= 0:
            if self._counts:
                self._rest(requests)
            else:
                self._count_from(requests)

    def attend(self, requests: float, most_share: float) -> None:
        """End a rest that was long enough. Sample fewer keys if fewer have a distance. Called from time to time."""
        if most_share < self._share:
            self._end_span(requests)
            self._make(most_share)
            self._warm()
        elif self.limit == LEAST_HASH and requests >= self._rests_until:
            self.limit = limit_of(self._share)
            self._warm()

    def _warm(self) -> None:
        self._counts = False
        self._left = max(1, round(_WARMING * FACTORS[-1] * self.entries * self._share))

    def _count_from(self, requests: float) -> None:
        self._counts = True
        self._began = requests
        self._left = _COUNTED_USES

    def _rest(self, requests: float) -> None:
        self._rests_until = requests + _REST * (requests - self._began)
        self._end_span(requests)
        self.limit = LEAST_HASH

    def _end_span(self, requests: float) -> None:
        if self._counts:
            self._counted += requests - self._began
        self._counts = False

    def sizes(self) -> list[float]:
        """Return the simulated sizes in entries."""
        return list(self._sizes)

    def gains(self, sizes: npt.ArrayLike, *, requests: float) -> npt.NDArray[np.float64]:
        """Return how much higher the hit rate is than that of LRU, at some sizes.

        Args:
            sizes: in entries.
            requests: the number of all requests.
        """
        counted = self._counted + (requests - self._began if self._counts else 0.0)
        if counted <= 0:
            return np.zeros(np.shape(sizes))
        at = np.log(np.maximum(1.0, np.asarray(sizes, dtype=float)))
        gains = np.maximum(0.0, self._gains)
        return np.asarray(np.interp(at, np.log(self._sizes), gains)) / counted

    def age(self) -> None:
        """Halve all counts so far."""
        self._counted /= 2
        self._began /= 2
        self._rests_until /= 2
        self._gains = [gain / 2 for gain in self._gains]
