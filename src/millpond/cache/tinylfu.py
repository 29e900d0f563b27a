"""W-TinyLFU: what is used least often goes, unless it is new.

LRU is poor where many keys come once: each of them pushes out a key that would have been asked for
again. LFU is poor where popularity moves. W-TinyLFU [1] joins the two with three segments of the
cache and one sketch of frequencies (`sketch`):

    put ──> window (LRU) ──────> probation ──> evicted
                                    │   ▲
                              used  ▼   │ protected is over its share
                                  protected (80 % of the rest)

A new key enters the *window*, so a burst has a chance to build up. What falls out of the window is
a candidate for the main part, a segmented LRU [2]: *probation* for what was used once since it came
in, *protected* for more. When there is no room, the candidate meets the key of probation that was
used longest ago, and the sketch decides: only a candidate that was seen more often stays. A tie
keeps what is there, which makes the cache deaf to scans.

The invariant: a key is in exactly one segment, and the window and protected are within their
shares after every call (probation takes what they leave). A just-put key is evicted by its own put
only when the window is too small to hold it.

How large the window should be depends on the load: recency wants a large one, frequency a small
one. So the share starts at 20 %, and after every ten requests per entry it becomes the one that
`best_window` found to hit most.

Trade-offs: microseconds a call where LRU takes a fraction of one, so it pays where a miss is dear
(a network or a disk behind the cache). Caffeine lets
one rejected candidate in 128 win by lot, against keys chosen to collide in the sketch; decisions
here are repeatable instead, and keys are not chosen by strangers.

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
"""No hash is below this."""

_LEAST_SAMPLED_ENTRIES = 50


class Windows(Protocol):
    """Finds the best share of the window while the cache runs, see `best_window`."""

    limit: int
    """The hashes of the keys below this are wanted."""

    def use(self, spread: int) -> None:
        """A key is asked for, given by its hash."""

    def choose(self, entries: int) -> float | None:
        """The best share for a cache of so many entries; None keeps the present one."""


class TinyLfuOrder(Generic[K]):
    """The eviction order of `policy="w-tinylfu"`, for bounds in entries, bytes or both.

    Args:
        max_entries: how many entries at most; None is no such bound.
        max_bytes: how many bytes at most; None is no such bound.
        window: the share of the window to begin with; None is 20 %.
        windows: finds a better share; None keeps it.
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
        """The segments have their shares of the new bounds; what falls out of the window meets the main part."""
        self._bound(max_entries, max_bytes)
        self._candidates.clear()
        self._share()

    def added(self, key: K, weight: int) -> None:
        """A new key enters the window; what falls out of it becomes a candidate."""
        self._sketch.ensure_width(len(self._home) + 1)
        self._count(key)
        self._place(key, weight, self._window)
        self._candidates.clear()
        self._settle()

    def replaced(self, key: K, weight: int) -> None:
        """A key that is put again counts as used; its weight may push others on."""
        self._home[key].reweigh(key, weight)
        self._candidates.clear()
        self.read(key)
        self._settle()

    def read(self, key: K) -> None:
        """A used key moves to the end of its segment, out of probation into protected."""
        self._count(key)
        home = self._home[key]
        if home is self._probation:
            self._move(key, self._protected)
            self._settle_protected()
        else:
            home.weights.move_to_end(key)

    def read_all(self, keys: Sequence[K]) -> None:
        """As `read` for each in turn: counting does not look at the segments, but where a window is chosen."""
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
        """Forget the key; the sketch remembers how often it came."""
        self._home.pop(key).remove(key)
        if key in self._candidates:
            self._candidates.remove(key)

    def victim(self) -> K:
        """The loser of the newest candidate and the coldest key of the main part."""
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
        """Probation first, then the window, then protected; each from its coldest key."""
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
