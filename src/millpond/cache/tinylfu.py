"""W-TinyLFU: evicts the least frequently used key, but gives new keys time to be used.

LRU does badly if many keys are requested only once: each of them evicts a key that would be requested
again. LFU does badly if popularity changes. W-TinyLFU [1] combines the two with three segments of the
cache and one sketch of frequencies (`sketch`):

    put ──> window (LRU) ──────> probation ──> evicted
                                    │   ▲
                              used  ▼   │ protected is over its share
                                  protected (80 % of the rest)

A new key enters the *window*, so a burst of requests can raise its count. A key that falls out of the
window is a candidate for the main part, a segmented LRU [2]: *probation* has the keys that were not
used since they entered the main part, *protected* those that were. If there is no room, the sketch
compares the candidate with the least recently used key of probation. The candidate stays only if it
was requested more often. A tie keeps the old key, so a scan does not displace the cache's contents.

The invariant: a key is in exactly one segment, and the window and protected are within their shares
after every call (probation takes the rest). A key is evicted by its own put only if the window is too
small to hold it.

The best size of the window depends on the load: much recency needs a large one, stable frequencies a
small one. So the share starts at 20 %. After every ten requests per entry it becomes the share for
which `best_window` found the most hits.

The trade-off: a call takes microseconds, against a fraction of one for LRU. So W-TinyLFU pays if a miss
is expensive (a network or a disk behind the cache). Caffeine admits one rejected candidate in 128 by
chance, as a defence against keys chosen to collide in the sketch. Here decisions are repeatable instead,
and strangers do not choose the keys.

1. Einziger, Friedman, Manes: "TinyLFU: a highly efficient cache admission policy" (2017).
2. Karedla, Love, Wherry: "Caching strategies to improve disk system performance" (1994).
Caffeine's `BoundedLocalCache` is the reference implementation.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from typing import Generic, Protocol

from millpond.cache.api import K
from millpond.cache.order import Segment
from millpond.cache.sketch import FrequencySketch

_PROTECTED_SHARE = 0.8
_SAMPLE_PER_ENTRY = 10
_FIRST_SHARE = 0.2
_NONE = -(1 << 63)
"""The lowest hash: no hash is below it."""

_LEAST_SAMPLED_ENTRIES = 50


class Windows(Protocol):
    """Finds the best share of the window while the cache runs; `best_window` implements it."""

    limit: int
    """Only keys whose hashes are below this are passed to `use`."""

    def use(self, spread: int) -> None:
        """Record a request for a key, given by its hash."""

    def choose(self, entries: int) -> float | None:
        """Return the best share for a cache of `entries` entries; None keeps the present one."""


class TinyLfuOrder(Generic[K]):
    """The eviction order of `policy="w-tinylfu"`, for bounds in entries, bytes or both.

    Args:
        max_entries: the largest number of entries; None means no limit.
        max_bytes: the largest number of bytes; None means no limit.
        window: the window's share at the beginning; None means 20 %.
        windows: finds a better share; None keeps the first one.
    """

    def __init__(
        self,
        max_entries: int | None,
        max_bytes: int | None,
        window: float | None = None,
        windows: Windows | None = None,
    ) -> None:
        self._bound(max_entries, max_bytes)
        self._sketch = FrequencySketch()
        self._window: Segment[K] = Segment()
        self._probation: Segment[K] = Segment()
        self._protected: Segment[K] = Segment()
        self._home: dict[K, Segment[K]] = {}
        self._candidates: list[K] = []
        self._windows = windows
        self._wanted = _NONE
        self._window_share = _FIRST_SHARE if window is None else window
        self._share()
        self._choose_window()

    def _bound(self, max_entries: int | None, max_bytes: int | None) -> None:
        self._max_entries: float = inf if max_entries is None else max_entries
        self._max_bytes: float = inf if max_bytes is None else max_bytes

    def __contains__(self, key: K) -> bool:
        return key in self._home

    def resize(self, max_entries: int | None, max_bytes: int | None) -> None:
        """Give the segments their shares of the new bounds. Keys that fall out of the window compete as candidates."""
        self._bound(max_entries, max_bytes)
        self._candidates.clear()
        self._share()

    def added(self, key: K, weight: int) -> None:
        """Put a new key into the window. Keys that fall out of it become candidates."""
        self._sketch.ensure_width(len(self._home) + 1)
        self._count(key)
        self._place(key, weight, self._window)
        self._candidates.clear()
        self._settle()

    def replaced(self, key: K, weight: int) -> None:
        """Count a use of a key that was put again. Its new weight may move other keys between segments."""
        self._home[key].reweigh(key, weight)
        self._candidates.clear()
        self.read(key)
        self._settle()

    def read(self, key: K) -> None:
        """Move a used key to the end of its segment, or from probation to protected."""
        self._count(key)
        home = self._home[key]
        if home is self._probation:
            self._move(key, self._protected)
            self._settle_protected()
        else:
            home.weights.move_to_end(key)

    def read_all(self, keys: Sequence[K]) -> None:
        """Record a use of each key in turn, as `read` does.

        Counting does not depend on the segments, so all keys are counted before any is moved. If the window is chosen
        during these reads, they are recorded one by one, because the choice changes the segments.
        """
        if len(keys) >= self._until_choice:
            for key in keys:
                self.read(key)
            return
        self._until_choice -= len(keys)
        sampled = self._sketch.increment_all(keys, self._wanted)
        if self._windows is not None:
            for spread in sampled:
                self._windows.use(spread)
        home, probation = self._home, self._probation
        for key in keys:
            segment = home[key]
            if segment is probation:
                self._move(key, self._protected)
                self._settle_protected()
            else:
                segment.weights.move_to_end(key)

    def removed(self, key: K) -> None:
        """Remove the key. The sketch keeps its count."""
        self._home.pop(key).remove(key)
        if key in self._candidates:
            self._candidates.remove(key)

    def victim(self) -> K:
        """Return the less frequent of the first candidate and the coldest key of the main part."""
        coldest = self._coldest()
        if not self._candidates:
            return coldest
        candidate = self._candidates[0]
        if coldest == candidate:
            return candidate
        if self._sketch.frequency(candidate) > self._sketch.frequency(coldest):
            return coldest
        return candidate

    def keys(self) -> Iterator[K]:
        """Iterate over probation, then the window, then protected, each from its coldest key."""
        return chain(self._probation.weights, self._window.weights, self._protected.weights)

    def _coldest(self) -> K:
        for key in self._probation.weights:
            if key not in self._candidates:
                return key
        for segment in (self._protected, self._probation, self._window):
            if segment.weights:
                return segment.oldest()
        raise KeyError("an empty cache has no victim")

    def _place(self, key: K, weight: int, segment: Segment[K]) -> None:
        segment.append(key, weight)
        self._home[key] = segment

    def _move(self, key: K, segment: Segment[K]) -> None:
        self._place(key, self._home[key].remove(key), segment)

    def _settle(self) -> None:
        while self._window.is_over():
            key = self._window.oldest()
            self._move(key, self._probation)
            self._candidates.append(key)
        self._settle_protected()

    def _settle_protected(self) -> None:
        while self._protected.is_over():
            self._move(self._protected.oldest(), self._probation)

    def _count(self, key: K) -> None:
        spread = self._sketch.increment(key)
        if spread < self._wanted and self._windows is not None:
            self._windows.use(spread)
        self._until_choice -= 1
        if not self._until_choice:
            self._choose_window()

    def _choose_window(self) -> None:
        entries = len(self._home) if self._max_entries == inf else int(self._max_entries)
        self._until_choice = _SAMPLE_PER_ENTRY * max(entries, _LEAST_SAMPLED_ENTRIES)
        if self._windows is not None:
            best = self._windows.choose(entries)
            self._wanted = self._windows.limit
            if best is not None and best != self._window_share:
                self._window_share = best
                self._share()

    def _share(self) -> None:
        window, main = self._window_share, 1 - self._window_share
        if self._max_entries == inf:
            self._window.max_entries = self._protected.max_entries = inf
        else:
            self._window.max_entries = max(1, int(self._max_entries * window))
            rest = max(0, self._max_entries - self._window.max_entries)
            self._protected.max_entries = int(rest * _PROTECTED_SHARE)
        self._window.max_bytes = self._max_bytes * window
        self._protected.max_bytes = self._max_bytes * main * _PROTECTED_SHARE
        self._settle()
