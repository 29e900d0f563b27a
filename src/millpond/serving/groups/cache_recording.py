"""Records the hit-rate curves of a fetcher's caches, and divides a memory budget between the caches by these curves.

Place on the data path: beside the caches, and only if it is switched on. With `cache_budget` the curves replace the
fixed shares that the caches began with.
"""

from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path
from typing import Any

from millpond.cache import Cache
from millpond.cache.curves import Budget, record, recordings_of
from millpond.cache.curves.trace import TraceWriter, write_trace
from millpond.errors import OptionError
from millpond.serving.groups.cache_options import CacheSize, parse_cache_size
from millpond.serving.groups.served_group import ServedGroup


def recorded_caches(groups: Iterable[ServedGroup], cache_budget: CacheSize | None) -> Budget | None:
    """Begin to record all caches. Return the started `Budget` over them if `cache_budget` sets a size.

    Where a GroupBy has a cache of closed tiles, that cache decides whose batch rows are kept (`fed_apart`).
    """
    caches: list[Cache[bytes, Any]] = []
    for group in groups:
        if group.batch_cache is not None:
            caches.append(record(group.batch_cache, fed_apart=group.tile_cache is not None))
        if group.tile_cache is not None:
            caches.append(record(group.tile_cache))
            group.doorkeeper.always_look_for_rows()
    size = None if cache_budget is None else parse_cache_size("cache_budget", cache_budget).max_bytes
    if not size or not caches:
        return None
    budget = Budget(size, lambda: recordings_of(caches))
    budget.start()
    return budget


def traced_caches(groups: Iterable[ServedGroup], folder: Path) -> list[TraceWriter]:
    """Begin to write the trace of each cache to a new file in a folder, named after the cache."""
    return [_traced(cache, folder) for cache in _caches(groups)]


def _traced(cache: Cache[bytes, Any], folder: Path) -> TraceWriter:
    """Write the trace to a file that does not exist yet.

    So no trace is overwritten when a server restarts or has several processes.
    """
    for name in chain((f"{cache.name}.trace",), (f"{cache.name}-{number}.trace" for number in count(2))):
        path = folder / name
        try:
            return write_trace(cache, path)[1]
        except OptionError:
            if not path.exists():
                raise
    raise AssertionError("the names do not end")


def _caches(groups: Iterable[ServedGroup]) -> list[Cache[bytes, Any]]:
    return [cache for group in groups for cache in (group.batch_cache, group.tile_cache) if cache is not None]
