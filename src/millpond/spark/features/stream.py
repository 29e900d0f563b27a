"""Streaming tiles: turns the events after the batch end into tiles in the KV store.

Place on the data path: between a stream of events and the tiles that the fetcher reads. There are three steps: events
are combined by key and tile before the shuffle (`tiles.combine`), a keyed operator keeps the tiles (`tiles.processor`),
and each micro-batch is written (`tiles.writer`).

Delivery: at least once, and idempotent: same key and address, same bytes. Freshness: one micro-batch. Recovery: restart
from the checkpoint. A stream that is restarted without its checkpoint begins with empty tiles. Its closing time goes
back, which tells readers to drop what they cached.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.types import StructField, StructType
from pyspark.sql.types import _parse_datatype_string as parse_ddl  # what keyed() reads schemas with, too

from millpond.errors import OptionError
from millpond.features import (
    CLOSING_KEY,
    HORIZON_MS,
    ClosingTime,
    GroupBy,
    GroupByPlan,
    closing_time,
    compile_group_by,
    encode_closing_time,
    stream_dataset,
)
from millpond.features.batch import check_batch_end
from millpond.features.definitions import EntitySource
from millpond.features.stored.rows import MAX_QUERY_MS, NEVER_CLOSED_MS, stream_start
from millpond.kv import Get, KVStore, Put
from millpond.metrics import NO_METRICS, Recorder
from millpond.spark.environment.session import is_connect
from millpond.spark.features.columns import TIME, input_names, key_names
from millpond.spark.features.sources import IS_DELETE, VISIBLE, Tables, sources_of, stream_rows, streams_of
from millpond.spark.features.tiles.combine import COMBINED_SCHEMA, EVENT_TIME, OWN_TIME, EventCounts, combiner
from millpond.spark.features.tiles.processor import DEFAULT_RETENTION_MS, TileProcessor
from millpond.spark.features.tiles.rows import TILE_SCHEMA
from millpond.spark.features.tiles.writer import tile_writer
from millpond.spark.operator.keyed import KeyedData, keyed_map
from millpond.spark.operator.request import OperatorRequest
from millpond.spark.spec.operator import StateConfig


def stream(
    group_by: GroupBy,
    store: KVStore,
    checkpoint: str,
    *,
    start_ms: int,
    lateness_ms: int,
    retention_ms: int = DEFAULT_RETENTION_MS,
    least_ttl_ms: int | None = HORIZON_MS,
    tables: Tables | None = None,
    state: StateConfig | None = None,
    trigger: Mapping[str, Any] | None = None,
    spark: SparkSession | None = None,
    recorder: Recorder = NO_METRICS,
) -> StreamingQuery:
    """Start the query that keeps a GroupBy's tiles up to date in the KV store.

    The tiles go to the dataset of the plan's generation. A fetcher reads them once an upload of that
    generation is served.

    Args:
        group_by: what to compute; the query's name is its name followed by ``.stream``.
        store: the store to write to; it must be picklable, because it travels to the executors.
        checkpoint: the folder of the query's checkpoint.
        start_ms: the batch end of the upload to start from; earlier events are left out and counted. So are events
            without a time, and with one after the year 2499. The query logs a warning when it first meets one of the
            latter two, or one before 1980.
        lateness_ms: how far the watermark stays behind the latest event. With a larger value, tiles complete later
            and fewer are amended.
        retention_ms: how long after its end a tile can still be amended, and stays in the store: a multiple of the
            smallest tile, at least two days.
        least_ttl_ms: how long a tile stays in the store at least after it was written, however old it is: two
            days by default, as long as a batch is served. None keeps tiles until their dataset is dropped. A replayed
            history that is queried on a later day needs that.
        tables: streaming DataFrames that replace the streams of these names. A GroupBy without sources reads the one
            under its own name.
        state: the backend and cache of the operator's state; the heap if None.
        trigger: the arguments of Spark's ``trigger``, such as ``{"availableNow": True}``; if None, a micro-batch
            starts as soon as there is data.
        spark: reads the sources; the active session if None.
        recorder: gets the metrics of events and tiles after each micro-batch.

    Raises:
        OptionError: a source has no stream, the start is not a batch end, the lateness is negative, the
            retention is too short.
        DataError: a column is missing or of a wrong type.

    Example::

        query = stream(
            route, LmdbStore("kv"), "checkpoints/route",
            start_ms=info.batch_end_ms, lateness_ms=600_000, tables={"route": flights},
        )
        query.awaitTermination()
    """
    plan = compile_group_by(group_by)
    counts = _event_counts(spark)
    combined = _combined(plan, start_ms, lateness_ms, tables, spark, counts)
    updates = combined.packed_output(
        OperatorRequest(
            form="arrow",
            processor=TileProcessor(group_by, retention_ms),
            output=TILE_SCHEMA,
            output_mode="Update",
            time_mode="EventTime",
            initial=None,
            event_time_column="",
            late="keep",
            config=state,
            savepoint=None,
        )
    )
    dataset = stream_dataset(plan.name, plan.generation)
    store.create(dataset, rows="many", ttl_ms=least_ttl_ms)
    started_ms = publish_start(store, dataset, start_ms)
    writer = updates.writeStream.queryName(f"{plan.name}.stream").outputMode("update")
    if trigger is not None:
        writer = writer.trigger(**trigger)
    # A small tile is read until the largest tile that holds it has closed.
    put = tile_writer(
        dataset, plan.name, store, counts, recorder, keep_ms=retention_ms + plan.layers[-1], started_ms=started_ms
    )
    return writer.foreachBatch(put).option("checkpointLocation", checkpoint).start()


def publish_start(store: KVStore, dataset: str, start_ms: int) -> int | None:
    """Publish from when on the stream has all events, so that no older batch is served with a gap behind it.

    A stream that goes on where one has closed tiles leaves no gap, and that one's start counts. It is None if that one
    did not publish it.
    """
    (rows,) = store.get_many([Get(dataset, CLOSING_KEY)])
    values = [row.value for row in rows]
    closed_ms, started_ms = closing_time(values), stream_start(values)
    if closed_ms is not None and start_ms <= closed_ms:
        return None if started_ms is None else min(started_ms, start_ms)
    if started_ms != start_ms:
        closing = ClosingTime(0, 1, NEVER_CLOSED_MS if closed_ms is None else closed_ms, start_ms)
        store.put_many(dataset, [Put(CLOSING_KEY, encode_closing_time(closing))])
    return start_ms


def tile_updates(
    group_by: GroupBy,
    *,
    start_ms: int,
    lateness_ms: int,
    retention_ms: int = DEFAULT_RETENTION_MS,
    tables: Tables | None = None,
    state: StateConfig | None = None,
    spark: SparkSession | None = None,
    counts: EventCounts | None = None,
) -> DataFrame:
    """Return the stream of changed tiles, in the columns of ``TILE_SCHEMA``.

    Commonly used through `stream`; use it directly to write tiles to another place as well. Arguments and errors are
    those of `stream`.
    """
    combined = _combined(compile_group_by(group_by), start_ms, lateness_ms, tables, spark, counts or EventCounts())
    return combined.transformWithStateInArrow(
        TileProcessor(group_by, retention_ms), TILE_SCHEMA, "Update", "EventTime", late="keep", state=state
    )


def _combined(
    plan: GroupByPlan,
    start_ms: int,
    lateness_ms: int,
    tables: Tables | None,
    spark: SparkSession | None,
    counts: EventCounts,
) -> KeyedData:
    """Return the stream of combined tiles, keyed by slot."""
    _check(plan, start_ms, lateness_ms)
    timed = _timed_rows(plan, spark or SparkSession.active(), tables).withWatermark(
        EVENT_TIME, f"{lateness_ms} milliseconds"
    )
    combine = combiner(plan, start_ms, counts)
    return keyed_map(timed, combine, _combined_schema(timed), "slot")


def check_streamable(group_by: GroupBy) -> None:
    """Raise if a GroupBy cannot be streamed. It needs no session.

    Raises:
        OptionError: the GroupBy is a snapshot, or a source has no stream.
    """
    if group_by.accuracy != "temporal":
        raise OptionError(
            f'GroupBy {group_by.name!r}: it is of accuracy "snapshot", so only its upload is served; there is nothing '
            'to stream. Say accuracy="temporal" to follow events up to the query.'
        )
    streams_of(group_by)


def _check(plan: GroupByPlan, start_ms: int, lateness_ms: int) -> None:
    check_streamable(plan.group_by)
    check_batch_end(start_ms, plan.tile_ms)
    if type(lateness_ms) is not int or lateness_ms < 0:
        raise OptionError(
            f"lateness_ms {lateness_ms!r} must be a whole number from 0; the watermark cannot be ahead of the events"
        )


def _timed_rows(plan: GroupByPlan, spark: SparkSession, tables: Tables | None) -> DataFrame:
    """Return key, time, inputs, and the time as a timestamp for the watermark.

    A change of an entity counts from its mutation time. Two more columns follow for entities: whether the row goes, and
    the row's own time.

    A time after every query, such as one in microseconds, is null here. It would take the watermark along, and with it
    the closing time of all tiles.
    """
    rows = stream_rows(spark, plan.group_by, tables)
    of_entities = any(isinstance(source, EntitySource) for source in sources_of(plan.group_by))
    # A row without an own time belongs to no window, whatever its mutation time.
    changed = F.when(F.col(TIME).isNotNull(), F.coalesce(F.col(VISIBLE), F.col(TIME)))
    time = changed if of_entities else F.col(TIME)
    time = F.when(time < MAX_QUERY_MS, time)
    return rows.select(
        *key_names(plan.group_by),
        time.alias(TIME),
        *input_names(plan.group_by),
        F.timestamp_millis(time).alias(EVENT_TIME),
        *([F.col(IS_DELETE), F.col(TIME).alias(OWN_TIME)] if of_entities else []),
    )


def _combined_schema(timed: DataFrame) -> StructType:
    """Return the schema of combined tiles, with Spark's watermark metadata on the event time."""
    schema: Any = parse_ddl(COMBINED_SCHEMA)
    metadata = timed.schema[EVENT_TIME].metadata
    return StructType(
        [
            StructField(field.name, field.dataType, nullable=True, metadata=metadata)
            if field.name == EVENT_TIME
            else field
            for field in schema
        ]
    )


def _event_counts(spark: SparkSession | None) -> EventCounts:
    """Return accumulators for the events of a stream; none on Spark Connect, which has no accumulators."""
    session = spark or SparkSession.active()
    if is_connect(session):
        return EventCounts()
    context = session.sparkContext
    return EventCounts(*(context.accumulator(0) for _ in range(5)))
