"""How long an upload takes, beside Spark SQL that adds up the same sums, and how long a further day takes.

For `benchmarks.features`. 10,000,000 events of 50,000 keys over 100 days; four windows. The peer adds up by key and by
segment, as the cuts of the windows divide the time: what the rows of the upload are made of, in doubles, on the JVM.
The upload also makes the rows and puts them into LMDB; the rows of the peer are dropped.

A *further day* holds one percent of the events. It is uploaded from a hop table that knows all days before it.

The last days of the history are uploaded one after the other, each in full and as a further day in turn, and the
medians count. Each kind of upload runs once before it is measured: the first run has the JVM compile its plan.
"""

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.features import Aggregation, Field, GroupBy, ServingInfo
from millpond.features.batch import HORIZON_MS
from millpond.features.windows import DAY_MS, hop_ms, parse_window, window_start
from millpond.kv import LmdbStore
from millpond.spark.features.upload import upload

EVENTS, KEYS, DAYS = 10_000_000, 50_000, 100
WINDOWS = ("1d", "7d", "30d", None)
BEGIN_MS = 20_000 * DAY_MS
END_MS = BEGIN_MS + DAYS * DAY_MS
MEASURED_DAYS = 5

SPENT = GroupBy(
    "spent",
    keys=(Field("user", "long"),),
    inputs=(Field("price", "double"),),
    aggregations=tuple(Aggregation(operation, "price", WINDOWS) for operation in ("count", "sum", "average")),
)


def write_events(folder: Path, events: int, keys: int) -> None:
    """Write one file of events for each day."""
    rng = np.random.default_rng(13)
    folder.mkdir(parents=True)
    rows = events // DAYS
    for day in range(DAYS):
        columns = {
            "user": rng.integers(0, keys, rows),
            "time_ms": BEGIN_MS + day * DAY_MS + rng.integers(0, DAY_MS, rows),
            "price": np.round(rng.lognormal(3, 1, rows), 2),
        }
        pq.write_table(pa.table(columns), folder / f"{day:04}.parquet")


def measure_upload(spark: SparkSession, folder: Path, scale: float = 1.0) -> dict[str, Any]:
    """Measure uploads of all days, the peer, and further days from a hop table of those before."""
    files = folder / "events"
    write_events(files, int(EVENTS * scale), max(1, int(KEYS * scale)))
    events = spark.read.parquet(str(files))
    hop_table = str(folder / "hops")
    *warm_up, first_ms = (END_MS - day * DAY_MS for day in (MEASURED_DAYS + 1, MEASURED_DAYS, MEASURED_DAYS - 1))
    full: list[float] = []
    further: list[float] = []
    store = LmdbStore(folder / "kv", sync=False)
    try:
        _timed_upload(spark, events, store, warm_up[0])
        for end_ms in warm_up:
            _timed_upload(spark, events, store, end_ms, hop_table)
        for end_ms in range(first_ms, END_MS + 1, DAY_MS):
            seconds, whole = _timed_upload(spark, events, store, end_ms)
            full.append(seconds)
            seconds, continued = _timed_upload(spark, events, store, end_ms, hop_table)
            further.append(seconds)
            assert (continued.rows, continued.checksum) == (whole.rows, whole.checksum)
    finally:
        store.close()
    spark_seconds = min(_peer(spark, files) for _ in range(2))
    rows = events.count()
    shutil.rmtree(folder)
    seconds = statistics.median(full)
    return {
        "rows_per_second": round(rows / seconds),
        "spark_seconds": round(spark_seconds, 2),
        "seconds": round(seconds, 2),
        "incremental_seconds": round(statistics.median(further), 2),
        "seconds_spread": [round(min(full), 2), round(max(full), 2)],
        "incremental_seconds_spread": [round(min(further), 2), round(max(further), 2)],
    }


def _timed_upload(
    spark: SparkSession,
    events: DataFrame,
    store: LmdbStore,
    batch_end_ms: int,
    hop_table: str | None = None,
) -> tuple[float, ServingInfo]:
    begun = time.perf_counter()
    info = upload(
        SPENT,
        batch_end_ms,
        store,
        tables={"spent": events},
        spark=spark,
        hop_table=hop_table,
    )
    return time.perf_counter() - begun, info


def _peer(spark: SparkSession, files: Path) -> float:
    events = spark.read.parquet(str(files)).where(F.col("time_ms") < END_MS)
    summed = events.groupBy("user", _segment().alias("segment")).agg(F.count("price"), F.sum("price"), F.avg("price"))
    begun = time.perf_counter()
    summed.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def _segment() -> Column:
    """The segment of an event, as the start of its hop: windows reach to hops of their tails for two days."""
    at = F.col("time_ms")
    segment: Column = F.lit(0)
    for window_ms in sorted((parse_window(window) for window in WINDOWS if window), reverse=True):
        start = window_start(END_MS, window_ms)
        end = min(window_start(END_MS + HORIZON_MS, window_ms), END_MS)
        of_tail = at - at % F.lit(hop_ms(window_ms))
        segment = F.when(at >= end, F.lit(end)).when(at >= start, of_tail).otherwise(segment)
    return segment
