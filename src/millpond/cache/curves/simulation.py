"""Replays a trace through real caches of several policies and sizes.

Nothing is sampled or estimated: each policy runs at each size over the whole trace. A request takes about a microsecond
with LRU and a few with W-TinyLFU.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from millpond.cache.api import MISSING, Cache, Policy
from millpond.cache.factory import new_cache


class Simulated(msgspec.Struct, frozen=True):
    """The result of one policy at one size, in entries."""

    policy: Policy
    entries: int
    requests: int
    hits: int

    @property
    def hit_rate(self) -> float:
        """Hits per request, 0.0 for an empty trace."""
        return self.hits / self.requests if self.requests else 0.0


def simulate(
    keys: Sequence[int],
    sizes: Iterable[int],
    policies: Iterable[Policy] = ("lru", "w-tinylfu"),
    on_done: Callable[[Simulated], None] = lambda _: None,
) -> list[Simulated]:
    """Request all keys of a trace from a cache of each policy and size. A missing key is put.

    Args:
        keys: in the order of the requests.
        sizes: in entries.
        policies: the policies to run.
        on_done: called with each result.

    Raises:
        OptionError: a size is negative, or a policy unknown.

    >>> [(one.policy, one.hits) for one in simulate([1, 2, 3, 1, 2, 3], sizes=[2, 3], policies=["lru"])]
    [('lru', 0), ('lru', 3)]
    """
    sizes, results = list(sizes), []
    for policy in policies:
        for size in sizes:
            cache: Cache[int, None] = new_cache("simulated", max_entries=size, policy=policy)
            get, put = cache.get, cache.put
            for key in keys:
                if get(key, MISSING) is MISSING:
                    put(key, None)
            results.append(Simulated(policy, size, len(keys), cache.stats().hits))
            on_done(results[-1])
    return results


def sizes_for(keys: Sequence[int], count: int = 8) -> list[int]:
    """Return sizes worth trying on a trace: at equal ratios, from a hundredth to half of its distinct keys.

    >>> sizes_for(list(range(10_000)), count=3)
    [100, 707, 5000]
    """
    distinct = len(set(keys))
    least, most = max(1.0, distinct / 100), max(1.0, distinct / 2)
    ratio = (most / least) ** (1 / max(1, count - 1))
    return sorted({round(least * ratio**step) for step in range(count)})
