"""Spreads the events of hot keys, and those without a key, where a lookup join shuffles by key.

Beside the driver's part of the join. Spark brings all events of a key to one partition, so a key with a large
share of the events would keep one task busy and the others waiting. Such a key is *salted*: its events go to all
partitions, each of which looks it up. Events whose key has a null match nothing and go anywhere.

A key is hot in an Arrow batch if it has more than a given share of the batch's events, so nothing is kept or
counted across batches. The invariant: a salt says where an event is joined, never whether, or with what. As it
depends on the batch, Spark is told that it is not deterministic: where it runs a map task again, it runs what
follows it again, too.
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
    """For every event of a batch 0, or for those of hot keys and without a key their number.

    Spark hashes key and salt to a partition. So there are many salts, that the partitions get about as many each.

    >>> salts([pa.array([7, 7, 8, 7, None, 9])], hot_share=0.4).tolist()
    [0, 1, 0, 3, 4, 0]
    """
    numbers, distinct = distinct_keys(keys)
    counts = np.bincount(numbers + 1, minlength=len(distinct[0]) + 1)
    hot = counts > hot_share * len(numbers)
    hot[0] = True
    return np.where(hot[numbers + 1], np.arange(len(numbers)), 0).astype(np.int32)


def with_salts(df: DataFrame, keys: Sequence[Column], hot_share: float, name: str) -> DataFrame:
    """The events with their salts as a further column `name`."""

    @arrow_udf("int")  # type: ignore[untyped-decorator]
    def salt(*columns: pa.Array) -> pa.Array:
        return pa.array(salts(columns, hot_share))

    return df.withColumn(name, salt.asNondeterministic()(*keys))


def shuffled_by_key(df: DataFrame, keys: Sequence[Column], hot_share: float, name: str) -> DataFrame:
    """The events by their keys, with their salts as a further column `name`."""
    salted = with_salts(df, keys, hot_share, name)
    # A number of partitions that is named is one that adaptive execution leaves alone.
    return salted.repartition(_shuffle_partitions(df.sparkSession), *keys, salted[name])


def hosts_for(table: LookupTable, session: SparkSession) -> int:
    """How many state hosts of an executor divide a cache to which keys are shuffled: one a core, if it is divisible."""
    context = session.sparkContext
    cores = context.getConf().get("spark.executor.cores")
    if context.master.startswith("local"):
        cores = str(context.defaultParallelism)
    return max(1, min(_shuffle_partitions(session), int(cores or 1))) if table.divisible else 1


def _shuffle_partitions(session: SparkSession) -> int:
    return int(session.conf.get("spark.sql.shuffle.partitions") or 0)
