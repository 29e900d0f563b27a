"""Whether the options of a cache are such as there are."""

from collections.abc import Mapping

from millpond.cache.api import Bounds
from millpond.errors import OptionError


def checked_policy(name: str, policy: str) -> None:
    """Refuse a policy that is none."""
    if policy not in ("lru", "w-tinylfu"):
        raise OptionError(f"cache {name!r}, policy: expected 'lru' or 'w-tinylfu', got {policy!r}")


def checked_limits(name: str, limits: Mapping[str, tuple[int | None, int]]) -> None:
    """Refuse limits that are none, given by option with the least that each may be.

    Raises:
        OptionError: no limit of any kind, or one that is too small or no whole number.
    """
    if all(limit is None for limit, _ in limits.values()):
        raise OptionError(f"cache {name!r} has no bound and would grow for ever: give one of {', '.join(limits)}")
    for option, (limit, least) in limits.items():
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < least):
            raise OptionError(f"cache {name!r}, {option}: expected a whole number of at least {least}, got {limit!r}")


def checked_bounds(name: str, bounds: Bounds) -> None:
    """Refuse bounds that are none, or negative."""
    checked_limits(name, {"max_entries": (bounds.max_entries, 0), "max_bytes": (bounds.max_bytes, 0)})
