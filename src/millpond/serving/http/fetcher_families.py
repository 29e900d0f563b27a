"""The counts of a fetcher, under their metric names.

Place on the data path: beside it, for `/metrics`. The tables below map each field of a fetcher's statistics to a
metric and its labels. A test checks that none is left out.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from millpond.metrics.families import Family, Sample, family, histogram

Table = tuple[tuple[str, str, dict[str, str]], ...]
"""Field of the statistics, metric, and labels."""

SUMS: Table = (
    ("requests", "millpond_fetcher_requests_total", {}),
    ("errors", "millpond_fetcher_incomplete_requests_total", {}),
    ("present", "millpond_fetcher_values_total", {"state": "present"}),
    ("null", "millpond_fetcher_values_total", {"state": "null"}),
    ("unavailable", "millpond_fetcher_values_total", {"state": "unavailable"}),
    ("bounds", "millpond_fetcher_bounded_values_total", {}),
    ("kv_calls", "millpond_fetcher_store_calls_total", {}),
    ("batch_gets", "millpond_fetcher_gets_total", {"kind": "batch"}),
    ("stream_gets", "millpond_fetcher_gets_total", {"kind": "stream"}),
    ("info_gets", "millpond_fetcher_gets_total", {"kind": "info"}),
    ("batch_gets_saved", "millpond_fetcher_gets_saved_total", {"kind": "batch"}),
    ("rows_read", "millpond_fetcher_rows_read_total", {}),
    ("bytes_read", "millpond_fetcher_read_bytes_total", {}),
    ("tiles_read", "millpond_fetcher_tiles_total", {"result": "read"}),
    ("tiles_saved", "millpond_fetcher_tiles_total", {"result": "saved"}),
    ("joined_reads", "millpond_fetcher_joined_reads_total", {}),
    ("dropped_amended", "millpond_fetcher_amended_entries_total", {}),
    ("warmed", "millpond_fetcher_warmed_keys_total", {}),
    ("refreshes", "millpond_fetcher_info_refreshes_total", {"result": "ok"}),
    ("refresh_failures", "millpond_fetcher_info_refreshes_total", {"result": "failure"}),
    ("log_dropped", "millpond_fetcher_log_dropped_total", {}),
    ("late_batches", "millpond_fetcher_late_batches", {}),
    ("process_bytes", "millpond_process_memory_bytes", {}),
)

CACHES: Table = (
    ("hits", "millpond_cache_requests_total", {"result": "hit"}),
    ("misses", "millpond_cache_requests_total", {"result": "miss"}),
    ("loads", "millpond_cache_loads_total", {"result": "ok"}),
    ("load_failures", "millpond_cache_loads_total", {"result": "failure"}),
    ("evictions", "millpond_cache_evictions_total", {"cause": "size"}),
    ("expirations", "millpond_cache_evictions_total", {"cause": "age"}),
    ("entries", "millpond_cache_entries", {}),
    ("bytes", "millpond_cache_bytes", {}),
)

FRESHNESS: Table = (
    ("batch_end_age_ms", "millpond_fetcher_batch_end_age_seconds", {}),
    ("landing_age_ms", "millpond_fetcher_landing_age_seconds", {}),
    ("closing_age_ms", "millpond_fetcher_closing_age_seconds", {}),
    ("is_late", "millpond_fetcher_batch_late", {}),
)


def fetcher_families(stats: msgspec.Struct) -> list[Family]:
    """Return the counts of a fetcher; fields that the tables lack and fields without a value are left out."""
    counted: Mapping[str, Any] = msgspec.to_builtins(stats)
    samples: dict[str, list[Sample]] = {}
    for name, sample in _samples(counted):
        samples.setdefault(name, []).append(sample)
    return [family(name, found) for name, found in samples.items()]


def _samples(counted: Mapping[str, Any]) -> Iterator[tuple[str, Sample]]:
    yield from _of_table(SUMS, counted, {})
    for cache, numbers in counted.get("caches", {}).items():
        # `loads` counts failed loads too.
        loads = numbers.get("loads", 0) - numbers.get("load_failures", 0)
        yield from _of_table(CACHES, {**numbers, "loads": loads}, {"cache": cache})
    for group_by, ages in counted.get("freshness", {}).items():
        yield from _of_table(FRESHNESS, ages, {"group_by": group_by})
    for phase, timed in counted.get("latencies", {}).items():
        for sample in histogram({"phase": phase}, timed["bounds_seconds"], timed["counts"], timed["seconds"]):
            yield "millpond_fetcher_duration_seconds", sample


def _of_table(table: Table, numbers: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[tuple[str, Sample]]:
    for field, name, own in table:
        value = numbers.get(field)
        if value is not None:
            in_units: Callable[[Any], float] = _seconds if field.endswith("_ms") else int
            yield name, Sample("", {**labels, **own}, in_units(value))


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1_000
