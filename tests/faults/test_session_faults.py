"""Rows of the fault matrix on the session that all tests share: what befalls a query without any task being retried."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import StateConfig, keyed
from millpond.spark.environment.folders import user_folder
from tests.faults.keyed_history import History
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

USERS = [f"user-{number}" for number in range(12)]
HISTORY = "user string, history array<long>"
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def wait_for(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    assert any(condition() or pause.wait(0.05) for _ in range(1200)), "it did not come"


def add_batches(stream: FileStream, count: int) -> None:
    """Files of ids that are told apart by user and batch."""
    first = stream._files * len(USERS)
    for number in range(count):
        stream.add([(user, first + number * len(USERS) + at, 0.0) for at, user in enumerate(USERS)])


def expected(batches: int) -> dict[str, list[int]]:
    return {user: [batch * len(USERS) + at for batch in range(batches)] for at, user in enumerate(USERS)}


def last_of(batches: list[list[Row]]) -> dict[str, list[int]]:
    return {row.user: row.history for batch in batches for row in batch}


def history_of(frame: DataFrame, processor: StatefulProcessor, **config: Any) -> DataFrame:
    state = StateConfig(**config)
    return keyed(frame, "user").transformWithState(processor, HISTORY, "Update", "None", state=state)


class Paused(History):
    """Its first call of all waits until the folder has a file `restarted`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if not (self._folder / "begun").exists():
            (self._folder / "begun").touch()
            wait_for((self._folder / "restarted").exists)
        yield from super().handleInputRows(key, rows, timerValues)


def test_query_stopped_and_restarted_at_once(spark: SparkSession, tmp_path: Path) -> None:
    stream = FileStream(spark, tmp_path)
    add_batches(stream, 3)

    def mapped(batches: Iterator[Any]) -> Iterator[Any]:
        """The tasks of the second run come here before they ask for a shard."""
        if (tmp_path / "stopped").exists():
            (tmp_path / "restarted").touch()
        yield from batches

    output = history_of(stream.frame().mapInArrow(mapped, stream.schema), Paused(tmp_path))
    of_first: list[list[Row]] = []
    writer = output.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    first = writer.foreachBatch(lambda batch, _: of_first.append(batch.collect())).start()
    wait_for((tmp_path / "begun").exists)
    first.stop()
    (tmp_path / "stopped").touch()
    batches = stream.run(output)
    assert of_first == [], "it was stopped in the middle of a batch"
    assert len(batches) == 3
    assert last_of(batches) == expected(3)


def test_two_queries_on_one_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    stream, batches = FileStream(spark, tmp_path), []
    output = history_of(stream.frame(), History())
    writer = output.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.foreachBatch(lambda batch, _: batches.append(batch.collect()))
    add_batches(stream, 1)
    spark.conf.set("spark.sql.streaming.stopActiveRunOnRestart", "false")
    try:
        first = writer.start()
        first.processAllAvailable()
        with pytest.raises(Exception, match=r"(?i)already active|concurrent"):
            writer.start()
        assert first.isActive
        add_batches(stream, 1)
        first.processAllAvailable()
        first.stop()
    finally:
        spark.conf.unset("spark.sql.streaming.stopActiveRunOnRestart")
    assert last_of(batches) == expected(2)


class Lives(StatefulProcessor):
    """A value with a life of an hour and a timer after half an hour, both begun by rows with the id 0."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._kept = handle.getValueState("kept", "at long", ttlDurationMs=HOUR_MS)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        yield Row(user=key[0], what="kept", at=self._kept.get()[0] if self._kept.exists() else None)
        if any(row.id == 0 for row in rows):
            self._kept.update((now_ms,))
            self._handle.registerTimer(now_ms + HOUR_MS // 2)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(user=key[0], what="fired", at=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        pass


class Clock:
    """Runs a query batch by batch, each at the processing time that a test says.

    Spark writes a batch's time down before it runs it, and goes by that when it runs the batch again. So each batch
    fails once before anything of it was run, and its time is changed then.
    """

    def __init__(self, output: DataFrame, checkpoint: Path) -> None:
        self._output, self._checkpoint = output, checkpoint
        self._next = 0
        self._run([])

    def batch_at(self, now_ms: int) -> list[Row]:
        rows: list[Row] = []
        planned = self._checkpoint / "offsets" / str(self._next)
        version, metadata, *offsets = planned.read_text().split("\n")
        metadata = json.dumps(json.loads(metadata) | {"batchTimestampMs": now_ms})
        planned.write_text("\n".join([version, metadata, *offsets]))
        (planned.parent / f".{planned.name}.crc").unlink(missing_ok=True)
        self._next += 1
        self._run(rows)
        return rows

    def _run(self, rows: list[Row]) -> None:
        def keep(batch: DataFrame, batch_id: int) -> None:
            if batch_id == self._next:
                raise InterruptedError("the clock is set before this batch")
            rows.extend(batch.collect())

        writer = self._output.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
        with pytest.raises(StreamingQueryException, match="the clock is set"):
            writer.option("checkpointLocation", str(self._checkpoint)).start().awaitTermination()


def test_clock_jumps(spark: SparkSession, tmp_path: Path) -> None:
    stream = FileStream(spark, tmp_path)
    for number in range(5):
        stream.add([("ada", number, 0.0)])
    output = keyed(stream.frame(), "user").transformWithState(
        Lives(), "user string, what string, at long", "Update", "ProcessingTime"
    )
    clock, noon_ms = Clock(output, tmp_path / "checkpoint"), 1_800_000_000_000
    steps = [
        (0, [("kept", None)]),
        (-DAY_MS, [("kept", noon_ms)]),
        (10 * 60_000, [("kept", noon_ms)]),
        (DAY_MS, [("fired", noon_ms + HOUR_MS // 2), ("kept", None)]),
    ]
    for jump_ms, rows in steps:
        assert sorted((row.what, row.at) for row in clock.batch_at(noon_ms + jump_ms)) == rows, jump_ms


def backend_files(pattern: str) -> set[Path]:
    return {path for path in user_folder().glob(f"state-*/backend-*/{pattern}") if path.is_file()}


def spoil(files: set[Path]) -> None:
    """Write over all of each file, which stays open where it is open."""
    for path in files:
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.write(bytes(byte ^ 0x5A for byte in file.read(size)))
            file.seek(0)
            file.write(b"\xa5" * size)


def deleted(state: Path) -> None:
    """The files of the newest version of one shard."""
    shard = state / "0" / "0"
    for path in shard.rglob("*"):
        if path.is_file() and not path.name.startswith("."):
            path.unlink()
            (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def test_state_part_of_a_checkpoint_deleted(spark: SparkSession, tmp_path: Path) -> None:
    stream = FileStream(spark, tmp_path)
    add_batches(stream, 2)
    assert last_of(stream.run(history_of(stream.frame(), History()))) == expected(2)
    deleted(tmp_path / "checkpoint" / "state")
    add_batches(stream, 1)
    batches: list[list[Row]] = []
    with pytest.raises(StreamingQueryException) as caught:
        batches = stream.run(history_of(stream.frame(), History()))
    assert "CANNOT_LOAD_STATE_STORE" in str(caught.value)
    assert "/checkpoint/state/0/0/" in str(caught.value)
    assert batches == []
