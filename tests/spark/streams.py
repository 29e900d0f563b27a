"""A stream that a test writes file by file and runs batch by batch."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row, SparkSession

EVENTS = "user string, id long, at timestamp"


class Stream:
    """A stream of files, run batch by batch, with its output in memory."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        (folder / "events").mkdir()
        self.rows: list[list[Row]] = []
        self._files = 0

    def add(self, rows: list[tuple[Any, ...]]) -> None:
        columns = list(zip(*rows, strict=True))
        arrays = [pa.array(columns[0], pa.string()), pa.array(columns[1], pa.int64())]
        seconds = pa.array([None if at is None else int(at * 1e6) for at in columns[2]], pa.int64()).cast(
            pa.timestamp("us", tz="UTC")
        )
        table = pa.table([*arrays, seconds], names=["user", "id", "at"])
        hidden = self.folder / "events" / f".{self._files:04d}"
        pq.write_table(table, hidden)
        # Spark takes files in the order of their times, in whole seconds on some file systems.
        os.utime(hidden, (1_700_000_000 + self._files,) * 2)
        hidden.rename(self.folder / "events" / f"{self._files:04d}.parquet")
        self._files += 1

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "events"))

    def run(self, output: DataFrame) -> list[list[Row]]:
        """Work off every file; the rows of each batch."""
        batches: list[list[Row]] = []
        writer = output.writeStream.outputMode("update").trigger(availableNow=True)
        writer = writer.foreachBatch(lambda batch, _: batches.append(batch.collect()))
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        query.awaitTermination()
        return batches
