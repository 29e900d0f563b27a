"""FLIP-325's benchmark: how much an LRU cache of objects gains in front of RocksDB, at hit rates of 0, 50 and 100 %.

The job is the seed's: a sequence of numbers, keyed by `(x % 500) + 500 * ((x // 1000) % 2)`, a count per
key (one read and one write of state per record), a checkpoint every second, incremental, into a local
folder, written in another thread while records flow. Without a cache, with room for 250, 500 and 1,000
pairs (which hit 0, 50 and 100 % of the reads), and on the heap backend, which the last should come near.

All set-ups share one driver loop, which hands records to the backend with nothing between that would cost all of
them alike, and the baseline is RocksDB as its backend sets it up: no write-ahead log, write buffers of 8 MiB, msgpack.
They work off the records in turns of some seconds, so that a slow moment of the machine meets all alike. A speedup is
the median over the turns of a set-up's throughput by that of RocksDB in the same turn; its spread is the middle half of
them. What a turn has begun to write is written before the next one begins.

Two bare loops say what Python leaves to be gained: rocksdict's get and put on keys that are bytes already,
with an integer's msgpack around them, and the same behind an `OrderedDict` of 250 pairs, which writes its
coldest in batches. They have one state, no versions and no handles, and take no checkpoint.

The counters of the seed's analysis are asserted, per record: backend gets, puts and key switches are
0, 0, 1 at 100 % and 1, 1, 2 at 0 %. So many records are worked off, the seed's 20 million, that every set-up has
checkpoints in it, and each row says how many; a set-up without one is no result. What a miss with its eviction costs is
the time of a record at 0 % beyond that of one at 100 %.

    .venv/bin/python -m benchmarks.flip325                          # ten minutes, with nothing else running
    .venv/bin/python -m benchmarks.flip325 --records 200000         # quick: no result is kept
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from benchmarks.report import grouped_bars, report
from millpond.state.backend.protocols import ValueState
from millpond.state.checkpoint import FileStorage, new_manifest
from millpond.state.checkpoint.checkpointer import Checkpointer
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.rocksdb.database import BLOCK_CACHE_BYTES, WRITE_BUFFER_BYTES, Database
from millpond.state.spi import HeapBackend, KeyedStateBackend, StateDescriptor, StateKind
from millpond.state.types.key_groups import key_group_of
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.rows import Row
from millpond.state.types.serializer import msgspec_serializer
from millpond.state.wrappers.lru.backend import LruStateCache, LruStats

RECORDS = 20_000_000
TURNS = 20
PARALLELISM = 128
COUNT = StateDescriptor("count", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int))
HIT_RATES = {250: 0.0, 500: 0.5, 1000: 1.0}
SEED = {250: 0.956, 500: 1.87, 1000: 21.6}
BARE = {"bare rocksdb": None, "bare 250": 250}
BARS = {"0": 0.8, "50": 1.45, "100": 6.0}
"""Times RocksDB alone at each hit rate, at least."""
Collect = Callable[[tuple[int, int]], None]
Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], int]
_CHUNK = 5_000
_CHECKPOINT_S = 1.0


def count(
    backend: KeyedStateBackend, state: ValueState, xs: range, places: dict[int, tuple[int, Row]], collect: Collect
) -> None:
    """The seed's core logic, with as little around it as an operator needs: the key, its group, and the output."""
    enter, context, get, update = backend.enter, backend.context, state.get, state.update
    for x in xs:
        number = (x % 500) + 500 * ((x // 1000) % 2)
        key_group, key = places[number]
        enter(key_group)
        context.key = key
        value = get()
        value = 1 if value is None else value + 1
        update(value)
        collect((number, value))


class Job:
    """One set-up, which works off the records turn by turn.

    Attributes:
        backend: what keeps the counts.
        checkpoints: how many were written.
    """

    def __init__(self, make: Callable[[range, Path], KeyedStateBackend], folder: Path) -> None:
        groups = range(PARALLELISM)
        self._places = {
            number: (key_group_of((number,), [pa.int64()], PARALLELISM), (number,)) for number in range(1_000)
        }
        self.backend = make(groups, folder / "state")
        self.checkpoints = 0
        self._state = self.backend.value_state(COUNT)
        manifest = new_manifest("flip325", 0, 1, PARALLELISM, pa.schema([("key", pa.int64())]))
        storage = FileStorage(f"{folder}/checkpoints", 0)
        self._checkpointer = Checkpointer(storage, self.backend, manifest, [COUNT])
        self._writer = ThreadPoolExecutor(1)
        self._since_checkpoint = 0.0

    def work_off(self, records: range) -> float:
        """Return how many records a second one turn worked off. A checkpoint begins after each second of the job."""
        writes: list[Future[Any]] = []
        output: list[tuple[int, int]] = []
        started = before = time.perf_counter()
        for first in range(records.start, records.stop, _CHUNK):
            output.clear()
            xs = range(first, min(first + _CHUNK, records.stop))
            count(self.backend, self._state, xs, self._places, output.append)
            now = time.perf_counter()
            self._since_checkpoint += now - before
            before = now
            if self._since_checkpoint >= _CHECKPOINT_S:
                self._since_checkpoint = 0.0
                writes.append(self._writer.submit(self._checkpointer.write, self._checkpointer.begin()))
        seconds = time.perf_counter() - started
        for write in writes:
            write.result()
        self.checkpoints += len(writes)
        return len(records) / seconds

    def counted(self) -> int:
        """Return the sum of all counts."""
        return sum(sum(self.backend.cells(COUNT.name, group).values) for group in range(PARALLELISM))

    def close(self) -> None:
        """Close the backend."""
        self._writer.shutdown()
        self.backend.close()


class BareJob:
    """The least that Python can do: RocksDB alone, or behind an LRU of `size` counts."""

    def __init__(self, size: int | None, folder: Path) -> None:
        self._size = size
        self._encode, self._decode = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(int).decode
        self._places = {number: self._encode((number % PARALLELISM, number)) for number in range(1_000)}
        self._database = Database(folder / "state", WRITE_BUFFER_BYTES, BLOCK_CACHE_BYTES)
        self._hot = OrderedDict[int, int]()

    def work_off(self, records: range) -> float:
        """Return how many records a second one turn worked off."""
        output: list[tuple[int, int]] = []
        database, places, encode, decode = self._database, self._places, self._encode, self._decode
        started = time.perf_counter()
        for first in range(records.start, records.stop, _CHUNK):
            output.clear()
            xs = range(first, min(first + _CHUNK, records.stop))
            if self._size is None:
                _count_bare(database, xs, places, encode, decode, output.append)
            else:
                _count_cached_bare(database, self._hot, self._size, xs, places, encode, decode, output.append)
        return len(records) / (time.perf_counter() - started)

    def counted(self) -> int:
        """Return the sum of all counts."""
        get = self._database.handle.get
        return sum(self._hot.get(number) or self._decode(get(at)) for number, at in self._places.items())

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _count_bare(
    database: Database, xs: range, places: dict[int, bytes], encode: Encode, decode: Decode, collect: Collect
) -> None:
    handle = database.handle
    get = handle.get
    for x in xs:
        number = (x % 500) + 500 * ((x // 1000) % 2)
        at = places[number]
        data = get(at)
        value = 1 if data is None else decode(data) + 1
        handle[at] = encode(value)
        collect((number, value))


def _count_cached_bare(
    database: Database,
    hot: "OrderedDict[int, int]",
    size: int,
    xs: range,
    places: dict[int, bytes],
    encode: Encode,
    decode: Decode,
    collect: Collect,
) -> None:
    # What waits in the batch is read again only after more pairs have left than a batch holds.
    get = database.handle.get
    gone: list[bytes] = []
    written: list[bytes] = []
    for x in xs:
        number = (x % 500) + 500 * ((x // 1000) % 2)
        value = hot.get(number)
        if value is None:
            data = get(places[number])
            value = 0 if data is None else decode(data)
            if len(hot) == size:
                coldest, count_of_it = hot.popitem(last=False)
                gone.append(places[coldest])
                written.append(encode(count_of_it))
                if len(gone) == 64:
                    database.write(gone, written)
                    gone, written = [], []
        else:
            hot.move_to_end(number)
        value += 1
        hot[number] = value
        collect((number, value))
    database.write(gone, written)


def check(size: int, records: int, stats: LruStats) -> None:
    """The seed's analysis: what a record costs the backend, and how often it hits."""
    missed = records * (1 - HIT_RATES[size])
    # Until every key was there once nothing can hit; what still is in the cache was not written.
    assert missed <= stats.gets <= missed + 1_500, stats
    assert stats.key_switches == stats.gets, stats
    if size == 1000:
        assert stats.puts == 0, stats
    else:
        # A pair may be written twice, once ahead; never more often than it was updated.
        assert missed - size <= stats.puts <= min(records, missed * 1.1), stats


def rocksdb(key_groups: range, folder: Path) -> KeyedStateBackend:
    """RocksDB as it comes."""
    return RocksDbBackend(key_groups, folder)


def heap(key_groups: range, _folder: Path) -> KeyedStateBackend:
    """Plain Python objects."""
    return HeapBackend(key_groups)


def cached(size: int) -> Callable[[range, Path], KeyedStateBackend]:
    """RocksDB behind a cache."""
    return lambda key_groups, folder: LruStateCache(RocksDbBackend(key_groups, folder), max_entries=size)


def main() -> None:
    """Let the set-ups take turns, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--turns", type=int, default=TURNS)
    chosen = parser.parse_args()
    set_ups = {"rocksdb": rocksdb, **{str(size): cached(size) for size in HIT_RATES}, "heap": heap}
    measured: dict[str, list[float]] = {name: [] for name in (*set_ups, *BARE)}
    with tempfile.TemporaryDirectory(prefix="millpond-flip325-") as folder, ExitStack() as opened:
        jobs: dict[str, Job] = {}
        for name, make in set_ups.items():
            jobs[name] = Job(make, Path(folder, name))
            opened.callback(jobs[name].close)
        bare: dict[str, BareJob] = {}
        for name, size in BARE.items():
            bare[name] = BareJob(size, Path(folder, name))
            opened.callback(bare[name].close)
        for turn in range(chosen.turns):
            first, end = (chosen.records * at // chosen.turns for at in (turn, turn + 1))
            for name, job in (jobs | bare).items():
                measured[name].append(job.work_off(range(first, end)))
            said = ", ".join(f"{name} {speeds[-1]:,.0f}" for name, speeds in measured.items())
            print(f"turn {turn + 1}: {said} records/s", file=sys.stderr, flush=True)
        assert {name: job.counted() for name, job in (jobs | bare).items()} == dict.fromkeys(measured, chosen.records)
        caches = {size: jobs[str(size)].backend for size in HIT_RATES}
        stats = {size: each.stats() for size, each in caches.items() if isinstance(each, LruStateCache)}
        for size, each in stats.items():
            check(size, chosen.records, each)
        checkpoints = {name: job.checkpoints for name, job in jobs.items()}
    if chosen.records >= RECORDS:
        assert min(checkpoints.values()) > 0, checkpoints
        _report(chosen.records, measured, stats, checkpoints)
    else:
        print({name: round(statistics.median(speeds)) for name, speeds in measured.items()}, checkpoints)


def _miss_us(rps: dict[str, float], cached: str, hit: str) -> float:
    """What a miss with its eviction costs beyond a hit."""
    return round(1e6 / rps[cached] - 1e6 / rps[hit], 3)


def _ratios(speeds: list[float], others: list[float]) -> list[float]:
    """Return the first quartile, the median and the third quartile of the turns' ratios."""
    ratios = [one / other for one, other in zip(speeds, others, strict=True)]
    return [round(each, 2) for each in statistics.quantiles(ratios, n=4)]


def _report(
    records: int, measured: dict[str, list[float]], stats: dict[int, LruStats], checkpoints: dict[str, int]
) -> None:
    rps = {name: statistics.median(speeds) for name, speeds in measured.items()}
    hit_rate = {str(size): round(each.hits / (each.hits + each.misses), 4) for size, each in stats.items()}
    ratios = {name: _ratios(speeds, measured["rocksdb"]) for name, speeds in measured.items()}
    of_heap = {name: _ratios(speeds, measured["heap"])[1] for name, speeds in measured.items()}
    percent = {size: f"{rate:.0%}".rstrip("%") for size, rate in HIT_RATES.items()}
    speedup = {percent[size]: ratios[str(size)][1] for size in HIT_RATES}
    spread = {percent[size]: ratios[str(size)][::2] for size in HIT_RATES}

    def speeds_of(name: str) -> tuple[str, str]:
        low, middle, high = ratios[name]
        return f"{rps[name]:,.0f}", "1" if name == "rocksdb" else f"{middle} ({low}–{high})"

    rows: list[tuple[object, ...]] = [
        ("RocksDB alone", "", "1", "1", "1", checkpoints["rocksdb"], of_heap["rocksdb"], *speeds_of("rocksdb"), "1")
    ]
    for size, each in stats.items():
        rows.append(
            (
                f"cache of {size:,}",
                f"{hit_rate[str(size)]:.1%}",
                f"{each.gets / records:.3f}",
                f"{each.puts / records:.3f}",
                f"{1 + each.key_switches / records:.3f}",
                checkpoints[str(size)],
                of_heap[str(size)],
                *speeds_of(str(size)),
                SEED[size],
            )
        )
    rows.append(("heap", "", "", "", "1", checkpoints["heap"], "1", *speeds_of("heap"), ""))
    for name, label in {"bare rocksdb": "bare loop on RocksDB", "bare 250": "bare loop, LRU of 250"}.items():
        rows.append((label, "", "1", "1", "", "none", "", *speeds_of(name), ""))
    report(
        "flip325",
        title="LRU cache over RocksDB: throughput, RocksDB alone = 1",
        columns=(
            "set-up",
            "hit rate",
            "gets a record",
            "puts a record",
            "key switches a record",
            "checkpoints",
            "÷ heap",
            "records/s",
            "÷ RocksDB alone (middle half of the turns)",
            "FLIP-325",
        ),
        rows=rows,
        result={
            "records": records,
            "baseline_rps": round(rps["rocksdb"]),
            "heap_rps": round(rps["heap"]),
            "hit_rate": hit_rate,
            "speedup": speedup,
            "held": {rate: speedup[rate] >= least for rate, least in BARS.items()},
            "checkpoints": checkpoints,
            "spread": spread,
            "counters": {
                str(size): {
                    name: round(getattr(each, name) / records, 4)
                    for name in ("gets", "puts", "key_switches", "evictions")
                }
                for size, each in stats.items()
            },
            "miss_us": {"cache": _miss_us(rps, "250", "1000"), "rocksdb": round(1e6 / rps["rocksdb"], 3)},
            "bare_rps": {"rocksdb": round(rps["bare rocksdb"]), "250": round(rps["bare 250"])},
        },
        draw=lambda axes: grouped_bars(
            axes,
            [f"{HIT_RATES[size]:.0%} hits ({size:,} pairs)" for size in HIT_RATES],
            {
                "Millpond": [speedup[percent[size]] for size in HIT_RATES],
                "FLIP-325 (Flink)": [SEED[size] for size in HIT_RATES],
            },
            ylabel="throughput, RocksDB alone = 1",
        ),
    )


if __name__ == "__main__":
    main()
