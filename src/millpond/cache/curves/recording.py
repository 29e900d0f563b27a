"""What is recorded of one cache, to draw its hit-rate curves.

Place on the data path: beside a cache, which tells it every key that is asked for. Most keys cost it a hash and a
comparison; those of the sample are counted (`reuse_distances`, `miniatures`). The structures stay within `MOST_BYTES`,
whatever the cache holds.

Weights are read when keys are written: at every write at first, and once `_WRITES_TOLD_AT_FIRST` were seen at one in
`_WRITES_PER_TOLD`. Most keys of the sample are known by then, and weights change slowly.

The invariant: nothing here changes what the cache answers.
"""

import weakref
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from millpond.cache.api import Bounds, Policy
from millpond.cache.curves.curve import HitRateCurve, Point
from millpond.cache.curves.miniatures import Miniatures
from millpond.cache.curves.near_distances import NearDistances
from millpond.cache.curves.reuse_distances import BUCKETS, ReuseDistances

MOST_BYTES: Final = 300_000
"""What a recording takes at most, with all its structures."""

_POINTS = 96
_EVERY_HASH = 1 << 63
_GREATEST_HASH = _EVERY_HASH - 1
_LEAST_ENTRIES = 16
_RESIZED = 2.0
_USES_PER_FIT = 1_024
_WRITES_TOLD_AT_FIRST = 1 << 16
_WRITES_PER_TOLD = 16
_numbers = count()


class Counted(Protocol):
    """The counts of a cache that the recording needs, see `CacheStats`."""

    # ruff: noqa: D102 - `CacheStats` and `Cache` say what these mean
    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...
    @property
    def entries(self) -> int: ...
    @property
    def bytes(self) -> int | None: ...


class Recorded(Protocol):
    """A cache, as far as a recording knows it: every `Cache`, and the LRU cache of state."""

    name: str

    @property
    def bounds(self) -> Bounds: ...
    @property
    def policy(self) -> Policy: ...
    def stats(self) -> Counted: ...
    def resize(self, bounds: Bounds) -> None: ...


class Recording:
    """The recording of one cache; it does not keep the cache alive.

    Args:
        cache: the cache that tells of its keys.
        policies: whose curves are wanted. LRU is always drawn.

    Attributes:
        name: the cache's.
        number: grows from recording to recording.
        requests: how many there were since the recording began.
    """

    __slots__ = (
        "__weakref__",
        "_cache",
        "_distances",
        "_limit",
        "_miniatures",
        "_near",
        "_simulates",
        "_told",
        "name",
        "number",
        "requests",
    )

    def __init__(self, cache: Recorded, policies: tuple[Policy, ...] = ("lru", "w-tinylfu")) -> None:
        self.name = cache.name
        self.number = next(_numbers)
        self.requests = 0.0
        self._told = 0
        self._cache = weakref.ref(cache)
        self._distances = ReuseDistances()
        self._limit = self._distances.limit
        self._near = NearDistances()
        self._simulates = "w-tinylfu" in policies
        self._miniatures: Miniatures | None = None
        self.fit_miniatures()

    @property
    def cache(self) -> Recorded | None:
        """The cache, as long as there is one."""
        return self._cache()

    def asked(self, key: Hashable) -> None:
        """A key is asked for."""
        self.requests += 1
        spread = hash((key,))
        if spread < self._limit:
            self._use(spread)
            self._begin_burst_if_due()

    def asked_many(self, keys: Sequence[Hashable]) -> None:
        """Some keys are asked for at once: all are looked up before those that are missing are put."""
        self.requests += len(keys)
        self._begin_burst_if_due()
        # In C from key to key: a comparison in Python would cost more than the hash.
        self._use_together(list(filter(self._limit.__gt__, map(hash, zip(keys)))))

    def asked_hashes(self, spreads: npt.NDArray[np.int64]) -> None:
        """As `asked_many`, of hashes of 64 bits in which all bits are mixed. These keys are never `wrote`."""
        self.requests += len(spreads)
        self._begin_burst_if_due()
        self._use_together(spreads[spreads < min(self._limit, _GREATEST_HASH)].tolist())

    def wrote(self, key: Hashable, value: Any, weigh: Callable[[Any, Any], int]) -> int:
        """A key was put; `weigh` gives the bytes of a key and its value. Returns at which write to call again."""
        spread = hash((key,))
        if spread < self._distances.limit:
            self._distances.weigh(spread, weigh(key, value))
        self._told += 1
        return 1 if self._told < _WRITES_TOLD_AT_FIRST else _WRITES_PER_TOLD

    def _begin_burst_if_due(self) -> None:
        if self._near.begin_if_due(self.requests):
            self._limit = _EVERY_HASH

    def _use(self, spread: int) -> None:
        """A key of the sample, or any key during a burst."""
        distances, miniatures, near = self._distances, self._miniatures, self._near
        if near.is_on:
            near.use(spread, self.requests)
        if spread >= distances.limit:
            if not near.is_on:
                self._limit = distances.limit
            return
        distance = distances.use(spread)
        if not near.is_on:
            self._limit = distances.limit
        if miniatures is not None and spread < miniatures.limit:
            miniatures.use(spread, distance, self.requests)
        if not distances.now % _USES_PER_FIT:
            self.fit_miniatures()

    def _use_together(self, spreads: list[int]) -> None:
        """Some keys of the sample, or any keys during a burst."""
        if len(spreads) <= 1:
            for spread in spreads:
                self._use(spread)
            return
        distances, miniatures, near = self._distances, self._miniatures, self._near
        if near.is_on:
            for spread in spreads:
                near.use(spread, self.requests)
                if not near.is_on:
                    break
        limit, before = distances.limit, distances.now
        if self._limit > limit:
            spreads = [spread for spread in spreads if spread < limit]
        found = distances.use_together(spreads)
        self._limit = _EVERY_HASH if near.is_on else distances.limit
        if miniatures is not None:
            limit = miniatures.limit
            simulated = [(spread, distance) for spread, distance in zip(spreads, found, strict=True) if spread < limit]
            if simulated:
                asked, apart = zip(*simulated, strict=True)
                miniatures.use_together(asked, apart, self.requests)
        if distances.now // _USES_PER_FIT > before // _USES_PER_FIT:
            self.fit_miniatures()

    def fit_miniatures(self) -> None:
        """Simulate W-TinyLFU around the cache's present size, if that is far from the former, and now and then."""
        cache = self._cache()
        if cache is None or not self._simulates:
            return
        entries, share = self.present_entries(cache), self._distances.share
        before = self._miniatures
        if entries and (before is None or not 1 / _RESIZED < entries / before.entries < _RESIZED):
            self._miniatures = Miniatures(entries, began=self.requests, most_share=share)
        elif before is not None:
            before.attend(self.requests, share)

    def present_entries(self, cache: Recorded) -> int:
        """The size of the cache in entries: what it holds, if it has no bound; 0 in bytes, if no entry was weighed."""
        bounds = cache.bounds
        if bounds.max_bytes is None:
            return cache.stats().entries if bounds.max_entries is None else bounds.max_entries
        mean = self._mean_bytes(cache)
        if not mean:
            return 0
        in_bytes = int(bounds.max_bytes / mean)
        return in_bytes if bounds.max_entries is None else min(in_bytes, bounds.max_entries)

    def curve(self, policy: Policy) -> HitRateCurve | None:
        """The curve of a policy; None if it is not recorded, or nothing was asked for yet."""
        cache, distances, miniatures = self._cache(), self._distances, self._miniatures
        if cache is None or not self.requests or (policy == "w-tinylfu" and miniatures is None):
            return None
        most = max(2.0 * self.present_entries(cache), 1.1 * distances.keys(), 2.0 * _LEAST_ENTRIES)
        sizes = np.geomspace(_LEAST_ENTRIES, most, _POINTS)
        near, counted = self._near.counts(BUCKETS), self._near.counted
        scaled = near * (self.requests / counted) if counted else None
        rates = distances.hit_rates(sizes, requests=self.requests, near=scaled)
        if policy == "w-tinylfu" and miniatures is not None:
            gains = miniatures.gains(sizes, requests=self.requests)
            # With room for every key all policies are one.
            rates = np.maximum.accumulate(np.clip(np.minimum(rates + gains, rates[-1]), 0.0, 1.0))
        in_bytes = distances.bytes_of(sizes) if distances.mean_weight() else sizes * self._mean_bytes(cache)
        return HitRateCurve(tuple(map(Point, sizes.tolist(), in_bytes.tolist(), rates.tolist())))

    def age(self) -> None:
        """Let what was recorded so far count half."""
        self.requests /= 2
        self._distances.age()
        self._near.age()
        if self._miniatures is not None:
            self._miniatures.age()

    def _mean_bytes(self, cache: Recorded) -> float:
        mean = self._distances.mean_weight()
        if mean:
            return mean
        stats = cache.stats()
        return stats.bytes / stats.entries if stats.bytes and stats.entries else 0.0
