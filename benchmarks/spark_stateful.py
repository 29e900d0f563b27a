"""Keyed state in Spark: PySpark's `transformWithState`, Spark SQL, and Millpond, on the same stream.

Every engine counts events and sums amounts per user, over the same Parquet files, with the same
session settings, one micro-batch a pair of files. PySpark and Millpond run the very same
`StatefulProcessor` class and its `Row`s. Each key has one row in each batch, which is the dearest
case for a Python operator: nothing is shared between rows. A row has four columns (string, double,
timestamp, string), of which the processor reads two.

The figure is rows per second of the median batch after warm-up, by Spark's own clock
(`triggerExecution`). Run it with nothing else running:

    .venv/bin/python -m benchmarks.spark_stateful
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from benchmarks.report import grouped_bars, report
from millpond.spark import keyed, session

SCHEMA = "user string, amount double, at timestamp, page string"
OUTPUT = "user string, events long, total double"
FILES_PER_BATCH = 2
SIZES = {"100k_x_100k": 100_000, "500k_x_500k": 500_000}
# (warm-up batches, counted batches): PySpark's operator takes minutes for what the others do in seconds.
BATCHES = {"spark_sql": (2, 5), "spark_rows": (1, 2), "millpond_rows": (2, 5)}


class Spending(StatefulProcessor):
    """Events and total amount per user, as any PySpark user would write it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._spending = handle.getValueState("spending", "events long, total double")

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """Add this batch's rows."""
        events, total = self._spending.get() or (0, 0.0)
        for row in rows:
            events += 1
            total += row.amount
        self._spending.update((events, total))
        yield Row(user=key[0], events=events, total=total)

    def close(self) -> None:
        """Nothing to close."""


def spark_sql(events: DataFrame) -> DataFrame:
    """Spark's own aggregation, in the JVM."""
    return events.groupBy("user").agg(F.count("*").alias("events"), F.sum("amount").alias("total"))


def spark_rows(events: DataFrame) -> DataFrame:
    """PySpark's operator."""
    return events.groupBy("user").transformWithState(Spending(), OUTPUT, "Update", "None")


def millpond_rows(events: DataFrame) -> DataFrame:
    """Millpond's operator, with the same class."""
    return keyed(events, "user").transformWithState(Spending(), OUTPUT, "Update", "None")


ENGINES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "spark_sql": spark_sql,
    "millpond_rows": millpond_rows,
    "spark_rows": spark_rows,
}


def write_batches(folder: Path, rows: int, batches: int) -> None:
    """The stream: each batch has every key once, in another order."""
    folder.mkdir()
    random = np.random.default_rng(seed=7)
    for batch in range(batches):
        keys = random.permutation(rows)
        for part, share in enumerate(np.array_split(keys, FILES_PER_BATCH)):
            table = pa.table(
                {
                    "user": pa.array([f"user-{key:09d}" for key in share]),
                    "amount": pa.array(random.random(len(share))),
                    "at": pa.array(
                        np.full(len(share), 1_700_000_000_000_000 + batch), type=pa.timestamp("us", tz="UTC")
                    ),
                    "page": pa.array([f"/page/{key % 97}" for key in share]),
                }
            )
            pq.write_table(table, folder / f"{batch:04d}-{part}.parquet")


def rows_per_second(spark: SparkSession, engine: str, folder: Path, rows: int) -> float:
    """Run one engine over the stream; the median batch after warm-up."""
    warm_up, counted = BATCHES[engine]
    checkpoint = Path(tempfile.mkdtemp(prefix="millpond-benchmark-"))
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(folder))
    query = (
        ENGINES[engine](events)
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        while len(done := _batches(query, rows)) < warm_up + counted:
            if query.awaitTermination(0.2):
                break
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    seconds = [batch["durationMs"]["triggerExecution"] / 1000 for batch in done[warm_up : warm_up + counted]]
    print(f"{engine:>14} {rows:>9,} rows: {' '.join(f'{each:.2f}' for each in seconds)} s", file=sys.stderr, flush=True)
    return rows / statistics.median(seconds)


def _batches(query: Any, rows: int) -> list[Any]:
    if query.exception() is not None:
        raise query.exception()
    return [progress for progress in query.recentProgress if progress["numInputRows"] == rows]


def main() -> None:
    """Run every engine at every size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    chosen = parser.parse_args()
    spark = session(
        "spark_stateful", master="local[2]", spark__sql__shuffle__partitions="2", spark__ui__enabled="false"
    )
    spark.sparkContext.setLogLevel("ERROR")
    measured: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-benchmark-") as folder:
        for size in chosen.sizes:
            stream = Path(folder) / size
            write_batches(stream, SIZES[size], max(sum(batches) for batches in BATCHES.values()) + 1)
            measured[size] = {
                engine: round(rows_per_second(spark, engine, stream, SIZES[size])) for engine in chosen.engines
            }
    spark.stop()
    if {"spark_rows", "millpond_rows"} <= set(chosen.engines):
        _report(measured)
    else:
        print(measured)


def _report(measured: dict[str, dict[str, float]]) -> None:
    ratio = {size: round(found["millpond_rows"] / found["spark_rows"], 1) for size, found in measured.items()}
    names = {
        "spark_sql": "Spark SQL (JVM)",
        "spark_rows": "transformWithState (rows)",
        "millpond_rows": "Millpond (same class, rows)",
    }
    report(
        "spark_stateful",
        title="Keyed state in PySpark: rows per second",
        columns=("rows × keys a batch", *names.values(), "Millpond ÷ transformWithState"),
        rows=[
            (size.replace("_x_", " × "), *(f"{found[engine]:,.0f}" for engine in names), f"{ratio[size]:.1f}")
            for size, found in measured.items()
        ],
        result={"rows_per_second": measured, "ratio": ratio},
        draw=lambda axes: grouped_bars(
            axes,
            [size.replace("_x_", " × ") for size in measured],
            {name: [measured[size][engine] for size in measured] for engine, name in names.items()},
        ),
    )


if __name__ == "__main__":
    main()
