"""A hit-rate curve: the hit rate that a cache would have at every size, as points.

Plain data, which a server sends as JSON to `millpond caches advise`. The invariant: sizes grow from point to point, and
hit rates never fall.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import msgspec


class Point(NamedTuple):
    """A size, in entries and in bytes, and the hit rate there."""

    entries: float
    bytes: float
    hit_rate: float


class HitRateCurve(msgspec.Struct, frozen=True):
    """The points of a curve, from the smallest size to the largest. Values between points are interpolated linearly.

    >>> curve = HitRateCurve((Point(100, 10_000, 0.5), Point(200, 20_000, 0.7)))
    >>> round(curve.at_entries(150), 2), round(curve.at_bytes(5_000), 2)
    (0.6, 0.25)
    >>> curve.smallest(0.6)
    Point(entries=150.0, bytes=15000.0, hit_rate=0.6)
    >>> curve.smallest(0.9) is None
    True
    """

    points: tuple[Point, ...]

    def at_entries(self, entries: float) -> float:
        """Return the hit rate at a size in entries."""
        return self._between(bisect_right(self.points, entries, key=_entries), "entries", entries).hit_rate

    def at_bytes(self, size: float) -> float:
        """Return the hit rate at a size in bytes."""
        return self._between(bisect_right(self.points, size, key=_bytes), "bytes", size).hit_rate

    def bytes_of(self, entries: float) -> float:
        """Return the bytes that this many entries take. Beyond the last point, its bytes per entry are used."""
        return self._beyond("entries", entries, "bytes")

    def entries_in(self, size: float) -> float:
        """Return how many entries fit into this many bytes."""
        return self._beyond("bytes", size, "entries")

    def smallest(self, hit_rate: float) -> Point | None:
        """Return the smallest size with this hit rate; None if no size has it."""
        place = bisect_left(self.points, hit_rate, key=_hit_rate)
        if place == len(self.points):
            return None
        return self._between(place, "hit_rate", hit_rate)

    def highest(self) -> float:
        """Return the hit rate of a cache with room for all keys."""
        return self.points[-1].hit_rate if self.points else 0.0

    def _beyond(self, field: str, value: float, wanted: str) -> float:
        if not self.points:
            return 0.0
        last = self.points[-1]
        most: float = getattr(last, field)
        if value > most > 0:
            beyond: float = getattr(last, wanted)
            return beyond * value / most
        key = _entries if field == "entries" else _bytes
        found: float = getattr(self._between(bisect_right(self.points, value, key=key), field, value), wanted)
        return found

    def _between(self, place: int, field: str, value: float) -> Point:
        """Return the interpolated point where a field has a value; `place` is the index of the next point."""
        if not self.points:
            return Point(0.0, 0.0, 0.0)
        if place == len(self.points):
            return self.points[-1]
        after = self.points[place]
        before = self.points[place - 1] if place else Point(0.0, 0.0, 0.0)
        low, high = getattr(before, field), getattr(after, field)
        part = 1.0 if high <= low else (value - low) / (high - low)
        return Point(*(one + part * (other - one) for one, other in zip(before, after, strict=True)))


def _entries(point: Point) -> float:
    return point.entries


def _bytes(point: Point) -> float:
    return point.bytes


def _hit_rate(point: Point) -> float:
    return point.hit_rate
