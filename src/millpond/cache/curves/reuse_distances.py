"""Estimates the hit rate of an LRU cache at every size, from a sample of the keys.

An LRU cache of `n` entries contains a key exactly if fewer than `n` other keys were requested since the key's last use.
That number is the key's *reuse distance*. The distribution of all distances gives the hit rate of LRU at every size at
once [1].

To know all distances, all keys must be remembered. SHARDS [2] remembers only the keys whose hash is below a limit. This
samples keys and not requests, so the sample contains every request of its keys. A distance within the sample is the
true distance times the sampled share of the keys, and is divided by that share. At first all keys are sampled, because
a sample of few keys says little. When there are more than `_MOST_KEYS` keys, the limit is lowered, so the memory is
bounded. After every `_USES_PER_SHARE` requests the share is halved, down to `_LEAST_SHARE` of the keys. By then many
requests are counted, and their counts stay.

A random sample may contain too many or too few of the hot keys, and so too many or too few requests. SHARDS-adj
corrects this. The true number of requests is known. The difference to the sample's, the *surplus*, is added where hot
keys are counted. SHARDS-adj adds it at distance 0. Here it is added at the short distances where the sample differs
from the bursts over all keys (`near_distances`).

Structure: arrays of numbers, no object per key. `_hashes` is sorted, so a key is found by bisection, and the keys to
drop when the limit falls are the last ones. `_uses` has the time of each key's last use. `_recency` has the same times,
sorted. The number of times later than a key's own is its distance. An insertion moves the rest of an array, some
kilobytes, which costs less than a tree in Python.

Distances are counted in a histogram with `PER_OCTAVE` buckets per doubling. A request counts with the reciprocal of the
share that was sampled at that time. Invariant: `_hashes`, `_uses` and `_weights` have one element per sampled key,
`_recency` has the elements of `_uses` sorted, and all hashes are below the limit.

For a cache bounded in bytes, the *profile* gives the bytes of the `n` most recently used keys, for each `n`: an LRU
cache holds as many of these keys as fit. The profile is a mean over time.

1. Mattson, Gecsei, Slutz, Traiger: "Evaluation techniques for storage hierarchies" (1970).
2. Waldspurger, Park, Garthwaite, Ahmad: "Efficient MRC construction with SHARDS" (FAST 2015).
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from math import log2
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_LEAST_HASH = -(1 << 63)
_HASHES = 1 << 64
_FIRST_SHARE = 1.0
_MOST_KEYS = 8_192
_KEPT_KEYS = _MOST_KEYS * 7 // 8
_LEAST_SHARE = 1 / 16
_USES_PER_SHARE = 1 << 16
_LATEST = (1 << 32) - 1
PER_OCTAVE: Final = 32
"""The number of buckets from one power of two to the next."""

BUCKETS: Final = 40 * PER_OCTAVE
_NEW = float("inf")
_COMPARED_TOGETHER = 8
_LARGE_BATCH = 64
"""The least number of keys in a batch that is counted with numpy, which has a fixed cost of some dozen microseconds."""

_DEPTHS = np.exp2(np.arange(40 * 4 + 1) / 4)
"""The numbers of entries at which the profile is kept."""

_USES_PER_PROFILE = 2 * _MOST_KEYS
_MOST_PROFILES = 16


class ReuseDistances:
    """The counts of the reuse distances of requested keys.

    Args:
        share: the initial share of the keys to sample; above 0, at most 1.

    Attributes:
        limit: hashes below this are sampled.
        now: the time: counts the uses of sampled keys. It restarts lower before 32 bits overflow.
        share: the share of all hashes that are below the limit.

    >>> distances = ReuseDistances()
    >>> for _ in range(20):
    ...     for key in range(1000):
    ...         if (spread := hash((key,))) < distances.limit:
    ...             _ = distances.use(spread)
    >>> small, large = distances.hit_rates(np.array([500, 2000]), requests=20_000).tolist()
    >>> small < 0.1, large > 0.9
    (True, True)
    """

    __slots__ = (
        "_cold",
        "_counts",
        "_hashes",
        "_left",
        "_profile",
        "_profiles",
        "_recency",
        "_uses",
        "_weights",
        "limit",
        "now",
        "share",
    )

    def __init__(self, share: float = _FIRST_SHARE) -> None:
        self.share = share
        self.limit = _LEAST_HASH + int(share * _HASHES)
        self._hashes = array("q")
        self._uses = array("I")
        self._weights = array("I")
        self._recency = array("I")
        self.now = 0
        self._left = _USES_PER_SHARE
        self._counts = array("d", bytes(8 * BUCKETS))
        self._cold = 0.0
        self._profile = np.zeros(len(_DEPTHS))
        self._profiles = 0

    def use(self, spread: int) -> float:
        """Count a request of a sampled key, given by its hash. Return its distance, infinite for a new key."""
        return self.use_in_turn((spread,))[0]

    def use_in_turn(self, spreads: Sequence[int], *, only_put: bool = False) -> list[float]:
        """Count requests of sampled keys, one after the other. Return their distances.

        Args:
            spreads: the hashes of the keys.
            only_put: whether a key is in the cache only after `put`. Before, it counts as a miss at every size.
        """
        self._left -= len(spreads)
        if self._left <= 0 and self.share > _LEAST_SHARE:
            self._lower_the_limit(_LEAST_HASH + int(self.share / 2 * _HASHES))
        if self.now > _LATEST - len(spreads):
            self._renumber()
        hashes, uses, recency, counts = self._hashes, self._uses, self._recency, self._counts
        limit, share, weight, cold = self.limit, self.share, 1 / self.share, 0
        before = now = self.now
        found: list[float] = []
        for spread in spreads:
            place = bisect_left(hashes, spread)
            if place < len(hashes) and hashes[place] == spread:
                now += 1
                used = bisect_left(recency, uses[place])
                # The middle of the range of true distances that this many sampled keys stand for.
                distance = (len(recency) - used - 0.5) / share
                del recency[used]
                uses[place] = now
                counts[int(log2(distance + 1) * PER_OCTAVE)] += weight
            else:
                distance = _NEW
                if only_put or spread >= limit:
                    # Of a key that just left the sample, nothing is known.
                    cold += spread < limit
                    found.append(distance)
                    continue
                cold += 1
                now += 1
                hashes.insert(place, spread)
                uses.insert(place, now)
                self._weights.insert(place, 0)
            recency.append(now)
            found.append(distance)
        self.now = now
        self._cold += cold * weight
        self._end_uses(before)
        return found

    def _end_uses(self, before: int) -> None:
        """Take a profile if one is due since the time `before`, and keep the sample bounded."""
        if self.now // _USES_PER_PROFILE > before // _USES_PER_PROFILE:
            self._take_profile()
        if len(self._hashes) > _MOST_KEYS:
            self._lower_the_limit(self._hashes[_KEPT_KEYS])

    def put(self, spread: int) -> None:
        """Record that a sampled key was put. From then on, `use_in_turn` counts its distances with `only_put`."""
        place = bisect_left(self._hashes, spread)
        if place == len(self._hashes) or self._hashes[place] != spread:
            cold = self._cold
            self.use(spread)
            self._cold = cold

    def use_together(self, spreads: Sequence[int]) -> list[float]:
        """Count requests of sampled keys that are all looked up before any of them is put. Return their distances.

        So a key's distance does not count the other keys of the batch. A cache puts the missing keys after it used the
        present ones. For caches of all sizes at once, this is about the order of the distances, shortest first.
        """
        if self.now > _LATEST - len(spreads):
            self._renumber()
        before = self.now
        distances = self._use_in_columns(spreads) if len(spreads) >= _LARGE_BATCH else self._use_each(spreads)
        self._left -= len(spreads)
        if self._left <= 0 and self.share > _LEAST_SHARE:
            self._lower_the_limit(_LEAST_HASH + int(self.share / 2 * _HASHES))
        self._end_uses(before)
        return distances

    def _use_each(self, spreads: Sequence[int]) -> list[float]:
        hashes, uses, recency, counts = self._hashes, self._uses, self._recency, self._counts
        share, weight, known = self.share, 1 / self.share, len(self._recency)
        found: dict[int, float] = {}
        moved: list[tuple[int, int]] = []
        new: list[int] = []
        for spread in spreads:
            distance = found.get(spread)
            if distance is None:
                distance = float("inf")
                place = bisect_left(hashes, spread)
                if place < len(hashes) and hashes[place] == spread:
                    used = bisect_left(recency, uses[place])
                    moved.append((used, place))
                    distance = (known - used - 0.5) / share
                else:
                    new.append(spread)
                found[spread] = distance
            if distance < float("inf"):
                counts[int(log2(distance + 1) * PER_OCTAVE)] += weight
            else:
                self._cold += weight
        now = self.now
        moved.sort(reverse=True)
        for used, place in moved:
            del recency[used]
            now += 1
            uses[place] = now
        for spread in new:
            now += 1
            place = bisect_left(hashes, spread)
            hashes.insert(place, spread)
            uses.insert(place, now)
            self._weights.insert(place, 0)
        recency.extend(range(self.now + 1, now + 1))
        self.now = now
        return [found[spread] for spread in spreads]

    def _use_in_columns(self, spreads: Sequence[int]) -> list[float]:
        """Do the same as `_use_each`, with numpy."""
        hashes, uses, recency = np.array(self._hashes), np.array(self._uses), np.array(self._recency)
        distinct, first, request = np.unique(np.array(spreads), return_index=True, return_inverse=True)
        places = np.searchsorted(hashes, distinct)
        is_known = np.zeros(len(distinct), np.bool_)
        within = places < len(hashes)
        is_known[within] = hashes[places[within]] == distinct[within]
        known, new = np.flatnonzero(is_known), np.flatnonzero(~is_known)
        used = np.searchsorted(recency, uses[places[known]])
        found = np.full(len(distinct), np.inf)
        found[known] = (len(recency) - used - 0.5) / self.share
        distances = found[request]
        seen = distances[distances < np.inf]
        buckets = (np.log2(seen + 1) * PER_OCTAVE).astype(np.int64)
        np.frombuffer(self._counts)[:] += np.bincount(buckets, minlength=BUCKETS) / self.share
        self._cold += (len(spreads) - len(seen)) / self.share
        now = self.now
        self.now += len(distinct)
        uses[places[known[np.argsort(-used)]]] = np.arange(now + 1, now + 1 + len(known))
        use_of_new = np.empty(len(new), np.uint32)
        use_of_new[np.argsort(first[new])] = np.arange(now + 1 + len(known), self.now + 1)
        self._hashes = _array("q", np.insert(hashes, places[new], distinct[new]))
        self._uses = _array("I", np.insert(uses, places[new], use_of_new))
        self._weights = _array("I", np.insert(np.array(self._weights), places[new], 0))
        recent = np.arange(now + 1, self.now + 1, dtype=np.uint32)
        self._recency = _array("I", np.append(np.delete(recency, used), recent))
        told: list[float] = distances.tolist()
        return told

    def weigh(self, spread: int, weight: int) -> None:
        """Record the bytes of a sampled key's entry."""
        place = bisect_left(self._hashes, spread)
        if place < len(self._hashes) and self._hashes[place] == spread:
            self._weights[place] = min(weight, _LATEST)

    def weight(self, spread: int) -> int:
        """Return the bytes of a sampled key's entry; 0 if not known."""
        place = bisect_left(self._hashes, spread)
        found = place < len(self._hashes) and self._hashes[place] == spread
        return self._weights[place] if found else 0

    def mean_weight(self) -> float:
        """Return the mean bytes of an entry; 0.0 if none is known."""
        weights = _numbers(self._weights)
        known = weights[weights > 0]
        return float(known.mean()) if len(known) else 0.0

    def keys(self) -> float:
        """Return the estimated number of keys."""
        return len(self._hashes) / self.share

    def hit_rates(
        self,
        sizes: npt.NDArray[np.float64],
        *,
        requests: float,
        near: npt.NDArray[np.float64] | None = None,
    ) -> npt.NDArray[np.float64]:
        """Return the hit rate of LRU at some sizes.

        Args:
            sizes: in entries, 0 or more.
            requests: the number of requests since the counts began.
            near: the number of requests at each short distance, by bucket, counted over all keys and scaled to
                `requests`; None adds the surplus at distance 0.
        """
        counts = np.array(self._counts[:])
        if requests <= 0:
            return np.zeros(np.shape(sizes))
        surplus = requests - counts.sum() - self._cold
        counts += _at_zero(surplus) if near is None else _placed(surplus, counts, near)
        hits = np.append(0.0, np.cumsum(counts))
        hits = np.maximum.accumulate(np.clip(hits, 0.0, requests))
        edges = np.exp2(np.arange(BUCKETS + 1) / PER_OCTAVE) - 1
        return np.asarray(np.interp(sizes, edges, hits)) / requests

    def bytes_of(self, entries: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the bytes that this many of the most recently used entries take."""
        if not self._profiles:
            self._take_profile()
        return np.interp(entries, _DEPTHS, self._profile)

    def age(self) -> None:
        """Halve all counts so far."""
        self._counts = array("d", (count / 2 for count in self._counts))
        self._cold /= 2

    def _take_profile(self) -> None:
        weights, uses = _numbers(self._weights), _numbers(self._uses)
        mean = self.mean_weight()
        known = min(len(weights), len(uses))
        latest_first = np.where(weights > 0, weights, mean)[:known][np.argsort(uses[:known])[::-1]] / self.share
        entries = np.arange(1, known + 1) / self.share
        deepest = entries[-1] if known else 0.0
        within = np.interp(_DEPTHS, np.append(0.0, entries), np.append(0.0, np.cumsum(latest_first)))
        profile = within + mean * np.maximum(0.0, _DEPTHS - deepest)
        before = min(self._profiles, _MOST_PROFILES)
        self._profile = profile if not before else (self._profile * before + profile) / (before + 1)
        self._profiles = before + 1

    def _lower_the_limit(self, limit: int) -> None:
        kept = bisect_left(self._hashes, limit)
        gone = set(self._uses[kept:])
        del self._hashes[kept:], self._uses[kept:], self._weights[kept:]
        self._recency = array("I", (used for used in self._recency if used not in gone))
        self.limit = limit
        self.share = (limit - _LEAST_HASH) / _HASHES
        self._left = _USES_PER_SHARE

    def _renumber(self) -> None:
        """Renumber the times of use from 1, in the same order."""
        number = {used: place + 1 for place, used in enumerate(self._recency)}
        self._uses = array("I", (number[used] for used in self._uses))
        self._recency = array("I", range(1, len(number) + 1))
        self.now = len(number)


def _numbers(values: "array[int]") -> npt.NDArray[np.uint32]:
    """Return a copy: an array could not grow while numpy holds its buffer."""
    return np.array(values[:])


def _array(kind: str, values: npt.NDArray[Any]) -> "array[int]":
    return array(kind, values.tobytes())


def _at_zero(surplus: float) -> npt.NDArray[np.float64]:
    return np.append(surplus, np.zeros(BUCKETS - 1))


def _placed(surplus: float, counts: npt.NDArray[np.float64], near: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the surplus by bucket, placed where the counts over all keys differ from the sample's in its direction."""
    groups = (-1, _COMPARED_TOGETHER)
    ours, theirs = counts.reshape(groups), near.reshape(groups)
    lacking = np.where(theirs.sum(1) > 0, theirs.sum(1) - ours.sum(1), 0.0) * np.sign(surplus)
    lacking = np.maximum(0.0, lacking)
    if not lacking.sum():
        return _at_zero(surplus)
    within = theirs if surplus > 0 else ours
    parts = within / np.maximum(1e-9, within.sum(1, keepdims=True))
    placed: npt.NDArray[np.float64] = (surplus * lacking / lacking.sum())[:, None] * parts
    return placed.reshape(-1)
