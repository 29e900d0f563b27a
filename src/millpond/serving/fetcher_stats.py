"""Assembles the statistics of a fetcher on request.

Place on the data path: beside it. Counts come from the fetcher's `Counters`, sizes from its caches, ages from the
serving infos.
"""

from collections.abc import Mapping

from millpond.cache import CacheStats
from millpond.features.stored.rows import NEVER_CLOSED_MS
from millpond.serving.counters import Counters, FetcherStats, Freshness, process_bytes
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.groups.serving_info import ServingInfos


def fetcher_stats(
    counters: Counters, infos: ServingInfos, groups: Mapping[str, ServedGroup], now_ms: int, log_dropped: int
) -> FetcherStats:
    """Return the counts since the fetcher was made, and the current state of its caches and batches."""
    sums = counters.sums()
    sums["kv_calls"] += infos.reads
    sums["info_gets"] += infos.gets
    freshness = {name: _freshness(group, now_ms) for name, group in groups.items()}
    caches: dict[str, CacheStats] = {}
    for name, group in groups.items():
        for kind, cache in (("batch", group.batch_cache), ("tiles", group.tile_cache)):
            if cache is not None:
                caches[f"{name}.{kind}"] = cache.stats()
    return FetcherStats(
        **sums,
        refreshes=infos.refreshes,
        refresh_failures=infos.failures,
        late_batches=sum(one.is_late for one in freshness.values()),
        log_dropped=log_dropped,
        caches=caches,
        freshness=freshness,
        latencies=counters.latencies(),
        process_bytes=process_bytes(),
    )


def _freshness(group: ServedGroup, now_ms: int) -> Freshness:
    served = group.served
    landed = served.landed
    closing_age = None if served.closed_ms == NEVER_CLOSED_MS else now_ms - served.closed_ms
    if landed is None:
        return Freshness(closing_age_ms=closing_age)
    return Freshness(
        now_ms - landed.batch_end_ms,
        now_ms - landed.info.batch_landing_ms,
        closing_age,
        now_ms > landed.horizon_end_ms,
    )
