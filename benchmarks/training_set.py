"""How fast a training set is made, beside the range join in Spark SQL that says the same.

1,000,000 queries and 10,000,000 events over 60 days, five windows (1 hour to 30 days), each with the
count, sum, average, minimum and maximum of a double. The peer joins each query with the events of its longest window,
and sums up by query with one condition per window: the hop rule written out, in doubles, on the JVM. Both read the same
Parquet files and write their rows to a sink that drops them. A hash of some answers of both is compared first.

`peak_bytes` is the most that driver, JVM and Python workers held at once while the training set was made.

The range join pays for each pair of a query and an event that its longest window holds, so fewer keys make it slower;
the training set pays for each row, however many keys there are. So both are measured with several numbers of keys.

The range join is cancelled after ten minutes: then it would have taken longer, and the training set is at least as many
times faster as is said.

    .venv/bin/python -m benchmarks.training_set [--scale 0.1] [--keys 10000 50000] [--peer-limit 600]
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.memory import sampled
from benchmarks.report import grouped_bars, report
from millpond.features import Aggregation, Field, GroupBy
from millpond.features.windows import DAY_MS, hop_ms, parse_window
from millpond.spark import session
from millpond.spark.features.training_set import training_set

QUERIES, EVENTS = 1_000_000, 10_000_000
KEYS = (50_000, 20_000, 10_000)
"""The numbers of keys; 200, 500 and 1,000 events each. The first is also the one that warms up."""

WINDOWS = ("1h", "6h", "1d", "7d", "30d")
OPERATIONS = ("count", "sum", "average", "min", "max")
DAYS = 60
BEGIN_MS = 20_000 * DAY_MS
FILES = 4
SAMPLED_S = 0.2
LEAST_SPEED_UP = 5
MOST_BYTES = 8 << 30
PEER_LIMIT_S = 600.0
CANCELLED_AGAIN_S = 1.0
"""A job that begins just when all are cancelled is cancelled the next time."""

COMPARED = 500

SPENT = GroupBy(
    "spent",
    keys=(Field("user", "long"),),
    inputs=(Field("price", "double"),),
    aggregations=tuple(Aggregation(operation, "price", WINDOWS) for operation in OPERATIONS),
)


def write_tables(folder: Path, scale: float, keys: int) -> None:
    """Write the events and the queries as Parquet files, a share of the rows and keys."""
    rng = np.random.default_rng(7)
    keys = max(1, int(keys * scale))
    span = DAYS * DAY_MS

    def times(count: int, begin: int) -> Any:
        return BEGIN_MS + begin + rng.integers(0, span - begin, count)

    for name, count in (("events", int(EVENTS * scale)), ("queries", int(QUERIES * scale))):
        (folder / name).mkdir(parents=True)
        for number in range(FILES):
            rows = count // FILES
            columns = {
                "user": rng.integers(0, keys, rows),
                "time_ms": times(rows, 0 if name == "events" else span // 2),
                "price" if name == "events" else "label": np.round(rng.lognormal(3, 1, rows), 2),
            }
            pq.write_table(pa.table(columns), folder / name / f"{number}.parquet")


def range_join(queries: DataFrame, events: DataFrame) -> DataFrame:
    """Give what the training set gives, as Spark SQL says it."""
    asked = queries.withColumn("query_id", F.monotonically_increasing_id())
    starts = {window: _start_of(parse_window(window)) for window in WINDOWS}
    right = events.select(F.col("user").alias("event_user"), F.col("time_ms").alias("event_ms"), "price")
    held = (F.col("user") == F.col("event_user")) & (F.col("event_ms") < F.col("time_ms"))
    joined = asked.join(right, held & (F.col("event_ms") >= starts[WINDOWS[-1]]), "left")
    functions = {"count": F.count, "sum": F.sum, "average": F.avg, "min": F.min, "max": F.max}
    features = [
        functions[operation](F.when(F.col("event_ms") >= starts[window], F.col("price"))).alias(
            f"price_{operation}_{window}"
        )
        for operation in OPERATIONS
        for window in WINDOWS
    ]
    return joined.groupBy("query_id", *queries.columns).agg(*features).drop("query_id")


def _start_of(window_ms: int) -> Any:
    hop = hop_ms(window_ms)
    return F.expr(f"(time_ms - {window_ms}) - pmod(time_ms - {window_ms}, {hop})")


def measure(spark: SparkSession, folder: Path, peer_limit_s: float = PEER_LIMIT_S) -> dict[str, float]:
    """Make the training set, and the peer's, and time both; a peer that takes too long is cancelled.

    ``peer_done`` is 0 if it was: then ``spark_seconds`` is less than it would have taken.
    """
    queries, events = (spark.read.parquet(str(folder / name)) for name in ("queries", "events"))
    ours = training_set(queries, SPENT, tables={"spent": events})
    with sampled(process_tree_bytes, SAMPLED_S) as samples:
        seconds = _timed(ours)
    spark_seconds, peer_done = _timed_until(range_join(queries, events), peer_limit_s)
    return {"seconds": seconds, "spark_seconds": spark_seconds, "peak_bytes": max(samples), "peer_done": peer_done}


def measure_keys(
    spark: SparkSession, folder: Path, scale: float, keys: Sequence[int] = KEYS, peer_limit_s: float = PEER_LIMIT_S
) -> dict[str, dict[str, float]]:
    """Measure with several numbers of keys. Both make the first of them once before, to warm up."""
    found = {}
    for number, count in enumerate(keys):
        tables = folder / str(count)
        write_tables(tables, scale, count)
        if not number:
            check_answers(spark, tables)
            measure(spark, tables, peer_limit_s)
        found[str(count)] = measure(spark, tables, peer_limit_s)
    return found


def check_answers(spark: SparkSession, folder: Path) -> None:
    """Compare some answers of both."""
    queries, events = (spark.read.parquet(str(folder / name)) for name in ("queries", "events"))
    few = queries.orderBy("user", "time_ms", "label").limit(COMPARED)
    ours = training_set(few, SPENT, tables={"spent": events})
    theirs = range_join(few, events)
    names = [field for field in ours.columns if field.startswith("price_")]
    left, right = (
        {(row.user, row.time_ms, row.label): [row[name] for name in names] for row in rows.collect()}
        for rows in (ours, theirs)
    )
    if left.keys() != right.keys():
        raise AssertionError("the training set and the range join have other queries")
    for key, values in left.items():
        for name, mine, other in zip(names, values, right[key], strict=True):
            # The peer adds doubles in the order in which they come, and counts 0 where there is none.
            same = (mine or 0) == (other or 0) or (mine is not None and abs(mine - other) <= 1e-9 * abs(other))
            if not same:
                raise AssertionError(f"{name} of {key}: {mine!r}, the range join says {other!r}")


def process_tree_bytes() -> float:
    """The memory of this process and of all under it, shared pages counted once for each."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    mine = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= grown
    return float(sum(map(_resident_bytes, mine)))


def _resident_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
    return int(found[0]) * 1024 if found else 0


def _timed(rows: DataFrame) -> float:
    begun = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def _timed_until(rows: DataFrame, limit_s: float) -> tuple[float, bool]:
    """Give how long rows take, and whether they were done before the limit."""
    passed, ended = threading.Event(), threading.Event()

    def cancel() -> None:
        wait_s = limit_s
        while not ended.wait(wait_s):
            passed.set()
            rows.sparkSession.sparkContext.cancelAllJobs()
            wait_s = CANCELLED_AGAIN_S

    canceller = threading.Thread(target=cancel, daemon=True)
    canceller.start()
    begun = time.perf_counter()
    try:
        _timed(rows)
    except Exception:
        # Of a job that was cancelled the failure is known; any other is the benchmark's.
        if not passed.is_set():
            raise
    finally:
        ended.set()
        canceller.join()
    return time.perf_counter() - begun, not passed.is_set()


def spark_session() -> SparkSession:
    """The session of both."""
    return session(
        "training-set",
        master="local[2]",
        spark__ui__enabled="false",
        spark__driver__memory="3g",
        spark__sql__shuffle__partitions="8",
        spark__sql__session__timeZone="UTC",
    )


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows and keys")
    parser.add_argument("--keys", type=int, nargs="+", default=KEYS, help="numbers of keys at full scale")
    parser.add_argument("--peer-limit", type=float, default=PEER_LIMIT_S, help="seconds after which it is cancelled")
    chosen = parser.parse_args()
    spark = spark_session()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder:
        found = measure_keys(spark, Path(folder), chosen.scale, chosen.keys, chosen.peer_limit)
    spark.stop()
    report(
        "training_set",
        title="Training set: seconds",
        columns=("queries", "events", "keys", "range join in Spark SQL", "millpond", "times faster", "peak GiB"),
        rows=[_row(chosen.scale, int(keys), result) for keys, result in found.items()],
        result={
            "training_set": found,
            "held": {
                keys: {
                    "speed_up": result["spark_seconds"] / result["seconds"] >= LEAST_SPEED_UP,
                    "peak_bytes": result["peak_bytes"] <= MOST_BYTES,
                }
                for keys, result in found.items()
            },
        },
        draw=lambda axes: grouped_bars(
            axes,
            [f"{int(keys):,} keys" for keys in found],
            {
                "Spark SQL": [result["spark_seconds"] for result in found.values()],
                "millpond": [result["seconds"] for result in found.values()],
            },
        ),
    )


def _row(scale: float, keys: int, result: dict[str, float]) -> tuple[str, ...]:
    at_least = "" if result["peer_done"] else "over "
    return (
        f"{int(QUERIES * scale):,}",
        f"{int(EVENTS * scale):,}",
        f"{int(keys * scale):,}",
        f"{at_least}{result['spark_seconds']:.1f}",
        f"{result['seconds']:.1f}",
        f"{at_least}{result['spark_seconds'] / result['seconds']:.1f}",
        f"{result['peak_bytes'] / (1 << 30):.1f}",
    )


if __name__ == "__main__":
    main()
