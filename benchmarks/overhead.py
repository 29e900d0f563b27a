"""What metrics and hit-rate curves cost: jobs and a server with them against the same without.

| name | what runs | on |
|---|---|---|
| `keyed_rows`, `keyed_arrow` | streams of `spark_stateful` on RocksDB behind an LRU cache | the curve of the cache |
| `lookup` | batches of keys through a partial cache before a Python function | its curve, and a recorder of metrics |
| `fetch` | keys of a GroupBy in process, over a store in memory | the curves of both caches |
| `http` | the same keys over HTTP, on a kept connection | the curves of both caches, and `/metrics` read once a round |

The caches have been asked `WARM` times before, so that what is seen is the cost of a cache that has been in use. By
then a sixteenth of the keys is sampled.
With and without take turns, and who begins changes. The figure is the time without over the time with: 1 is free of
charge. Off Spark the time is the processor's, of the whole process, and the figure is the median over the rounds. On
Spark it is that of the median batches, by Spark's own clock.

    .venv/bin/python -m benchmarks.overhead
    .venv/bin/python -m benchmarks.overhead --only fetch http
"""

import argparse
import random
import shutil
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.report import grouped_bars, report
from benchmarks.serving_world import BATCH_END_MS, World, group_bys, key_name
from benchmarks.spark_stateful import (
    FILES_PER_BATCH,
    OUTPUT,
    SCHEMA,
    WARM_UP,
    Size,
    Spending,
    SpendingArrow,
    write_batches,
)
from millpond.kv import MemoryStore
from millpond.lookup import LookupTable, PythonLookup
from millpond.metrics import NO_METRICS, PrometheusRecorder
from millpond.serving import FetchClient, Fetcher, http_app, running_server

HOUR_MS = 3_600_000
KEYS = 20_000
CACHE_ENTRIES = 5_000
CALLS = 3_000
HTTP_CALLS = 600
LOOKUP_BATCH = 5_000
ROUNDS = 15
WARM = 600_000
KEYED = Size(200_000, 100_000)
KEYED_BATCHES = 4
KEYED_ROUNDS = 2
KEYED_ENTRIES = 40_000

Run = Callable[[], None]


def interleaved(runs: dict[bool, Run], rounds: int) -> float:
    """The processor's time without over that with; the median over rounds in which both run."""
    ratios = []
    for number in range(rounds + 1):
        seconds = {}
        for on in (True, False) if number % 2 else (False, True):
            began = time.process_time()
            runs[on]()
            seconds[on] = time.process_time() - began
        if number:
            ratios.append(seconds[False] / seconds[True])
    return statistics.median(ratios)


def drawn(count: int, seed: int) -> list[int]:
    """Keys of which a few are hot."""
    weights = [1 / rank for rank in range(1, KEYS + 1)]
    return random.Random(seed).choices(range(KEYS), weights, k=count)


def warm(caches: list[Any]) -> None:
    """Ask caches for keys that they do not have."""
    names = [b"%d" % number for number in range(KEYS)]
    for number in drawn(WARM, seed=99):
        for cache in caches:
            cache.get(names[number])


def lookup() -> float:
    """A partial cache before a function that costs next to nothing, so that what the cache costs is seen."""
    schema, row = pa.schema([("number", pa.int64())]), pa.schema([("number", pa.int64()), ("half", pa.int64())])

    with ExitStack() as stack:
        runs: dict[bool, Run] = {}
        for on in (True, False):
            options = {
                "lookup.cache": "PARTIAL",
                "lookup.partial-cache.max-rows": CACHE_ENTRIES,
                "lookup.partial-cache.hit-rate-curve": on,
            }
            source = PythonLookup(lambda number: [(number, number // 2)], schema, row)
            table = LookupTable("numbers", source, options, recorder=PrometheusRecorder() if on else NO_METRICS)
            opened = stack.enter_context(closing(table.open()))
            runs[on] = _lookups(opened)
        return interleaved(runs, ROUNDS)


def _lookups(opened: Any) -> Run:
    batches = [[(number,) for number in drawn(LOOKUP_BATCH, seed)] for seed in range(40)]
    # A key that comes several times in a batch is asked for once.
    for _ in range(-(-WARM // sum(len(set(batch)) for batch in batches))):
        for batch in batches:
            opened.lookup_many(batch)
    turns = cycle(batches)

    def run() -> None:
        for _ in range(4):
            opened.lookup_many(next(turns))

    return run


@contextmanager
def fetchers() -> Iterator[dict[bool, Fetcher]]:
    """Two fetchers of the same data, one of them recorded."""
    definitions = group_bys(CACHE_ENTRIES)[:1]
    world = World(MemoryStore(), definitions, KEYS)
    world.land()
    world.stream_until(BATCH_END_MS + HOUR_MS)
    with ExitStack() as stack:
        found = {
            on: stack.enter_context(
                Fetcher(world.store, definitions, hit_rate_curves=on, now=lambda: BATCH_END_MS + HOUR_MS)
            )
            for on in (True, False)
        }
        for fetcher in found.values():
            for group in fetcher.groups:
                warm([cache for cache in (group.batch_cache, group.tile_cache) if cache is not None])
        yield found


def fetch() -> float:
    """One key after the other, in process."""
    with fetchers() as found:
        return interleaved({on: _fetches(fetcher.fetch, CALLS) for on, fetcher in found.items()}, ROUNDS)


def http() -> float:
    """The same over HTTP."""
    with fetchers() as found, ExitStack() as stack:
        runs: dict[bool, Run] = {}
        for on, fetcher in found.items():
            url = stack.enter_context(running_server(http_app(fetcher)))
            client = stack.enter_context(FetchClient(url))
            runs[on] = _fetches(client.fetch, HTTP_CALLS, scraped=url if on else None)
        return interleaved(runs, ROUNDS)


def _fetches(fetch: Callable[..., Any], calls: int, *, scraped: str | None = None) -> Run:
    (definition,) = group_bys(CACHE_ENTRIES)[:1]
    kind = definition.keys[0].name
    turns = cycle([[{kind: key_name(kind, number)} for number in drawn(calls, seed)] for seed in range(ROUNDS)])

    def run() -> None:
        for keys in next(turns):
            fetch(definition.name, keys, at=BATCH_END_MS + HOUR_MS)
        if scraped is not None:
            with urllib.request.urlopen(f"{scraped}/metrics") as answer:  # noqa: S310 - our own server
                answer.read()

    return run


def keyed_streams(chosen: list[str]) -> dict[str, float]:
    """The time of a batch without over that with, of each form."""
    from millpond.spark import StateConfig, keyed, session

    forms = {
        "keyed_rows": (Spending, "transformWithState"),
        "keyed_arrow": (SpendingArrow, "transformWithStateInArrow"),
    }
    spark = session("overhead", master="local[2]", spark__sql__shuffle__partitions="2", spark__ui__enabled="false")
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-benchmark-") as folder:
        write_batches(Path(folder) / "events", KEYED, WARM_UP + KEYED_BATCHES)
        for name in chosen:
            processor, method = forms[name]
            seconds: dict[bool, list[float]] = {True: [], False: []}
            for number in range(KEYED_ROUNDS):
                for on in (True, False) if number % 2 else (False, True):
                    config = StateConfig(
                        options={
                            "state.backend.type": "rocksdb",
                            "state.backend.cache.max-entries-num": str(KEYED_ENTRIES),
                            "state.backend.cache.hit-rate-curve": str(on).lower(),
                        }
                    )
                    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH)
                    events = keyed(reader.parquet(str(Path(folder) / "events")), "user")
                    answers = getattr(events, method)(processor(), OUTPUT, "Update", "None", state=config)
                    seconds[on] += _batches(answers)
            found[name] = statistics.median(seconds[False]) / statistics.median(seconds[True])
    spark.stop()
    return found


def _batches(answers: Any) -> list[float]:
    checkpoint = tempfile.mkdtemp(prefix="millpond-benchmark-")
    query = (
        answers.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
        batches = [each for each in query.recentProgress if each["numInputRows"] == KEYED.rows]
        return [each["durationMs"]["triggerExecution"] / 1_000 for each in batches[WARM_UP:]]
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)


OFF_SPARK: dict[str, Callable[[], float]] = {"lookup": lookup, "fetch": fetch, "http": http}
ON_SPARK = ("keyed_rows", "keyed_arrow")


def main() -> None:
    """Measure, print, and write the results if all was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [*ON_SPARK, *OFF_SPARK]
    parser.add_argument("--only", nargs="*", default=names, choices=names)
    chosen = parser.parse_args().only
    ratio = {name: measure() for name, measure in OFF_SPARK.items() if name in chosen}
    if on_spark := [name for name in ON_SPARK if name in chosen]:
        ratio |= keyed_streams(on_spark)
    if set(chosen) != set(names):
        print({"ratio": ratio})
        return
    report(
        "overhead",
        title="Speed with metrics and hit-rate curves over that without",
        columns=("what", "ratio"),
        rows=list(ratio.items()),
        result={"ratio": ratio},
        draw=lambda axes: grouped_bars(axes, list(ratio), {"with over without": list(ratio.values())}),
    )


if __name__ == "__main__":
    main()
