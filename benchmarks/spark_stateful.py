"""Keyed state in Spark: Spark SQL, Spark's stateful operators, and Millpond's three forms, on the same stream.

Every engine counts events and sums amounts per user, over the same Parquet files, with the same
session settings, one micro-batch a pair of files. PySpark and Millpond run the very same
`StatefulProcessor` classes, of rows and of pandas; the Arrow form, which PySpark lacks, has its own, once as it is
and once with a `combine`. Spark's operator in Scala runs the same processor in Scala (`spark_scala`). A
row has four columns (string, double, timestamp, string), of which the processors read two, so that what
nobody reads is not free of charge. With as many keys as rows nothing is shared between rows, which is
the dearest case for a Python operator; with ten rows a key calls weigh less and rows more.

The figure is rows per second of the median batch after warm-up, by Spark's own clock
(`triggerExecution`), and for batches of 10 rows the seconds of that batch. Every engine warms up for about 30
seconds at each size: a young JVM compiles beside the rows for that long, and a stream runs for days. PySpark's
operators take as long for a few batches: they, and pandas in general, get one warm-up batch and two that count.
Their second counted batch is still a little faster than the first, so the ratios to them are rather too high.
`transformWithStateInPandas` runs at 20,000 rows and keys instead of 100,000.

Each engine is a Spark application of its own, so that none finds what another has left in Spark's Python
workers. Machines drift by a third within minutes, so the fast engines run in three rounds, one after the other in
each. A figure is the median of its rounds. The ratio of two of them is the median of each round's own, and its
lowest and highest are beside it. The slow engines run in the first round only. Run it with nothing else running, in
about fifty minutes:

    .venv/bin/python -m benchmarks.spark_stateful

`--spark 4.1` runs it on that version of PySpark, in the environment of `make matrix`. Its results lie in a folder of
their own, `results/spark-4.1`.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from benchmarks import spark_scala
from benchmarks.report import RESULTS, grouped_bars, report
from millpond.spark import ArrowStatefulProcessor, keyed, session

SCHEMA = "user string, amount double, at timestamp, page string"
OUTPUT = "user string, events long, total double"
STATE = "events long, total double"
FILES_PER_BATCH = 2
ROOT = Path(__file__).parents[1]
LOCKED = "4.3."
"""The version of the lock file, whose figures the README shows."""
COUNTED, SMALL_COUNTED = 7, 15
SLOW_WARM_UP, SLOW_COUNTED = 1, 2
ROUNDS = 3


@dataclass(frozen=True)
class Size:
    """How many rows a batch has, of how many keys, and how many batches an engine needs to warm up."""

    rows: int
    keys: int
    warm_up: int = 0


SIZES = {
    "100k_x_100k": Size(100_000, 100_000, warm_up=35),
    "500k_x_500k": Size(500_000, 500_000, warm_up=10),
    "1m_x_100k": Size(1_000_000, 100_000, warm_up=12),
    "10_x_10": Size(10, 10, warm_up=40),
}
SMALLEST = "10_x_10"
# What is too slow for a size runs at another one, or not at all.
SMALLER = {("spark_pandas", "100k_x_100k"): Size(20_000, 20_000)}
LEFT_OUT = {(engine, size) for engine in ("spark_pandas", "millpond_pandas") for size in ("500k_x_500k", "1m_x_100k")}


class Spending(StatefulProcessor):
    """Events and total amount per user, as any PySpark user would write it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._spending = handle.getValueState("spending", STATE)

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


class SpendingPandas(StatefulProcessor):
    """The same, over DataFrames."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._spending = handle.getValueState("spending", STATE)

    def handleInputRows(  # noqa: N802 - PySpark's own names
        self,
        key: tuple[str],
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        """Add this batch's rows."""
        events, total = self._spending.get() or (0, 0.0)
        for frame in rows:
            events += len(frame)
            total += float(frame["amount"].sum())
        self._spending.update((events, total))
        yield pd.DataFrame({"user": [key[0]], "events": [events], "total": [total]})

    def close(self) -> None:
        """Nothing to close."""


class SpendingArrow(ArrowStatefulProcessor):
    """The same, over all rows of a shard at once."""

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self._spending = handle.getValueState("spending", STATE)

    def handleInputTable(  # noqa: N802 - the form's own names
        self,
        keys: pa.Table,
        rows: pa.Table,
        key_index: pa.Array,
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pa.Table]:
        """Add this batch's rows."""
        before = self._spending.get_many(keys)
        amount = np.bincount(key_index, weights=rows["amount"], minlength=len(keys))
        events = pc.add(pc.fill_null(before["events"], 0), self._counts(keys, rows, key_index))
        total = pc.add(pc.fill_null(before["total"], 0.0), pa.array(amount))
        self._spending.update_many(keys, {"events": events, "total": total})
        yield pa.table({"user": keys["user"], "events": events, "total": total})

    def _counts(self, keys: pa.Table, rows: pa.Table, key_index: pa.Array) -> pa.Array:  # noqa: ARG002 - see below
        return pa.array(np.bincount(key_index, minlength=len(keys)))


class SpendingCombined(SpendingArrow):
    """The same, over rows that were combined before the shuffle."""

    def combine(self, keys: pa.Table, rows: pa.Table, key_index: pa.Array) -> pa.Table:
        """A row a key."""
        count = np.bincount(key_index, minlength=len(keys))
        amount = np.bincount(key_index, weights=rows["amount"], minlength=len(keys))
        return pa.table({"user": keys["user"], "events": count, "amount": amount})

    def _counts(self, keys: pa.Table, rows: pa.Table, key_index: pa.Array) -> pa.Array:
        return pa.array(np.bincount(key_index, weights=rows["events"], minlength=len(keys)).astype(np.int64))


def spark_sql(events: DataFrame) -> DataFrame:
    """Spark's own aggregation, in the JVM."""
    return events.groupBy("user").agg(F.count("*").alias("events"), F.sum("amount").alias("total"))


def spark_rows(events: DataFrame) -> DataFrame:
    """PySpark's operator."""
    return events.groupBy("user").transformWithState(Spending(), OUTPUT, "Update", "None")


def spark_pandas(events: DataFrame) -> DataFrame:
    """PySpark's operator over DataFrames."""
    return events.groupBy("user").transformWithStateInPandas(SpendingPandas(), OUTPUT, "Update", "None")


def millpond_rows(events: DataFrame) -> DataFrame:
    """Millpond's operator, with the class of `spark_rows`."""
    return keyed(events, "user").transformWithState(Spending(), OUTPUT, "Update", "None")


def millpond_pandas(events: DataFrame) -> DataFrame:
    """Millpond's operator, with the class of `spark_pandas`."""
    return keyed(events, "user").transformWithStateInPandas(SpendingPandas(), OUTPUT, "Update", "None")


def millpond_arrow(events: DataFrame) -> DataFrame:
    """Millpond's operator over Arrow."""
    return keyed(events, "user").transformWithStateInArrow(SpendingArrow(), OUTPUT, "Update", "None")


def millpond_arrow_combined(events: DataFrame) -> DataFrame:
    """The same, combined before the shuffle."""
    return keyed(events, "user").transformWithStateInArrow(SpendingCombined(), OUTPUT, "Update", "None")


@dataclass(frozen=True)
class Engine:
    """One way to the answer.

    Attributes:
        name: for people.
        query: the stream of answers over the stream of events.
        slow: whether a large batch takes so long that two must do.
    """

    name: str
    query: Callable[[DataFrame], DataFrame]
    slow: bool = False


ENGINES = {
    "spark_sql": Engine("Spark SQL (JVM)", spark_sql),
    "spark_rows": Engine("transformWithState", spark_rows, slow=True),
    "spark_pandas": Engine("transformWithStateInPandas", spark_pandas, slow=True),
    "millpond_rows": Engine("Millpond, rows", millpond_rows),
    "millpond_pandas": Engine("Millpond, pandas", millpond_pandas, slow=True),
    "millpond_arrow": Engine("Millpond, Arrow", millpond_arrow),
    "millpond_arrow_combined": Engine("Millpond, Arrow combined", millpond_arrow_combined),
    "spark_scala": Engine("transformWithState in Scala", spark_scala.spending),
}
BARS: dict[tuple[str, str], dict[str, float]] = {
    ("millpond_arrow_combined", "spark_sql"): {"1m_x_100k": 1.2},
    ("millpond_rows", "spark_rows"): {"500k_x_500k": 35},
    ("millpond_arrow", "spark_rows"): {"500k_x_500k": 60},
    ("millpond_rows", "spark_scala"): dict.fromkeys(("100k_x_100k", "500k_x_500k", "1m_x_100k"), 1.0),
    ("millpond_arrow", "spark_scala"): dict.fromkeys(("100k_x_100k", "500k_x_500k", "1m_x_100k"), 1.6),
}
"""How many times as many rows a second the one is to make as the other, at least."""


def write_batches(folder: Path, size: Size, batches: int) -> None:
    """The stream: each batch has every key, each as often, in another order."""
    folder.mkdir()
    random = np.random.default_rng(seed=7)
    for batch in range(batches):
        keys = random.permutation(size.rows) % size.keys
        for part, share in enumerate(np.array_split(keys, FILES_PER_BATCH)):
            table = pa.table(
                {
                    "user": _named("user-", share),
                    "amount": pa.array(random.random(len(share))),
                    "at": pa.array(
                        np.full(len(share), 1_700_000_000_000_000 + batch), type=pa.timestamp("us", tz="UTC")
                    ),
                    "page": _named("/page/", share % 97, digits=1),
                }
            )
            pq.write_table(table, folder / f"{batch:04d}-{part}.parquet")


def _warm_up_and_counted(size: Size, *, slow: bool = False) -> tuple[int, int]:
    if size.rows < 20_000:
        return size.warm_up, SMALL_COUNTED
    return (SLOW_WARM_UP, SLOW_COUNTED) if slow else (size.warm_up, COUNTED)


def _named(prefix: str, numbers: "np.ndarray[Any, Any]", digits: int = 9) -> pa.Array:
    padded = pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), digits, "0")
    return pc.binary_join_element_wise(prefix, padded, "")


def batch_seconds(spark: SparkSession, engine: str, folder: Path, size: Size) -> float:
    """Run one engine over the stream; the median batch after warm-up, in seconds."""
    warm_up, counted = _warm_up_and_counted(size, slow=ENGINES[engine].slow)
    checkpoint = Path(tempfile.mkdtemp(prefix="millpond-benchmark-"))
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(folder))
    query = (
        ENGINES[engine]
        .query(events)
        .writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        while len(done := _batches(query, size.rows)) < warm_up + counted:
            if query.awaitTermination(0.1):
                break
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    seconds = [batch["durationMs"]["triggerExecution"] / 1000 for batch in done[warm_up : warm_up + counted]]
    print(
        f"{engine:>15} {size.rows:>9,} rows {size.keys:>9,} keys: {' '.join(f'{each:.2f}' for each in seconds)} s",
        file=sys.stderr,
        flush=True,
    )
    return statistics.median(seconds)


def _batches(query: Any, rows: int) -> list[Any]:
    if query.exception() is not None:
        raise query.exception()
    return [progress for progress in query.recentProgress if progress["numInputRows"] == rows]


def spark_session(*, scala: bool) -> SparkSession:
    """The session of each engine. Only the first of a process can name classes, so every one does."""
    settings = {"spark__driver__extraClassPath": str(spark_scala.compiled())} if scala else {}
    return session(
        "spark_stateful",
        master="local[2]",
        spark__sql__shuffle__partitions="2",
        spark__ui__enabled="false",
        **settings,
    )


class Figures:
    """The seconds of a median batch, by size and engine, one of each round that the engine was in."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[str, list[float]]] = {}

    def add(self, size: str, engine: str, seconds: float) -> None:
        """Add the figure of one more round."""
        self._seconds.setdefault(size, {}).setdefault(engine, []).append(seconds)

    def seconds(self) -> dict[str, dict[str, float]]:
        """Return the median of the rounds, by size and engine."""
        return {
            size: {engine: statistics.median(rounds) for engine, rounds in found.items()}
            for size, found in self._seconds.items()
        }

    def ratios(self, size: str, ours: str, theirs: str) -> list[float]:
        """Return how many times as many rows a second the one made as the other, by round if both were in several."""
        of, by = self._seconds[size][ours], self._seconds[size][theirs]
        if len(of) != len(by):
            of, by = [statistics.median(of)], [statistics.median(by)]
        return [other / own for own, other in zip(of, by, strict=True)]


def held(figures: Figures) -> list[dict[str, Any]]:
    """What the figures are held to."""
    found = []
    for (ours, theirs), bars in BARS.items():
        for size, least in bars.items():
            ratios = figures.ratios(size, ours, theirs)
            ratio = statistics.median(ratios)
            found.append(
                {
                    "size": size,
                    "of": ours,
                    "by": theirs,
                    "ratio": round(ratio, 2),
                    "lowest": round(min(ratios), 2),
                    "highest": round(max(ratios), 2),
                    "bar": least,
                    "held": ratio >= least,
                }
            )
    return found


def main() -> None:
    """Run every engine at every size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--engines", nargs="*", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of the fast engines; {ROUNDS}")
    parser.add_argument("--spark", choices=("4.1", "4.2", "4.3"), help="the version of PySpark; the installed one")
    chosen = parser.parse_args()
    if chosen.spark and not pyspark.__version__.startswith(f"{chosen.spark}."):
        _run_again_on(chosen.spark)
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="millpond-benchmark-") as folder:
        for number in range(chosen.rounds):
            for engine in chosen.engines:
                if number == 0 or not ENGINES[engine].slow:
                    # The figures of 10 rows are held to nothing.
                    sizes = [size for size in chosen.sizes if number == 0 or size != SMALLEST]
                    _run(engine, sizes, Path(folder), figures, scala="spark_scala" in chosen.engines)
    if set(chosen.engines) == set(ENGINES) and set(chosen.sizes) == set(SIZES):
        _report(figures, chosen.rounds)
    else:
        print(
            {
                name: {engine: round(_rows(engine, name) / took) for engine, took in found.items()}
                for name, found in figures.seconds().items()
            }
        )


def _run(engine: str, sizes: list[str], folder: Path, figures: Figures, *, scala: bool) -> None:
    """Run one engine as an application of its own."""
    spark = spark_session(scala=scala)
    spark.sparkContext.setLogLevel("ERROR")
    for name in sizes:
        if (engine, name) not in LEFT_OUT:
            size = SMALLER.get((engine, name), SIZES[name])
            stream = folder / f"{size.rows}-{size.keys}"
            if not stream.exists():
                write_batches(stream, size, sum(_warm_up_and_counted(size)) + 1)
            figures.add(name, engine, batch_seconds(spark, engine, stream, size))
    spark.stop()


def _run_again_on(spark: str) -> None:
    """Become the same command in the environment of another PySpark."""
    python = ROOT / ".matrix" / f"spark-{spark}" / "bin" / "python"
    if not python.exists():
        sys.exit(f"there is no {python}. Make it: .venv/bin/python scripts/matrix.py install spark-{spark}")
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "src")))
    os.execv(python, [str(python), "-m", "benchmarks.spark_stateful", *sys.argv[1:]])  # noqa: S606 - no shell is meant


def _rows(engine: str, size: str) -> int:
    return SMALLER.get((engine, size), SIZES[size]).rows


def _report(figures: Figures, rounds: int) -> None:
    seconds = figures.seconds()
    small = seconds.pop(SMALLEST)
    per_second = {
        size: {engine: round(_rows(engine, size) / took) for engine, took in found.items()}
        for size, found in seconds.items()
    }
    ratio = {size: round(found["millpond_rows"] / found["spark_rows"], 1) for size, found in per_second.items()}
    shown = [
        (
            size.replace("_x_", " × "),
            *(f"{found[engine]:,}" if engine in found else "" for engine in ENGINES),
            f"{ratio[size]:.1f}",
        )
        for size, found in per_second.items()
    ]
    shown.append(("10 × 10, seconds a batch", *(f"{small[engine]:.2f}" for engine in ENGINES), ""))
    drawn = ["spark_sql", "spark_rows", "millpond_rows", "millpond_arrow"]
    report(
        "spark_stateful",
        title="Keyed state in PySpark: rows per second",
        columns=(
            "rows × keys a batch",
            *(engine.name for engine in ENGINES.values()),
            "Millpond, rows ÷ transformWithState",
        ),
        rows=shown,
        result={
            "spark": pyspark.__version__,
            "rows_per_second": per_second,
            "ratio": ratio,
            "rounds": rounds,
            "bars": held(figures),
            "batch_seconds": small,
        },
        draw=lambda axes: grouped_bars(
            axes,
            [size.replace("_x_", " × ") for size in per_second],
            {ENGINES[engine].name: [found[engine] for found in per_second.values()] for engine in drawn},
        ),
        folder=RESULTS if pyspark.__version__.startswith(LOCKED) else RESULTS / f"spark-{pyspark.__version__[:3]}",
    )


if __name__ == "__main__":
    main()
