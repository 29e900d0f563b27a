"""A streaming job for the kill tests: every event has an id, and each key's state is the list of its ids.

Run as a program of its own: `python keyed_history.py INPUT CHECKPOINT OUTPUT MASTER SETTINGS`, the last as JSON:
Spark's settings, and `backend`, `cache`, `everything` and `duels` of the job's own. It works off all input files, a few
at a time, and ends. The sink keeps each batch under its id, so a batch that is run again replaces itself.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from millpond.spark import StateConfig, keyed, session

SAID = "a history goes on"
FILES_PER_BATCH = 2


class History(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getListState("seen", "id long")
        print(SAID, flush=True)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self._seen.appendList([(row.id,) for row in rows])
        yield Row(user=key[0], history=[seen[0] for seen in self._seen.get()])

    def close(self) -> None:
        pass


class Everything(StatefulProcessor):
    """Value, list and map state, and a timer for each event, `TIMER_S` after it. All of them tell the same."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")
        self._seen = handle.getListState("seen", "id long")
        self._parities = handle.getMapState("parities", "parity long", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._count.update(((self._count.get() or (0,))[0] + 1,))
            self._seen.appendValue((row.id,))
            before = self._parities.getValue((row.id % 2,)) if self._parities.containsKey((row.id % 2,)) else (0,)
            self._parities.updateValue((row.id % 2,), (before[0] + 1,))
            self._handle.registerTimer(time_ms(row.id) + TIMER_S * 1000)
        yield self._row(key[0], None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield self._row(key[0], expiredTimerInfo.getExpiryTimeInMs())

    def _row(self, user: str, fired: int | None) -> Row:
        return Row(
            user=user,
            history=[seen[0] for seen in self._seen.get()],
            n=self._count.get()[0],
            parities={parity[0]: n[0] for parity, n in self._parities.iterator()},
            fired=fired,
        )

    def close(self) -> None:
        pass


def time_ms(event: int) -> int:
    """The event time of an event."""
    return 1_700_000_000_000 + event * 10


TIMER_S = 5
COPY, ORIGINAL, ELSEWHERE = "the copy", "the original", "the one that is not where the last winner was"
DUELS = {1: COPY, 2: ORIGINAL, 3: ELSEWHERE}
"""The batches with a duel, and which attempt wins it."""
_PATIENCE_SECONDS = 120


class Duel(History):
    """In some batches one task is slow, so that Spark runs a copy of it.

    The attempt that is to win waits until both have begun, the other one until the batch is over, and then goes on.
    Each leaves its process's number under batch and attempt, and the winner once more.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._called = False

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        task = TaskContext.get()
        batch = int(task.getLocalProperty("streaming.sql.batchId"))
        if batch in DUELS and task.partitionId() == 0 and not self._called:
            self._called = True
            self._fight(batch, task.attemptNumber())
        yield from super().handleInputRows(key, rows, timerValues)

    def _fight(self, batch: int, attempt: int) -> None:
        mine = str(os.getpid())
        if DUELS[batch] == ELSEWHERE:
            wins = (self._folder / f"{batch - 1}-winner").read_text() != mine
        else:
            wins = (attempt == 1) == (DUELS[batch] == COPY)
        (self._folder / f"{batch}-{attempt}").write_text(mine)
        if wins:
            self._wait_for(f"{batch}-1")
            (self._folder / f"{batch}-winner").write_text(mine)
        else:
            self._wait_for(f"{batch}-over")

    def _wait_for(self, name: str) -> None:
        for _ in range(_PATIENCE_SECONDS * 20):
            if (self._folder / name).exists():
                return
            threading.Event().wait(0.05)
        raise TimeoutError(f"{name} did not come")


def job_session(name: str, master: str, given: dict[str, str]) -> SparkSession:
    """The session of a job that is killed, with Spark's settings that were given."""
    spark = session(
        name,
        master=master,
        spark__sql__shuffle__partitions="2",
        spark__ui__enabled="false",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        **given,
    )
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def main() -> None:
    source, checkpoint, output, master, settings = sys.argv[1:]
    given = json.loads(settings)
    backend = given.pop("backend", "heap")
    duels = Path(given.pop("duels")) if "duels" in given else None
    everything, cache = given.pop("everything", "") == "yes", given.pop("cache", "none")
    spark = job_session("keyed-history", master, given)

    def keep(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(f"{output}/batch={batch_id}")
        if duels is not None:
            (duels / f"{batch_id}-over").touch()
        print("batch", batch_id, flush=True)

    events = (
        spark.readStream.schema("id long, user string").option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(source)
    )
    state = StateConfig(backend=backend, **({"cache": "lru", "max_entries": 20} if cache == "lru" else {}))
    if everything:
        timed = events.selectExpr("*", f"timestamp_millis({time_ms(0)} + id * 10) AS at").withWatermark(
            "at", "1 second"
        )
        histories = keyed(timed, "user").transformWithState(
            Everything(),
            "user string, history array<long>, n long, parities map<long,long>, fired long",
            "Update",
            "EventTime",
            state=state,
        )
    else:
        histories = keyed(events, "user").transformWithState(
            History() if duels is None else Duel(duels),
            "user string, history array<long>",
            "Update",
            "None",
            state=state,
        )
    writer = histories.writeStream.foreachBatch(keep).outputMode("update").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    print("done", flush=True)
    # An executor's hosts end while this process and its JVM go on.
    spark.stop()
    print("stopped", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
