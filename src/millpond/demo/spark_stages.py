"""The stages of the demo that Spark runs: the session and the queries.

The streaming query reads one slice a micro-batch, so that a year comes in as many batches as there
are slices, and stops when it has read them all (`availableNow`). Its checkpoint lies in the workdir;
a process that comes after a killed one starts the same query on it.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from millpond.demo.aircraft_day import OUTPUT, AircraftDay
from millpond.demo.data import HOUR_MS
from millpond.demo.definitions import FLIGHT
from millpond.demo.stream import AircraftSink
from millpond.demo.workdir import Asked
from millpond.errors import UnavailableError
from millpond.features import GroupBy
from millpond.kv import open_store
from millpond.lookup import LookupTable
from millpond.spark import StateConfig, keyed
from millpond.spark.environment.session import session
from millpond.spark.features.check import CheckResult, check
from millpond.spark.features.stream import stream as stream_tiles
from millpond.spark.features.training_set import training_set
from millpond.spark.features.upload import upload
from millpond.spark.features.upload_lease import forget_lease
from millpond.spark.lookup.join import lookup_join
from millpond.spark.spec.metrics import KeyedMetrics

EVENT_DDL = (
    "flight_id LONG, time_ms LONG, sched_ms LONG, origin STRING, dest STRING, carrier STRING, flight LONG, "
    "tailnum STRING, dep_delay DOUBLE, delayed_15 DOUBLE, landed_ms LONG, arr_delay DOUBLE, air_minutes DOUBLE, "
    "weather_hour_ms LONG, service_day LONG, received_ms LONG"
)


SLICES_PER_TILE_BATCH = 8
"""Tiles come from the last slices only, so that the stream of them takes more slices at a time."""


@contextlib.contextmanager
def spark_session(workdir: Path) -> Iterator[SparkSession]:
    """A session on two cores, with its scratch space in the workdir; what Java says goes into spark.log there.

    Raises:
        MissingDependencyError: there is no Java.
    """
    scratch = workdir / "spark-scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    with _stderr_into(workdir / "spark.log"):
        spark = session(
            "millpond-demo",
            master="local[2,4]",
            spark__ui__enabled="false",
            spark__ui__showConsoleProgress="false",
            spark__sql__shuffle__partitions="2",
            # A year is little data: put together, its two partitions would leave one core idle.
            spark__sql__adaptive__coalescePartitions__enabled="false",
            spark__sql__session__timeZone="UTC",
            spark__driver__bindAddress="127.0.0.1",
            spark__driver__host="127.0.0.1",
            spark__driver__memory="2g",
            spark__local__dir=str(scratch),
            spark__sql__warehouse__dir=str(scratch / "warehouse"),
        )
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _stderr_into(path: Path) -> Iterator[None]:
    """Let a process that is started meanwhile inherit the file as its stderr; Java and its workers keep it."""
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


_SPILLING = {
    "state.backend.spillable.memory-limit": "1gb",
    # A state host alone uses more than this share. So every turn spills, and one comes every second.
    "state.backend.spillable.high-watermark.ratio": "0.05",
    "state.backend.spillable.spill-size.ratio": "0.5",
    "state.backend.spillable.load-start.ratio": "0.01",
    "state.backend.spillable.load-end.ratio": "0.02",
    "state.backend.spillable.trigger-interval": "1 s",
    "state.backend.spillable.heap-status.check-interval": "1 s",
}


def read_events(spark: SparkSession, workdir: Path, *, slices_per_batch: int = 1) -> DataFrame:
    """The slices as a stream."""
    reader = spark.readStream.schema(EVENT_DDL).option("maxFilesPerTrigger", slices_per_batch)
    return reader.parquet(str(workdir / "events"))


def state_config(asked: Asked) -> StateConfig:
    """Where the run holds keyed state. A heap that spills has so little memory that it always does."""
    spills = _SPILLING if asked.backend == "spillable" else {}
    return StateConfig(asked.backend, options={"state.backend.cache.max-entries-num": asked.state_cache, **spills})


def follow_aircraft(
    spark: SparkSession, workdir: Path, tables: Mapping[str, LookupTable], sink: AircraftSink, state: StateConfig
) -> KeyedMetrics:
    """Stream all slices through the lookups and `AircraftDay` into the sink; what the state's operator counted."""
    events = read_events(spark, workdir).where(F.col("tailnum").isNotNull())
    known = lookup_join(events, tables["planes"], on="tailnum")
    known = lookup_join(known, tables["weather"], on={"origin": "origin", "weather_hour_ms": "hour_ms"})
    aircraft = keyed(known, "tailnum")
    days = aircraft.transformWithState(AircraftDay(), OUTPUT, "Update", "None", state=state)
    query = (
        days.writeStream.outputMode("update")
        .option("checkpointLocation", str(workdir / "checkpoint" / "aircraft-day"))
        .trigger(availableNow=True)
        .foreachBatch(sink)
        .start()
    )
    wait_for(query, workdir, sink)
    return aircraft.metrics()


def wait_for(query: StreamingQuery, workdir: Path, sink: AircraftSink | None = None) -> None:
    """Wait for a query's end, and tell a failure as what it is: ours, a full disk, or the user code's."""
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        if sink is not None and sink.failure is not None:
            raise sink.failure from error
        if "No space left on device" in str(error):
            raise UnavailableError(
                f"{workdir}: the disk is full. Free some space and give the same command again: it goes on."
            ) from error
        raise


def upload_features(spark: SparkSession, workdir: Path, group_by: GroupBy, batch_end_ms: int, url: str) -> None:
    """Upload a GroupBy's features before the batch end. It can be done again: an upload is served once it is whole."""
    with open_store(url) as store:
        # The store is this run's own and its folder is locked: who holds a lease there is dead.
        forget_lease(store, group_by.name)
        upload(group_by, batch_end_ms, store, tables=_history(spark, workdir), spark=spark)


def stream_features(spark: SparkSession, workdir: Path, group_by: GroupBy, batch_end_ms: int, url: str) -> None:
    """Stream the tiles of what comes after the batch end. Started again, the stream goes on from its checkpoint."""
    with open_store(url) as store:
        query = stream_tiles(
            group_by,
            store,
            str(workdir / "checkpoint" / f"{group_by.name}-tiles"),
            start_ms=batch_end_ms,
            lateness_ms=HOUR_MS,
            tables={"flights": read_events(spark, workdir, slices_per_batch=SLICES_PER_TILE_BATCH)},
            trigger={"availableNow": True},
        )
        wait_for(query, workdir)


def write_training_set(spark: SparkSession, workdir: Path, queries: pa.Table) -> None:
    """Write the Join's features as of each query, behind its columns, into the folder `training`."""
    rows = training_set(spark.createDataFrame(queries), FLIGHT, time_column="query_ms", tables=_history(spark, workdir))
    rows.write.mode("overwrite").parquet(str(workdir / "training"))


def check_answers(spark: SparkSession, workdir: Path) -> CheckResult:
    """Compare the logged answers with the training set at the same times; give examples only if some differ."""
    logged, tables = spark.read.parquet(str(workdir / "answers" / "*" / "*.parquet")), _history(spark, workdir)
    found = check(logged, FLIGHT, tables=tables, examples=0)
    return found if found.agrees else check(logged, FLIGHT, tables=tables, examples=1)


def _history(spark: SparkSession, workdir: Path) -> dict[str, DataFrame]:
    return {"flights": spark.read.schema(EVENT_DDL).parquet(str(workdir / "events"))}
