"""A streaming job over the whole data path, for the kill tests; a program as `keyed_history.py`, with its arguments.

Three queries read the same events. One looks up the team of each user in Redis and keeps all kinds of state per user
and team, with event-time timers. One reminds of each event by a processing-time timer. One writes tiles into Redis.
Each sink keeps a batch under its id, so a batch that is run again replaces itself.
"""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

from millpond.features import Aggregation, Field, GroupBy
from millpond.features.windows import DAY_MS
from millpond.kv import RedisStore
from millpond.lookup import LookupTable, RedisLookup
from millpond.spark import StateConfig, keyed, lookup_join
from millpond.spark.features.stream import stream
from tests.faults.keyed_history import FILES_PER_BATCH, Everything, job_session, time_ms

START_MS = 19_000 * DAY_MS
EVENT_MS = 100
"""From one event to the next, in the tiles."""

REMINDED_MS = 500
VISITS = GroupBy(
    "visits",
    keys=(Field("user", "string"),),
    inputs=(),
    aggregations=(Aggregation("count", windows=("1h", None)),),
    fetcher_cache_size=100,
    fetcher_tile_cache_size=100,
)


class Reminders(StatefulProcessor):
    """Gives each event again when a timer of its user fires."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._waiting = handle.getListState("waiting", "id long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self._waiting.appendList([(row.id,) for row in rows])
        if not any(self._handle.listTimers()):
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + REMINDED_MS)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        ids = [waiting[0] for waiting in self._waiting.get()]
        self._waiting.clear()
        yield Row(user=key[0], ids=ids)

    def close(self) -> None:
        pass


def teams(url: str) -> LookupTable:
    """The team of each user, in Redis under `team:`."""
    names, rows = pa.schema([("user", pa.string())]), pa.schema([("team", pa.string())])
    options = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 50, "lookup.max-retries": 8}
    return LookupTable("teams", RedisLookup(url, "team:{user}", names, rows), options)


class WholePath:
    """The three queries of one run of the job."""

    def __init__(self, spark: SparkSession, source: str, checkpoint: str, output: str, state: StateConfig) -> None:
        self._spark = spark
        self._source = source
        self._checkpoint = checkpoint
        self._output = Path(output)
        self._state = state

    def histories(self, url: str) -> StreamingQuery:
        joined = lookup_join(self._events(), teams(url), on="user").select(
            "id", F.concat_ws("@", "user", "team").alias("user")
        )
        timed = joined.withColumn("at", F.expr(f"timestamp_millis({time_ms(0)} + id * 10)"))
        histories = keyed(timed.withWatermark("at", "1 second"), "user").transformWithState(
            Everything(),
            "user string, history array<long>, n long, parities map<long,long>, fired long",
            "Update",
            "EventTime",
            state=self._state,
        )

        def keep(batch: DataFrame, batch_id: int) -> None:
            batch.write.mode("overwrite").parquet(f"{self._output}/batch={batch_id}")
            print("batch", batch_id, flush=True)

        return self._started(histories, keep, "histories", availableNow=True)

    def reminders(self, events: int) -> tuple[StreamingQuery, threading.Event]:
        """The query, and what is set once it has reminded of so many events."""
        reminded = keyed(self._events(), "user").transformWithState(
            Reminders(), "user string, ids array<long>", "Update", "ProcessingTime", state=self._state
        )
        folder, complete = self._output / "reminders", threading.Event()

        def keep(batch: DataFrame, batch_id: int) -> None:
            batch.write.mode("overwrite").parquet(f"{folder}/batch={batch_id}")
            look()

        def look() -> None:
            parts = [pq.read_table(path, columns=["ids"]) for path in folder.glob("batch=*/*.parquet")]
            if sum(len(ids) for part in parts for ids in part.column("ids").to_pylist()) >= events:
                complete.set()

        look()
        return self._started(reminded, keep, "reminders", processingTime="1 second"), complete

    def tiles(self, url: str) -> StreamingQuery:
        return stream(
            VISITS,
            RedisStore(url),
            f"{self._checkpoint}/tiles",
            start_ms=START_MS,
            lateness_ms=1_000,
            least_ttl_ms=None,
            tables={"visits": self._events().selectExpr("user", f"{START_MS} + id * {EVENT_MS} AS time_ms")},
            state=self._state,
            trigger={"availableNow": True},
        )

    def _events(self) -> DataFrame:
        read = self._spark.readStream.schema("id long, user string").option("maxFilesPerTrigger", FILES_PER_BATCH)
        return read.parquet(self._source)

    def _started(self, frame: DataFrame, keep: Any, name: str, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(keep).outputMode("update").queryName(name)
        return writer.option("checkpointLocation", f"{self._checkpoint}/{name}").trigger(**trigger).start()


def main() -> None:
    source, checkpoint, output, master, settings = sys.argv[1:]
    given = json.loads(settings)
    url, events = given.pop("store"), int(given.pop("events"))
    cache = {"cache": "lru", "max_entries": 20} if given.pop("cache") == "lru" else {}
    state = StateConfig(backend=given.pop("backend"), **cache)
    spark = job_session("whole-path", master, given)
    path = WholePath(spark, source, checkpoint, output, state)
    reminders, complete = path.reminders(events)
    queries = [path.tiles(url), path.histories(url)]
    for query in queries:
        query.awaitTermination()
    while not complete.wait(1):
        if reminders.exception() is not None:
            raise reminders.exception()
    reminders.stop()
    print("done", flush=True)
    spark.stop()
    sys.stdin.readline()


if __name__ == "__main__":
    main()
