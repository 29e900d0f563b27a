"""The keyed operator through Spark: what a user of PySpark's `transformWithState` would notice."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from millpond import DataError, OptionError
from millpond.spark import StateConfig, keyed
from millpond.spark.host.process import executor_name
from tests.spark.pysparks_output import OPERATORS, given, plain
from tests.spark.streams import FileStream as Stream

pytestmark = pytest.mark.spark


class Diary(StatefulProcessor):
    """One of each kind of state."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")
        self._ids = handle.getListState("ids", "id long")
        self._last = handle.getMapState("last", "parity long", "id long, at timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count = self._count.get()[0] if self._count.exists() else 0
        for row in rows:
            count += 1
            self._ids.appendValue((row.id,))
            self._last.updateValue((row.id % 2,), (row.id, row.at))
        self._count.update((count,))
        last = {parity: value[0] for (parity,), value in self._last.iterator()}
        yield Row(user=key[0], n=count, ids=[seen[0] for seen in self._ids.get()], last=last)

    def close(self) -> None:
        pass


DIARY = "user string, n long, ids array<long>, last map<long,long>"


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


SPILLING = {
    "state.backend.spillable.memory-limit": "1gb",
    # Less than a state host alone uses: every turn spills.
    "state.backend.spillable.high-watermark.ratio": "0.05",
    "state.backend.spillable.spill-size.ratio": "0.9",
    "state.backend.spillable.load-start.ratio": "0.01",
    "state.backend.spillable.load-end.ratio": "0.02",
    "state.backend.spillable.trigger-interval": "1 ms",
    "state.backend.spillable.chunk-size": "1mb",
}


def diary(stream: Stream, host: str = "process", backend: str = "heap") -> DataFrame:
    return keyed(stream.frame(), "user").transformWithState(
        Diary(),
        DIARY,
        "Update",
        "None",
        state=StateConfig(backend, host, options=SPILLING if backend == "spillable" else {}),
    )


def hosts(spark: SparkSession) -> list[psutil.Process]:
    """The hosts of this session alone: others of this user may be at work."""
    executor = executor_name(spark._jvm.java.lang.ProcessHandle.current().pid())
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if "millpond.spark.runtime.server" in command and any(f"-{executor}-" in part for part in command):
                found.append(process)
    return found


# Each host and each backend; `make soak` runs every pair of them.
PLACES = [
    ("process", "heap"),
    ("process", "spillable"),
    ("inline", "rocksdb"),
    pytest.param("process", "rocksdb", marks=pytest.mark.soak),
    pytest.param("inline", "heap", marks=pytest.mark.soak),
    pytest.param("inline", "spillable", marks=pytest.mark.soak),
]


@pytest.mark.parametrize(("host", "backend"), PLACES)
def test_state_of_every_kind_goes_on_from_batch_to_batch_and_over_a_restart(
    stream: Stream, host: str, backend: str
) -> None:
    stream.add([("ann", 1, 0.0), ("bob", 2, 0.0), ("ann", 3, 1.0), (None, 4, 1.0)])
    stream.add([("ann", 4, 2.0)])
    first = stream.run(diary(stream, host, backend))
    assert {row.user: (row.n, row.ids, row.last) for row in first[0]} == {
        "ann": (2, [1, 3], {1: 3}),
        "bob": (1, [2], {0: 2}),
        None: (1, [4], {0: 4}),
    }
    assert [(row.user, row.n, row.ids, row.last) for row in first[1]] == [("ann", 3, [1, 3, 4], {1: 3, 0: 4})]
    stream.add([("bob", 7, 3.0)])
    again = stream.run(diary(stream, host, backend))
    assert [[(row.user, row.n, row.ids) for row in batch] for batch in again] == [[("bob", 2, [2, 7])]]


# What goes on in RocksDB after a restore: `test_restarts.py`.
@pytest.mark.parametrize(
    "backend", ["spillable", *(pytest.param(each, marks=pytest.mark.soak) for each in ("heap", "rocksdb"))]
)
def test_a_killed_host_is_replaced_and_restored(stream: Stream, backend: str) -> None:
    stream.add([(f"user-{at}", at, 0.0) for at in range(500)])
    stream.run(diary(stream, backend=backend))
    found = hosts(stream.spark)
    assert found
    for process in found:
        process.kill()
    stream.add([(f"user-{at}", at, 0.0) for at in range(500)])
    (batch,) = stream.run(diary(stream, backend=backend))
    assert {row.n for row in batch} == {2}
    assert len(batch) == 500


def test_a_restart_with_another_number_of_shuffle_partitions_finds_every_key(stream: Stream) -> None:
    stream.add([(f"user-{at}", at, 0.0) for at in range(50)])
    stream.run(diary(stream))
    stream.spark.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        stream.add([(f"user-{at}", at, 0.0) for at in range(50)])
        (batch,) = stream.run(diary(stream))
    finally:
        stream.spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert [row.n for row in batch] == [2] * 50


def test_a_batch_dataframe_works_too(spark: SparkSession) -> None:
    events = spark.range(1000).select(
        (F.col("id") % 7).cast("string").alias("user"), "id", F.timestamp_seconds("id").alias("at")
    )
    rows = keyed(events, "user").transformWithState(Diary(), DIARY, "Update", "None").collect()
    assert sum(row.n for row in rows) == 1000
    assert len(rows) == 7


class Failing(Diary):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if row.id == 13:
                raise ValueError("thirteen is not welcome")
        yield from super().handleInputRows(key, iter([]), timerValues)


class WrongOutput(Diary):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(user=key[0], n="many")


@pytest.mark.parametrize(
    ("processor", "said"),
    [(Failing(), ["thirteen is not welcome", "test_keyed.py"]), (WrongOutput(), ["'n'", "int64", "'many'"])],
)
def test_what_user_code_does_wrong_reaches_the_driver_with_its_own_words(
    stream: Stream, processor: StatefulProcessor, said: list[str]
) -> None:
    stream.add([("ann", 12, 0.0), ("ann", 13, 0.0)])
    with pytest.raises(StreamingQueryException) as caught:
        stream.run(keyed(stream.frame(), "user").transformWithState(processor, DIARY, "Update", "None"))
    assert all(words in str(caught.value) for words in said)


def test_wrong_arguments_are_refused_before_anything_runs(spark: SparkSession) -> None:
    events = spark.range(3).withColumn("parts", F.array("id"))
    with pytest.raises(DataError, match="'user' is not in the DataFrame"):
        keyed(events, "user").transformWithState(Diary(), DIARY, "Update", "None")
    with pytest.raises(DataError, match="'parts' is array<bigint>"):
        keyed(events, "parts").transformWithState(Diary(), DIARY, "Update", "None")
    with pytest.raises(OptionError, match="timeMode='Sometimes'"):
        keyed(events, "id").transformWithState(Diary(), DIARY, "Update", "Sometimes")
    with pytest.raises(OptionError, match="outputMode='Complete': expected one of 'Append', 'Update'"):
        keyed(events, "id").transformWithState(Diary(), DIARY, "Complete", "None")
    with pytest.raises(OptionError, match="at least one key"):
        keyed(events)


class Alarm(StatefulProcessor):
    """Counts a user's events and tells of them 10 s after the first, then starts again."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            if not self._count.exists():
                self._handle.registerTimer(int(row.at.timestamp() * 1000) + 10_000)
            count = self._count.get()
            self._count.update(((count[0] if count else 0) + 1,))
        yield Row(user=key[0], n=self._count.get()[0], fired=None, watermark=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        fired, watermark = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield Row(user=key[0], n=self._count.get()[0], fired=fired, watermark=watermark)
        self._count.clear()

    def close(self) -> None:
        pass


ALARM = "user string, n long, fired long, watermark long"


@pytest.mark.parametrize("operator", OPERATORS)
def test_timers_watermarks_and_late_rows_are_those_of_pyspark(stream: Stream, operator: str) -> None:
    stream.add([("ann", 1, 100.0), ("bob", 2, 101.0), ("cid", 3, 102.0)])
    stream.add([("ann", 4, 108.0), ("dan", 5, 120.0)])
    stream.add([("bob", 6, 104.0), ("eve", 7, 116.0), ("ann", 8, 117.0)])
    stream.add([("fay", 9, 200.0), ("bob", 10, 112.0)])
    stream.add([("ann", 11, 190.0), ("gus", 12, 260.0)])
    events = stream.frame().withWatermark("at", "5 seconds")
    grouped = events.groupBy("user") if operator == "pyspark" else keyed(events, "user")
    batches = stream.run(grouped.transformWithState(Alarm(), ALARM, "Update", "EventTime"))
    assert plain(batches) == given("alarms")
    assert any(row.fired for batch in batches for row in batch)


class Chatty(Diary):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        print("x" * 100_000)
        return super().handleInputRows(key, rows, timerValues)


def test_a_processor_may_print_as_much_as_it_likes(stream: Stream) -> None:
    for at in range(2):
        stream.add([(f"user-{user}", at, 0.0) for user in range(5)])
    chatty = keyed(stream.frame(), "user").transformWithState(Chatty(), DIARY, "Update", "None")
    assert [{row.n for row in batch} for batch in stream.run(chatty)] == [{1}, {2}]


def test_a_first_batch_without_any_partition_does_no_harm(stream: Stream) -> None:
    (stream.folder / "events" / "0000.json").touch()
    os.utime(stream.folder / "events" / "0000.json", (1_600_000_000,) * 2)
    (stream.folder / "events" / "0001.json").write_text('{"user": "ann", "id": 1}\n')
    reader = stream.spark.readStream.schema(Stream.schema).option("maxFilesPerTrigger", 1)
    events = reader.json(str(stream.folder / "events"))
    batches = stream.run(keyed(events, "user").transformWithState(Diary(), DIARY, "Update", "None"))
    assert [(row.user, row.n) for batch in batches for row in batch] == [("ann", 1)]


def test_a_checkpoint_whose_state_was_deleted_is_refused(stream: Stream) -> None:
    stream.add([("ann", 1, 0.0)])
    stream.run(diary(stream))
    shutil.rmtree(stream.folder / "checkpoint" / "state")
    for process in hosts(stream.spark):
        process.kill()
    stream.add([("ann", 2, 0.0)])
    with pytest.raises(StreamingQueryException):
        stream.run(diary(stream))


def test_a_batch_inside_foreach_batch_has_state_of_its_own(stream: Stream) -> None:
    stream.add([("ann", 1, 0.0)])
    stream.add([("ann", 2, 0.0)])
    counts: list[int] = []

    def sink(batch: DataFrame, _: int) -> None:
        rows = keyed(batch, "user").transformWithState(Diary(), DIARY, "Update", "None").collect()
        counts.extend(row.n for row in rows)

    writer = stream.frame().writeStream.trigger(availableNow=True).foreachBatch(sink)
    writer.option("checkpointLocation", str(stream.folder / "checkpoint")).start().awaitTermination()
    assert counts == [1, 1]


class Once(StatefulProcessor):
    """Fires one processing-time timer per key, a moment after its first row."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if not self._seen.exists():
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        self._seen.update((len(list(rows)),))
        return iter([])

    def handleExpiredTimer(self, *, expiredTimerInfo: Any, timerValues: Any, key: Any) -> Iterator[Row]:
        # PySpark calls this one by the names of its arguments, so their order is the user's.
        assert expiredTimerInfo.getExpiryTimeInMs() <= timerValues.getCurrentProcessingTimeInMs()
        yield Row(user=key[0], left=len(list(self._handle.listTimers())))

    def close(self) -> None:
        pass


def test_processing_time_timers_fire_once_and_without_rows(stream: Stream) -> None:
    stream.add([("ann", 1, 0.0), ("bob", 2, 0.0)])
    once = keyed(stream.frame(), "user").transformWithState(Once(), "user string, left int", "Update", "ProcessingTime")
    fired: list[tuple[str, int]] = []
    writer = once.writeStream.outputMode("update")
    writer = writer.foreachBatch(lambda batch, _: fired.extend((row.user, row.left) for row in batch.collect()))
    query = writer.option("checkpointLocation", str(stream.folder / "checkpoint")).start()
    try:
        # In processing time Spark runs batches without rows one after the other.
        while len(fired) < 2 and len(query.recentProgress) < 20:
            query.awaitTermination(1)
    finally:
        query.stop()
    assert sorted(fired) == [("ann", 1), ("bob", 1)]


def test_a_batch_that_its_sink_runs_twice_counts_once(stream: Stream) -> None:
    stream.add([("ann", 1, 0.0), ("bob", 2, 0.0)])
    stream.add([("ann", 3, 0.0)])
    seen: list[tuple[int, int]] = []

    def sink(batch: DataFrame, _: int) -> None:
        seen.append((batch.count(), max(row.n for row in batch.collect())))

    writer = diary(stream).writeStream.outputMode("update").trigger(availableNow=True).foreachBatch(sink)
    writer.option("checkpointLocation", str(stream.folder / "checkpoint")).start().awaitTermination()
    assert seen == [(2, 1), (1, 2)]


def test_late_rows_are_counted_or_kept(stream: Stream) -> None:
    stream.add([("ann", 1, 100.0)])
    stream.add([("ann", 2, 200.0)])
    stream.add([("ann", 3, 50.0), ("ann", 4, 210.0)])
    stream.add([("ann", 5, 20.0), ("ann", 6, None)])
    events = keyed(stream.frame().withWatermark("at", "1 second"), "user")
    batches = stream.run(events.transformWithState(Diary(), DIARY, "Update", "EventTime"))
    assert events.late_rows == 2
    assert [row.ids for batch in batches for row in batch][-1] == [1, 2, 4, 6], "a row without a time is never late"
    (stream.folder / "checkpoint").rename(stream.folder / "old")
    kept = keyed(stream.frame().withWatermark("at", "1 second"), "user")
    batches = stream.run(kept.transformWithState(Diary(), DIARY, "Update", "EventTime", late="keep"))
    assert kept.late_rows == 0
    assert max(row.n for batch in batches for row in batch) == 6
