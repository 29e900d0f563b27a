"""A keyed stream through Spark Connect: `python connect_job.py FOLDER`. Prints what came out, as JSON lines.

A program of its own, because one Python process is either a client of Spark Connect or a driver.
"""

import datetime as dt
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from millpond import OptionError
from millpond.spark import keyed, split_dead_letters
from millpond.spark.environment.session import SESSION_SETTINGS
from millpond.spark.spec.metrics import KeyedMetrics


class Visits(StatefulProcessor):
    """Counts a user's rows, refuses those of one user, and tells of a count 10 s after its first row."""

    def __init__(self, *, timed: bool) -> None:
        self._timed = timed

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        if key[0] == "mallory":
            raise ValueError("not you")
        before = self._count.get()
        for row in rows:
            if self._timed and not self._count.exists():
                self._handle.registerTimer(int(row.at.timestamp() * 1000) + 10_000)
            before = ((before[0] if before else 0) + 1,)
            self._count.update(before)
        yield Row(user=key[0], n=before[0], fired=False, until=row.at)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        until = dt.datetime.fromtimestamp(timerValues.getCurrentWatermarkInMs() / 1000 + 1, dt.UTC)
        yield Row(user=key[0], n=self._count.get()[0], fired=True, until=until)

    def close(self) -> None:
        pass


VISITS = "user string, n long, fired boolean, until timestamp"


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Spark's own defaults, but for the state store.
    builder = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2")
    provider = "spark.sql.streaming.stateStore.providerClass"
    spark = builder.config(provider, SESSION_SETTINGS[provider]).getOrCreate()

    batch = spark.range(100).selectExpr("string(id % 7) AS user", "timestamp_seconds(id) AS at")
    grouped = keyed(batch, "user")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        counts = grouped.transformWithState(Visits(timed=False), VISITS, "Update", "None", on_error="dead-letter")
    tell(warned=[[str(each.message), each.filename] for each in warned if each.category is UserWarning])
    tell(batch={row.user: row.n for row in split_dead_letters(counts)[0].collect()})
    tell(batch_metrics=counted(grouped.metrics()))

    reader = spark.readStream.schema("user string, at timestamp").option("maxFilesPerTrigger", 1)
    events = reader.json(str(folder / "events")).withWatermark("at", "1 second")
    grouped = keyed(events, "user")
    visits = grouped.transformWithState(
        Visits(timed=True), VISITS, "Update", "EventTime", eventTimeColumnName="until", on_error="dead-letter"
    )
    try:
        grouped.metrics()
    except OptionError as error:
        tell(refused=str(error))

    output = str(folder / "output")

    def sink(df: DataFrame, number: int) -> None:
        df = df.persist()  # so that the operator runs once a batch, and counts once
        results, letters = split_dead_letters(df)
        results.write.mode("overwrite").json(f"{output}/results/{number}")
        letters.write.mode("overwrite").json(f"{output}/letters/{number}")
        df.unpersist()

    writer = visits.writeStream.foreachBatch(sink).outputMode("update").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    query.awaitTermination()
    progress = [name for each in query.recentProgress for name in each.observedMetrics]
    tell(stream_metrics=counted(grouped.metrics(query)), observed=sorted(set(progress)))
    tell(stream=kept(folder / "output" / "results"), letters=kept(folder / "output" / "letters"))
    spark.stop()


def kept(folder: Path) -> list[list[Any]]:
    batches = sorted(folder.iterdir(), key=lambda path: int(path.name))
    return [[json.loads(line) for part in each.glob("*.json") for line in part.open()] for each in batches]


def counted(metrics: KeyedMetrics) -> dict[str, Any]:
    """All but the times, of which it tells whether there are any."""
    told = {**vars(metrics), "levels": len(metrics.levels), "state_rows": metrics.state_rows}
    for inner in ("stages", "shards", "query"):
        del told[inner]
    return {name: value > 0 if name.endswith("_seconds") else value for name, value in told.items()}


def tell(**found: Any) -> None:
    print("FOUND", json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
