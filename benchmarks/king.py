"""King's case study: one layer of 20,000 entries, two of 2,000 and 23,000, and FLIP-325's cache, on RocksDB.

The stream has per-user sessions that overlap, and many more users than sessions. A session is a few
*bursts* of events; within a burst a user's events come close together, between bursts a long way apart.
A user's state is a map of 12 substates, two of them large and nested (11 kB together as bytes); each
event reads it, changes four substates and updates it.

Every column runs in a process of its own: the same users loaded into RocksDB, the same events, a
checkpoint every so many events, whose blocking part (flush and commit) stands in the stream's way while
the rest is written by another thread. At first nothing is paced: intervals pass until every layer is full,
and half an interval, while a checkpoint is written, gives the column's capacity. Then events arrive at one rate
for all columns, 75 % of the lowest capacity, whether or not the job is ready for them: an event's
latency counts from its arrival, so a blocked stream shows in the latency of all events that waited.
That a column is in its steady state is asserted: its layers are full, and the state is read as often in
the second half of what is measured as in the first.

All of it is run five times. Latencies are the medians of the runs', and the least and the most stand beside
them; the blocking parts are those of all runs' checkpoints.

King's figures are of another machine, job and scale; what is compared is the change from one layer to
two. King's checkpoints grew by 25 % because RocksDB's files hold a key as often as it was written; a
delta holds it once.

    .venv/bin/python -m benchmarks.king            # about half an hour, with nothing else running
    .venv/bin/python -m benchmarks.king --scale 0.05 --runs 2 --results /tmp/king

Source: King's flink-state-cache, "Case study - caching in RBEA in King".
"""

import argparse
import gc
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.king_report import LABELS, Sample, draw_checkpoints, table, write_pictures
from benchmarks.report import RESULTS, report
from millpond.state.backend.protocols import Cells
from millpond.state.checkpoint.checkpointer import Checkpointer, CheckpointStats
from millpond.state.checkpoint.format.manifest import new_manifest
from millpond.state.checkpoint.storage.files import FileStorage
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.serializer import msgspec_serializer
from millpond.state.wrappers.cached_values import CachedValues
from millpond.state.wrappers.choice import CacheHooks, TwoLayer, WriteBack
from millpond.state.wrappers.king.two_layer import TwoLayerCache
from millpond.state.wrappers.lru.backend import LruStateCache

KEY_GROUPS = 128
EVENTS_PER_BURST = 4
BURSTS_PER_SESSION = 3
RUNS = 5
CHECKPOINTS = 3
"""Of a run: in all runs there are more than ten of each column."""
MOST_WARM_UP = 20
"""Intervals in which the layers of a column must get full."""
UNSTEADY = 0.2
"""By so much of itself the rate of reads may differ from one half to the other."""
UTILISATION = 0.75
SAMPLE_SECONDS = 0.5
SEED = 20

PROFILE = StateDescriptor("profile", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(dict[str, Any]))


@dataclass(frozen=True)
class Size:
    """King's sizes, and the stream that goes with them. `events` are those of one checkpoint's interval."""

    single: int = 20_000
    l1: int = 2_000
    l2: int = 23_000
    users: int = 80_000
    sessions: int = 12_000
    open_bursts: int = 500
    events: int = 60_000

    def scaled(self, scale: float) -> "Size":
        """All of it smaller or larger, by one factor."""
        return Size(**{name: max(1, int(value * scale)) for name, value in asdict(self).items()})


@dataclass
class Counted:
    """A backend that counts what reaches it: reads and writes of values, in which turn they came."""

    inner: Any
    gets: int = 0
    puts: int = 0

    def __post_init__(self) -> None:
        self.enter, self.context = self.inner.enter, self.inner.context

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def value_state(self, descriptor: StateDescriptor) -> "CountedState":
        """The handle, counted."""
        return CountedState(self, self.inner.value_state(descriptor))

    def raw(self, name: str) -> "CountedCells":
        """The cells past the handle, counted."""
        return CountedCells(self, self.inner.raw(name))

    def write(self, name: str, cells: Cells) -> None:
        """Many cells at once."""
        self.puts += len(cells)
        self.inner.write(name, cells)


class CountedCells:
    """The cells of a state past its handle, which count for their backend."""

    def __init__(self, counted: Counted, inner: Any) -> None:
        self._counted = counted
        self.place, self.of_key = inner.place, inner.of_key
        self._read, self._put_all = inner.read, inner.put_all

    def read(self, place: Any) -> Any:
        """One read."""
        self._counted.gets += 1
        return self._read(place)

    def put_all(self, places: list[Any], values: list[Any]) -> None:
        """Many writes."""
        self._counted.puts += len(places)
        self._put_all(places, values)


class CountedState:
    """The handle of a value state that counts for its backend."""

    def __init__(self, counted: Counted, inner: Any) -> None:
        self._counted = counted
        self.descriptor = inner.descriptor
        self.exists = inner.exists
        self._get, self._update, self._clear = inner.get, inner.update, inner.clear

    def get(self) -> Any:
        """One read."""
        self._counted.gets += 1
        return self._get()

    def update(self, value: Any) -> None:
        """One write."""
        self._counted.puts += 1
        self._update(value)

    def clear(self) -> None:
        """One write."""
        self._counted.puts += 1
        self._clear()


@dataclass
class Hits:
    """What each layer was asked and had; a cache of one layer has no second."""

    asked: int = 0
    l1: int = 0
    l2: int = 0

    def first(self, hit: bool) -> None:
        """The tracker of L1."""
        self.asked += 1
        self.l1 += hit

    def second(self, hit: bool) -> None:
        """The tracker of L2."""
        self.l2 += hit


def column(name: str, counted: Counted, size: Size, hits: Hits) -> tuple[Any, Any]:
    """The backend that a column's checkpoints commit, and the state that its events use."""
    if name == "lru":
        cached = LruStateCache(counted, max_entries=size.l1 + size.l2)
        return cached, cached.value_state(PROFILE)
    hooks = CacheHooks(hit_tracker=hits.first, hit_tracker_l2=None if name == "single" else hits.second)
    choice = (
        WriteBack(max_size=size.single, hooks=hooks)
        if name == "single"
        else TwoLayer(max_size=size.l1, max_size_l2=size.l2, hooks=hooks)
    )
    kept = CachedValues(counted, choice)
    return kept, kept.value_state(PROFILE)


def profile(rng: random.Random) -> dict[str, Any]:
    """A user's state: 12 substates, of which `history` and `inventory` are large."""
    return {
        "events": 0,
        "last_seen": 0.0,
        "level": rng.randrange(400),
        "lives": 5,
        "coins": rng.randrange(10_000),
        "country": "SE",
        "segment": "casual",
        "friends": [rng.randrange(10**6) for _ in range(20)],
        "offers": {"shown": rng.randrange(50), "taken": rng.randrange(5)},
        "levels": [[level, rng.randrange(4)] for level in range(50)],
        "inventory": {f"item{number}": rng.randrange(100) for number in range(100)},
        "history": [rng.random() for _ in range(1_150)],
    }


def stream(size: Size, events: int, seed: int = SEED) -> array:
    """The users of the events: bursts of sessions, several hundred bursts at a time, thousands of sessions."""
    rng = random.Random(seed)
    idle = [[user, BURSTS_PER_SESSION] for user in rng.sample(range(size.users), size.sessions)]
    for session in idle:
        session[1] = rng.randint(1, BURSTS_PER_SESSION)
    open_bursts = [[idle.pop(), EVENTS_PER_BURST] for _ in range(min(size.open_bursts, len(idle) - 1))]
    users = array("q")
    while len(users) < events:
        burst = open_bursts[rng.randrange(len(open_bursts))]
        session = burst[0]
        users.append(session[0])
        burst[1] -= 1
        if not burst[1]:
            session[1] -= 1
            if not session[1]:
                session[:] = [rng.randrange(size.users), BURSTS_PER_SESSION]
            at = rng.randrange(len(idle))
            idle[at], burst[0] = session, idle[at]
            burst[1] = EVENTS_PER_BURST
    return users


def is_full(backend: Any, state: Any, size: Size) -> bool:
    """Whether every layer of a column has as many entries as it may."""
    if isinstance(backend, LruStateCache):
        return backend.stats().entries == size.l1 + size.l2
    if isinstance(state, TwoLayerCache):
        return (state.size_l1(), state.size_l2()) == (size.l1, size.l2)
    return bool(state.size() == size.single)


def load(backend: RocksDbBackend, size: Size) -> None:
    """Every user has a state before the stream begins."""
    rng = random.Random(SEED)
    profiles = [profile(rng) for _ in range(64)]
    users = iter(range(size.users))
    while piece := list(islice(users, 10_000)):
        keys = [(user,) for user in piece]
        groups = [user % KEY_GROUPS for user in piece]
        backend.load(PROFILE, Cells(groups, keys, None, [profiles[user // KEY_GROUPS % 64] for user in piece]))


@dataclass
class Job:
    """One column while it runs: the state it works on, and what is counted and sampled."""

    backend: Any
    state: Any
    counted: Counted
    hits: Hits
    checkpointer: Checkpointer
    latency: array = field(default_factory=lambda: array("d"))
    samples: list[Sample] = field(default_factory=list)
    written: list["Future[CheckpointStats]"] = field(default_factory=list)
    flushed: list[int] = field(default_factory=list)
    blocking_cpu: list[float] = field(default_factory=list)

    def event(self, user: int, at: float) -> None:
        """One event of one user: read, change, update."""
        backend, state = self.backend, self.state
        backend.enter(user % KEY_GROUPS)
        backend.context.key = (user,)
        value = state.get()
        value["events"] += 1
        value["last_seen"] = at
        value["history"][value["events"] % 1_150] = at
        value["inventory"][f"item{user % 100}"] += 1
        state.update(value)

    def checkpoint(self, pool: ThreadPoolExecutor) -> None:
        """The blocking part here, the rest in the pool's thread."""
        puts, cpu = self.counted.puts, time.thread_time()
        pending = self.checkpointer.begin()
        self.flushed.append(self.counted.puts - puts)
        self.blocking_cpu.append(time.thread_time() - cpu)
        self.written.append(pool.submit(self.checkpointer.write, pending))

    def sample(self, at: float) -> None:
        """The counters so far."""
        found = self.counted.inner.properties()
        counts = (len(self.latency), self.counted.gets, self.counted.puts, self.hits.asked, self.hits.l1, self.hits.l2)
        self.samples.append(Sample(at, *counts, found["pending_compaction_bytes"], found["running_compactions"]))

    def run(self, users: Iterator[int], events: int, interval: int, rate: float, pool: ThreadPoolExecutor) -> float:
        """Work off `events`, which arrive at `rate`; the seconds it took. A rate of infinity: all are there at once."""
        clock = time.perf_counter
        start = now = next_sample = clock()
        for number in range(events):
            due = start + number / rate
            while now < due:
                time.sleep(due - now)  # noqa: TID251 - arrivals keep to the clock, whatever the job does
                now = clock()
            self.event(next(users), now)
            now = clock()
            self.latency.append(now - due)
            if (number + 1) % interval == 0:
                self.checkpoint(pool)
                now = clock()
            if now >= next_sample:
                self.sample(now - start)
                next_sample = now + SAMPLE_SECONDS
        return now - start


def run_column(name: str, size: Size, seed: int, parent: Connection) -> None:
    """In a process of its own: load, warm up, tell the capacity, be told the rate, measure, tell the result."""
    gc.disable()  # as state hosts do: what the caches hold is long-lived, and has no cycles
    sys.setswitchinterval(0.0005)  # the stream waits less for the thread that writes checkpoints
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        database = RocksDbBackend(range(KEY_GROUPS), Path(folder) / "rocksdb")
        database.value_state(PROFILE)
        load(database, size)
        counted, hits = Counted(database), Hits()
        backend, state = column(name, counted, size, hits)
        manifest = new_manifest("king", 0, 1, KEY_GROUPS, pa.schema([("user", pa.int64())]))
        storage = FileStorage(f"{folder}/checkpoints", shard=0)
        job = Job(backend, state, counted, hits, Checkpointer(storage, backend, manifest, [PROFILE]))
        users = iter(stream(size, size.events * (CHECKPOINTS + MOST_WARM_UP + 2), seed))

        unpaced = float("inf")
        for _ in range(MOST_WARM_UP):
            job.run(users, size.events, size.events, unpaced, pool)
            if is_full(backend, state, size):
                break
        seconds = job.run(users, size.events // 2, size.events, unpaced, pool)
        job.checkpoint(pool)
        for written in job.written:
            written.result()
        parent.send(size.events // 2 / seconds)

        rate = parent.recv()
        assert is_full(backend, state, size), f"{name} is not full after {MOST_WARM_UP} intervals"
        counted.gets = counted.puts = hits.asked = hits.l1 = hits.l2 = 0
        job = Job(backend, state, counted, hits, job.checkpointer)
        before = cache_stats(backend)
        # Half an interval more: who waited for the last checkpoint counts too.
        job.run(users, size.events * CHECKPOINTS + size.events // 2, size.events, rate, pool)
        assert is_full(backend, state, size), f"{name} was full, and is no more"
        check_steady(name, job.samples)
        parent.send(measured(job, before, cache_stats(backend)))
        database.close()


def check_steady(name: str, samples: list[Sample]) -> None:
    """Whether events of the second half read the state as often as those of the first."""
    first, middle, last = samples[0], samples[len(samples) // 2], samples[-1]
    early, late = (
        (to.gets - since.gets) / max(1, to.events - since.events) for since, to in ((first, middle), (middle, last))
    )
    assert abs(late - early) <= UNSTEADY * max(early, late), f"{name}: {early:.4f} reads an event, then {late:.4f}"


def cache_stats(backend: Any) -> tuple[int, int]:
    """Hits and requests of an `LruStateCache`; zeros for King's, which have trackers."""
    if not isinstance(backend, LruStateCache):
        return 0, 0
    stats = backend.stats()
    return stats.hits, stats.hits + stats.misses


def measured(job: Job, before: tuple[int, int], after: tuple[int, int]) -> dict[str, Any]:
    """What a column found out, as plain values."""
    checkpoints = [future.result() for future in job.written]
    blocking = [checkpoint.blocking_ns / 1e6 for checkpoint in checkpoints]
    events = len(job.latency)
    ordered = sorted(job.latency)
    hits, asked = job.hits.l1 + job.hits.l2, job.hits.asked
    if not asked:
        hits, asked = after[0] - before[0], after[1] - before[1]
    return {
        "latency": list(job.latency),
        "samples": job.samples,
        "result": {
            "max_latency_ms": ordered[-1] * 1e3,
            "p999_latency_ms": ordered[int(events * 0.999)] * 1e3,
            "p99_latency_ms": ordered[int(events * 0.99)] * 1e3,
            "median_latency_ms": ordered[events // 2] * 1e3,
            "blocking_ms": blocking,
            "checkpoint_bytes": sum(checkpoint.bytes for checkpoint in checkpoints) / len(checkpoints),
            "blocking_cpu_ms": sum(job.blocking_cpu) / len(job.blocking_cpu) * 1e3,
            "puts_per_checkpoint": sum(job.flushed) / len(job.flushed),
            "gets_per_record": job.counted.gets / events,
            "puts_per_record": job.counted.puts / events,
            "hit_rate": hits / asked,
        },
    }


def of_all_runs(results: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs of a column found out together: medians, the spread of latencies, and all blocking parts."""
    found: dict[str, Any] = {
        name: statistics.median(result[name] for result in results) for name in results[0] if name != "blocking_ms"
    }
    blocking = [each for result in results for each in result["blocking_ms"]]
    found["checkpoints"] = len(blocking)
    found["blocking_ms"] = {"min": min(blocking), "mean": statistics.mean(blocking), "max": max(blocking)}
    found["spread"] = {
        name: [min(values), max(values)]
        for name in found
        if name.endswith("_latency_ms")
        for values in [[result[name] for result in results]]
    }
    if len(blocking) > 1:
        low, _, high = statistics.quantiles(blocking, n=4)
        found["spread"]["blocking_ms"] = [low, high]
    return found


def run_columns(size: Size, seed: int) -> tuple[float, dict[str, dict[str, Any]]]:
    """The arrival rate, and what every column found out; one process works at a time."""
    spawn = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    capacities = {}
    children = []
    for name, label in LABELS.items():
        pipes[name], theirs = spawn.Pipe()
        child = spawn.Process(target=run_column, args=(name, size, seed, theirs))
        child.start()
        theirs.close()
        children.append(child)
        capacities[name] = pipes[name].recv()
        print(f"{label}: {capacities[name]:,.0f} events/s unpaced", flush=True)
    rate = UTILISATION * min(capacities.values())
    found = {}
    for name, pipe in pipes.items():
        pipe.send(rate)
        found[name] = pipe.recv()
        print(f"{LABELS[name]}: {found[name]['result']}", flush=True)
    for child in children:
        child.join()
    return rate, found


def main() -> None:
    """Measure, write the pictures, report."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--scale", type=float, default=1.0, help="of sizes, users and events; 1 is King's sizes")
    options.add_argument("--runs", type=int, default=RUNS)
    options.add_argument("--results", type=Path, default=RESULTS)
    chosen = options.parse_args()
    if chosen.results == RESULTS and (chosen.scale < 1 or chosen.runs < RUNS):
        options.error("what is not whole is no result: name another folder, --results /tmp/king")
    runs = []
    for number in range(chosen.runs):
        rate, found = run_columns(Size().scaled(chosen.scale), SEED + number)
        runs.append(found)
    results = {name: of_all_runs([found[name]["result"] for found in runs]) for name in LABELS}
    # The pictures show the last run.
    write_pictures(found, rate, chosen.results)
    report(
        "king",
        title=f"King's case study: {len(runs)} runs, checkpoints in a stream of {rate:,.0f} events/s",
        columns=("", "King, change", "change", *LABELS.values()),
        rows=table(results),
        result={**results, "arrivals_per_second": rate, "scale": chosen.scale, "runs": len(runs)},
        draw=partial(draw_checkpoints, results),
        folder=chosen.results,
    )


if __name__ == "__main__":
    main()
