"""FLIP-50's benchmark: a word count whose state fits in memory, or does not; against the heap alone and RocksDB.

The job is the preview release's: words of 16 characters, one partition, about 566 MB of state once serialized, a count
per word (one read and one write of state per record). The words of the records are drawn evenly from all there are,
so the share of the state that is spilled is also the share of the records that go to disk: no group is colder than
another, which is the hardest case for a heap that spills.

Set-ups: a plain loop and bare handles over dictionaries and LMDB, which show what Python allows (`flip50_limits`);
the heap alone; RocksDB with everything in its cache, and with no less memory than the heap that is 57 % spilled; the
heap that spills with 0 to 90 % of its bytes on disk. Each is a process of its own, which first restores the state and
then works off records in versions; the clock stops while the next words are made. What was changed on disk is written
before it stops. RocksDB works off a round before each of another set-up's (`flip50_turns`), once it has run for a
while: a job runs for days.

Two more processes: a burst of new words worth five times the memory limit; and full checkpoints of a state that is
57 % spilled, with its spilled key groups copied as they are and decoded, in turn.

    .venv/bin/python -m benchmarks.flip50
    .venv/bin/python -m benchmarks.flip50 --scale 0.05      # quick: no result is kept
    .venv/bin/python -m benchmarks.flip50 --only heap       # some parts; the last one of all writes the report
"""

import argparse
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import flip50_limits
from benchmarks.flip50_turns import BASE, InTurn, SetUp, serve
from benchmarks.flip50_words import (
    CHUNK,
    FIRST_COUNT,
    PARALLELISM,
    VERSION,
    keys_of,
    records,
    records_of_round,
    word,
    words_of,
)
from benchmarks.report import RESULTS, grouped_bars, report
from millpond.state.backend.protocols import Cells
from millpond.state.checkpoint import FileStorage, new_manifest
from millpond.state.checkpoint.checkpointer import Checkpointer
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.spi import HeapBackend, KeyedStateBackend, StateDescriptor, StateKind
from millpond.state.spillable import SpillableBackend, SpillableSettings
from millpond.state.spillable.process_memory import resident
from millpond.state.types.object_codec import OBJECT_SCHEMA
from millpond.state.types.rows import Row
from millpond.state.types.serializer import msgspec_serializer

COUNT = StateDescriptor("count", StateKind.VALUE, OBJECT_SCHEMA, serializer=msgspec_serializer(int))
SPILLED_PERCENT = (0, 20, 37, 57, 90)
BARE_PERCENT = (0, 37, 57)
CHECKPOINT_ROUNDS = 5
SEED = 50
SEED_RATIO = {"heap": 4.0, "spillable_37": 2.2, "spillable_57": 1.6}
"""Of FLIP-50: heap and 57 % from the document, 37 % from the preview release."""
PARTS = Path(tempfile.gettempdir()) / "millpond-flip50"

_ROCKSDB_SHARE = 0.6
"""Of the records of a round, which take RocksDB long."""
_WORD_BYTES = 105
"""Of a word and its count on the heap, about."""
_CACHE_BYTES = 103
"""For each word, where RocksDB has the memory of the heap that is 57 % spilled; in all it takes a tenth more."""
_BURST_LIMIT = 512 << 20
_BURST = 5


def fill(backend: KeyedStateBackend, words: int, then: Callable[[int], None]) -> None:
    """Restore the state, a key group at a time."""
    for key_group in range(PARALLELISM):
        keys = keys_of(key_group, words)
        backend.load(COUNT, Cells([key_group] * len(keys), keys, None, [FIRST_COUNT] * len(keys)))
        then(key_group)


def work(backend: KeyedStateBackend, state: Any, some: list[tuple[int, Row]]) -> float:
    """Count the words; the seconds it took."""
    enter, context, get, update = backend.enter, backend.context, state.get, state.update
    started = time.perf_counter()
    for key_group, key in some:
        enter(key_group)
        context.key = key
        value = get()
        update(1 if value is None else value + 1)
    return time.perf_counter() - started


def commit(backend: KeyedStateBackend) -> float:
    """End a version that nobody wants to see again; the seconds it took."""
    started = time.perf_counter()
    snapshot = backend.commit()
    snapshot.release()
    backend.acknowledge()
    return time.perf_counter() - started


@contextlib.contextmanager
def throughput(set_up: str, scale: float) -> Iterator[Callable[[int], float]]:
    """Of a backend: what works off a round of records."""
    words = words_of(scale)
    each = records_of_round(scale, _ROCKSDB_SHARE if set_up.startswith("rocksdb") else 1.0)
    with opened(set_up, scale) as (backend, finish):
        state = backend.value_state(COUNT)

        def work_off(number: int) -> float:
            seconds, done = 0.0, 0
            while done < each:
                for chunk in range(VERSION // CHUNK):
                    seconds += work(backend, state, records(words, CHUNK, hash((number, done, chunk))))
                seconds += commit(backend)
                done += VERSION
            started = time.perf_counter()
            finish()
            return done / (seconds + time.perf_counter() - started)

        yield work_off


@contextlib.contextmanager
def opened(set_up: str, scale: float) -> Iterator[tuple[KeyedStateBackend, Callable[[], None]]]:
    """A backend with the whole state, and what ends a round: writing what is only buffered."""
    words = words_of(scale)
    with tempfile.TemporaryDirectory(prefix="millpond-flip50-") as folder:
        place = Path(folder, "state")
        backend: KeyedStateBackend
        finish: Callable[[], None] = _nothing
        then: Callable[[int], None] = lambda _: None  # noqa: E731
        if set_up == "heap":
            backend = HeapBackend(range(PARALLELISM))
        elif set_up.startswith("rocksdb"):
            cache = 4 << 30 if set_up == BASE else words * _CACHE_BYTES
            backend = RocksDbBackend(range(PARALLELISM), place, block_cache_bytes=cache)
        else:
            spills = round(int(set_up.removeprefix("spillable_")) / 100 * PARALLELISM)
            spillable = SpillableBackend(range(PARALLELISM), place, _at_ease(_heap_bytes(words)))
            backend, finish = spillable, spillable.flush_now

            def then(key_group: int) -> None:
                if key_group < spills:
                    spillable.spill_now([key_group])

        try:
            fill(backend, words, then)
            if set_up.startswith("rocksdb"):
                for key_group in range(PARALLELISM):
                    backend.cells(COUNT.name, key_group)
            commit(backend)
            gc.collect()
            gc.freeze()
            gc.disable()  # as a state host does
            yield backend, finish
        finally:
            backend.close()


def _heap_bytes(words: int) -> int:
    """What so many words take on the heap, about."""
    return words * _WORD_BYTES


def _at_ease(heap_bytes: int) -> SpillableSettings:
    """A limit that leaves room for the whole state, and marks that leave key groups where the benchmark puts them."""
    return SpillableSettings(
        memory_limit_bytes=4 * heap_bytes + (1 << 30),
        load_start_ratio=0.0001,
        load_end_ratio=0.0002,
        high_watermark_ratio=0.95,
    )


def _nothing() -> None:
    return


def burst(scale: float) -> dict[str, Any]:
    """New words worth five times the limit, as fast as they come; none may be lost, and the process stays within."""
    limit = int(_BURST_LIMIT * max(0.5, min(1.0, scale * 2)))
    words = _BURST * limit // _WORD_BYTES
    settings = SpillableSettings(memory_limit_bytes=limit)
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="millpond-flip50-") as folder:
        backend = SpillableBackend(range(PARALLELISM), Path(folder, "state"), settings)
        state = backend.value_state(COUNT)
        peak, seconds = 0, 0.0
        for first in range(0, words, CHUNK // 5):
            some = [(number % PARALLELISM, (word(number),)) for number in range(first, min(words, first + CHUNK // 5))]
            seconds += work(backend, state, some)
            peak = max(peak, resident().own)
            if first % VERSION == 0:
                seconds += commit(backend)
        # Before the count, which reads every file from end to end.
        peak_rss = _peak_rss_bytes()
        counted = 0
        for key_group in range(PARALLELISM):
            counted += sum(backend.cells(COUNT.name, key_group).values)
        stats = backend.stats()
        backend.close()
    return {
        "limit_bytes": limit,
        "peak_rss_bytes": peak_rss,
        "peak_own_bytes": peak,
        "records_in": words,
        "records_counted": counted,
        "rows_per_second": round(words / seconds),
        "longest_spill_block_ms": round(stats.longest_block_ms, 1),
        "spills": stats.spills,
        "reason": stats.reason,
    }


def _peak_rss_bytes() -> int:
    """The most that this process ever had resident, pages of files included."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024


def checkpoint(scale: float) -> dict[str, Any]:
    """Full checkpoints of a state of which 57 % is spilled, copied and decoded in turn: the median seconds of each."""
    with opened("spillable_57", scale) as (backend, _), tempfile.TemporaryDirectory() as folder:
        state = backend.value_state(COUNT)
        work(backend, state, records(words_of(scale), CHUNK, SEED))
        manifest = new_manifest("flip50", 0, 1, PARALLELISM, pa.schema([("key", pa.string())]))
        checkpoints = Checkpointer(FileStorage(folder, 0), backend, manifest, [COUNT])
        seconds: dict[str, list[float]] = {"raw_copy": [], "decoded": []}
        for _ in range(CHECKPOINT_ROUNDS):
            for how, taken in seconds.items():
                pending = checkpoints.begin(full=True)
                if how == "decoded":
                    pending.snapshot.raw_cells = _not_raw  # type: ignore[attr-defined]
                started = time.perf_counter()
                checkpoints.write(pending)
                taken.append(time.perf_counter() - started)
                _say(f"checkpoint {how}: {taken[-1]:.2f} s")
        return {how: statistics.median(taken) for how, taken in seconds.items()}


def _not_raw(_name: str, _key_group: int) -> None:
    return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


SET_UPS: dict[str, SetUp] = {
    "dictionary": flip50_limits.dictionary,
    **{f"bare_{percent}": partial(flip50_limits.handles, percent) for percent in BARE_PERCENT},
    "heap": partial(throughput, "heap"),
    "rocksdb_same_memory": partial(throughput, "rocksdb_same_memory"),
    **{f"spillable_{percent}": partial(throughput, f"spillable_{percent}") for percent in SPILLED_PERCENT},
    BASE: partial(throughput, BASE),
}
"""That take turns with the last one."""
OTHER_PARTS: dict[str, Callable[[float], dict[str, Any]]] = {"burst": burst, "checkpoint": checkpoint}
PARTS_OF_ALL = (*SET_UPS, *OTHER_PARTS)


def main() -> None:
    """Run every part in a process of its own, and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", choices=PARTS_OF_ALL, nargs="+", default=PARTS_OF_ALL)
    parser.add_argument("--serve", choices=SET_UPS, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=OTHER_PARTS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(SET_UPS[chosen.serve], chosen.scale)
    elif chosen.part:
        print(json.dumps(OTHER_PARTS[chosen.part](chosen.scale)))
    else:
        _measure(chosen.only, chosen.scale)


def _measure(parts: Iterable[str], scale: float) -> None:
    """Measure these parts, and report if all of them have been."""
    PARTS.mkdir(exist_ok=True)
    with InTurn.at(scale) as in_turn:
        for part in (part for part in parts if part in SET_UPS):
            _keep(part, scale, in_turn.measure(part))
    for part in (part for part in parts if part in OTHER_PARTS):
        command = [sys.executable, "-m", "benchmarks.flip50", "--part", part, "--scale", str(scale)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        _keep(part, scale, json.loads(done.stdout.splitlines()[-1]))
    if all(_file(part, scale).exists() for part in PARTS_OF_ALL):
        found = {part: json.loads(_file(part, scale).read_text()) for part in PARTS_OF_ALL}
        _report(found, words_of(scale), RESULTS if scale >= 1 else PARTS)


def _keep(part: str, scale: float, found: dict[str, Any]) -> None:
    _file(part, scale).write_text(json.dumps(found))
    _say(f"{part}: {found}")


def _file(part: str, scale: float) -> Path:
    return PARTS / f"{part}-{scale}.json"


def _report(found: dict[str, dict[str, Any]], words: int, folder: Path) -> None:
    rps = {part: found[part]["rows_per_second"] for part in SET_UPS}
    burst_of = found["burst"]
    seconds = {how: round(taken, 3) for how, taken in found["checkpoint"].items()}
    names = {
        "dictionary": "plain loop, one dictionary",
        **{f"bare_{percent}": f"bare handles, {percent} % on disk" for percent in BARE_PERCENT},
        "heap": "heap alone",
        BASE: "RocksDB, all in cache",
        "rocksdb_same_memory": "RocksDB, memory of 57 %",
        **{f"spillable_{percent}": f"spillable, {percent} % on disk" for percent in SPILLED_PERCENT},
    }
    ratio = {part: round(found[part]["ratio"], 2) for part in names}
    assert burst_of["records_in"] == burst_of["records_counted"], burst_of
    report(
        "flip50",
        title="Word count, 566 MB of state: records per second",
        columns=("set-up", "records/s", "÷ RocksDB", "memory of its own, MB", "FLIP-50"),
        rows=[
            (
                name,
                rps[part],
                ratio[part],
                round(found[part]["own_bytes"] / 1e6),
                str(SEED_RATIO.get(part, "1.0" if part.startswith("rocksdb") else "")),
            )
            for part, name in names.items()
        ],
        result={
            "words": words,
            "rows_per_second": {
                **{part: rps[part] for part in ("dictionary", "heap", BASE, "rocksdb_same_memory")},
                "bare_handles": {str(percent): rps[f"bare_{percent}"] for percent in BARE_PERCENT},
                "spillable": {str(percent): rps[f"spillable_{percent}"] for percent in SPILLED_PERCENT},
            },
            "ratio": {part: ratio[part] for part in SEED_RATIO},
            "burst": {key: burst_of[key] for key in ("limit_bytes", "peak_rss_bytes", "records_in", "records_counted")},
            "longest_spill_block_ms": burst_of["longest_spill_block_ms"],
            "checkpoint_seconds": seconds,
        },
        draw=lambda axes: grouped_bars(
            axes,
            ["heap", "37 % on disk", "57 % on disk"],
            {
                "Millpond": [ratio[part] for part in SEED_RATIO],
                "FLIP-50 (Flink)": list(SEED_RATIO.values()),
            },
            ylabel="throughput, RocksDB with everything in cache = 1",
        ),
        folder=folder,
    )


if __name__ == "__main__":
    main()
