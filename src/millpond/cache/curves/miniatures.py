"""How often W-TinyLFU would have hit at several sizes: caches so small that many of them cost little.

W-TinyLFU has no reuse distance that tells its hits, so it is simulated (`miniature`).

The sizes are doublings around the cache's present size, and the largest has `_MOST_ENTRIES` entries. So the share of
keys that is sampled follows from the present size, and the memory is bounded. It is never more than the share that the
reuse distances are sampled from, since a key without a distance cannot be compared. When that falls, smaller miniatures
take over.

With so few keys, luck has a large part in the hit rate. It has the same part in the hit rate of LRU on the same sample.
So a miniature tells how much *more* it hit than LRU of its size did on the same requests, and that difference is added
to the curve of LRU, which is exact in expectation. Between the sizes it is interpolated, below them it stays. Above
them the recording lets it end, with room for every key.

Which keys are in the sample stays luck, however many requests are counted, and a miniature costs some microseconds a
request. So after every `_COUNTED_USES` the miniatures *rest* for `_REST` times as many requests. Then they have other
contents than a cache that was in use, so the next uses, `_WARMING` for each of their entries, are not counted.

The miniatures keep the window that the policy begins with. The cache itself finds the best window for its load, and
with a large one it is LRU. So where a miniature hits less than LRU, the difference is taken for none.
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
"""The sizes that are simulated, over the present one."""


class Miniatures:
    """W-TinyLFU at several sizes around the present one, against LRU on the same requests.

    Args:
        entries: the present size.
        began: how many requests there were before.
        most_share: the share of the keys whose reuse distances are known.

    Attributes:
        limit: the hashes below this are sampled; none while the miniatures rest.
        entries: the present size that the others are around.

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
        # Requests of former spans that were counted, and since when this one is. LRU begins empty, too: no warming.
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
        """Ask every miniature for a sampled key.

        Args:
            spread: the key's hash.
            distance: its reuse distance, which says what LRU has.
            requests: how many there were so far.
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
        """Ask every miniature for sampled keys that are looked up before any of them is put; see `use`."""
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
        """End a rest that was long enough, and sample less where fewer keys have a distance; asked now and then."""
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
        """The sizes in entries that are simulated."""
        return list(self._sizes)

    def gains(self, sizes: npt.ArrayLike, *, requests: float) -> npt.NDArray[np.float64]:
        """How much higher than LRU's the hit rate is at some sizes.

        Args:
            sizes: in entries.
            requests: how many there were in all.
        """
        counted = self._counted + (requests - self._began if self._counts else 0.0)
        if counted <= 0:
            return np.zeros(np.shape(sizes))
        at = np.log(np.maximum(1.0, np.asarray(sizes, dtype=float)))
        gains = np.maximum(0.0, self._gains)
        return np.asarray(np.interp(at, np.log(self._sizes), gains)) / counted

    def age(self) -> None:
        """Let what was counted so far count half."""
        self._counted /= 2
        self._began /= 2
        self._rests_until /= 2
        self._gains = [gain / 2 for gain in self._gains]
