"""FLIP-50's benchmark: a word count whose state fits in memory, or does not; against the heap alone and RocksDB.

The job is the preview release's: words of 16 characters, one partition, about 566 MB of state once serialized, a count
per word (one read and one write of state per record). The words of the records are drawn evenly from all there are,
so the share of the state that is spilled is also the share of the records that go to disk: no group is colder than
another, which is the hardest case for a heap that spills.

Set-ups: a plain loop, bare handles over dictionaries and LMDB, and bare RocksDB, which show what Python allows
(`flip50_limits`); the heap alone; RocksDB with everything in its cache, and with no less memory than the heap that is
57 % spilled; the heap that spills, under a memory limit that leaves room for 100 to 10 % of its bytes. What is on disk
is what the monitor has put there under that limit, and is in the result. Each set-up is a process of its own, which
first restores the state and then works off records in versions; the clock stops while the next words are made. What was
changed on disk is written before it stops. Both of RocksDB work off a round before each of another set-up's
(`flip50_turns`), once they have run for a while: a job runs for days. So there are two ratios of each set-up, by
RocksDB with everything in its cache and by RocksDB with the same memory, each with its spread.

Two more processes: a burst of new words worth five times the memory limit, with incremental checkpoints in it, whose
last one is restored; and full checkpoints of a state that is 57 % spilled, with its spilled key groups copied as they
are and decoded, in turn.

    .venv/bin/python -m benchmarks.flip50
    .venv/bin/python -m benchmarks.flip50 --scale 0.05      # quick: no result is kept
    .venv/bin/python -m benchmarks.flip50 --only heap       # some parts; the last one of all writes the report

Parts that were measured apart are put together only if they are of the same commit and of the same hours.
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
from benchmarks.code_tree import CHANGED, tree_of_package
from benchmarks.flip50_turns import BASE, BASES, CLOCK, SAME_MEMORY, InTurn, Round, SetUp, serve
from benchmarks.flip50_words import (
    ALL_IN_CACHE_BYTES,
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
from millpond.state.checkpoint import Checkpointer, FileStorage, Manifest, new_manifest, restore
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.spi import HeapBackend, KeyedStateBackend, StateDescriptor, StateKind
from millpond.state.spillable import SpillableBackend, SpillableSettings
from millpond.state.spillable.process_memory import process_memory_bytes
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
BARS = {("heap", BASE): 6.0, ("spillable_57", SAME_MEMORY): 2.5}
"""Times as many records a second as RocksDB so, at least."""
PARTS = Path(tempfile.gettempdir()) / "millpond-flip50"
BURST_KEYS = ("limit_bytes", "peak_rss_bytes", "records_in", "records_counted", "records_restored", "checkpoints")
HOURS_APART = 6.0
"""Parts that were measured further apart than this are not put together."""

_ROCKSDB_SHARE = 0.6
"""Of the records of a round, which take RocksDB long."""
_WORD_BYTES = 105
"""Of a word and its count on the heap, about."""
_CACHE_BYTES = 103
"""For each word, where RocksDB has the memory of the heap that is 57 % spilled; in all it takes a tenth more."""
_WATERMARK = 0.5
_WORKING_BYTES = 64 << 20
"""What a version and its records take beside the state, about."""
_BURST_LIMIT = 512 << 20
_BURST = 5


def fill(backend: KeyedStateBackend, words: int) -> None:
    """Restore the state, a key group at a time."""
    for key_group in range(PARALLELISM):
        keys = keys_of(key_group, words)
        backend.load(COUNT, Cells([key_group] * len(keys), keys, None, [FIRST_COUNT] * len(keys)))


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
def throughput(set_up: str, scale: float) -> Iterator[Callable[[int], Round]]:
    """Of a backend: what works off a round of records."""
    words = words_of(scale)
    each = records_of_round(scale, _ROCKSDB_SHARE if set_up.startswith("rocksdb") else 1.0)
    with opened(set_up, scale) as (backend, finish):
        state = backend.value_state(COUNT)

        def work_off(number: int) -> Round:
            seconds, done = 0.0, 0
            while done < each:
                for chunk in range(VERSION // CHUNK):
                    seconds += work(backend, state, records(words, CHUNK, hash((number, done, chunk))))
                seconds += commit(backend)
                done += VERSION
            started = time.perf_counter()
            finish()
            return Round(done / (seconds + time.perf_counter() - started), _disk_share(backend))

        yield work_off


@contextlib.contextmanager
def opened(set_up: str, scale: float) -> Iterator[tuple[KeyedStateBackend, Callable[[], None]]]:
    """A backend with the whole state, and what ends a round: writing what is only buffered."""
    words = words_of(scale)
    with tempfile.TemporaryDirectory(prefix="millpond-flip50-") as folder:
        place = Path(folder, "state")
        backend: KeyedStateBackend
        finish: Callable[[], None] = _nothing
        if set_up == "heap":
            backend = HeapBackend(range(PARALLELISM))
        elif set_up.startswith("rocksdb"):
            cache = ALL_IN_CACHE_BYTES if set_up == BASE else words * _CACHE_BYTES
            backend = RocksDbBackend(range(PARALLELISM), place, block_cache_bytes=cache)
        else:
            percent = int(set_up.removeprefix("spillable_"))
            settings = _under_pressure(_heap_bytes(words), percent)
            spillable = SpillableBackend(range(PARALLELISM), place, settings, clock_ns=CLOCK)
            backend, finish = spillable, spillable.flush_now
        try:
            fill(backend, words)
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


def _under_pressure(heap_bytes: int, percent: int) -> SpillableSettings:
    """A limit under which the monitor must put about so much of the state on disk, in small turns; 0: a limit at ease.

    Loading begins late, so that what is on disk follows from the limit alone.
    """
    on_heap = heap_bytes * (100 - percent) // 100
    used = process_memory_bytes().own + _WORKING_BYTES + on_heap if percent else 2 * heap_bytes + (1 << 30)
    return SpillableSettings(
        memory_limit_bytes=int(used / _WATERMARK),
        high_watermark_ratio=_WATERMARK,
        spill_size_ratio=0.02,
        load_start_ratio=0.0001,
        load_end_ratio=0.0002,
        trigger_interval_ms=100,
    )


def _disk_share(backend: KeyedStateBackend) -> float:
    """Of its key groups, those on disk."""
    return backend.stats().disk_groups / PARALLELISM if isinstance(backend, SpillableBackend) else 0.0


def _nothing() -> None:
    return


def burst(scale: float) -> dict[str, Any]:
    """New words worth five times the limit, as fast as they come, with checkpoints; the last one is restored.

    None may be lost, and the process stays within its limit.
    """
    limit = int(_BURST_LIMIT * max(0.5, min(1.0, scale * 2)))
    words = _BURST * limit // _WORD_BYTES
    settings = SpillableSettings(memory_limit_bytes=limit)
    gc.disable()
    with tempfile.TemporaryDirectory(prefix="millpond-flip50-") as folder:
        backend = SpillableBackend(range(PARALLELISM), Path(folder, "state"), settings)
        state = backend.value_state(COUNT)
        storage = FileStorage(f"{folder}/checkpoints", 0)
        checkpoints = Checkpointer(storage, backend, _new_manifest(), [COUNT])
        peak, seconds, taken = 0, 0.0, 0
        for first in range(0, words, CHUNK // 5):
            some = [(number % PARALLELISM, (word(number),)) for number in range(first, min(words, first + CHUNK // 5))]
            seconds += work(backend, state, some)
            peak = max(peak, process_memory_bytes().own)
            if (first + len(some)) % VERSION == 0 or first + len(some) == words:
                checkpoints.write(checkpoints.begin())
                taken += 1
        counted, stats = _counted(backend), backend.stats()
        backend.close()
        restored = SpillableBackend(range(PARALLELISM), Path(folder, "restored"), settings)
        restore(storage, restored, [COUNT])
        # Before the second count, which reads every file from end to end once more.
        peak_rss = _peak_rss_bytes()
        counted_again = _counted(restored)
        restored.close()
    return {
        "limit_bytes": limit,
        "peak_rss_bytes": peak_rss,
        "peak_own_bytes": peak,
        "records_in": words,
        "records_counted": counted,
        "records_restored": counted_again,
        "checkpoints": taken,
        "rows_per_second": round(words / seconds),
        "longest_spill_block_ms": round(stats.longest_block_ms, 1),
        "spills": stats.spills,
        "reason": stats.reason,
    }


def _counted(backend: KeyedStateBackend) -> int:
    return sum(sum(backend.cells(COUNT.name, key_group).values) for key_group in range(PARALLELISM))


def _new_manifest() -> Manifest:
    return new_manifest("flip50", 0, 1, PARALLELISM, pa.schema([("key", pa.string())]))


def _peak_rss_bytes() -> int:
    """The most that this process ever had resident, pages of files included."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) * 1024


def checkpoint(scale: float) -> dict[str, Any]:
    """Full checkpoints of a state of which 57 % is spilled, copied and decoded in turn: the median seconds of each."""
    with opened("spillable_57", scale) as (backend, _), tempfile.TemporaryDirectory() as folder:
        state = backend.value_state(COUNT)
        work(backend, state, records(words_of(scale), CHUNK, SEED))
        checkpoints = Checkpointer(FileStorage(folder, 0), backend, _new_manifest(), [COUNT])
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
    "bare_rocksdb": flip50_limits.rocksdb,
    **{f"bare_{percent}": partial(flip50_limits.handles, percent) for percent in BARE_PERCENT},
    "heap": partial(throughput, "heap"),
    **{f"spillable_{percent}": partial(throughput, f"spillable_{percent}") for percent in SPILLED_PERCENT},
    **{base: partial(throughput, base) for base in BASES},
}
"""That take turns with the last two."""
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
    """Measure these parts, and report if all of them have been, on the same code and within some hours."""
    PARTS.mkdir(exist_ok=True)
    tree, found = tree_of_package(), dict[str, Any]()
    with InTurn.at(scale) as in_turn:
        for part in (part for part in parts if part in SET_UPS):
            found[part] = _kept(part, scale, tree, in_turn.measure(part))
    for part in (part for part in parts if part in OTHER_PARTS):
        command = [sys.executable, "-m", "benchmarks.flip50", "--part", part, "--scale", str(scale)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found[part] = _kept(part, scale, tree, json.loads(done.stdout.splitlines()[-1]))
    found = {**kept_of(scale, tree, PARTS), **found}
    missing = [part for part in PARTS_OF_ALL if part not in found]
    if missing:
        _say(f"no report: {', '.join(missing)} are still to be measured on this code ({tree}) and within some hours")
    else:
        _report(found, words_of(scale), RESULTS if scale >= 1 else PARTS)


def _kept(part: str, scale: float, tree: str, found: dict[str, Any]) -> dict[str, Any]:
    part_file(PARTS, part, scale).write_text(json.dumps({"tree": tree, "found": found}))
    _say(f"{part}: {found}")
    return found


def kept_of(scale: float, tree: str, folder: Path) -> dict[str, Any]:
    """The parts that were measured on this code, and not long before the newest of them."""
    files = {part: file for part in PARTS_OF_ALL if (file := part_file(folder, part, scale)).exists()}
    kept = {part: json.loads(file.read_text()) for part, file in files.items()}
    same = [part for part, each in kept.items() if each.get("tree") == tree != CHANGED]
    measured = {part: files[part].stat().st_mtime / 3600 for part in same}
    newest = max(measured.values(), default=0.0)
    return {part: kept[part]["found"] for part in same if newest - measured[part] <= HOURS_APART}


def part_file(folder: Path, part: str, scale: float) -> Path:
    """Where a part is kept."""
    return folder / f"{part}-{scale}.json"


def _report(found: dict[str, dict[str, Any]], words: int, folder: Path) -> None:
    rps = {part: found[part]["rows_per_second"] for part in SET_UPS}
    burst_of = found["burst"]
    assert burst_of["records_in"] == burst_of["records_counted"] == burst_of["records_restored"], burst_of
    on_disk = {percent: found[f"spillable_{percent}"]["disk_share"] for percent in SPILLED_PERCENT}
    names = {
        "dictionary": "plain loop, one dictionary",
        "bare_rocksdb": "plain loop, RocksDB",
        **{f"bare_{percent}": f"bare handles, {percent} % on disk" for percent in BARE_PERCENT},
        "heap": "heap alone",
        BASE: "RocksDB, all in cache",
        SAME_MEMORY: "RocksDB, memory of 57 %",
        **{
            f"spillable_{percent}": f"spillable, limit for {percent} %, {share:.0%} on disk"
            for percent, share in on_disk.items()
        },
    }
    others = [part for part in names if part not in BASES]
    ratio = {base: {part: round(found[part]["ratio"][base], 2) for part in others} for base in BASES}
    spread = {
        base: {part: [round(each, 2) for each in found[part]["ratio_spread"][base]] for part in others}
        for base in BASES
    }

    def shown(part: str, base: str) -> str:
        if part in BASES:
            return f"{rps[part] / rps[base]:.2f}"
        low, high = spread[base][part]
        return f"{ratio[base][part]:.2f} ({low:.2f}–{high:.2f})"

    report(
        "flip50",
        title="Word count, 566 MB of state: records per second",
        columns=(
            "set-up",
            "records/s",
            "÷ RocksDB, all in cache",
            "÷ RocksDB, same memory",
            "memory of its own, MB",
            "FLIP-50",
        ),
        rows=[
            (
                name,
                rps[part],
                shown(part, BASE),
                shown(part, SAME_MEMORY),
                round(found[part]["own_bytes"] / 1e6),
                str(SEED_RATIO.get(part, "1.0" if part in BASES else "")),
            )
            for part, name in names.items()
        ],
        result={
            "words": words,
            "rows_per_second": {
                **{part: rps[part] for part in ("dictionary", "bare_rocksdb", "heap", *BASES)},
                "bare_handles": {str(percent): rps[f"bare_{percent}"] for percent in BARE_PERCENT},
                "spillable": {str(percent): rps[f"spillable_{percent}"] for percent in SPILLED_PERCENT},
            },
            "ratio": {
                **{part: ratio[BASE][part] for part in SEED_RATIO},
                "same_memory": {part: ratio[SAME_MEMORY][part] for part in SEED_RATIO},
            },
            "spread": {
                **{part: spread[BASE][part] for part in SEED_RATIO},
                "same_memory": {part: spread[SAME_MEMORY][part] for part in SEED_RATIO},
            },
            "disk_share": {str(percent): share for percent, share in on_disk.items()},
            "held": {f"{part} by {base}": ratio[base][part] >= least for (part, base), least in BARS.items()},
            "burst": {key: burst_of[key] for key in BURST_KEYS},
            "longest_spill_block_ms": burst_of["longest_spill_block_ms"],
            "checkpoint_seconds": {how: round(taken, 3) for how, taken in found["checkpoint"].items()},
        },
        draw=lambda axes: grouped_bars(
            axes,
            ["heap", "37 % on disk", "57 % on disk"],
            {
                "Millpond": [ratio[BASE][part] for part in SEED_RATIO],
                "Millpond ÷ RocksDB of the same memory": [ratio[SAME_MEMORY][part] for part in SEED_RATIO],
                "FLIP-50 (Flink)": list(SEED_RATIO.values()),
            },
            ylabel="throughput, RocksDB with everything in cache = 1",
        ),
        folder=folder,
    )


if __name__ == "__main__":
    main()
