"""Splits a budget of bytes over several caches so that as many requests as possible hit.

Each cache has a hit-rate curve and a number of requests. The budget is given out in pieces, each to the cache where it
brings the most hits per byte. For concave curves this is the best split: no byte would bring more hits elsewhere.

A curve that is not concave has a flat stretch before a steep one, as with a loop over more keys than fit. There the
next byte brings no hit, but the next million bytes do. So a piece is the one that brings the most hits per byte from
the present size on: it follows the convex hull of the curve, as far as the remaining budget reaches [1]. If the next
piece of the hull no longer fits, the hull within reach is computed again.

1. Qureshi, Patt: "Utility-based cache partitioning" (MICRO 2006), its lookahead algorithm.
"""

from collections.abc import Mapping, Sequence

import msgspec

from millpond.cache.curves.curve import HitRateCurve


class Share(msgspec.Struct, frozen=True):
    """One cache that shares a budget.

    Attributes:
        curve: its hit rates.
        requests: its requests, over the same time as those of the other caches.
        least: bytes that it always gets.
        most: bytes above which it needs no more; None means no limit.
    """

    curve: HitRateCurve
    requests: float
    least: float = 0.0
    most: float | None = None

    def hits(self, size: float) -> float:
        """Return the hits at a size of `size` bytes."""
        return self.requests * self.curve.at_bytes(size)

    def sizes(self) -> list[float]:
        """Return the sizes to consider, in bytes: the points of the curve below `most`, and `most` itself."""
        most = self.most
        sizes = [point.bytes for point in self.curve.points if most is None or point.bytes < most]
        return sizes if most is None else [*sizes, most]


def best_split(shares: Mapping[str, Share], budget: float) -> dict[str, float]:
    """Return the bytes for each cache. Bytes that would bring no hit anywhere are given to none.

    >>> from millpond.cache.curves.curve import Point
    >>> steep = HitRateCurve((Point(10, 1_000, 0.8), Point(20, 2_000, 0.9)))
    >>> flat = HitRateCurve((Point(10, 1_000, 0.2), Point(20, 2_000, 0.4)))
    >>> best_split({"steep": Share(steep, 100), "flat": Share(flat, 100)}, 3_000)
    {'steep': 1000, 'flat': 2000.0}
    """
    given = {name: min(share.least, budget / len(shares)) for name, share in shares.items()}
    left = budget - sum(given.values())
    sizes = {name: share.sizes() for name, share in shares.items()}
    while left > 0:
        pieces = [
            (gain / (size - given[name]), name, size)
            for name, share in shares.items()
            for size, gain in _in_reach(share, sizes[name], given[name], left)
        ]
        if not pieces:
            break
        _, name, size = max(pieces, key=lambda piece: (piece[0], -piece[2]))
        left -= size - given[name]
        given[name] = size
    return given


def _in_reach(share: Share, sizes: Sequence[float], present: float, left: float) -> list[tuple[float, float]]:
    """Return each larger size that the rest of the budget allows, with the hits it gains. The last uses all of it."""
    reach = present + left if share.most is None else min(present + left, share.most)
    before = share.hits(present)
    larger = [size for size in sizes if present < size < reach]
    if reach > present:
        larger.append(reach)
    gains = [(size, share.hits(size) - before) for size in larger]
    return [(size, gain) for size, gain in gains if gain > 0]
