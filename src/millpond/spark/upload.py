"""The batch upload: all events before a batch end, as one IR for each key, in a new dataset of the KV store.

Place on the data path: history comes in, the fetcher's batch data goes out. It runs as one Spark job:
rows meet by key, each task builds the IRs of its keys one key at a time, and writes them itself.

Invariant: what is served is always one whole upload. The rows go to a dataset that nothing points to
yet; the ServingInfo that points to it is written last, in one step. A crash before that leaves the
former upload served; running again writes a new dataset, and what the crash left behind is dropped
after the next success. A task that Spark runs twice writes the same bytes to the same places.

Delivery: every row once, or none is served. Freshness: up to the batch end, from the moment this
returns. Recovery: run it again.
"""

import time
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millpond.errors import DataError, OptionError
from millpond.features import (
    SERVING_INFO_DATASET,
    GroupBy,
    GroupByPlan,
    ServingInfo,
    batch_dataset,
    compile_group_by,
    serving_info_key,
    stream_dataset,
)
from millpond.features.batch import check_batch_end
from millpond.kv import Get, KVStore, Put
from millpond.spark.feature_columns import feature_columns, key_names, rows_of

_PUTS_A_WRITE = 5_000
_OUTCOME = "problem string"


def upload_batch(
    events: DataFrame,
    group_by: GroupBy,
    store: KVStore,
    *,
    batch_end_ms: int,
    time_column: str,
    landing_ms: int | None = None,
) -> ServingInfo:
    """Upload the features of all events before a batch end, and serve them from then on.

    The upload that was served before stays in the store for readers that still hold its serving info;
    older ones are dropped.

    Args:
        events: the history, with the key, input and time columns. Later events may be among them: those
            at or after the batch end are left to the stream.
        group_by: what to compute.
        store: where to; it must be able to travel to the executors.
        batch_end_ms: a full hour UTC, and a multiple of the plan's smallest tile.
        time_column: the event time, a column of milliseconds since the epoch, UTC, without nulls.
        landing_ms: when this upload happens; now if None. A later one must not have landed already.

    Raises:
        OptionError: the batch end is not one, or a later upload is already served.
        DataError: a column is missing or of a wrong type (then nothing has been written), or a value in
            it cannot be aggregated (then the former upload is still served).

    Example::

        store = LmdbStore("kv")
        info = upload_batch(flights, route, store, batch_end_ms=1_388_361_600_000, time_column="time_ms")
        store.get_many([Get(info.batch_dataset, plan.encode_key(("JFK", "UA")))])
    """
    plan = compile_group_by(group_by)
    check_batch_end(batch_end_ms, plan.tile_ms)
    columns = feature_columns(events, group_by, time_column)
    if landing_ms is None:
        landing_ms = time.time_ns() // 1_000_000  # noqa: TID251 - "now" by the wall clock is what landing means
    previous = read_serving_info(store, group_by.name)
    if previous is not None and previous.batch_landing_ms > landing_ms:
        raise OptionError(
            f"GroupBy {group_by.name!r}: landing_ms {landing_ms} is before {previous.batch_landing_ms}, when the "
            "upload that is now served landed; give the time of this upload, or leave it out"
        )
    info = ServingInfo(
        group_by=group_by.name,
        definition_hash=plan.definition_hash,
        batch_end_ms=batch_end_ms,
        batch_landing_ms=landing_ms,
        batch_dataset=batch_dataset(group_by.name, batch_end_ms, landing_ms),
        streaming_dataset=stream_dataset(group_by.name, plan.generation),
        generation=plan.generation,
        batch_form=plan.batch_form,
        layers=plan.layers,
    )
    if previous is None or previous.batch_dataset != info.batch_dataset:
        store.drop(info.batch_dataset)
    keys = key_names(group_by)
    problems = (
        events.select(*columns)
        .where((F.col("time_ms") < batch_end_ms) | F.col("time_ms").isNull())
        .repartition(*keys)
        .sortWithinPartitions(*keys)
        .mapInArrow(_writer(plan, store, info), _OUTCOME)
        .collect()
    )
    if problems:
        raise DataError(f"{problems[0].problem}; nothing of this upload is served")
    store.put_many(SERVING_INFO_DATASET, [Put(serving_info_key(group_by.name), info.encode())])
    _drop_older(store, info, previous)
    return info


def read_serving_info(store: KVStore, group_by: str) -> ServingInfo | None:
    """Give which upload of a GroupBy is served; None if there was none.

    Raises:
        CorruptionError: what the store holds is not a serving info.
    """
    (found,) = store.get_many([Get(SERVING_INFO_DATASET, serving_info_key(group_by))])
    return ServingInfo.decode(found[-1].value) if found else None


def _writer(
    plan: GroupByPlan, store: KVStore, info: ServingInfo
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Give the function of one task: rows sorted by key in, written IRs aside, a problem or nothing out.

    A row that cannot be aggregated is an answer, not a failed task: trying it again would not mend it.
    """
    key_width = len(plan.group_by.keys)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for batch in batches for row in rows_of(batch.columns, key_width))
        puts: list[Put] = []
        try:
            for key, of_key in groupby(rows, key=itemgetter(0)):
                encoded = plan.encode_key(key)
                if encoded is None:
                    continue
                ir = plan.batch_ir(_timed(plan, key, of_key), info.batch_end_ms)
                if ir.segments:
                    puts.append(Put(encoded, plan.encode_batch(encoded, ir), info.batch_end_ms))
                if len(puts) >= _PUTS_A_WRITE:
                    store.put_many(info.batch_dataset, puts)
                    puts = []
            store.put_many(info.batch_dataset, puts)
        except DataError as problem:
            yield pa.record_batch([pa.array([str(problem)])], names=["problem"])

    return write


def _timed(
    plan: GroupByPlan, key: tuple[object, ...], rows: Iterator[tuple[object, int, tuple[object, ...]]]
) -> Iterator[tuple[int, tuple[object, ...]]]:
    for _, time_ms, inputs in rows:
        if time_ms is None:
            raise DataError(f"GroupBy {plan.name!r}: an event of key {key} has no time; drop it or give it one")
        yield time_ms, inputs


def _drop_older(store: KVStore, info: ServingInfo, previous: ServingInfo | None) -> None:
    """Drop what earlier uploads left, but for the one that readers may still be at."""
    kept = {info.batch_dataset} | ({previous.batch_dataset} if previous else set())
    for dataset in store.datasets():
        if dataset.startswith(f"{info.group_by}.batch.") and dataset not in kept:
            store.drop(dataset)
