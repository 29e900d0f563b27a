"""What people write by hand to enrich a stream from PostgreSQL, for the lookup benchmark.

Each is what its users would write, with its best driver and query: psycopg and `= ANY`, a connection per
partition, an LRU cache of cachetools in each worker. The invariant: they give the events with the columns
of their customers, as the lookup join does.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import psycopg
import pyarrow as pa
from cachetools import LRUCache
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, udf
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

QUERY = "select customer, name, city, balance, since from customers where customer = any(%s)"
JDBC_DRIVER = "org.postgresql:postgresql:42.7.13"
"""The Maven coordinates of the driver that `spark_jdbc` needs."""

_JDBC_TASKS = 2
_JDBC_ROWS = 10_000
"""How many rows the driver fetches at once. By default it holds the whole table in memory."""

_NOTHING = (None, None, None, None)
_ADDED = pa.schema([("name", pa.string()), ("city", pa.string()), ("balance", pa.float64()), ("since", pa.int64())])
_SPARK = StructType(
    [
        StructField("event", LongType()),
        StructField("customer", LongType()),
        StructField("name", StringType()),
        StructField("city", StringType()),
        StructField("balance", DoubleType()),
        StructField("since", LongType()),
    ]
)
_CACHES: dict[int, Any] = {}
"""The caches of a worker, by their size: they live as long as it does."""


def _joined(batch: pa.RecordBatch, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), _ADDED, strict=True)]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=pa.schema([*batch.schema, *_ADDED]))


def by_udf(lookup: Callable[[tuple[int]], Sequence[tuple[Any, ...]]]) -> Callable[[DataFrame], DataFrame]:
    """A UDF that asks the database for each row, with the best that a look-up of one key can do."""
    row = StructType(_SPARK.fields[2:])

    def customer(key: int) -> tuple[Any, ...] | None:
        rows = lookup((key,))
        return rows[0] if rows else None

    # Not deterministic, so that Spark asks once a row and not once for each field.
    asked = udf(customer, row).asNondeterministic()
    return lambda df: df.select("*", asked("customer").alias("found")).select("event", "customer", "found.*")


def hand_any(url: str) -> Callable[[DataFrame], DataFrame]:
    """`mapInArrow`, psycopg, one `= ANY` a batch, no cache."""

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with psycopg.connect(url) as connection:
            for batch in batches:
                keys = batch.column("customer").to_pylist()
                found = {row[0]: row[1:] for row in connection.execute(QUERY, (list(set(keys)),))}
                yield _joined(batch, [found.get(key, _NOTHING) for key in keys])

    return lambda df: df.mapInArrow(join, _SPARK)


def hand_any_cached(url: str, max_rows: int) -> Callable[[DataFrame], DataFrame]:
    """The same with an LRU cache in each worker."""

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Imported here, so that a worker finds its own caches and not a pickled copy.
        from benchmarks.lookup_peers import _CACHES

        cache = _CACHES.setdefault(max_rows, LRUCache(max_rows))
        with psycopg.connect(url) as connection:
            for batch in batches:
                keys = batch.column("customer").to_pylist()
                found = {}
                for key in set(keys):
                    row = cache.get(key)
                    if row is not None:
                        found[key] = row
                missing = [key for key in set(keys) if key not in found]
                if missing:
                    loaded = {row[0]: row[1:] for row in connection.execute(QUERY, (missing,))}
                    cache.update(loaded)
                    found.update(loaded)
                yield _joined(batch, [found.get(key, _NOTHING) for key in keys])

    return lambda df: df.mapInArrow(join, _SPARK)


def hand_pandas_cached(url: str, max_rows: int) -> Callable[[DataFrame], DataFrame]:
    """`mapInPandas` with an LRU cache in each worker, and a merge."""

    def join(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        from benchmarks.lookup_peers import _CACHES

        cache = _CACHES.setdefault(max_rows, LRUCache(max_rows))
        with psycopg.connect(url) as connection:
            for frame in frames:
                keys = [int(key) for key in frame["customer"].unique()]
                found = {key: cache[key] for key in keys if key in cache}
                missing = [key for key in keys if key not in found]
                if missing:
                    loaded = {row[0]: row[1:] for row in connection.execute(QUERY, (missing,))}
                    cache.update(loaded)
                    found.update(loaded)
                rows = [(key, *row) for key, row in found.items()]
                yield frame.merge(pd.DataFrame(rows, columns=["customer", *_ADDED.names]), on="customer", how="left")

    return lambda df: df.mapInPandas(join, _SPARK)


def foreach_batch(url: str) -> Callable[[DataFrame], DataFrame]:
    """In `foreachBatch`: the distinct keys to the driver, one `= ANY`, and a broadcast join."""

    def join(df: DataFrame) -> DataFrame:
        keys = [row.customer for row in df.select("customer").distinct().collect()]
        with psycopg.connect(url) as connection:
            rows = connection.execute(QUERY, (keys,)).fetchall()
        columns = zip(*rows, strict=True) if rows else [()] * (1 + len(_ADDED))
        schema = pa.schema([pa.field("customer", pa.int64()), *_ADDED])
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        known = df.sparkSession.createDataFrame(pa.table(arrays, schema=schema))
        return df.join(broadcast(known), "customer", "left")

    return join


def spark_jdbc(spark: SparkSession, url: str, rows: int) -> Callable[[DataFrame], DataFrame]:
    """Spark's own JDBC source, which every batch reads again, by two tasks of half the keys each."""
    options = {
        "url": f"jdbc:postgresql:{url.partition(':')[2].replace('millpond@', '')}",
        "user": "millpond",
        "driver": "org.postgresql.Driver",
        "dbtable": "customers",
        "fetchsize": _JDBC_ROWS,
        "partitionColumn": "customer",
        "lowerBound": 0,
        "upperBound": rows,
        "numPartitions": _JDBC_TASKS,
    }
    known = spark.read.format("jdbc").options(**options).load()
    return lambda df: df.join(known, "customer", "left").select(_SPARK.names)
