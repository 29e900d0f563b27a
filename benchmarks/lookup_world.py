"""The events and customers of the lookup benchmark, and how a stream of them is run.

Zipf keys over a table in PostgreSQL. Each query that leaves for the database is counted, in a file of the process
that sent it, since queries leave from Spark's workers and from state hosts.
"""

import itertools
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from millpond.lookup import FoundColumns, LookupFunction, SqlLookup

EXPONENT = 1.1
COLUMNS = ["name", "city", "balance", "since"]
KEYS = pa.schema([("customer", pa.int64())])
VALUES = pa.schema([("name", pa.string()), ("city", pa.string()), ("balance", pa.float64()), ("since", pa.int64())])


class CountedSql(LookupFunction):
    """PostgreSQL by key, which notes every query and how many keys it asked for in a file of its process."""

    key_schema, row_schema = KEYS, VALUES

    def __init__(self, url: str, log: Path) -> None:
        self._source = SqlLookup(url, "customers", ["customer"], COLUMNS)
        self._log = log

    def open(self) -> None:
        """Connect."""
        self._source.open()

    def close(self) -> None:
        """Disconnect."""
        self._source.close()

    def lookup(self, keys: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """One key, one query."""
        return self.lookup_many([keys])[keys]

    def lookup_many(self, keys: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
        """All keys, one query."""
        self._note(len(keys))
        return self._source.lookup_many(keys)

    def lookup_columns(self, keys: Sequence[pa.Array]) -> FoundColumns:
        """All keys, one query, answered in columns."""
        self._note(len(keys[0]))
        return self._source.lookup_columns(keys)

    def _note(self, keys: int) -> None:
        with (self._log / f"{os.getpid()}").open("a") as log:
            log.write(f"{keys}\n")


def zipf_keys(rows: int, events: int) -> npt.NDArray[np.int64]:
    """Keys by rank to the power of -s, ranks spread over the table at random."""
    random = np.random.default_rng(221)
    weights = np.cumsum(1 / np.arange(1, rows + 1) ** EXPONENT)
    ranks = np.searchsorted(weights / weights[-1], random.random(events))
    keys: npt.NDArray[np.int64] = random.permutation(rows)[ranks]
    return keys


def best_lru(keys: npt.NDArray[np.int64], capacity: int) -> float:
    """The hit rate of one LRU cache that sees every event."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for key in keys.tolist():
        if key in cache:
            hits += 1
            cache.move_to_end(key)
        else:
            cache[key] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits / len(keys)


def customers(rows: int) -> pa.Table:
    """The dimension table."""
    ids = np.arange(rows)
    return pa.table(
        {
            "customer": ids,
            "name": [f"Customer {number:09d}" for number in range(rows)],
            "city": [f"City {number % 997}" for number in range(rows)],
            "balance": ids * 0.25,
            "since": 1_300_000_000_000 + ids * 1_000,
        }
    )


def fill(url: str, table: pa.Table) -> None:
    """Put the table into PostgreSQL."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "create table customers (customer bigint, name text, city text, balance double precision, since bigint)"
        )
        with connection.cursor().copy("copy customers from stdin") as copy:
            for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                copy.write_row(row)
        connection.execute("alter table customers add primary key (customer)")
        connection.execute("vacuum analyze customers")


def unchanged(df: DataFrame) -> DataFrame:
    """The same rows, by way of Python workers."""
    return df.mapInArrow(lambda batches: batches, df.schema)


class Streams:
    """Runs the events through a join as one micro-batch of a stream."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._runs = itertools.count()

    def write(self, name: str, keys: npt.NDArray[np.int64]) -> Path:
        """Events with these keys as Parquet files."""
        folder = self._folder / name
        folder.mkdir()
        table = pa.table({"event": np.arange(len(keys)), "customer": keys})
        half = -(-len(keys) // 2)
        for number in range(2):
            pq.write_table(table.slice(number * half, half), folder / f"{number}.parquet")
        return folder

    def seconds(self, events: Path, join: Callable[[DataFrame], DataFrame], *, in_foreach_batch: bool = False) -> float:
        """How long one run takes, Spark's start of a query included."""
        stream = self._spark.readStream.schema("event long, customer long").parquet(str(events))
        checkpoint = self._folder / f"checkpoint-{next(self._runs)}"

        def joined(batch: DataFrame, _: int) -> None:
            join(batch).write.format("noop").mode("append").save()

        writer = (
            stream.writeStream.foreachBatch(joined) if in_foreach_batch else join(stream).writeStream.format("noop")
        )
        started = time.perf_counter()
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
        return time.perf_counter() - started


def counted(log: Path) -> tuple[int, int]:
    """Queries and keys that the processes noted; forgets them."""
    asked = [int(line) for path in log.iterdir() for line in path.read_text().split()]
    for path in log.iterdir():
        path.unlink()
    return len(asked), sum(asked)
