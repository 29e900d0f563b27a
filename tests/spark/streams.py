"""A stream of files for tests: what is added is one batch, and `run` works all of them off."""

import os

import pyarrow as pa
import pyarrow.parquet as pq


class FileStream:
    """Rows `(user, id, at)`, `at` in seconds or None; each `add` is a file, and so a batch."""

    schema = "user string, id long, at timestamp"

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        (folder / "events").mkdir()
        self._files = 0

    def add(self, rows):
        self.write([dict(zip(("user", "id", "at"), row, strict=True)) for row in rows])

    def write(self, rows):
        """Rows as dictionaries, their times `at` in seconds or None."""
        columns = []
        for name, kind in (part.split() for part in self.schema.split(", ")):
            values = [row[name] for row in rows]
            if name == "at":
                values = pa.array([None if at is None else int(at * 1e6) for at in values], pa.int64())
                columns.append(values.cast(pa.timestamp("us", "UTC")))
            else:
                columns.append(pa.array(values, {"string": pa.string(), "long": pa.int64()}[kind]))
        names = [part.split()[0] for part in self.schema.split(", ")]
        hidden = self.folder / "events" / f".{self._files:04d}"
        pq.write_table(pa.table(columns, names=names), hidden)
        # Spark takes files in the order of their times, in whole seconds on some file systems.
        os.utime(hidden, (1_700_000_000 + self._files,) * 2)
        hidden.rename(self.folder / "events" / f"{self._files:04d}.parquet")
        self._files += 1

    def frame(self):
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder / "events"))

    def run(self, output, mode="update"):
        """Work off every file; the rows of each batch."""
        batches = []
        writer = output.writeStream.outputMode(mode).trigger(availableNow=True)
        writer = writer.foreachBatch(lambda batch, _: batches.append(batch.collect()))
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        query.awaitTermination()
        return batches

    def run_until(self, output, wanted, batches=40):
        """Run until each of these pairs begins some row of a committed batch.

        In processing time Spark never runs out of batches.
        """
        seen, before = [], self._commits()
        writer = output.writeStream.outputMode("update").foreachBatch(lambda batch, _: seen.append(batch.collect()))
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        try:
            while len(seen) < batches:
                committed = seen[: self._commits() - before]
                if wanted <= {tuple(row[:2]) for batch in committed for row in batch}:
                    break
                query.awaitTermination(1)
        finally:
            query.stop()
        return seen

    def _commits(self):
        return len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))
