"""How many events a second the stream of tiles takes in, beside Spark's own aggregation by window.

For `benchmarks.features`. Both count, add, average and find extremes of a double for 100,000 keys, and both keep their
state in Spark's RocksDB store with changelog checkpoints. Each micro-batch is one five-minute tile. *Dense*: ten rows
of a batch share a key and tile. *Sparse*: each key and tile has one row in a batch. The first batches start workers
and have the JVM compile what it runs; they are not counted. Millpond's tiles go to LMDB; the rows of the peer are
dropped.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.features import Aggregation, Field, GroupBy, compile_group_by
from millpond.features.windows import DAY_MS
from millpond.kv import LmdbStore
from millpond.spark.features.stream import stream
from millpond.spark.features.tiles.combine import EventCounts, combiner
from millpond.spark.features.tiles.slots import decode_combined

KEYS = 100_000
OPERATIONS = ("count", "sum", "average", "min", "max")
WINDOWS = ("1h", "6h", "1d", "7d")
LATENESS_MS = 600_000
B = 20_000 * DAY_MS
WARM_BATCHES, BATCHES = 15, 10
ROWS_PER_KEY = {"dense": 10, "sparse": 1}
FILES_A_BATCH = 2
SCHEMA = "user bigint, time_ms bigint, price double"

SPENT = GroupBy(
    "spent",
    keys=(Field("user", "long"),),
    inputs=(Field("price", "double"),),
    aggregations=tuple(Aggregation(operation, "price", WINDOWS) for operation in OPERATIONS),
)
PLAN = compile_group_by(SPENT)


def write_batches(folder: Path, keys: int, rows_per_key: int) -> None:
    """Write the files of all batches: of each key so many rows in a batch's own tile, in any order."""
    rng = np.random.default_rng(11)
    folder.mkdir(parents=True)
    for batch in range(WARM_BATCHES + BATCHES):
        start = B + batch * PLAN.tile_ms
        users = rng.permutation(np.repeat(np.arange(keys), rows_per_key))
        for number, part in enumerate(np.array_split(users, FILES_A_BATCH)):
            columns = {
                "user": part,
                "time_ms": start + rng.integers(0, PLAN.tile_ms, len(part)),
                "price": np.round(rng.lognormal(3, 1, len(part)), 2),
            }
            pq.write_table(pa.table(columns), folder / f"{batch:04}-{number}.parquet")


def ingest(spark: SparkSession, folder: Path, keys: int = KEYS) -> dict[str, Any]:
    """Measure both engines at both densities: events per second, and rows combined into one."""
    measured: dict[str, Any] = {}
    for density, rows_per_key in ROWS_PER_KEY.items():
        files = folder / density / "events"
        write_batches(files, keys, rows_per_key)
        measured[density] = {
            "millpond": round(_millpond(spark, files, folder / density / "millpond")),
            "spark": round(_peer(spark, files, folder / density / "spark")),
        }
        if density == "dense":
            measured["combine_ratio"] = round(_combine_ratio(files), 2)
        shutil.rmtree(folder / density)
    return measured


def _events(spark: SparkSession, files: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", str(FILES_A_BATCH)).parquet(str(files))


def _millpond(spark: SparkSession, files: Path, folder: Path) -> float:
    store = LmdbStore(folder / "kv", sync=False)
    try:
        query = stream(
            SPENT,
            store,
            str(folder / "checkpoint"),
            start_ms=B,
            lateness_ms=LATENESS_MS,
            tables={"spent": _events(spark, files)},
            trigger={"availableNow": True},
        )
        return _events_per_second(query)
    finally:
        store.close()


def _peer(spark: SparkSession, files: Path, folder: Path) -> float:
    timed = _events(spark, files).withColumn("at", F.timestamp_millis("time_ms"))
    functions = {"count": F.count, "sum": F.sum, "average": F.avg, "min": F.min, "max": F.max}
    summed = (
        timed.withWatermark("at", f"{LATENESS_MS} milliseconds")
        .groupBy("user", F.window("at", f"{PLAN.tile_ms} milliseconds"))
        .agg(*(function("price").alias(operation) for operation, function in functions.items()))
    )
    writer = summed.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    return _events_per_second(writer.option("checkpointLocation", str(folder / "checkpoint")).start())


def _events_per_second(query: Any) -> float:
    """Events by the time that batches with events took, the first ones and those of timers alone left out."""
    query.awaitTermination()
    if query.exception() is not None:
        raise query.exception()
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert len(batches) == WARM_BATCHES + BATCHES, len(batches)
    counted = batches[WARM_BATCHES:]
    rows = sum(batch["numInputRows"] for batch in counted)
    return float(rows / (sum(batch["durationMs"]["triggerExecution"] for batch in counted) / 1000))


def _combine_ratio(files: Path) -> float:
    """Events of one batch by the tiles that cross the shuffle, as its tasks combine them."""
    rows = combined = 0
    combine = combiner(PLAN, B, EventCounts())
    for file in sorted(files.glob("0000-*.parquet")):
        table = pq.read_table(
            file, schema=pa.schema([("user", pa.int64()), ("time_ms", pa.int64()), ("price", pa.float64())])
        )
        times = (table["time_ms"].to_numpy() * 1000).astype("datetime64[us]")
        named = table.rename_columns(["key_0", "time_ms", "input_0"])
        named = named.append_column("event_time", pa.array(times).cast(pa.timestamp("us", tz="UTC")))
        rows += len(named)
        for batch in combine(iter(named.to_batches())):
            for tiles in batch.column("tiles").drop_null().to_pylist():
                combined += sum(len(one.keys) for one in decode_combined(tiles).values())
    return rows / combined
