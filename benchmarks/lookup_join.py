"""How fast a stream is enriched from a database, by what is cached: nothing, a part, the whole table.

Zipf keys (s = 1.1) over 1,000,000 rows in a PostgreSQL that the benchmark starts, and 1,000,000 events as one
micro-batch of a stream into a sink that drops them. In one run, by what people write (`lookup_peers`): a UDF that
asks row by row; `mapInArrow` with one `= ANY` a batch of 10,000 rows, without and with an LRU cache of a tenth of
the rows; `mapInPandas` with one; `foreachBatch`; and Spark's own broadcast join, with the table in Parquet and
persisted. By ours: no cache; a partial cache of 1, 10 and 100 % of the rows in the executor's state host, one of 10
% in each worker (`inline`); an asynchronous source; and the whole table in a mapped file, at rest and while it is
read again from PostgreSQL back to back. `spark_jdbc` is Spark's own source; its driver is loaded from Maven.
`_1_ms` are the same over a proxy that has the database a millisecond away, as in a network. `_large` are what people
write with batches of 100,000 rows; ours join small batches into such ones themselves. `lookup_shared` measures a cache
that two executors share.

Every engine is warmed by one run and then timed in three, engine after engine. The median counts, and the spread is
shown. Row by row has 20,000 events. `queries` and `keys_queried` are counted where ours leave for the database, in
all timed runs together. Hit rates are of the first run, and of events: the share that needed no key from the database.
`best_lru_10` is what one LRU cache of that size reaches on the same keys, one by one. `batches` are hit rates over ten
micro-batches, also with workers that end after each of them (`lookup_workers`).

`reload_stall_ms` is the longest that a reader of its own, asking all the time for the newest table and a hundred of its
keys, had to wait for an answer while the table was reloaded. `full_bytes_per_host` is what the memory of driver and
workers grew by, files, and files that were removed but are still mapped. `memory` is the same over the size of the
Arrow table, and in one process (`lookup_memory`).

    .venv/bin/python -m benchmarks.lookup_join [--scale 0.1]
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast

from benchmarks import lookup_memory, lookup_peers, lookup_workers
from benchmarks.database_servers import distant, postgresql
from benchmarks.lookup_world import (
    COLUMNS,
    CountedSql,
    Streams,
    best_lru,
    counted,
    customers,
    fill,
    unchanged,
    zipf_keys,
)
from benchmarks.memory import Memory, sampled
from benchmarks.report import grouped_bars, report
from millpond.lookup import (
    FullCachingLookupProvider,
    LookupTable,
    ReloadContext,
    SqlLookup,
    ThreadedLookup,
)
from millpond.spark import lookup_join, session
from millpond.spark.lookup.join import _PLANNED

ROWS = EVENTS = 1_000_000
BATCH_ROWS, LARGE_BATCH_ROWS = 10_000, 100_000
ROW_BY_ROW_EVENTS = 20_000
RELOADS = 3
RUNS = 3
SAMPLED_S = 0.05
MOST_STALL_MS = 50
WAY_MS = 1.0


class OnCall:
    """A trigger that reloads when the benchmark says so, in the table's own thread."""

    context: ReloadContext | None = None

    def open(self, context: ReloadContext) -> None:
        """Begin."""
        self.context = context

    def close(self) -> None:
        """End."""
        self.context = None

    def __getstate__(self) -> dict[str, Any]:
        """Workers map what the driver loads; they trigger nothing."""
        return {}

    def reload(self) -> None:
        """Reload, and wait until that is done."""
        assert self.context is not None
        self.context.trigger_reload().result()


@contextmanager
def reloading(trigger: OnCall) -> Iterator[list[float]]:
    """Reload the table back to back while the block runs; how many seconds each took."""
    took: list[float] = []
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            started = time.perf_counter()
            trigger.reload()
            took.append(time.perf_counter() - started)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield took
    finally:
        ended.set()
        thread.join()


_PROBE = """
import sys, time
from pathlib import Path
import numpy as np, pyarrow as pa
from millpond.spark.lookup.files import Published
place, rows = Published("customers", Path(sys.argv[1]), None), int(sys.argv[2])
keys = pa.array(np.arange(0, rows, max(rows // 100, 1)))
place.newest().search([keys])
print("ready", flush=True)
longest, seen = 0.0, set()
while not Path(sys.argv[3]).exists():
    started = time.perf_counter()
    table = place.newest()
    assert int(table.search([keys]).counts.sum()) == len(keys)
    longest = max(longest, time.perf_counter() - started)
    seen.add(table.path.name)
    del table
    time.sleep(0.001)
print(longest * 1_000, len(seen))
"""


@contextmanager
def probed(folder: Path, rows: int) -> Iterator[list[float]]:
    """A reader in a process of its own while the block runs: its longest wait in ms, and how many versions it saw."""
    seen: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        stop = Path(place, "stop")
        command = [sys.executable, "-c", _PROBE, str(folder), str(rows), str(stop)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as probe:
            assert probe.stdout is not None
            assert probe.stdout.readline() == "ready\n"
            try:
                yield seen
            finally:
                stop.touch()
                seen.extend(map(float, probe.stdout.readline().split()))


def options(rows: int, percent: int) -> dict[str, Any]:
    """A partial cache of a share of the table."""
    return {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": max(1, rows * percent // 100)}


@dataclass
class Engine:
    """One set-up, and what its runs took."""

    name: str
    events: Path
    join: Callable[[DataFrame], DataFrame]
    in_foreach_batch: bool = False
    batch_rows: int = BATCH_ROWS
    seconds: list[float] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def rates(self) -> list[int]:
        """Events per second of every timed run."""
        count = sum(pq.read_metadata(path).num_rows for path in self.events.iterdir())
        return sorted(round(count / seconds) for seconds in self.seconds[1:])


def interleaved(spark: SparkSession, streams: Streams, engines: Sequence[Engine], log: Path) -> None:
    """Run every engine once to warm it, and then in turns."""
    for _ in range(1 + RUNS):
        for engine in engines:
            counted(log)
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(engine.batch_rows))
            engine.seconds.append(streams.seconds(engine.events, engine.join, in_foreach_batch=engine.in_foreach_batch))
            engine.asked.append(counted(log))


def measure(spark: SparkSession, url: str, folder: Path, keys: npt.NDArray[np.int64], rows: int) -> dict[str, Any]:
    """Every set-up in turn."""
    number, table = len(keys), customers(rows)
    fill(url, table)
    log = folder / "log"
    log.mkdir()
    streams = Streams(spark, folder)
    events, few = (
        streams.write("events", keys),
        streams.write("few", keys[: max(2_000, ROW_BY_ROW_EVENTS * number // EVENTS)]),
    )
    streams.write("warm", keys[:2_000])
    streams.seconds(folder / "warm", unchanged)
    parquet = folder / "customers.parquet"
    pq.write_table(table, parquet)
    libpq, tenth = url.replace("+psycopg", ""), max(1, rows // 10)
    known = spark.read.parquet(str(parquet))
    persisted = spark.read.parquet(str(parquet)).persist()
    engines = [
        Engine("row_by_row", few, lookup_peers.by_udf(CountedSql(url, log).lookup)),
        Engine("hand_any", events, lookup_peers.hand_any(libpq)),
        Engine("hand_any_cached", events, lookup_peers.hand_any_cached(libpq, tenth)),
        Engine("hand_pandas_cached", events, lookup_peers.hand_pandas_cached(libpq, tenth)),
        Engine("hand_any_large", events, lookup_peers.hand_any(libpq), batch_rows=LARGE_BATCH_ROWS),
        Engine(
            "hand_any_cached_large",
            events,
            lookup_peers.hand_any_cached(libpq, tenth),
            batch_rows=LARGE_BATCH_ROWS,
        ),
        Engine("foreach_batch", events, lookup_peers.foreach_batch(libpq), in_foreach_batch=True),
        Engine("spark_jdbc", events, lookup_peers.spark_jdbc(spark, libpq, rows)),
        Engine("spark_broadcast", events, lambda df: df.join(broadcast(known), "customer", "left")),
        Engine("spark_broadcast_persisted", events, lambda df: df.join(broadcast(persisted), "customer", "left")),
    ]
    with ExitStack() as tables:

        def ours(name: str, source: Any, of: dict[str, Any] | None = None, **given: Any) -> None:
            looked_up = tables.enter_context(LookupTable(name, source, of or {}))
            engines.append(Engine(name, events, lambda df: lookup_join(df, looked_up, on="customer", **given)))

        ours("batched", CountedSql(url, log))
        for percent in (1, 10, 100):
            ours(f"partial_{percent}", CountedSql(url, log), options(rows, percent))
        ours("partial_10_inline", CountedSql(url, log), options(rows, 10), host="inline")
        ours("async", ThreadedLookup(CountedSql(url, log), threads=4))
        here = int(url.rpartition(":")[2].partition("/")[0])
        port = tables.enter_context(distant(here, WAY_MS))
        away = url.replace(f":{here}/", f":{port}/")
        far = away.replace("+psycopg", "")
        engines += [
            Engine("hand_any_1_ms", events, lookup_peers.hand_any(far)),
            Engine("hand_any_1_ms_large", events, lookup_peers.hand_any(far), batch_rows=LARGE_BATCH_ROWS),
        ]
        ours("partial_10_1_ms", CountedSql(away, log), options(rows, 10))
        interleaved(spark, streams, engines, log)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    persisted.unpersist()
    result = _rates(engines)
    first = {engine.name: engine.asked[0][1] for engine in engines}
    cached = ["partial_10", "partial_10_inline"]
    result["hit_rate"] = {name: round(1 - first[name] / number, 4) for name in cached}
    result["hit_rate"]["best_lru_10"] = round(best_lru(keys, tenth), 4)
    result["arrow_bytes"] = table.nbytes
    result["estimate"] = lookup_memory.estimates()
    result["memory"] = lookup_memory.in_process(url, rows, table.nbytes)
    del table
    _full(streams, events, parquet, url, result)
    speed = result["rows_per_second"]
    result["ratio"] = {
        "batched_to_hand": round(speed["batched"] / speed["hand_any"], 2),
        "partial_10_to_hand_cached": round(speed["partial_10"] / speed["hand_any_cached"], 2),
        "full_to_persisted_broadcast": round(speed["full"] / speed["spark_broadcast_persisted"], 2),
        "partial_10_to_hand_1_ms": round(speed["partial_10_1_ms"] / speed["hand_any_1_ms"], 2),
        "batched_to_hand_large": round(speed["batched"] / speed["hand_any_large"], 2),
        "partial_10_to_hand_cached_large": round(speed["partial_10"] / speed["hand_any_cached_large"], 2),
        "partial_10_to_hand_1_ms_large": round(speed["partial_10_1_ms"] / speed["hand_any_1_ms_large"], 2),
    }
    return result


def _rates(engines: Sequence[Engine]) -> dict[str, Any]:
    result: dict[str, Any] = {name: {} for name in ("rows_per_second", "spread", "queries", "keys_queried")}
    for engine in engines:
        rates = engine.rates()
        queries, keys = (sum(numbers) for numbers in zip(*engine.asked[1:], strict=True))
        result["rows_per_second"][engine.name] = round(statistics.median(rates))
        result["spread"][engine.name] = [rates[0], rates[-1]]
        result["queries"][engine.name], result["keys_queried"][engine.name] = queries, keys
        print(f"{engine.name:>26}: {statistics.median(rates):>12,.0f} events/s, {keys:,} keys", file=sys.stderr)
    return result


def _full(streams: Streams, events: Path, parquet: Path, url: str, result: dict[str, Any]) -> None:
    """The whole table, at rest and while it is read again."""
    rows = pq.read_metadata(parquet).num_rows
    number = sum(pq.read_metadata(part).num_rows for part in events.iterdir())
    speed = result["rows_per_second"]

    def note(name: str, join: Callable[[DataFrame], DataFrame], until: Callable[[], bool] = lambda: True) -> None:
        streams.seconds(events, join)
        rates = [round(number / streams.seconds(events, join)) for _ in range(RUNS)]
        while not until():
            rates.append(round(number / streams.seconds(events, join)))
        speed[name] = round(statistics.median(rates))
        result["spread"][name] = [min(rates), max(rates)]

    gc.collect()
    pa.default_memory_pool().release_unused()
    # Spark ends workers that idle for a minute; these show what one holds that has done nothing.
    streams.seconds(events.with_name("warm"), unchanged)
    memory = Memory()
    source = SqlLookup(url, "customers", ["customer"], COLUMNS)
    trigger = OnCall()
    with LookupTable("customers", FullCachingLookupProvider.of(source, trigger)) as full:

        def join(df: DataFrame) -> DataFrame:
            return lookup_join(df, full, on="customer")

        started = time.perf_counter()
        streams.seconds(events.with_name("warm"), join)
        result["full_first_load_seconds"] = round(time.perf_counter() - started, 2)
        note("full", join)
        place = next(each.published.place.folder for key, each in _PLANNED.items() if key[1] is full and each.published)
        at_rest = memory.bytes(place)
        with (
            sampled(lambda: memory.bytes(place), SAMPLED_S) as held,
            probed(place, rows) as stall,
            reloading(trigger) as took,
        ):
            note("full_reloading", join, until=lambda: len(took) >= RELOADS)
        stats = full.stats()
        assert stats.num_load_failure == 0
        assert stats.hit_count > 0
    result["reload_stall_ms"] = round(stall[0], 2)
    result["reloads"] = len(took)
    result["full_bytes_per_host"] = {"at_rest": at_rest, "reloading": int(max(held))}
    result["memory"] |= {
        f"mapped_{name}": round(held / result["arrow_bytes"], 2) for name, held in result["full_bytes_per_host"].items()
    }
    for name in ("full", "full_reloading"):
        result["queries"][name] = result["keys_queried"][name] = 0
        print(f"{name:>16}: {speed[name]:>12,.0f} rows/s", file=sys.stderr)


def bars(result: dict[str, Any]) -> list[str]:
    """Which promises this run did not keep."""
    speed, hits, ratio = result["rows_per_second"], result["hit_rate"], result["ratio"]
    held, arrow, memory = result["full_bytes_per_host"], result["arrow_bytes"], result["memory"]
    promises = {
        "batched is at least 20 times row by row": speed["batched"] >= 20 * speed["row_by_row"],
        "batched is at least as fast as by hand": ratio["batched_to_hand"] >= 1,
        "partial 10 % is at least 1.2 times by hand with a cache": ratio["partial_10_to_hand_cached"] >= 1.2,
        "partial 10 % is at least twice by hand without a cache, 1 ms away": ratio["partial_10_to_hand_1_ms"] >= 2,
        "full is at least 1.5 times a persisted broadcast": ratio["full_to_persisted_broadcast"] >= 1.5,
        "partial 10 % hits within 5 points of one LRU": hits["partial_10"] >= hits["best_lru_10"] - 0.05,
        "partial 10 % hits within 2 points where workers end": hits["batches_workers_ended"] >= hits["batches"] - 0.02,
        "full while reloading is at least 0.4 times broadcast": speed["full_reloading"]
        >= 0.4 * speed["spark_broadcast"],
        f"no stall above {MOST_STALL_MS} ms": result["reload_stall_ms"] <= MOST_STALL_MS,
        "at rest at most twice the Arrow size": held["at_rest"] <= 2 * arrow,
        "reloading at most 3.5 times the Arrow size": held["reloading"] <= 3.5 * arrow,
        "in one process at rest at most 1.5 times the Arrow size": memory["in_process_at_rest"] <= 1.5,
        "in one process reloading at most 2.5 times the Arrow size": memory["in_process_reloading"] <= 2.5,
        f"no stall above {MOST_STALL_MS} ms in one process": memory["in_process_stall_ms"] <= MOST_STALL_MS,
        "estimates within 0.8 and 1.3 of the truth": all(0.8 <= each <= 1.3 for each in result["estimate"].values()),
    }
    return [promise for promise, kept in promises.items() if not kept]


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows and events")
    scale = parser.parse_args().scale
    rows = max(1_000, int(ROWS * scale))
    keys = zipf_keys(rows, max(2_000, int(EVENTS * scale)))
    with tempfile.TemporaryDirectory(prefix="millpond-lookup-join-") as name, postgresql() as url:
        spark = session(
            "lookup_join",
            master="local[2]",
            spark__jars__packages=lookup_peers.JDBC_DRIVER,
            spark__jars__excludes="org.checkerframework:checker-qual",  # annotations that the driver was compiled with
            spark__ui__enabled="false",
            # The default of 1 GiB is too little for Spark to broadcast the table beside large batches.
            spark__driver__memory="3g",
            spark__sql__shuffle__partitions="2",
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            result = measure(spark, url, Path(name), keys, rows)
        finally:
            spark.stop()
        result["hit_rate"] |= lookup_workers.hit_rates(url, keys, options(rows, 10))
    broken = bars(result)
    for promise in broken:
        print(f"NOT kept: {promise}", file=sys.stderr)
    if scale < 1:
        print(json.dumps(result))
    else:
        _report(result)
        if broken:
            sys.exit(1)


def _report(result: dict[str, Any]) -> None:
    speed = result["rows_per_second"]
    rows = [
        (
            name,
            speed[name],
            "{:,} to {:,}".format(*result["spread"][name]),
            result["queries"][name],
            result["keys_queried"][name],
            f"{speed[name] / speed['batched']:.2f}",
        )
        for name in speed
    ]
    report(
        "lookup_join",
        title="Lookup join: a million Zipf keys against a million rows",
        columns=("set-up", "events/s", "spread", "queries", "keys queried", "÷ batched"),
        rows=rows,
        result=result,
        draw=lambda axes: grouped_bars(
            axes,
            [name.replace("_", " ") for name in speed],
            {"events/s": list(speed.values())},
            ylabel="events per second",
        ),
    )


if __name__ == "__main__":
    main()
