"""A full lookup table on two executors: `python lookup_cluster_job.py FOLDER`. Prints what was found, as one JSON line.

Executors of a local cluster see the driver's folders. Those of other machines would not, so in the second part
the driver tells its workers of a folder that is not there.
"""

import contextlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from millpond.errors import DataError
from millpond.lookup import FullCachingLookupProvider, LookupTable, TableScan
from millpond.spark import lookup_join, session
from millpond.spark.lookup import files as lookup_files
from millpond.spark.lookup.files import Published

KEYS = 400


class Source:
    """A table with a version, which breaks when told to."""

    def __init__(self) -> None:
        self.version = 1
        self.broken = False

    def __call__(self) -> pa.Table:
        if self.broken:
            raise DataError("the values are being written")
        return pa.table({"id": range(KEYS), "version": [self.version] * KEYS})


def copies(spark: SparkSession) -> dict[str, list[str]]:
    """The versions of the table that each executor has of its own, by the folder in which it may have them."""
    fields = pa.schema([("executor", pa.string()), ("files", pa.list_(pa.string()))])

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        executor = os.environ["SPARK_LOCAL_DIRS"].split(",")[0]
        for _ in batches:
            files = sorted(str(path) for path in Path(executor).glob("millpond-*/*.table"))
            yield pa.RecordBatch.from_pylist([{"executor": executor, "files": files}], schema=fields)

    looked = spark.range(0, 4, 1, 4).mapInArrow(look, "executor string, files array<string>").distinct()
    return {row.executor: row.files for row in looked.collect()}


def run(spark: SparkSession, table: LookupTable, source: Source) -> dict[str, Any]:
    """What a join sees before and after a reload."""
    joined = lookup_join(spark.range(0, KEYS, 1, 4), table, on="id")
    seen = [joined.agg({"version": "min"}).first()[0]]
    source.version += 1
    table.reload()
    seen.append(joined.agg({"version": "min"}).first()[0])
    found = copies(spark)
    return {
        "versions": seen,
        "executors": len(found),
        "copies": [[Path(path).name for path in paths] for paths in found.values()],
        "paths": [path for paths in found.values() for path in paths],
        "hits": table.stats().hit_count,
    }


def main(folder: Path) -> None:
    """Run it all."""
    spark = session(
        "lookup-cluster",
        master="local-cluster[2,1,1024]",
        spark__ui__enabled="false",
        spark__local__dir=str(folder),
        spark__driver__host="127.0.0.1",
        spark__driver__bindAddress="127.0.0.1",
    )
    spark.sparkContext.setLogLevel("ERROR")
    source = Source()
    scan = TableScan(source, ["id"])
    with LookupTable("values", scan, {"lookup.cache": "FULL"}) as table:
        shared = run(spark, table, source)
    source.version = 1
    provider = FullCachingLookupProvider(scan, None, on_reload_failure="fail")
    with (
        patch.object(lookup_files, "Published", lambda name, _, server: Published(name, Path("/not/here"), server)),
        LookupTable("values", provider) as table,
    ):
        fetched = run(spark, table, source)
        source.broken = True
        with warnings.catch_warnings(), contextlib.suppress(DataError):
            warnings.simplefilter("ignore")
            table.reload()
        try:
            lookup_join(spark.range(KEYS), table, on="id").collect()
            failed = "it did not"
        except PythonException as error:
            failed = str(error)
    spark.stop()
    print(json.dumps({"shared": shared, "fetched": fetched, "failed": failed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
