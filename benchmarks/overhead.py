"""What metrics and hit-rate curves cost: jobs and a server with them against the same without.

| name | what runs | on |
|---|---|---|
| `keyed_rows`, `keyed_arrow` | streams of `spark_stateful` on RocksDB behind an LRU cache | the curve of the cache |
| `lookup` | batches of keys through a partial cache before a Python function | its curve, and a recorder of metrics |
| `fetch` | keys of a GroupBy in process, over a store in memory | the curves of both caches |
| `http` | the same keys over HTTP, on a kept connection | the curves of both caches, and `/metrics` read once a round |

A round over HTTP has 3,000 calls, so `/metrics` is read about twice a second. Prometheus reads it every 15 s.

What is seen is the cost of a cache that has been in use. It is full, and it has been asked `WARM` times, by when a
sixteenth of the keys is sampled and bursts are rare. What was made until then is kept from the collector of garbage, as
`millpond serve` does.

With and without take turns, and who begins changes. The figure is the time without over the time with: 1 is free of
charge. Times are the processor's: off Spark of this process, and on Spark of the JVM, its workers and the state hosts.
The figure is the median over the rounds, beside their quartiles.

    .venv/bin/python -m benchmarks.overhead
    .venv/bin/python -m benchmarks.overhead --only fetch http
"""

import argparse
import gc
import os
import random
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks.flights_demo import family
from benchmarks.report import grouped_bars, report
from benchmarks.serving_world import BATCH_END_MS, World, group_bys, key_name
from benchmarks.spark_stateful import FILES_PER_BATCH, OUTPUT, SCHEMA, Size, Spending, SpendingArrow, write_batches
from millpond.kv import MemoryStore
from millpond.lookup import LookupTable, PythonLookup
from millpond.metrics import NO_METRICS, PrometheusRecorder
from millpond.serving import FetchClient, Fetcher, http_app, running_server

HOUR_MS = 3_600_000
KEYS = 20_000
CACHE_ENTRIES = 5_000
CALLS = 3_000
HTTP_CALLS = 3_000
LOOKUP_BATCH = 5_000
ROUNDS = 41
WARM = 2_000_000
FETCHES_TO_FILL = 60_000
KEYED = Size(200_000, 100_000)
KEYED_WARM = Size(100_000, 100_000)
KEYED_BATCHES = 6
KEYED_WARM_BATCHES = 26
KEYED_ROUNDS = 24
KEYED_ENTRIES = 40_000

Run = Callable[[], None]
Ratios = list[float]
"""The processor's time without over that with, of each round."""


def interleaved(runs: dict[bool, Run]) -> Ratios:
    """Both run in each round, on what is there and stays."""
    gc.collect()
    gc.freeze()
    ratios = []
    for number in range(ROUNDS + 1):
        seconds = {}
        for on in (True, False) if number % 2 else (False, True):
            began = time.process_time()
            runs[on]()
            seconds[on] = time.process_time() - began
        if number:
            ratios.append(seconds[False] / seconds[True])
    gc.unfreeze()
    return ratios


def drawn(count: int, seed: int) -> list[int]:
    """Keys of which a few are hot."""
    weights = [1 / rank for rank in range(1, KEYS + 1)]
    return random.Random(seed).choices(range(KEYS), weights, k=count)


def lookup() -> Ratios:
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
        return interleaved(runs)


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
            _use(fetcher, world)
        yield found


def _use(fetcher: Fetcher, world: World) -> None:
    """Have the caches asked, and fill them."""
    (plan,), (group,) = world.plans, fetcher.groups
    kind = plan.group_by.keys[0].name
    keys = [plan.encode_key([key_name(kind, number)]) for number in range(KEYS)]
    for cache in (group.batch_cache, group.tile_cache):
        assert cache is not None
        for number in drawn(WARM, seed=99):
            cache.get(keys[number])
    for number in drawn(FETCHES_TO_FILL, seed=98):
        fetcher.fetch(plan.name, {kind: key_name(kind, number)}, at=BATCH_END_MS + HOUR_MS)
    for cache in (group.batch_cache, group.tile_cache):
        assert cache is not None
        assert len(cache) > 0.9 * CACHE_ENTRIES


def fetch() -> Ratios:
    """One key after the other, in process."""
    with fetchers() as found:
        return interleaved({on: _fetches(fetcher.fetch, CALLS) for on, fetcher in found.items()})


def http() -> Ratios:
    """The same over HTTP."""
    with fetchers() as found, ExitStack() as stack:
        runs: dict[bool, Run] = {}
        for on, fetcher in found.items():
            url = stack.enter_context(running_server(http_app(fetcher)))
            client = stack.enter_context(FetchClient(url))
            runs[on] = _fetches(client.fetch, HTTP_CALLS, scraped=url if on else None)
        return interleaved(runs)


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


def keyed_streams(chosen: list[str]) -> dict[str, Ratios]:
    """The processor's time of batches without over that of batches with, of each form."""
    from millpond.spark import session

    forms = {
        "keyed_rows": (Spending, "transformWithState"),
        "keyed_arrow": (SpendingArrow, "transformWithStateInArrow"),
    }
    spark = session(
        "overhead",
        master="local[2]",
        spark__sql__shuffle__partitions="2",
        spark__ui__enabled="false",
        # The stream that waits for its turn looks for files so seldom that it takes no time of the other's.
        spark__sql__streaming__pollingDelay="1s",
    )
    spark.sparkContext.setLogLevel("ERROR")
    found: dict[str, Ratios] = {}
    with tempfile.TemporaryDirectory(prefix="millpond-benchmark-") as folder:
        warm, counted = Path(folder) / "warm", Path(folder) / "counted"
        write_batches(warm, KEYED_WARM, KEYED_WARM_BATCHES)
        write_batches(counted, KEYED, KEYED_BATCHES)
        for name in chosen:
            with ExitStack() as stack:
                streams = {
                    on: stack.enter_context(_stream(spark, *forms[name], Path(folder) / f"{name} {on}", on=on))
                    for on in (True, False)
                }
                found[name] = _interleaved_batches(streams, warm, counted)
    spark.stop()
    return found


def _interleaved_batches(streams: dict[bool, "_Stream"], warm: Path, counted: Path) -> Ratios:
    """Both streams get each batch, one after the other."""
    for batch in _batches_of(warm):
        for stream in streams.values():
            stream.seconds(batch)
    ratios, batches = [], cycle(_batches_of(counted))
    for number in range(KEYED_ROUNDS + 2):
        batch = next(batches)
        seconds = {on: streams[on].seconds(batch) for on in ((True, False) if number % 2 else (False, True))}
        if number >= 2:
            ratios.append(seconds[False] / seconds[True])
    return ratios


def _batches_of(folder: Path) -> list[tuple[Path, ...]]:
    return list(zip(*[iter(sorted(folder.iterdir()))] * FILES_PER_BATCH, strict=True))


@contextmanager
def _stream(spark: Any, processor: Any, method: str, folder: Path, *, on: bool) -> Iterator["_Stream"]:
    """A stream that waits for files, behind a cache with its curve or without."""
    from millpond.spark import StateConfig, keyed

    config = StateConfig(
        options={
            "state.backend.type": "rocksdb",
            "state.backend.cache.max-entries-num": str(KEYED_ENTRIES),
            "state.backend.cache.hit-rate-curve": str(on).lower(),
        }
    )
    arrived = folder / "arrived"
    arrived.mkdir(parents=True)
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(arrived))
    answers = getattr(keyed(events, "user"), method)(processor(), OUTPUT, "Update", "None", state=config)
    writer = answers.writeStream.format("noop").outputMode("update")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        yield _Stream(query, arrived)
    finally:
        query.stop()


class _Stream:
    """A running query, and the folder that it reads."""

    def __init__(self, query: Any, arrived: Path) -> None:
        self._query = query
        self._arrived = arrived
        self._files = 0

    def seconds(self, batch: tuple[Path, ...]) -> float:
        """Process a batch; return the processor's time of the JVM, its workers and the state hosts."""
        before = _family_seconds()
        for path in batch:
            os.link(path, self._arrived / f"{self._files:06}.parquet")
            self._files += 1
        self._query.processAllAvailable()
        return _family_seconds() - before


def _family_seconds() -> float:
    """The processor's time of all processes of the stream, of those that ended too."""
    while True:
        # The times of a process that ends meanwhile become those of its parent's children.
        with suppress(psutil.NoSuchProcess):
            return sum(sum(process.cpu_times()[:4]) for process in family(psutil.Process()))


OFF_SPARK: dict[str, Callable[[], Ratios]] = {"lookup": lookup, "fetch": fetch, "http": http}
ON_SPARK = ("keyed_rows", "keyed_arrow")


def main() -> None:
    """Measure, print, and write the results if all was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [*ON_SPARK, *OFF_SPARK]
    parser.add_argument("--only", nargs="*", default=names, choices=names)
    chosen = parser.parse_args().only
    measured = {name: measure() for name, measure in OFF_SPARK.items() if name in chosen}
    if on_spark := [name for name in ON_SPARK if name in chosen]:
        measured |= keyed_streams(on_spark)
    ratio = {name: statistics.median(ratios) for name, ratios in measured.items()}
    quartiles = {name: statistics.quantiles(ratios, n=4)[::2] for name, ratios in measured.items()}
    if set(chosen) != set(names):
        print({"ratio": ratio, "quartiles": quartiles})
        return
    report(
        "overhead",
        title="Speed with metrics and hit-rate curves over that without",
        columns=("what", "ratio", "quartiles of the rounds"),
        rows=[(name, each, "{:.3f} to {:.3f}".format(*quartiles[name])) for name, each in ratio.items()],
        result={"ratio": ratio, "quartiles": quartiles},
        draw=lambda axes: grouped_bars(axes, list(ratio), {"with over without": list(ratio.values())}),
    )


if __name__ == "__main__":
    main()
