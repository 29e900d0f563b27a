"""Records the requests of one cache and computes its hit-rate curves.

Place on the data path: beside a cache, which reports every requested key. Most keys cost a hash and a comparison. Only
keys in the sample are counted (`reuse_distances`, `miniatures`). If few keys are sampled, `_USED_TOGETHER` of them are
counted together. Counted one by one, this code and data would not be in the processor's caches, and a key would take
three times as long. The structures stay within `MOST_BYTES`, whatever the cache holds.

The bytes of entries are read when keys are written: at first at every write, and after `_WRITES_TOLD_AT_FIRST` writes
at one in `_WRITES_PER_TOLD`. By then most keys of the sample are known, and sizes change slowly.

Invariant: a recording never changes what the cache returns.
"""

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from millpond.cache.api import Bounds, Policy
from millpond.cache.curves.curve import HitRateCurve, Point
from millpond.cache.curves.miniatures import Miniatures
from millpond.cache.curves.near_distances import NearDistances
from millpond.cache.curves.own_rate import Counted, OwnRate
from millpond.cache.curves.reuse_distances import BUCKETS, ReuseDistances
from millpond.cache.miniature import EVERY_HASH

MOST_BYTES: Final = 300_000
"""The most memory that a recording takes, with all its structures."""

_POINTS = 96
_GREATEST_HASH = EVERY_HASH - 1
_LEAST_ENTRIES = 16
_RESIZED = 2.0
_USES_PER_FIT = 1_024
_USED_TOGETHER = 64
_WRITES_TOLD_AT_FIRST = 1 << 16
_WRITES_PER_TOLD = 16
_numbers = count()


class Recorded(Protocol):
    """A cache that can be recorded: every `Cache`, and the LRU cache of state."""

    # ruff: noqa: D102 - `Cache` says what these mean
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
        cache: the cache that reports its keys.
        policies: the policies whose curves are wanted. LRU always has a curve.
        fed_apart: whether another component decides which keys are put, whatever room this cache has. A request can
            then hit only after its key was put, and W-TinyLFU is not simulated.

    Attributes:
        limit: hashes below this are wanted: those of the sample, or all during a burst.
        name: the cache's name.
        number: a number that grows from recording to recording.
        requests: the number of requests since the recording began, see `Watcher`. `age` halves it.
    """

    __slots__ = (
        "__weakref__",
        "_cache",
        "_distances",
        "_fed_apart",
        "_miniatures",
        "_near",
        "_own_rate",
        "_requests_used",
        "_simulates",
        "_told",
        "_waiting",
        "limit",
        "name",
        "number",
        "requests",
    )

    def __init__(
        self, cache: Recorded, policies: tuple[Policy, ...] = ("lru", "w-tinylfu"), *, fed_apart: bool = False
    ) -> None:
        self.name = cache.name
        self.number = next(_numbers)
        self.requests = self._requests_used = 0.0
        self._waiting: list[int] = []
        self._told = 0
        self._cache = weakref.ref(cache)
        self._distances = ReuseDistances()
        self.limit = self._distances.limit
        self._near = NearDistances()
        self._fed_apart = fed_apart
        self._simulates = "w-tinylfu" in policies and not fed_apart
        self._miniatures: Miniatures | None = None
        self._own_rate = OwnRate(cache) if "w-tinylfu" in policies and cache.policy == "w-tinylfu" else None
        self.fit_miniatures()

    @property
    def cache(self) -> Recorded | None:
        """The cache; None if it is gone."""
        return self._cache()

    def asked(self, key: Hashable) -> None:
        """Record the request of a key."""
        self.requests += 1
        spread = hash((key,))
        if spread < self.limit:
            self.use(spread)

    def asked_many(self, keys: Sequence[Hashable]) -> None:
        """Record a request for several keys at once: all are looked up before the missing ones are put."""
        self.asked_cells(zip(keys), len(keys))

    def asked_cells(self, cells: Iterable[tuple[Hashable, ...]], count: int) -> None:
        """Like `asked_many`, for `count` keys, each given as the tuple that is hashed."""
        self._use_waiting()
        self.requests += count
        if self._fed_apart:
            self._distances.use_in_turn(list(filter(self._distances.limit.__gt__, map(hash, cells))), only_put=True)
            self.limit = self._distances.limit
            self._requests_used = self.requests
            return
        spreads: Iterable[int] = map(hash, cells)
        if self._near.begin_if_due(self.requests):
            spreads = self._seen_near(list(spreads))
        # This loops in C: a comparison in Python would cost more than the hash.
        self._use_together(list(filter(self._distances.limit.__gt__, spreads)))

    def asked_hashes(self, spreads: npt.NDArray[np.int64]) -> None:
        """Like `asked_many`, for keys given by well-mixed 64-bit hashes. `wrote` is never called for these keys."""
        self._use_waiting()
        self.requests += len(spreads)
        if self._near.begin_if_due(self.requests):
            self._seen_near(spreads.tolist())
        self._use_together(spreads[spreads < min(self._distances.limit, _GREATEST_HASH)].tolist())

    def wrote(self, key: Hashable, value: Any, weigh: Callable[[Any, Any], int]) -> int:
        """Record a put; `weigh` returns the bytes of key and value. Return after how many writes to call again."""
        spread = hash((key,))
        if spread < self._distances.limit:
            self._use_waiting()
            if self._fed_apart:
                self._distances.put(spread)
            self._distances.weigh(spread, weigh(key, value))
        self._told += 1
        return 1 if self._fed_apart or self._told < _WRITES_TOLD_AT_FIRST else _WRITES_PER_TOLD

    def use(self, spread: int) -> None:
        """Record the request of a key whose hash is below `limit`. The caller has added it to `requests`."""
        self._waiting.append(spread)
        if len(self._waiting) == _USED_TOGETHER or self.limit == EVERY_HASH:
            self._use_waiting()

    def _use_waiting(self) -> None:
        """Count the waiting keys of the sample, one after the other; during a burst, every waiting key."""
        waiting, self._waiting = self._waiting, []
        self._requests_used = self.requests
        distances, near = self._distances, self._near
        if self._fed_apart:
            distances.use_in_turn(waiting, only_put=True)
            self.limit = distances.limit
            return
        if near.is_on:
            waiting = list(filter(distances.limit.__gt__, self._seen_near(waiting)))
        before = distances.now
        self._simulate_in_turn(waiting, distances.use_in_turn(waiting))
        self._fit_if_due(before)
        self.limit = EVERY_HASH if near.begin_if_due(self.requests) else distances.limit

    def _simulate_in_turn(self, spreads: list[int], distances: list[float]) -> None:
        miniatures = self._miniatures
        if miniatures is None:
            return
        limit = miniatures.limit
        for spread, distance in zip(spreads, distances, strict=True):
            if spread < limit:
                miniatures.use(spread, distance, self.requests)
                limit = miniatures.limit

    def _fit_if_due(self, before: int) -> None:
        """Fit the miniatures if that is due since the time `before`."""
        if self._distances.now // _USES_PER_FIT > before // _USES_PER_FIT:
            self.fit_miniatures()

    def _seen_near(self, spreads: list[int]) -> list[int]:
        """Count keys in the burst until it ends. Return the same keys."""
        near = self._near
        for spread in spreads:
            near.use(spread, self.requests)
            if not near.is_on:
                break
        return spreads

    def _use_together(self, spreads: list[int]) -> None:
        """Count several keys of the sample, requested at once."""
        self._requests_used = self.requests
        if not spreads:
            return
        distances, miniatures, before = self._distances, self._miniatures, self._distances.now
        found = distances.use_together(spreads)
        self.limit = EVERY_HASH if self._near.is_on else distances.limit
        if miniatures is not None:
            limit = miniatures.limit
            simulated = [(spread, distance) for spread, distance in zip(spreads, found, strict=True) if spread < limit]
            if simulated:
                asked, apart = zip(*simulated, strict=True)
                miniatures.use_together(asked, apart, self.requests)
        self._fit_if_due(before)

    def fit_miniatures(self) -> None:
        """Start new miniatures if the cache's size changed by `_RESIZED` or more; else attend to the present ones."""
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
        """Return the size of the cache in entries.

        Without a bound, this is the number of entries it holds. With a bound in bytes it is an estimate; 0 if no entry
        was weighed.
        """
        bounds = cache.bounds
        if bounds.max_bytes is None:
            return cache.stats().entries if bounds.max_entries is None else bounds.max_entries
        mean = self._mean_bytes(cache)
        if not mean:
            return 0
        in_bytes = int(bounds.max_bytes / mean)
        return in_bytes if bounds.max_entries is None else min(in_bytes, bounds.max_entries)

    def curve(self, policy: Policy) -> HitRateCurve | None:
        """Return the curve of a policy; None if it is not recorded, the cache is gone, or there was no request."""
        cache, distances, miniatures = self._cache(), self._distances, self._miniatures
        requests = self._requests_used
        is_drawn = policy == "lru" or miniatures is not None or self._own_rate is not None
        if cache is None or not requests or not is_drawn:
            return None
        most = max(2.0 * self.present_entries(cache), 1.1 * distances.keys(), 2.0 * _LEAST_ENTRIES)
        sizes = np.geomspace(_LEAST_ENTRIES, most, _POINTS)
        near, counted = self._near.counts(BUCKETS), self._near.counted
        scaled = near * (requests / counted) if counted else None
        rates = distances.hit_rates(sizes, requests=requests, near=scaled)
        if policy == "w-tinylfu":
            rates = self._with_gains(cache, sizes, rates)
        in_bytes = distances.bytes_of(sizes) if distances.mean_weight() else sizes * self._mean_bytes(cache)
        return HitRateCurve(tuple(map(Point, sizes.tolist(), in_bytes.tolist(), rates.tolist())))

    def _with_gains(
        self, cache: Recorded, sizes: npt.NDArray[np.float64], lru: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Return the hit rates of W-TinyLFU, computed from those of LRU.

        A gain is known up to the largest simulated size, and the error against the cache's own rate up to the present
        size. Beyond these sizes both are scaled by the share of hits that LRU can still win there. So they end at zero
        with room for every key, where all policies are equal.
        """
        could = lru[-1] - lru

        def known_at(size: float) -> npt.NDArray[np.float64]:
            part: npt.NDArray[np.float64] = could / max(1e-9, float(np.interp(size, sizes, could)))
            return np.minimum(1.0, part)

        rates, miniatures = lru.copy(), self._miniatures
        if miniatures is not None:
            rates += miniatures.gains(sizes, requests=self._requests_used) * known_at(miniatures.sizes()[-1])
        own, present = None if self._own_rate is None else self._own_rate.now(cache), self.present_entries(cache)
        if own is not None:
            rates += (own - float(np.interp(present, sizes, rates))) * known_at(present)
        rising: npt.NDArray[np.float64] = np.maximum.accumulate(np.clip(np.minimum(rates, lru[-1]), 0.0, 1.0))
        return rising

    def age(self) -> None:
        """Halve all counts so far."""
        self.requests /= 2
        self._requests_used /= 2
        self._distances.age()
        self._near.age()
        if self._miniatures is not None:
            self._miniatures.age()
        cache = self._cache()
        if self._own_rate is not None and cache is not None:
            self._own_rate.age(cache)

    def _mean_bytes(self, cache: Recorded) -> float:
        mean = self._distances.mean_weight()
        if mean:
            return mean
        stats = cache.stats()
        return stats.bytes / stats.entries if stats.bytes and stats.entries else 0.0
