"""A cache and its hit-rate curves as plain data, which is sent as JSON or MessagePack."""

import msgspec

from millpond.cache.api import Policy
from millpond.cache.curves.curve import HitRateCurve


class CacheReport(msgspec.Struct, frozen=True):
    """A cache's present size and hit rate, and its hit rates at other sizes.

    Attributes:
        name: the cache's name; a number is added if several caches have the same one.
        policy: the rule that chooses the entries to evict.
        max_entries, max_bytes: its limits; None means no limit of that kind.
        present: its size in entries. An estimate if the limit is in bytes; 0 if no entry was weighed yet.
        entries, bytes: what it holds.
        requests: the recorded requests; older ones count less, see `Recording.age`.
        hit_rate: the cache's own hit rate since it was made.
        curves: by policy. A policy whose curve is not recorded is left out.
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
        """The curve of the cache's policy; else the one of LRU; else an empty curve."""
        return self.curves.get(self.policy) or self.curves.get("lru") or HitRateCurve(())

    def present_rate(self, policy: Policy | None = None) -> float:
        """Return a policy's hit rate at the present size by its curve, 0.0 without one; None is the cache's policy."""
        curve = self.curve if policy is None else self.curves.get(policy)
        if curve is None:
            return 0.0
        return curve.at_entries(self.present) if self.max_bytes is None else curve.at_bytes(self.max_bytes)

    def scaled_rate(self, factor: float) -> float:
        """Return the hit rate at `factor` times the present size."""
        if self.max_bytes is None:
            return self.curve.at_entries(self.present * factor)
        return self.curve.at_bytes(self.max_bytes * factor)

    def size_text(self, entries: float, in_bytes: float) -> str:
        """Format a size in the unit of the cache's limit, followed by the other unit.

        >>> report = CacheReport("planes", "lru", 100, None, 100, 0, None, 0, 0.0, {})
        >>> report.size_text(1000, 250_000)
        '1,000 entries (about 250 kB)'
        """
        if self.max_bytes is None:
            return f"{entries:,.0f} entries" + (f" (about {bytes_text(in_bytes)})" if in_bytes else "")
        return f"{bytes_text(in_bytes)} (about {entries:,.0f} entries)"


def bytes_text(size: float) -> str:
    """Format bytes with a unit.

    >>> bytes_text(999), bytes_text(1_500_000)
    ('999 B', '1.5 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < _THOUSAND or unit == "GB":
            return f"{size:.3g} {unit}" if size < _THOUSAND else f"{size:,.0f} {unit}"
        size /= _THOUSAND
    raise AssertionError


_THOUSAND = 1_000
