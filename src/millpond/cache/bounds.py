"""Checks of a cache's options. Each raises `OptionError` with the cache, the option, and what was expected."""

from collections.abc import Mapping

from millpond.cache.api import Bounds
from millpond.errors import OptionError


def checked_policy(name: str, policy: str) -> None:
    """Raise `OptionError` unless the policy is `"lru"` or `"w-tinylfu"`."""
    if policy not in ("lru", "w-tinylfu"):
        raise OptionError(f"cache {name!r}, policy: expected 'lru' or 'w-tinylfu', got {policy!r}")


def checked_limits(name: str, limits: Mapping[str, tuple[int | None, int]]) -> None:
    """Check limits, given as `{option: (limit, lowest allowed)}`.

    Raises:
        OptionError: every limit is None, or one is too small or not a whole number.
    """
    if all(limit is None for limit, _ in limits.values()):
        raise OptionError(f"cache {name!r} has no bound and would grow for ever: give one of {', '.join(limits)}")
    for option, (limit, least) in limits.items():
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < least):
            raise OptionError(f"cache {name!r}, {option}: expected a whole number of at least {least}, got {limit!r}")


def checked_bounds(name: str, bounds: Bounds) -> None:
    """Raise `OptionError` if both limits are None, or one is negative or not a whole number."""
    checked_limits(name, {"max_entries": (bounds.max_entries, 0), "max_bytes": (bounds.max_bytes, 0)})
