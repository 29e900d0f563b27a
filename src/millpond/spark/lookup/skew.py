"""Spreads the events of hot keys, and events without a key, when a lookup join with `retry_missing` shuffles by key.

Spark shuffles all events of a key to one partition. A key with a large share of the events would keep one task busy
while the others wait. Such a key is *salted*: its events go to all partitions, each of which looks up the key. Events
whose key has a null match nothing, so they may go anywhere.

A key is hot in an Arrow batch if it has more than a given share of the batch's events. So nothing is counted across
batches. The invariant: a salt decides where an event is joined, but never whether, or with which row. A salt depends
on the batch, so it is declared as not deterministic: if Spark repeats a map task, it also repeats the tasks that read
its output.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import arrow_udf

from millpond.lookup import LookupTable
from millpond.spark.lookup.rows import distinct_keys


def salts(keys: Sequence[pa.Array], hot_share: float) -> npt.NDArray[np.int32]:
    """Return the salt of every event of a batch: its position for hot keys and null keys, 0 for all others.

    Spark hashes key and salt to a partition. With many salts, the partitions get about the same number of events.

    >>> salts([pa.array([7, 7, 8, 7, None, 9])], hot_share=0.4).tolist()
    [0, 1, 0, 3, 4, 0]
    """
    numbers, distinct = distinct_keys(keys)
    counts = np.bincount(numbers + 1, minlength=len(distinct[0]) + 1)
    hot = counts > hot_share * len(numbers)
    hot[0] = True
    return np.where(hot[numbers + 1], np.arange(len(numbers)), 0).astype(np.int32)


def with_salts(df: DataFrame, keys: Sequence[Column], hot_share: float, name: str) -> DataFrame:
    """Add the salts of the events as a column `name`."""

    @arrow_udf("int")  # type: ignore[untyped-decorator]
    def salt(*columns: pa.Array) -> pa.Array:
        return pa.array(salts(columns, hot_share))

    return df.withColumn(name, salt.asNondeterministic()(*keys))


def hosts_for(table: LookupTable, session: SparkSession) -> int:
    """Return how many state hosts of an executor divide a cache of shuffled keys: one per core, or 1 if indivisible."""
    context = session.sparkContext
    cores = context.getConf().get("spark.executor.cores")
    if context.master.startswith("local"):
        cores = str(context.defaultParallelism)
    return max(1, min(_shuffle_partitions(session), int(cores or 1))) if table.divisible else 1


def _shuffle_partitions(session: SparkSession) -> int:
    return int(session.conf.get("spark.sql.shuffle.partitions") or 0)
