"""Hit rates of partial caches over micro-batches, with Python workers that stay and with workers that Spark ends.

For the lookup benchmark, on its keys and table. The events are one stream of ten micro-batches. Where workers end, each
task gets a worker of its own (`spark.python.worker.reuse`), so that none outlives its batch.
"""

import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.lookup_world import CountedSql, counted
from millpond.lookup import LookupTable
from millpond.spark import lookup_join, session

BATCHES, TASKS = 10, 2
"""Micro-batches, and files in each of them, which are its tasks."""


def hit_rates(url: str, keys: npt.NDArray[np.int64], options: dict[str, Any]) -> dict[str, float]:
    """Return the share of the events that needed no key from the database.

    Args:
        url: the database.
        keys: one for each event.
        options: of the table.

    Returns:
        ``batches`` and ``inline_batches``, with a cache in the executor's state host and one in each worker, and both
        with ``_workers_ended``.
    """
    rates: dict[str, float] = {}
    hosts: tuple[tuple[Literal["process", "inline"], str], ...] = (("process", ""), ("inline", "inline_"))
    for reuse, suffix in (("true", ""), ("false", "_workers_ended")):
        with tempfile.TemporaryDirectory(prefix="millpond-lookup-workers-") as name:
            folder = Path(name)
            _write(folder / "events", keys)
            (folder / "log").mkdir()
            spark = session(
                "lookup_workers",
                master=f"local[{TASKS}]",
                spark__python__worker__reuse=reuse,
                spark__ui__enabled="false",
            )
            spark.sparkContext.setLogLevel("ERROR")
            try:
                for host, prefix in hosts:
                    asked = _keys_asked(spark, folder, url, options, host)
                    rates[f"{prefix}batches{suffix}"] = round(1 - asked / len(keys), 4)
            finally:
                spark.stop()
    return rates


def _write(folder: Path, keys: npt.NDArray[np.int64]) -> None:
    folder.mkdir()
    for number, part in enumerate(np.array_split(keys, BATCHES * TASKS)):
        pq.write_table(pa.table({"customer": part}), folder / f"{number:02}.parquet")


def _keys_asked(
    spark: SparkSession, folder: Path, url: str, options: dict[str, Any], host: Literal["process", "inline"]
) -> int:
    """Run the stream once, and return how many keys the database was asked for."""
    stream = spark.readStream.schema("customer long").option("maxFilesPerTrigger", TASKS)
    with LookupTable(f"customers {host}", CountedSql(url, folder / "log"), options) as table:
        joined = lookup_join(stream.parquet(str(folder / "events")), table, on="customer", host=host)
        writer = joined.writeStream.format("noop").option("checkpointLocation", str(folder / f"checkpoint {host}"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert len(query.recentProgress) == BATCHES
    return counted(folder / "log")[1]
