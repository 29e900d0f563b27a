"""A streaming job for the kill tests: every event has an id, and each key's state is the list of its ids.

Run as a program of its own: `python keyed_history.py INPUT CHECKPOINT OUTPUT MASTER SETTINGS`, the last
as JSON. It works off all input files, a few at a time, and ends. The sink keeps each batch under its id,
so a batch that is run again replaces itself.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from millpond.spark import StateConfig, keyed, session

SAID = "a history goes on"


class History(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getListState("seen", "id long")
        print(SAID, flush=True)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self._seen.appendList([(row.id,) for row in rows])
        yield Row(user=key[0], history=[seen[0] for seen in self._seen.get()])

    def close(self) -> None:
        pass


def main() -> None:
    source, checkpoint, output, master, settings = sys.argv[1:]
    given = json.loads(settings)
    backend = given.pop("backend", "heap")
    spark = session(
        "keyed-history",
        master=master,
        spark__sql__shuffle__partitions="2",
        spark__ui__enabled="false",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        **given,
    )
    spark.sparkContext.setLogLevel("FATAL")

    def keep(batch: DataFrame, batch_id: int) -> None:
        batch.write.mode("overwrite").parquet(f"{output}/batch={batch_id}")
        print("batch", batch_id, flush=True)

    events = spark.readStream.schema("id long, user string").option("maxFilesPerTrigger", 2).parquet(source)
    histories = keyed(events, "user").transformWithState(
        History(),
        "user string, history array<long>",
        "Update",
        "None",
        state=StateConfig(backend=backend),
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
