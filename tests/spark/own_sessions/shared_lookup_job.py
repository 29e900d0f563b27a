"""A partial cache that two executors share: `python shared_lookup_job.py FOLDER`. Prints what was found, as JSON."""

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from millpond.lookup import LookupTable, PythonLookup
from millpond.spark import lookup_join, session

WARM, ONCE, KILLED = 1_000_000, 0, 2_000_000
"""Where the keys of each part begin."""

KEYS = 400
PATIENCE_S = 100


def squares(folder: Path) -> PythonLookup:
    """A source that notes the process of every load. At the marked time a process dies that loads for another."""

    def find(number: int) -> list[tuple[int]]:
        with (folder / "calls").open("a") as log:
            log.write(f"{os.getpid()} {number}\n")
        asked_by_another = "process_request" in threading.current_thread().name
        if number >= KILLED and asked_by_another and not (folder / "died").exists():
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [(number * number,), (-number,)] if number % 5 == 1 else [(number,)] if number % 5 else []

    return PythonLookup(find, pa.schema([("number", pa.int64())]), pa.schema([("found", pa.int64())]))


class Calls:
    """What the processes noted, since the last look."""

    def __init__(self, folder: Path) -> None:
        self._path, self._read = folder / "calls", 0

    def new(self) -> list[tuple[int, int]]:
        """The process and key of every load since the last look."""
        lines = self._path.read_text().splitlines()
        new, self._read = lines[self._read :], len(lines)
        return [(int(pid), int(key)) for pid, key in map(str.split, new)]


def events_from(spark: SparkSession, first: int) -> DataFrame:
    """Events of 8 partitions, all with the same skewed keys, some of them null."""
    number = f"case when id % 9 = 0 then null when id % 9 < 4 then {first + 7} else {first} + id % {KEYS} end"
    return spark.range(0, 8 * 9 * KEYS, 1, 8).selectExpr("id", f"{number} as number")


def known(spark: SparkSession, first: int) -> DataFrame:
    """The same rows as the source, for Spark's own join."""
    numbers = spark.range(first, first + KEYS).withColumnRenamed("id", "number").where("number % 5 > 0")
    doubled = "explode(if(number % 5 = 1, array(number * number, -number), array(number))) as found"
    return numbers.selectExpr("number", doubled)


def as_spark(spark: SparkSession, joined: DataFrame, first: int) -> bool:
    """Whether a join has the rows of Spark's own join."""
    ours = sorted(map(tuple, joined.collect()), key=repr)
    theirs = events_from(spark, first).join(known(spark, first), "number", "left").select("id", "number", "found")
    return ours == sorted(map(tuple, theirs.collect()), key=repr)


def acquainted(spark: SparkSession, table: LookupTable, calls: Calls) -> int:
    """Join new keys until both executors know each other: then each key is loaded once, by two processes."""
    until = time.monotonic() + PATIENCE_S
    for first in range(WARM, KILLED, KEYS):
        lookup_join(events_from(spark, first), table, on="number", share_cache=True).count()
        new = calls.new()
        if len({pid for pid, _ in new}) == 2 and max(Counter(key for _, key in new).values()) == 1:
            return first
        if time.monotonic() > until:
            raise AssertionError("the executors did not find each other")
    raise AssertionError("the keys came to an end")


def as_spark_until_one_died(spark: SparkSession, table: LookupTable, died: Path) -> bool:
    """Join new keys until a process died that loaded for another. Return whether each join has the rows of Spark's own.

    A process on a busy machine may hear so late of the other that it loads all keys of a join by itself.
    """
    until = time.monotonic() + PATIENCE_S
    first = KILLED
    while True:
        joined = lookup_join(events_from(spark, first), table, on="number", share_cache=True)
        is_right = as_spark(spark, joined, first)
        if not is_right or died.exists():
            return is_right
        if time.monotonic() > until:
            raise AssertionError("no process asked the other for a key")
        first += KEYS


def run(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """What happens when each key is looked up by both executors, when keys are invalidated, and when an owner dies."""
    options = {
        "lookup.cache": "PARTIAL",
        "lookup.partial-cache.max-rows": 100_000,
        "lookup.partial-cache.invalidation": True,
    }
    told: dict[str, Any] = {}
    calls = Calls(folder)
    with LookupTable("squares", squares(folder), options) as table:
        acquainted(spark, table, calls)
        joined = lookup_join(events_from(spark, ONCE), table, on="number", share_cache=True)
        told["shuffles"] = str(joined._jdf.queryExecution().executedPlan()).count("Exchange")
        before = table.stats()
        told["once as Spark"] = as_spark(spark, joined, ONCE)
        loaded = calls.new()
        told["loads of a key"] = max(Counter(key for _, key in loaded).values())
        told["keys"], told["processes"] = len({key for _, key in loaded}), len({pid for pid, _ in loaded})
        since = table.stats().since(before)
        told["loads"], told["asked"], told["failed"] = (
            since.load_count,
            since.owner_ask_count,
            since.owner_failure_count,
        )
        table.invalidate([(key,) for key in range(0, KEYS, 2)])
        told["invalidated as Spark"] = as_spark(spark, joined, ONCE)
        told["loaded again"] = sorted(key for _, key in calls.new())
        before = table.stats()
        told["killed as Spark"] = as_spark_until_one_died(spark, table, folder / "died")
        told["failed with the owner"] = table.stats().since(before).owner_failure_count
    return told


def main(folder: Path) -> None:
    """Run it all."""
    spark = session(
        "shared-lookup",
        master="local-cluster[2,1,1024]",
        spark__ui__enabled="false",
        spark__local__dir=str(folder),
        spark__driver__host="127.0.0.1",
        spark__driver__bindAddress="127.0.0.1",
        spark__sql__shuffle__partitions="2",
    )
    spark.sparkContext.setLogLevel("ERROR")
    told = run(spark, folder)
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
