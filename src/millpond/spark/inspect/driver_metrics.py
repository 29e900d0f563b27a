"""All metrics of a Spark driver, under the names of the vocabulary.

Place on the data path: beside it. The driver sums what the workers and state hosts of keyed operators and lookup tables
counted. Queries report their progress. Streams of tiles and uploads record into a recorder, if they were given one.
"""

from collections.abc import Iterable

from millpond.metrics.families import Family, Sample, family
from millpond.metrics.prometheus import PrometheusRecorder
from millpond.spark.inspect.query_progress import QueryProgress
from millpond.spark.spec.driver_counts import PlannedOperator, tables
from millpond.spark.spec.metrics import KeyedMetrics

PHASES = {
    "shuffle": "shuffle_seconds",
    "handlers": "run_seconds",
    "flush": "flush_seconds",
    "commit": "commit_seconds",
    "store": "store_seconds",
}
"""The phases of a batch, and the field of `KeyedMetrics` with each phase's seconds."""


def driver_families(
    operators: Iterable[PlannedOperator], queries: Iterable[QueryProgress], recorder: PrometheusRecorder | None
) -> list[Family]:
    """Return all metrics of a driver."""
    return [
        *_operator_families(_by_name(operators, queries)),
        *_query_families(list(queries)),
        *_lookup_families(),
        *([] if recorder is None else recorder.families()),
    ]


def _by_name(operators: Iterable[PlannedOperator], queries: Iterable[QueryProgress]) -> dict[str, KeyedMetrics]:
    found: dict[str, KeyedMetrics] = {}
    for operator in operators:
        total = operator.total()
        if total.batches:
            found[operator.name] = found.get(operator.name, KeyedMetrics()) + total
    for query in queries:
        for name, total in query.observed.items():
            operator_name = name.split()[1]
            found[operator_name] = found.get(operator_name, KeyedMetrics()) + total
    return found


def _operator_families(found: dict[str, KeyedMetrics]) -> list[Family]:
    def of(field: str) -> list[Sample]:
        return [Sample("", {"operator": name}, getattr(total, field)) for name, total in found.items()]

    if not found:
        return []
    requests = [
        Sample("", {"operator": name, "result": result}, count)
        for name, total in found.items()
        for result, count in (("hit", total.cache_hits), ("miss", total.cache_misses))
        if total.cache_hits + total.cache_misses
    ]
    seconds = [
        Sample("", {"operator": name, "phase": phase}, getattr(total, field))
        for name, total in found.items()
        for phase, field in PHASES.items()
    ]
    return [
        family("millpond_keyed_batches_total", of("batches")),
        family("millpond_keyed_rows_total", of("rows")),
        family("millpond_keyed_late_rows_total", of("late_rows")),
        family("millpond_keyed_dead_letters_total", of("dead_letters")),
        family("millpond_keyed_restores_total", of("restores")),
        family("millpond_keyed_spills_total", of("spills")),
        family("millpond_keyed_loads_total", of("loads")),
        family("millpond_keyed_cache_requests_total", requests),
        family("millpond_keyed_seconds_total", seconds),
        family("millpond_keyed_state_rows", of("state_rows")),
        family("millpond_keyed_state_bytes", of("state_bytes")),
    ]


def _query_families(queries: list[QueryProgress]) -> list[Family]:
    newest = [(query, query.batches[-1]) for query in queries if query.batches]
    if not newest:
        return []
    return [
        family("millpond_query_rows_total", [Sample("", {"query": each.name}, each.input_rows) for each, _ in newest]),
        family(
            "millpond_query_batch_seconds",
            [Sample("", {"query": each.name}, batch.ms / 1_000) for each, batch in newest if each.is_active],
        ),
        family(
            "millpond_query_watermark_lag_seconds",
            [
                Sample("", {"query": each.name}, batch.lag_ms / 1_000)
                for each, batch in newest
                if each.is_active and batch.lag_ms is not None
            ],
        ),
    ]


def _lookup_families() -> list[Family]:
    told = PrometheusRecorder()
    for table in tables():
        stats = table.stats()
        told.count("millpond_lookup_requests_total", stats.hit_count, name=table.name, result="hit")
        told.count("millpond_lookup_requests_total", stats.miss_count, name=table.name, result="miss")
        told.count("millpond_lookup_loads_total", stats.load_count - stats.num_load_failure, name=table.name)
        told.count("millpond_lookup_loads_total", stats.num_load_failure, name=table.name, result="failure")
        if stats.missing_retry_count:
            found = stats.missing_found_count
            told.count("millpond_lookup_retries_total", found, name=table.name, result="hit")
            told.count(
                "millpond_lookup_retries_total", stats.missing_retry_count - found, name=table.name, result="miss"
            )
            told.count("millpond_lookup_given_up_total", stats.missing_given_up_count, name=table.name)
        if stats.owner_ask_count:
            failed = stats.owner_failure_count
            told.count("millpond_lookup_owner_asks_total", stats.owner_ask_count - failed, name=table.name)
            told.count("millpond_lookup_owner_asks_total", failed, name=table.name, result="failure")
        if stats.num_cached_record is not None:
            told.gauge("millpond_lookup_cached_records", stats.num_cached_record, name=table.name)
        if stats.num_cached_bytes is not None:
            told.gauge("millpond_lookup_cached_bytes", stats.num_cached_bytes, name=table.name)
    return told.families()
