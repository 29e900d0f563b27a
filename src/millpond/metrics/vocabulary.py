"""Every metric of Millpond: its name, kind, labels and meaning, and its name in the systems that it follows.

All metric names are defined here. Exporters take kind and help from this table, and the reference page is generated
from it. Tests check that the code, the dashboard and the alert rules use no other name.

Invariant: names follow Prometheus. They have base units, and counters end in `_total`. No ratio is stored where hits
and misses give it. Labels are bounded: never a key, a count or the text of an error.

Source: Prometheus, "Metric and label naming"; FLIP-50, FLIP-221, FLIP-325, CHIP-1 for the names in `follows`.
"""

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]

_UNITS = ("seconds", "bytes", "ratio")


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: its name in Prometheus.
        kind: a counter only grows, a gauge is a level, a histogram has buckets.
        labels: the names of its labels. A recorder's `result` fills the label `result`, its `name` the other one.
        help: what it counts.
        follows: its names in FLIP-50, FLIP-221, FLIP-325 or CHIP-1.

    >>> Metric("millpond_http_connections", "gauge", (), "Connections that are open now.").unit
    ''
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    follows: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit that the name ends in; empty for a plain number."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in _UNITS else ""


def _counter(name: str, labels: str, text: str, *follows: str) -> Metric:
    return Metric(f"millpond_{name}_total", "counter", tuple(labels.split()), text, follows)


def _gauge(name: str, labels: str, text: str, *follows: str) -> Metric:
    return Metric(f"millpond_{name}", "gauge", tuple(labels.split()), text, follows)


def _histogram(name: str, labels: str, text: str) -> Metric:
    return Metric(f"millpond_{name}", "histogram", tuple(labels.split()), text)


VOCABULARY: dict[str, tuple[Metric, ...]] = {
    "Caches of the fetcher": (
        _counter("cache_requests", "cache result", "Look-ups in a cache, by result: hit or miss.", "cache metrics"),
        _counter("cache_loads", "cache result", "Loads for a cache, by result: ok or failure."),
        _counter("cache_evictions", "cache cause", "Entries that were evicted or expired, by cause: size or age."),
        _gauge("cache_entries", "cache", "Entries in a cache."),
        _gauge("cache_bytes", "cache", "Bytes of the entries in a cache, as the weigher measures them."),
    ),
    "Fetcher": (
        _counter("fetcher_requests", "", "Requested keys; a Join counts once."),
        _counter("fetcher_incomplete_requests", "", "Requests with an unavailable feature."),
        _counter("fetcher_values", "state", "Values by state: present, null or unavailable."),
        _counter(
            "fetcher_bounded_values",
            "",
            "Values that are only a bound, because a key has more distinct values than are kept.",
        ),
        _counter("fetcher_store_calls", "", "Calls of the store; each answers many gets."),
        _counter("fetcher_gets", "kind", "Gets sent to the store, by kind: batch, stream or info.", "GetRequest"),
        _counter("fetcher_gets_saved", "kind", "Gets of batch rows that a cached row saved.", "GetRequest"),
        _counter("fetcher_rows_read", "", "Rows that the store returned."),
        _counter("fetcher_read_bytes", "", "Bytes of the rows that the store returned."),
        _counter("fetcher_tiles", "result", "Tiles by result: read, or saved by a cached prefix."),
        _counter("fetcher_joined_reads", "", "Reads of an uncached key that waited for another read of it."),
        _counter("fetcher_amended_entries", "", "Cached prefixes that a late event dropped."),
        _counter("fetcher_warmed_keys", "", "Keys read into the caches before they were requested."),
        _counter("fetcher_info_refreshes", "result", "Reads of the serving infos, by result: ok or failure."),
        _counter("fetcher_log_dropped", "", "Answers that the answer log dropped because it was full."),
        _gauge("fetcher_late_batches", "", "GroupBys whose batch is too old to answer every window."),
        _gauge("fetcher_batch_late", "group_by", "1 if the batch is too old to answer every window, else 0."),
        _gauge("fetcher_batch_end_age_seconds", "group_by", "Time since the end of the batch."),
        _gauge("fetcher_landing_age_seconds", "group_by", "Time since the batch landed."),
        _gauge(
            "fetcher_closing_age_seconds", "group_by", "Time since the closing time, up to which all tiles are closed."
        ),
        _histogram(
            "fetcher_duration_seconds", "phase", "Duration of sampled fetches, by phase: fetch, get, decode, finish."
        ),
        _gauge("process_memory_bytes", "", "The resident memory of the process."),
    ),
    "HTTP service": (
        _counter("http_requests", "path method status", "Calls answered, by route, method and status."),
        _histogram("http_request_duration_seconds", "path", "Duration of calls."),
        _gauge("http_calls_in_flight", "", "Fetches that are running."),
        _gauge("http_connections", "", "Connections that are open now."),
    ),
    "Lookup tables": (
        _counter("lookup_requests", "table result", "Distinct keys, by result: hit or miss.", "hitCount", "missCount"),
        _counter(
            "lookup_loads",
            "table result",
            "Loads by result: ok, failure, or unchanged for a skipped reload.",
            "loadCount",
            "numLoadFailure",
        ),
        _counter(
            "lookup_retries",
            "table result",
            "Events looked up again because their row was missing, by result: hit or miss.",
            "missingRetryCount",
            "missingFoundCount",
        ),
        _counter(
            "lookup_given_up", "table", "Events that left without a row after their retries.", "missingGivenUpCount"
        ),
        _counter(
            "lookup_owner_asks",
            "table result",
            "Keys that were asked of their owner, by result: ok, or failure if they were loaded here instead.",
            "ownerAskCount",
            "ownerFailureCount",
        ),
        _gauge("lookup_latest_load_seconds", "table", "Duration of the latest load.", "latestLoadTime"),
        _gauge("lookup_cached_records", "table", "Keys in the cache.", "numCachedRecord"),
        _gauge("lookup_cached_bytes", "table", "Estimated bytes of the keys in the cache.", "numCachedBytes"),
    ),
    "Keyed state": (
        _counter("state_cache_requests", "result", "Reads of state through a cache, by result: hit or miss."),
        _gauge("state_cache_hit_ratio", "", "Hits per read in the last second.", "stateCacheHitRatio"),
        _gauge("spillable_key_groups", "place", "Key groups by place: heap or disk."),
        _gauge("spillable_bytes", "place", "Bytes of key groups, by place: heap or disk."),
        _counter("spillable_moves", "direction", "Key groups that were moved, by direction: spill or load."),
        _counter("spillable_seconds", "direction", "Time spent on moving key groups."),
    ),
    "Keyed queries": (
        _counter("keyed_batches", "operator", "Batches that an operator ran."),
        _counter("keyed_rows", "operator", "Rows given to a processor."),
        _counter("keyed_late_rows", "operator", "Rows dropped because they were late."),
        _counter("keyed_dead_letters", "operator", "Calls of a processor that failed and were set aside."),
        _counter("keyed_restores", "operator", "Restores of a shard from the checkpoint."),
        _counter("keyed_spills", "operator", "Key groups that the spillable backend moved to disk."),
        _counter("keyed_loads", "operator", "Key groups that the spillable backend loaded from disk."),
        _counter("keyed_cache_requests", "operator result", "Reads of state through a cache, by result: hit or miss."),
        _counter("keyed_seconds", "operator phase", "Time by phase: shuffle, handlers, flush, commit or store."),
        _gauge("keyed_state_rows", "operator", "Rows of state in the checkpoint, including the newest changes."),
        _gauge("keyed_state_bytes", "operator", "Bytes of state in the checkpoint, including the newest changes."),
        _counter("query_rows", "query", "Rows that a streaming query read from its sources."),
        _gauge("query_batch_seconds", "query", "Duration of the newest micro-batch."),
        _gauge("query_watermark_lag_seconds", "query", "How far the watermark is behind the newest event."),
    ),
    "Stream of tiles": (
        _counter("stream_events_read", "group_by", "Events read from the source."),
        _counter("stream_events_without_key", "group_by", "Events with a null in their key."),
        _counter("stream_events_without_time", "group_by", "Events without a time, or with one after the year 2499."),
        _counter("stream_events_before_start", "group_by", "Events before the start of the stream."),
        _counter("stream_events_late", "group_by", "Events that arrived after their tile was closed."),
        _counter("stream_events_forgotten", "group_by", "Events that were later than the retention of tiles."),
        _counter("stream_tiles_written", "group_by", "Tiles written to the store."),
        _counter("stream_tiles_closed", "group_by", "Tiles that were closed."),
        _counter("stream_tiles_amended", "group_by", "Closed tiles that a late event changed."),
        _gauge("stream_closing_time_seconds", "group_by", "The time up to which all tiles are closed, since 1970."),
    ),
    "Upload": (
        _counter("upload_rows", "group_by", "Batch rows written."),
        _counter("upload_bytes", "group_by", "Bytes of the batch rows written."),
        _counter("upload_seconds", "group_by", "Time spent on uploads."),
        _counter("upload_events", "group_by", "Events read."),
        _counter("upload_events_without_key", "group_by", "Events with a null in their key."),
        _counter("upload_events_without_time", "group_by", "Events without a time."),
    ),
}
"""All metrics, by area."""

METRICS: dict[str, Metric] = {metric.name: metric for area in VOCABULARY.values() for metric in area}
"""All metrics by name."""

_BY_FOLLOWED = {name: metric for metric in METRICS.values() if metric.kind == "gauge" for name in metric.follows}


def metric_named(name: str) -> Metric:
    """Return a metric by its name, or a gauge by its name in a FLIP.

    A name that is not in the table, for instance of a custom backend, is a counter if it ends in `_total`, and a gauge
    otherwise.

    >>> metric_named("stateCacheHitRatio").name
    'millpond_state_cache_hit_ratio'
    >>> metric_named("shop_reads_total").kind
    'counter'
    """
    metric = METRICS.get(name) or _BY_FOLLOWED.get(name)
    if metric is not None:
        return metric
    is_counter = name.endswith("_total")
    return Metric(name, "counter" if is_counter else "gauge", ("name", "result") if is_counter else ("name",), "")
