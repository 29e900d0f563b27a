"""What lookup caches take, for the lookup benchmark: a full table in one process, and the estimates of entries.

A process of its own loads the table from PostgreSQL, and says by how much it grew: of pages that it shares with
the page cache its share (`Pss`). While the table is reloaded, the largest of many looks counts, and so does the
longest that a thread waited that asked for a hundred keys all the time.
"""

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

from millpond.lookup import CacheMetricGroup, DefaultLookupCache

_PROBE = """
import gc, sys, threading, time
from pathlib import Path
import pyarrow as pa
from millpond.lookup import FullCachingLookup, SqlLookup, TableScan

def held():
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024

few = pa.table({"customer": range(1_000), "name": ["x"] * 1_000})
with FullCachingLookup(TableScan(few, ["customer"]), None) as warmed:
    # What the libraries take, whatever the table.
    warmed.reload()
    warmed.lookup((1,))
source = SqlLookup(sys.argv[1], "customers", ["customer"], ["name", "city", "balance", "since"])
source.lookup((1,))
lookup = FullCachingLookup(source, None)
keys = [(key,) for key in range(0, int(sys.argv[2]), 997)]
gc.collect(); pa.default_memory_pool().release_unused()
before = held()
lookup.open()
lookup.lookup_many(keys)
gc.collect(); pa.default_memory_pool().release_unused()
at_rest = held() - before
seen, ended = [], threading.Event()
def watch():
    while not ended.wait(0.005):
        seen.append(held() - before)
waits = []
def ask():
    while not ended.wait(0.001):
        started = time.perf_counter()
        lookup.lookup_many(keys[:100])
        waits.append(time.perf_counter() - started)
threads = [threading.Thread(target=each) for each in (watch, ask)]
for thread in threads:
    thread.start()
for _ in range(3):
    lookup.reload()
    lookup.lookup_many(keys)
ended.set()
for thread in threads:
    thread.join()
print(at_rest, max(seen), lookup.stats().num_cached_bytes, max(waits) * 1_000)
"""

Shape = Callable[[int], tuple[tuple[Any, ...], list[tuple[Any, ...]]]]
_SHARED: list[tuple[Any, ...]] = [("row" * 30, 5.5, "city" * 5)]
SHAPES: dict[str, Shape] = {
    "missing": lambda n: ((n,), []),
    "flat": lambda n: ((n,), [(f"name {n}", n * 0.5, f"city {n}", n + 5_000)]),
    "lists": lambda n: ((n,), [([f"tag {n} {tag}" for tag in range(10)],)]),
    "dictionaries": lambda n: ((n,), [({f"a{tag}": f"tag {n} {tag}" for tag in range(10)},)]),
    "shared": lambda n: ((n,), _SHARED),
}
_ENTRIES = 10_000


def in_process(url: str, rows: int, arrow_bytes: int) -> dict[str, float]:
    """What a full table takes in one process, over the bytes of the Arrow table; how long a reader waits meanwhile."""
    command = [sys.executable, "-c", _PROBE, url, str(rows)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    at_rest, reloading, counted = map(int, told[:3])
    return {
        "in_process_at_rest": round(at_rest / arrow_bytes, 2),
        "in_process_reloading": round(reloading / arrow_bytes, 2),
        "in_process_counted": round(counted / arrow_bytes, 2),
        "in_process_stall_ms": round(float(told[3]), 2),
    }


def estimates() -> dict[str, float]:
    """By shape of the entries: the bytes that a partial cache counts, over those that Python allocated."""
    return {name: round(_estimate(shape), 2) for name, shape in SHAPES.items()}


def _estimate(shape: Shape) -> float:
    metrics, cache = CacheMetricGroup("t"), DefaultLookupCache(max_bytes=1 << 40)
    cache.open(metrics)
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1_000, 1_000 + _ENTRIES):
            cache.put(*shape(number))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    counted = metrics.stats().num_cached_bytes
    assert counted is not None
    return counted / taken
