"""A cache and its curves as plain data, which travels as JSON."""

import msgspec

from millpond.cache.api import Policy
from millpond.cache.curves.curve import HitRateCurve


class CacheReport(msgspec.Struct, frozen=True):
    """A cache as it is, and what it would be at other sizes.

    Attributes:
        name: the cache's; two of one name are told apart by a number.
        policy: what goes for want of room.
        max_entries, max_bytes: its bounds; None is no bound of that kind.
        present: its size in entries, about, if it is bounded in bytes; 0 where no entry was weighed yet.
        entries, bytes: what it holds.
        requests: recorded ones; older ones count less, see `Recording.age`.
        hit_rate: that the cache had since it was made.
        curves: by policy; without a policy whose curve is not recorded.
    """

    name: str
    policy: Policy
    max_entries: int | None
    max_bytes: int | None
    present: int
    entries: int
    bytes: int | None
    requests: int
    hit_rate: float
    curves: dict[Policy, HitRateCurve]

    @property
    def curve(self) -> HitRateCurve:
        """The curve of its own policy, or of LRU where that is all there is."""
        return self.curves.get(self.policy) or self.curves.get("lru") or HitRateCurve(())

    def present_rate(self, policy: Policy | None = None) -> float:
        """The hit rate that a policy has at the present size, by its curve; 0.0 where there is none."""
        curve = self.curve if policy is None else self.curves.get(policy)
        if curve is None:
            return 0.0
        return curve.at_entries(self.present) if self.max_bytes is None else curve.at_bytes(self.max_bytes)

    def scaled_rate(self, factor: float) -> float:
        """The hit rate at a multiple of the present size."""
        if self.max_bytes is None:
            return self.curve.at_entries(self.present * factor)
        return self.curve.at_bytes(self.max_bytes * factor)

    def size_text(self, entries: float, in_bytes: float) -> str:
        """A size in the unit in which the cache is bounded, and in the other one.

        >>> report = CacheReport("planes", "lru", 100, None, 100, 0, None, 0, 0.0, {})
        >>> report.size_text(1000, 250_000)
        '1,000 entries (about 250 kB)'
        """
        if self.max_bytes is None:
            return f"{entries:,.0f} entries" + (f" (about {bytes_text(in_bytes)})" if in_bytes else "")
        return f"{bytes_text(in_bytes)} (about {entries:,.0f} entries)"


def bytes_text(size: float) -> str:
    """Bytes with a unit.

    >>> bytes_text(999), bytes_text(1_500_000)
    ('999 B', '1.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < _THOUSAND or unit == "GB":
            return f"{size:.3g} {unit}" if size < _THOUSAND else f"{size:,.0f} {unit}"
        size /= _THOUSAND
    raise AssertionError


_THOUSAND = 1_000
