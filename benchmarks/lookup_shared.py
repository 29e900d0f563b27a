"""How much faster executors are that share one partial cache: two of them, and skewed keys.

Zipf keys (s = 1.1) over 1,000,000 rows in a PostgreSQL that the benchmark starts. Each run has 1,000,000 new events as
one micro-batch of a stream, in two partitions, on two executors of one core each. The cache of an executor holds a
tenth of the rows. `partial_10` gives each executor a cache of its own, `partial_10_shared` one that both share. `_slow`
are the same with a source that makes the caller wait 0.05 ms for each key, as a busy service may. Both executors and
the database are on this machine, so the same two cores join, ask each other and answer queries.

Every engine is warmed until the executors know each other, and then timed, engine after engine. The median counts, and
the spread is shown. `queries` and `keys_queried` are counted where they leave for the database, in all timed runs
together; `asked` are the keys that an executor asked of the other.

    .venv/bin/python -m benchmarks.lookup_shared [--scale 0.1]
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.database_servers import postgresql
from benchmarks.killed_job import CLUSTER
from benchmarks.lookup_join import BATCH_ROWS, EVENTS, ROWS, options
from benchmarks.lookup_world import CountedSql, Streams, counted, customers, fill, unchanged, zipf_keys
from benchmarks.report import grouped_bars, report
from millpond.lookup import FoundColumns, LookupTable
from millpond.spark import lookup_join, session

WARM_RUNS, RUNS = 3, 5
PERCENT = 10
KEY_S = 0.000_05
"""How long a slow source makes the caller wait for each key."""


class SlowSql(CountedSql):
    """PostgreSQL behind a service that takes its time for each key."""

    def lookup_columns(self, keys: Sequence[pa.Array]) -> FoundColumns:
        """Wait, then look up all keys by one query."""
        threading.Event().wait(KEY_S * len(keys[0]))
        return super().lookup_columns(keys)


class Joined:
    """One set-up, and what its timed runs took."""

    def __init__(self, name: str, table: LookupTable, *, share_cache: bool) -> None:
        self.name, self.table, self.share_cache = name, table, share_cache
        self.seconds: list[float] = []
        self.queries = self.keys = self.asked = 0

    def run(self, streams: Streams, events: Path, log: Path, *, timed: bool) -> None:
        """Join all events once."""
        before = self.table.stats()
        counted(log)
        seconds = streams.seconds(
            events, lambda df: lookup_join(df, self.table, on="customer", share_cache=self.share_cache)
        )
        if timed:
            queries, keys = counted(log)
            self.seconds.append(seconds)
            self.queries += queries
            self.keys += keys
            stats = self.table.stats().since(before)
            assert stats.owner_failure_count == 0
            self.asked += stats.owner_ask_count


def measure(spark: SparkSession, url: str, folder: Path, scale: float) -> dict[str, Any]:
    """Run every set-up in turn."""
    rows, number = max(1_000, int(ROWS * scale)), max(2_000, int(EVENTS * scale))
    fill(url, customers(rows))
    log = folder / "log"
    log.mkdir()
    streams = Streams(spark, folder)
    keys = zipf_keys(rows, number * (WARM_RUNS + RUNS))
    events = [streams.write(f"events {run}", keys[run * number :][:number]) for run in range(WARM_RUNS + RUNS)]
    streams.seconds(streams.write("warm", keys[:2_000]), unchanged)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH_ROWS))
    with ExitStack() as opened:
        engines = [
            Joined(
                f"partial_{PERCENT}{'_shared' * shared}{suffix}",
                opened.enter_context(LookupTable("customers", source(url, log), options(rows, PERCENT))),
                share_cache=shared,
            )
            for source, suffix in ((CountedSql, ""), (SlowSql, "_slow"))
            for shared in (False, True)
        ]
        for run, part in enumerate(events):
            for engine in engines:
                engine.run(streams, part, log, timed=run >= WARM_RUNS)
    return _result(engines, number)


def _result(engines: list[Joined], number: int) -> dict[str, Any]:
    result: dict[str, Any] = {name: {} for name in ("rows_per_second", "spread", "queries", "keys_queried", "asked")}
    for engine in engines:
        rates = sorted(round(number / seconds) for seconds in engine.seconds)
        result["rows_per_second"][engine.name] = round(statistics.median(rates))
        result["spread"][engine.name] = [rates[0], rates[-1]]
        result["queries"][engine.name], result["keys_queried"][engine.name] = engine.queries, engine.keys
        result["asked"][engine.name] = engine.asked
    speed, keys = result["rows_per_second"], result["keys_queried"]
    result["shared_to_partial"] = {
        suffix: round(speed[f"partial_{PERCENT}_shared{end}"] / speed[f"partial_{PERCENT}{end}"], 2)
        for suffix, end in (("fast", ""), ("slow", "_slow"))
    }
    result["keys_shared_to_partial"] = round(keys[f"partial_{PERCENT}_shared"] / keys[f"partial_{PERCENT}"], 2)
    return result


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows and events")
    scale = parser.parse_args().scale
    with tempfile.TemporaryDirectory(prefix="millpond-lookup-shared-") as name, postgresql() as url:
        spark = session(
            "lookup_shared",
            master=CLUSTER,
            spark__ui__enabled="false",
            spark__local__dir=name,
            spark__driver__host="127.0.0.1",
            spark__driver__bindAddress="127.0.0.1",
            # The source is of this package, which executors find here.
            spark__executorEnv__PYTHONPATH=str(Path(__file__).parents[1]),
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            result = measure(spark, url, Path(name), scale)
        finally:
            spark.stop()
    promises = {
        "a shared cache is at least as fast": result["shared_to_partial"]["fast"] >= 1,
        "a shared cache is at least as fast where the source is slow": result["shared_to_partial"]["slow"] >= 1,
        "a shared cache asks the source for fewer keys": result["keys_shared_to_partial"] < 1,
    }
    broken = [promise for promise, kept in promises.items() if not kept]
    for promise in broken:
        print(f"NOT kept: {promise}", file=sys.stderr)
    if scale < 1:
        print(json.dumps(result))
        return
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
            result["asked"][name],
        )
        for name in speed
    ]
    report(
        "lookup_shared",
        title="Two executors: a partial cache for each, or one that they share",
        columns=("set-up", "events/s", "spread", "queries", "keys queried", "keys asked of the other"),
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
