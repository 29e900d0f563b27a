"""How often W-TinyLFU would have hit at several sizes: caches so small that many of them cost little.

W-TinyLFU has no reuse distance that tells its hits, so it is simulated (`miniature`).

The sizes are doublings around the cache's present size, and the largest has `_MOST_ENTRIES` entries. So the share of
keys that is sampled follows from the present size, and the memory is bounded.

With so few keys, luck has a large part in the hit rate. It has the same part in the hit rate of LRU on the same sample.
So a miniature tells how much *more* it hit than LRU of its size did on the same requests, and that difference is added
to the curve of LRU, which is exact in expectation. Between the sizes it is interpolated, beyond them it stays.

The miniatures keep the window that the policy begins with. The cache itself finds the best window for its load, and
with a large one it is LRU. So where a miniature hits less than LRU, the difference is taken for none.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from millpond.cache.miniature import Miniature, limit_of

_MOST_ENTRIES = 128
_MOST_SHARE = 0.25
FACTORS: Final = (0.25, 0.5, 1.0, 2.0)
"""The sizes that are simulated, over the present one."""


class Miniatures:
    """W-TinyLFU at several sizes around the present one, against LRU on the same requests.

    Args:
        entries: the present size.
        began: how many requests there were before.

    Attributes:
        limit: the hashes below this are sampled.
        entries: the present size that the others are around.

    >>> Miniatures(102_400).sizes()
    [25600.0, 51200.0, 102400.0, 204800.0]
    """

    __slots__ = ("_began", "_caches", "_gains", "_share", "_sizes", "entries", "limit")

    def __init__(self, entries: int, *, began: float = 0.0) -> None:
        self._began = began
        self.entries = max(1, entries)
        self._share = min(_MOST_SHARE, _MOST_ENTRIES / (FACTORS[-1] * self.entries))
        self.limit = limit_of(self._share)
        small = [max(1, round(self.entries * factor * self._share)) for factor in FACTORS]
        self._caches = [Miniature(size) for size in small]
        self._sizes = [size / self._share for size in small]
        self._gains = [0.0] * len(small)

    def use(self, spread: int, distance: float) -> None:
        """Ask every miniature for a sampled key, whose reuse distance says what LRU has."""
        gains = self._gains
        for place, cache in enumerate(self._caches):
            gains[place] += cache.use(spread) - (distance <= self._sizes[place])

    def sizes(self) -> list[float]:
        """The sizes in entries that are simulated."""
        return list(self._sizes)

    def gains(self, sizes: npt.ArrayLike, *, requests: float) -> npt.NDArray[np.float64]:
        """How much higher than LRU's the hit rate is at some sizes.

        Args:
            sizes: in entries.
            requests: how many there were in all.
        """
        if requests <= self._began:
            return np.zeros(np.shape(sizes))
        at = np.log(np.maximum(1.0, np.asarray(sizes, dtype=float)))
        gains = np.maximum(0.0, self._gains)
        return np.asarray(np.interp(at, np.log(self._sizes), gains)) / ((requests - self._began) * self._share)

    def age(self) -> None:
        """Let what was counted so far count half."""
        self._began /= 2
        self._gains = [gain / 2 for gain in self._gains]
