"""How much memory a checkpoint, a savepoint, a restore and a rescale take, whatever the size of the state.

    python -m benchmarks.checkpoint_memory [--megabytes 300 2000] [--backends spillable rocksdb]

A `Harness` holds so many megabytes of rows of 1,000 bytes, which do not compress, on the heap that spills under a limit
of 300 MB or in RocksDB. Each figure is the peak of the anonymous memory (`RssAnon`) of a process of its own, read in a
thread while the process does one thing: fill the state, write a full checkpoint, write a savepoint, restore, or
rescale from one shard to two. Pages of files, spill files among them, do not count: the system takes them back.

Bars: on the heap that spills each peak is at most the limit and 64 MB; in RocksDB each is at most 256 MB above the
start, which is what the process holds before it does its one thing. For all but the restore the state is filled by
then, with a checkpoint after each 20,000 rows as a stream would write. So the start holds RocksDB's buffers and what
earlier checkpoints left to the allocators.
"""

import argparse
import json
import multiprocessing
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.report import grouped_bars, report
from millpond.state.testing.harness import Harness

LIMIT_MB = 300
SPILLABLE_MARGIN_MB = 64
ROCKSDB_MARGIN_MB = 256

_MB = 1_000_000
_ROW_BYTES = 1_000
_SAMPLE_SECONDS = 0.005
_AT_ONCE = 20_000
_DOES = ("checkpoint", "savepoint", "restore", "rescale")


class _Keep:
    """Keeps the last bytes of each key."""

    def open(self, states: Any) -> None:
        self.last = states.value("last", bytes)

    def process(self, _key: int, record: tuple[int, bytes], _context: Any) -> None:
        self.last.update(record[1])


def anonymous_mb() -> float:
    """The anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024 / _MB
    raise OSError("/proc/self/status has no RssAnon: this benchmark needs Linux.")


@contextmanager
def peak() -> Iterator[Callable[[], float]]:
    """Watches the anonymous memory; what is given says the highest so far."""
    highest, over = [anonymous_mb()], threading.Event()

    def watch() -> None:
        while not over.wait(_SAMPLE_SECONDS):
            highest[0] = max(highest[0], anonymous_mb())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: max(highest[0], anonymous_mb())
    finally:
        over.set()
        thread.join()


def _harness(backend: str, folder: Path, where: str) -> Harness:
    options = {
        "state.backend.type": backend,
        f"state.backend.{backend}.{'paths' if backend == 'spillable' else 'local-dir'}": str(folder / "local"),
    }
    if backend == "spillable":
        options["state.backend.spillable.memory-limit"] = f"{LIMIT_MB * _MB // (1 << 20)} mb"
    return Harness(_Keep, key=lambda record: record[0], key_type=int, options=options, storage=str(folder / where))


def _fill(harness: Harness, megabytes: int) -> None:
    random = Random(7)
    for first in range(0, megabytes * _MB // _ROW_BYTES, _AT_ONCE):
        rows = range(first, min(first + _AT_ONCE, megabytes * _MB // _ROW_BYTES))
        harness.process_many((row, random.randbytes(_ROW_BYTES)) for row in rows)
        # As a stream does after each batch: what an open version changed has to stay in memory.
        harness.checkpoint()


def _measure(does: str, backend: str, megabytes: int, folder: Path, answers: Any) -> None:
    (folder / "local").mkdir(exist_ok=True)
    with peak() as filled, _harness(backend, folder, "restored" if does == "restore" else does) as harness:
        if does != "restore":
            _fill(harness, megabytes)
        filling, start = filled(), anonymous_mb()
        with peak() as doing:
            if does == "checkpoint":
                harness.checkpoint(full=True)
            elif does == "savepoint":
                harness.savepoint(str(folder / "saved"))
            elif does == "restore":
                harness.restore()
            else:
                harness.rescale(2)
            highest = doing()
        keys = len(harness.state("last")) if megabytes <= LIMIT_MB and does == "restore" else None
    answers.put({"start": start, "filling": filling, "peak": highest, "keys": keys})


def _figure(does: str, backend: str, megabytes: int, folder: Path) -> Mapping[str, Any]:
    """In a process of its own, so that what one thing left in memory is not another's."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_measure, args=(does, backend, megabytes, folder, answers))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{does} on {backend} with {megabytes} MB ended with exit code {process.exitcode}.")
    found: Mapping[str, Any] = answers.get()
    return found


def measured(backend: str, megabytes: int) -> dict[str, float]:
    """The peaks of one backend and size."""
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-memory-"))
    found: dict[str, float] = {"limit": LIMIT_MB} if backend == "spillable" else {}
    try:
        for does in _DOES:
            figure = _figure(does, backend, megabytes, folder)
            if does == "checkpoint":
                found["filling"] = round(figure["filling"])
                (folder / "checkpoint").rename(folder / "restored")
            if does == "restore" and figure["keys"] not in (None, megabytes * _MB // _ROW_BYTES):
                raise RuntimeError(f"{backend}: {figure['keys']} keys were restored of {megabytes} MB.")
            found["start"] = max(found.get("start", 0), round(figure["start"])) if does != "restore" else found["start"]
            found[does] = round(figure["peak"])
            if backend == "rocksdb":
                found[f"{does}_above_start"] = round(figure["peak"] - figure["start"])
            shutil.rmtree(folder / "saved", ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def bars(backend: str, found: Mapping[str, float]) -> dict[str, bool]:
    """Which bars hold."""
    if backend == "spillable":
        return {does: found[does] <= LIMIT_MB + SPILLABLE_MARGIN_MB for does in _DOES}
    return {does: found[f"{does}_above_start"] <= ROCKSDB_MARGIN_MB for does in _DOES}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[300, 2000])
    parser.add_argument("--backends", nargs="+", default=["spillable", "rocksdb"], choices=["spillable", "rocksdb"])
    given = parser.parse_args()
    result: dict[str, Any] = {}
    rows = []
    for megabytes in given.megabytes:
        for backend in given.backends:
            found = measured(backend, megabytes)
            result.setdefault(str(megabytes), {})[backend] = {**found, "bars": bars(backend, found)}
            rows.append((f"{megabytes} MB", backend, found["start"], *(found[does] for does in _DOES)))
            print(json.dumps({megabytes: {backend: found}}), flush=True)
    report(
        "checkpoint_memory",
        title="Peak of anonymous memory, MB",
        columns=("state", "backend", "start", *_DOES),
        rows=rows,
        result=result,
        draw=lambda axes: grouped_bars(
            axes,
            [f"{size} {backend}" for size, backend, *_ in rows],
            {does: [row[3 + at] for row in rows] for at, does in enumerate(_DOES)},
            ylabel="MB",
        ),
    )


if __name__ == "__main__":
    main()
