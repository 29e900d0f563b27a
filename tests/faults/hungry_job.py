"""A keyed stream whose processor is told by its rows to misbehave: `python hungry_job.py FOLDER LIMIT BACKEND`.

LIMIT is `spark.executor.pyspark.memory`, or "-". Each batch that fails is told of, and the query started again.
"""

import os
import resource
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import StateConfig, keyed, session


class Hungry(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long, padding string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self._count.get()
        for row in rows:
            if row.deed == "eat" and not Path(row.folder, "fed").exists():
                bytearray(64 << 30)
            if row.deed == "fill" and not Path(row.folder, "fed").exists():
                # As on a disk that is full: files can grow no more, until somebody has made room.
                resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
                Path(row.folder, "host").write_text(str(os.getpid()))
            before = ((before[0] if before else 0) + 1, secrets.token_hex(50_000))
        self._count.update(before)
        yield Row(user=key[0], n=before[0])

    def close(self) -> None:
        pass


def main() -> None:
    folder, limit, backend = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    limits = {} if limit == "-" else {"spark__executor__pyspark__memory": limit}
    spark = session(
        "hungry",
        master="local[1]",
        spark__sql__shuffle__partitions="1",
        spark__ui__enabled="false",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        **limits,
    )
    spark.sparkContext.setLogLevel("FATAL")

    def tell(batch: DataFrame, batch_id: int) -> None:
        counts = {row.user: row.n for row in batch.collect()}
        print("batch", batch_id, sorted(set(counts.values())), len(counts), flush=True)

    reader = spark.readStream.schema("user string, deed string, folder string").option("maxFilesPerTrigger", 1)
    options = {"state.backend.rocksdb.write-buffer-size": "64kb"} if backend == "rocksdb" else {}
    counts = keyed(reader.json(str(folder / "events")), "user").transformWithState(
        Hungry(), "user string, n long", "Update", "None", state=StateConfig(backend, options=options)
    )
    writer = counts.writeStream.foreachBatch(tell).outputMode("update").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    for _ in range(2):
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as error:
            print("failed", " ".join(str(error).split()), flush=True)
            (folder / "fed").touch()
            if (folder / "host").exists():
                host = int((folder / "host").read_text())
                resource.prlimit(host, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print("done", flush=True)


if __name__ == "__main__":
    main()
