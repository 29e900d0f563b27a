"""How much memory and time timers take that are more than memory should hold.

    python -m benchmarks.timers [--timers 10000000] [--due 1000000] [--backends spillable rocksdb]

A `Harness` sets so many timers, one a key, at times that come in no order, with a checkpoint after each 50,000 as a
stream would write. Then the watermark passes as many of them as shall be due, in one advance: each handler checks that
time did not go back. Then a full checkpoint is written, and restored in a process of its own, which asks for the next
timer. The heap that spills has a limit of 512 MB; RocksDB has its usual buffers.

Each figure is the peak of the anonymous memory (`RssAnon`) meanwhile. Pages of files, spill files among them, do not
count: the system takes them back. What one advance changes stays in memory until it is committed, on each backend.

Bar: each peak is at most 512 MB.
"""

import argparse
import json
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.checkpoint_memory import peak
from benchmarks.report import grouped_bars, report
from millpond.state.testing.harness import Harness

LIMIT_MB = 512

_AT_ONCE = 50_000
_STEP = 7_368_787  # a prime, so that every time below the number of timers comes once
_PHASES = ("register", "fire", "checkpoint", "restore")


class _Alarms:
    """Sets a timer for each record; counts those that fire, and whether each is due no earlier than the one before."""

    fired = 0
    last_ms = -1
    in_order = True

    def open(self, states: Any) -> None:
        """There is no state but the timers."""

    def process(self, _key: int, record: tuple[int, int], context: Any) -> None:
        context.event_timers.register(record[1])

    def on_timer(self, _key: int, timer: Any, _context: Any) -> None:
        alarms = type(self)
        alarms.fired += 1
        alarms.in_order &= alarms.last_ms <= timer.at_ms
        alarms.last_ms = timer.at_ms


def _harness(backend: str, folder: Path) -> Harness:
    options = {
        "state.backend.type": backend,
        f"state.backend.{backend}.{'paths' if backend == 'spillable' else 'local-dir'}": str(folder / "local"),
    }
    if backend == "spillable":
        options["state.backend.spillable.memory-limit"] = f"{LIMIT_MB} mb"
    return Harness(
        _Alarms, key=lambda record: record[0], key_type=int, options=options, storage=str(folder / "checkpoints")
    )


def _register(harness: Harness, timers: int) -> None:
    for first in range(0, timers, _AT_ONCE):
        harness.process_many((at, at * _STEP % timers) for at in range(first, min(first + _AT_ONCE, timers)))
        harness.checkpoint()


def _measure(does: str, backend: str, timers: int, due: int, folder: Path, answers: Any) -> None:
    (folder / "local").mkdir(exist_ok=True)
    found: dict[str, Any] = {}

    def measured(phase: str, act: Any) -> None:
        began, cpu = time.monotonic(), time.process_time()
        with peak() as highest:
            act()
            found[f"{phase}_mb"] = round(highest())
        found[f"{phase}_seconds"] = round(time.monotonic() - began, 1)
        found[f"{phase}_cpu_seconds"] = round(time.process_time() - cpu, 1)

    with _harness(backend, folder) as harness:
        if does == "restore":

            def restore() -> None:
                harness.restore()
                # One more timer is due, and it is the next one.
                harness.advance_watermark(due)

            measured("restore", restore)
            expected, last_ms = 1, due
        else:
            measured("register", lambda: _register(harness, timers))
            measured("fire", lambda: harness.advance_watermark(due - 1))
            measured("checkpoint", lambda: harness.checkpoint(full=True))
            expected, last_ms = due, due - 1
        if (_Alarms.fired, _Alarms.last_ms, _Alarms.in_order) != (expected, last_ms, True):
            raise RuntimeError(f"{backend}: {_Alarms.fired} timers fired, the last at {_Alarms.last_ms} ms.")
    answers.put(found)


def measured(backend: str, timers: int, due: int) -> dict[str, float]:
    """Peaks and seconds of one backend: the restore in a process of its own, so that memory starts empty."""
    folder = Path(tempfile.mkdtemp(prefix="timers-"))
    found: dict[str, float] = {}
    try:
        for does in ("set", "restore"):
            context = multiprocessing.get_context("spawn")
            answers = context.Queue()
            process = context.Process(target=_measure, args=(does, backend, timers, due, folder, answers))
            process.start()
            process.join()
            if process.exitcode:
                raise RuntimeError(f"{does} on {backend} with {timers} timers ended with exit code {process.exitcode}.")
            found |= answers.get()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def bars(found: Mapping[str, float]) -> dict[str, bool]:
    """Which bars hold."""
    return {phase: found[f"{phase}_mb"] <= LIMIT_MB for phase in _PHASES}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timers", type=int, default=10_000_000)
    parser.add_argument("--due", type=int, default=1_000_000)
    parser.add_argument("--backends", nargs="+", default=["spillable", "rocksdb"], choices=["spillable", "rocksdb"])
    given = parser.parse_args()
    if not 0 < given.due < given.timers or given.timers % _STEP == 0:
        parser.error(f"expected --due above 0 and below --timers, and timers that are no multiple of {_STEP}.")
    result: dict[str, Any] = {"timers": given.timers, "due": given.due, "limit_mb": LIMIT_MB}
    rows = []
    for backend in given.backends:
        found = measured(backend, given.timers, given.due)
        result[backend] = {**found, "bars": bars(found)}
        rows += [(backend, phase, found[f"{phase}_mb"], found[f"{phase}_seconds"]) for phase in _PHASES]
        print(json.dumps({backend: found}), flush=True)
    report(
        "timers",
        title=f"{given.timers:,} timers, of which {given.due:,} fire in one advance",
        columns=("backend", "phase", "peak of anonymous memory, MB", "seconds"),
        rows=rows,
        result=result,
        draw=lambda axes: grouped_bars(
            axes,
            list(_PHASES),
            {backend: [result[backend][f"{phase}_mb"] for phase in _PHASES] for backend in given.backends},
            ylabel="MB",
        ),
    )


if __name__ == "__main__":
    main()
