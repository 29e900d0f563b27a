"""What surrounds a processor in PySpark's own workers surrounds it in a state host too."""

import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import AccumulatorParam, SparkFiles, TaskContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import StateConfig, keyed

pytestmark = pytest.mark.spark

HOSTS = pytest.mark.parametrize("host", ["process", "inline"])


class Silent(StatefulProcessor):
    """Declares one state, and leaves the rest to those who derive from it."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def close(self) -> None:
        pass


class Pricing(Silent):
    """Looks prices up in a broadcast and counts in accumulators."""

    def __init__(self, prices: Any, sold: Any, names: Any) -> None:
        self.prices, self.sold, self.names = prices, sold, names
        self.calls = 0

    def init(self, handle: Any) -> None:
        super().init(handle)
        self.sold.add(0)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self.calls += 1
        for _ in rows:
            self.sold += 1
        self.names.add(Counter([key[0]]))
        try:
            read = str(self.sold.value)
        except PySparkRuntimeError as error:
            read = type(error).__name__
        yield Row(item=key[0], price=self.prices.value[key[0]], calls=self.calls, read=read)


class CounterParam(AccumulatorParam):
    def zero(self, value: Counter) -> Counter:
        return Counter()

    def addInPlace(self, value1: Counter, value2: Counter) -> Counter:
        return value1 + value2


def _items(spark: SparkSession, rows: int, keys: int) -> DataFrame:
    return spark.range(rows).select(F.concat(F.lit("item-"), F.col("id") % keys).alias("item"))


@HOSTS
def test_broadcasts_are_read_and_additions_to_accumulators_reach_the_driver(spark: SparkSession, host: str) -> None:
    context = spark.sparkContext
    prices = context.broadcast({f"item-{at}": at * 10 for at in range(20)})
    sold, names = context.accumulator(0), context.accumulator(Counter(), CounterParam())
    processor = Pricing(prices, sold, names)
    operated = keyed(_items(spark, 1000, 20), "item").transformWithState(
        processor, "item string, price long, calls int, read string", "Update", "None", state=StateConfig(host=host)
    )
    assert sold.value == 0, "a try on the driver counts nothing"
    for times in (1, 2):
        rows = operated.collect()
        assert {row.item: row.price for row in rows} == {f"item-{at}": at * 10 for at in range(20)}
        assert sold.value == 1000 * times
        assert names.value == Counter({f"item-{at}": times for at in range(20)})
    assert {row.read for row in rows} == {"PySparkRuntimeError"}, "as in PySpark, only the driver reads one"
    # One instance for each shard and batch: it has seen the keys of its shard, and no more.
    assert sorted(row.calls for row in rows if row.calls == 1) == [1] * 2


class Placed(Silent):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        task = TaskContext.get()
        yield Row(
            item=key[0],
            partition=task.partitionId(),
            stage=task.stageId(),
            attempt=task.attemptNumber(),
            task=task.taskAttemptId(),
            cpus=task.cpus(),
            mood=task.getLocalProperty("mood"),
            missing=task.getLocalProperty("no such property"),
        )


PLACED = "item string, partition int, stage int, attempt int, task long, cpus int, mood string, missing string"


@HOSTS
def test_user_code_may_ask_which_task_it_runs_in(spark: SparkSession, host: str) -> None:
    spark.sparkContext.setLocalProperty("mood", "calm")
    try:
        rows = (
            keyed(_items(spark, 40, 40), "item")
            .transformWithState(Placed(), PLACED, "Update", "None", state=StateConfig(host=host))
            .collect()
        )
    finally:
        spark.sparkContext.setLocalProperty("mood", None)
    assert {row.partition for row in rows} == {0, 1}
    assert len({(row.partition, row.task) for row in rows}) == 2, "each shard sees its own task"
    assert {(row.attempt, row.cpus, row.mood, row.missing) for row in rows} == {(0, 1, "calm", None)}


class Using(Silent):
    """Imports a module, and reads a file, that only `addPyFile` and `addFile` bring."""

    def __init__(self, module: str, file: str) -> None:
        self.module, self.file = module, file

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        module = __import__(self.module)
        yield Row(item=key[0], said=module.SAID + Path(SparkFiles.get(self.file)).read_text())


@HOSTS
def test_modules_and_files_added_while_hosts_run_are_found(spark: SparkSession, tmp_path: Path, host: str) -> None:
    with zipfile.ZipFile(tmp_path / f"added_{host}.zip", "w") as archive:
        archive.writestr(f"added_to_{host}.py", "SAID = 'hello '")
    (tmp_path / f"{host}.txt").write_text("world")
    spark.sparkContext.addPyFile(str(tmp_path / f"added_{host}.zip"))
    spark.sparkContext.addFile(str(tmp_path / f"{host}.txt"))
    using = Using(f"added_to_{host}", f"{host}.txt")
    rows = (
        keyed(_items(spark, 4, 4), "item")
        .transformWithState(using, "item string, said string", "Update", "None", state=StateConfig(host=host))
        .collect()
    )
    assert {row.said for row in rows} == {"hello world"}


class Counting(Silent):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self._count.get()
        self._count.update(((before[0] if before else 0) + len(list(rows)),))
        yield Row(item=key[0], n=self._count.get()[0])


@HOSTS
def test_what_the_operator_counts_comes_back_to_the_driver(spark: SparkSession, host: str) -> None:
    options = {"state.backend.cache.max-entries-num": "100"}
    grouped = keyed(_items(spark, 1000, 20), "item")
    assert grouped.metrics().batches == 0
    operated = grouped.transformWithState(
        Counting(), "item string, n long", "Update", "None", state=StateConfig(host=host, options=options)
    )
    assert {row.n for row in operated.collect()} == {50}
    metrics = grouped.metrics()
    assert (metrics.batches, metrics.rows, metrics.late_rows, metrics.dead_letters) == (1, 1000, 0, 0)
    assert (metrics.cache_hits, metrics.cache_misses) == (20, 20), "each key is read before its first write and after"
    assert metrics.cache_hit_ratio == 0.5
    assert metrics.state_rows == 20
    assert metrics.state_bytes > 0
    assert min(metrics.run_seconds, metrics.flush_seconds, metrics.commit_seconds) > 0
    assert metrics.restores == 2
    assert (metrics.spills, metrics.loads) == (0, 0)


@HOSTS
def test_key_groups_that_went_to_disk_are_told_to_the_driver(spark: SparkSession, host: str) -> None:
    options = {
        "state.backend.spillable.memory-limit": "4gb",
        # Less than the process uses without state: every turn spills.
        "state.backend.spillable.high-watermark.ratio": "0.01",
        "state.backend.spillable.load-start.ratio": "0.001",
        "state.backend.spillable.load-end.ratio": "0.002",
        "state.backend.spillable.spill-size.ratio": "0.9",
        "state.backend.spillable.trigger-interval": "1 ms",
        "state.backend.spillable.heap-status.check-interval": "1 ms",
        "state.backend.spillable.chunk-size": "1mb",
    }
    grouped = keyed(_items(spark, 20_000, 10_000), "item")
    operated = grouped.transformWithState(
        Counting(), "item string, n long", "Update", "None", state=StateConfig("spillable", host, options=options)
    )
    assert {row.n for row in operated.collect()} == {2}
    assert grouped.metrics().spills > 0
