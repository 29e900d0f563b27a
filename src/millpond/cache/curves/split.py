"""How a budget of bytes is split over several caches so that most requests hit.

Each cache has a curve, and a number of requests that its hit rate is a part of. Bytes go where they bring most hits,
one piece after the other. Where curves are concave that is the best split: no byte would bring more elsewhere.

A curve that is not concave has a stretch that brings little, and a cliff behind it, as of a loop over more keys than
fit. There the next byte looks useless though the next million is not. So the pieces are not bytes, but whatever brings
most hits per byte from the present size on: along the convex hull of the curve, as far as the remaining budget reaches
[1]. When a piece no longer fits, the hull of what is in reach is taken anew.

1. Qureshi, Patt: "Utility-based cache partitioning" (MICRO 2006), its lookahead algorithm.
"""

from collections.abc import Mapping, Sequence

import msgspec

from millpond.cache.curves.curve import HitRateCurve


class Share(msgspec.Struct, frozen=True):
    """One cache that wants a part of a budget.

    Attributes:
        curve: its hit rates.
        requests: how many it is asked in the same time as the others.
        least: bytes that it gets in any case.
        most: bytes that it does not need more of; None is no limit.
    """

    curve: HitRateCurve
    requests: float
    least: float = 0.0
    most: float | None = None

    def hits(self, size: float) -> float:
        """The hits with so many bytes."""
        return self.requests * self.curve.at_bytes(size)

    def sizes(self) -> list[float]:
        """The sizes worth looking at."""
        most = self.most
        sizes = [point.bytes for point in self.curve.points if most is None or point.bytes < most]
        return sizes if most is None else [*sizes, most]


def best_split(shares: Mapping[str, Share], budget: float) -> dict[str, float]:
    """The bytes of each cache. What brings no hit anywhere is left over.

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
    """The larger sizes that the rest of the budget pays for, with what each gains; the last is all of it."""
    reach = present + left if share.most is None else min(present + left, share.most)
    before = share.hits(present)
    larger = [size for size in sizes if present < size < reach]
    if reach > present:
        larger.append(reach)
    gains = [(size, share.hits(size) - before) for size in larger]
    return [(size, gain) for size, gain in gains if gain > 0]
