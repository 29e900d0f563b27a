"""The sizes of the caches of each GroupBy: from its definition, the fetcher's arguments, and the budget.

Place on the data path: read once, when a fetcher is made. A definition says whether it is cached and how
much. An argument of the fetcher overrides it. The budget caps the sum.

Each GroupBy has two caches of its own, so that none evicts another's entries. If the caches ask for more than
the budget, each gets a share in proportion to what it asks for. A cache sized in entries asks for 50 MB there,
and its share bounds it too.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from millpond.cache import Cache, new_cache
from millpond.errors import OptionError
from millpond.features import GroupByPlan
from millpond.serving.caches.entry_size import EntrySize
from millpond.suggestions import hint

CacheSize = int | str
"""Entries as a number (``10_000``, ``"10000"``), or bytes as a text (``"50MB"``, ``"64 MiB"``)."""

Sizes = CacheSize | Mapping[str, CacheSize] | None
"""One size for all GroupBys, or sizes by name. None, or a name that is absent, leaves the size to the definition."""

DEFAULT_BYTES = 50_000_000
"""The size of a cache that is enabled but has no size."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}
_SIZE = re.compile(r"(\d+)\s*(?:([KMG]I?)?(B))?", re.IGNORECASE)
_log = logging.getLogger("millpond.serving")


class CacheBound(msgspec.Struct, frozen=True):
    """The bounds of one cache. None means no bound of that kind; a bound of 0 means no cache."""

    entries: int | None = None
    max_bytes: int | None = None

    @property
    def is_off(self) -> bool:
        """Whether nothing is cached."""
        return self.entries == 0 or self.max_bytes == 0

    @property
    def asked_bytes(self) -> int:
        """The bytes that it asks for under a budget."""
        if self.is_off:
            return 0
        return DEFAULT_BYTES if self.max_bytes is None else self.max_bytes


class GroupBounds(msgspec.Struct, frozen=True):
    """The bounds of both caches of a GroupBy."""

    batch: CacheBound
    tiles: CacheBound


def parse_cache_size(option: str, size: CacheSize) -> CacheBound:
    """Parse a cache size.

    Raises:
        OptionError: it is not a size.

    >>> parse_cache_size("fetcher_cache_size", 10_000)
    CacheBound(entries=10000, max_bytes=None)
    >>> parse_cache_size("fetcher_cache_size", "1 KiB").max_bytes
    1024
    """
    match = _SIZE.fullmatch(str(size).strip())
    if match is None or isinstance(size, bool):
        raise OptionError(
            f"{option} is {size!r}; give a number of entries (10000), bytes with a unit ('50MB', '64MiB'), or 0 for no "
            "cache."
        )
    number, unit, in_bytes = match.groups()
    if in_bytes:
        return CacheBound(max_bytes=int(number) * _UNITS[(unit or "").upper()])
    return CacheBound(entries=int(number))


def bounds_of(
    plans: Iterable[GroupByPlan],
    *,
    enable_fetcher_caching: bool | None = None,
    fetcher_cache_size: Sizes = None,
    fetcher_tile_cache_size: Sizes = None,
    cache_budget: CacheSize | None = None,
) -> dict[str, GroupBounds]:
    """Return the bounds of the caches of each GroupBy.

    Args:
        plans: the GroupBys that are served.
        enable_fetcher_caching: overrides the definitions' own.
        fetcher_cache_size: overrides the definitions' own size of the cache of batch rows.
        fetcher_tile_cache_size: overrides the definitions' own size of the cache of closed tiles.
        cache_budget: bytes that all caches may take together.

    Raises:
        OptionError: a size is malformed, or names a GroupBy that is not served.
    """
    all_plans = list(plans)
    names = [plan.name for plan in all_plans]
    bounds = {}
    for plan in all_plans:
        group_by = plan.group_by
        bounds[plan.name] = GroupBounds(
            *(
                _bound(
                    f"{option} of GroupBy {plan.name!r}",
                    _given(option, sizes, plan.name, names),
                    declared,
                    # A declared size enables a cache, as the switch does.
                    group_by.enable_fetcher_caching or declared is not None
                    if enable_fetcher_caching is None
                    else enable_fetcher_caching,
                )
                for option, sizes, declared in (
                    ("fetcher_cache_size", fetcher_cache_size, group_by.fetcher_cache_size),
                    ("fetcher_tile_cache_size", fetcher_tile_cache_size, group_by.fetcher_tile_cache_size),
                )
            )
        )
    return bounds if cache_budget is None else _shared(bounds, cache_budget)


def make_cache(name: str, bound: CacheBound, weigher: EntrySize) -> Cache[bytes, Any] | None:
    """Make a cache within its bounds; return None if a bound is 0.

    - Key: the encoded key. Capacity: entries or measured bytes. Freshness: each entry names its batch.
    - Concurrent miss: reads of one key wait for the first (`key_read`).
    """
    if bound.is_off:
        return None
    return new_cache(
        name,
        max_entries=bound.entries,
        max_bytes=bound.max_bytes,
        weigher=weigher,
        policy="w-tinylfu",
        shared=True,
    )


def _given(option: str, sizes: Sizes, name: str, names: list[str]) -> CacheSize | None:
    if not isinstance(sizes, Mapping):
        return sizes
    for given in sizes:
        if given not in names:
            raise OptionError(f"{option} names the GroupBy {given!r}; {hint(given, names)}")
    return sizes.get(name)


def _bound(option: str, given: CacheSize | None, declared: CacheSize | None, enabled: bool) -> CacheBound:
    if given is not None:
        return parse_cache_size(option, given)
    if not enabled:
        return CacheBound(entries=0)
    return CacheBound(max_bytes=DEFAULT_BYTES) if declared is None else parse_cache_size(option, declared)


def _shared(bounds: Mapping[str, GroupBounds], cache_budget: CacheSize) -> dict[str, GroupBounds]:
    budget = parse_cache_size("cache_budget", cache_budget)
    if budget.max_bytes is None:
        raise OptionError(f"cache_budget is {cache_budget!r}; it is in bytes, such as '500MB'.")
    asked = sum(bound.batch.asked_bytes + bound.tiles.asked_bytes for bound in bounds.values())
    if asked <= budget.max_bytes:
        return dict(bounds)
    _log.warning(
        "the caches of %d GroupBys ask for %d bytes, the budget is %d: each gets %.3g %% of what it asks for",
        len(bounds),
        asked,
        budget.max_bytes,
        100 * budget.max_bytes / asked,
    )

    def share(bound: CacheBound) -> CacheBound:
        if bound.is_off:
            return bound
        return CacheBound(bound.entries, bound.asked_bytes * (budget.max_bytes or 0) // asked)

    return {name: GroupBounds(share(bound.batch), share(bound.tiles)) for name, bound in bounds.items()}
