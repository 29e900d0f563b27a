"""Which size of RocksDB's write buffers is faster: 8 MiB, Millpond's, or 64 MiB, Flink's.

Counts and longer values, one read and one write a record, over keys that are equally likely: a thousand of them, which
are written again and again, or a state that no write buffer holds. Two databases, alike but for their buffers, take
turns of some seconds; so a slow
moment of the machine meets both. A ratio is the median of the turns, and its spread their middle half. The clock of a
turn includes what the writer waits for; the processor time includes RocksDB's flushes and compactions. Both databases
are the backend's, so without a write-ahead log. Keys have 20 bytes, as the backend writes them.

    .venv/bin/python -m benchmarks.write_buffer                    # some minutes
    .venv/bin/python -m benchmarks.write_buffer --scale 0.05       # quick: no result is kept
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import grouped_bars, report
from millpond.state.rocksdb.database import BLOCK_CACHE_BYTES, WRITE_BUFFER_BYTES, Database

STATES = ((4, 1_000), (4, 4_000_000), (40, 4_000_000), (250, 1_000), (250, 1_000_000), (1_000, 300_000))
"""The bytes of a value, and how many there are."""
FLINKS_BYTES = 64 << 20
TURNS = 12
RECORDS = 200_000
"""Of a turn."""


class Turn(NamedTuple):
    """What a turn took for a record, in µs."""

    wall_us: float
    processor_us: float


class Job:
    """One database, filled."""

    def __init__(self, folder: Path, buffer_bytes: int, keys: int, value_bytes: int) -> None:
        self.database = Database(folder, buffer_bytes, BLOCK_CACHE_BYTES)
        self._keys, self._rng = keys, random.Random(value_bytes)
        self._values = [self._rng.randbytes(value_bytes // 2).ljust(value_bytes, b".") for _ in range(100)]
        for first in range(0, keys, 10_000):
            places = [_key(number) for number in range(first, min(first + 10_000, keys))]
            self.database.write(places, [self._values[at % 100] for at in range(len(places))])

    def turn(self, records: int) -> Turn:
        """Read and write so many of the keys."""
        some = [_key(self._rng.randrange(self._keys)) for _ in range(records)]
        handle, values = self.database.handle, self._values
        get = handle.get
        version = self.database.snapshot()  # as a commit does
        started, used = time.perf_counter(), time.process_time()
        for number, at in enumerate(some):
            assert get(at) is not None
            try:
                handle[at] = values[number % 100]
            except Exception as error:  # noqa: BLE001 - rocksdict raises nothing else
                self._wait(error, at, values[number % 100])
        del version
        return Turn((time.perf_counter() - started) / records * 1e6, (time.process_time() - used) / records * 1e6)

    def _wait(self, error: Exception, at: bytes, value: bytes) -> None:
        self.database.write_again(error, lambda: self.database.handle.__setitem__(at, value))


def _key(number: int) -> bytes:
    return b"\0\0\0\1\0" + bytes([number % 128]) + b"\0\0\0\x0auser%08d" % number


def measure(value_bytes: int, keys: int, turns: int, records: int) -> dict[str, list[Turn]]:
    """By the buffers' size what each turn took, but the first."""
    with tempfile.TemporaryDirectory(prefix="millpond-write-buffer-") as folder, ExitStack() as opened:
        jobs = {}
        for name, size in (("8", WRITE_BUFFER_BYTES), ("64", FLINKS_BYTES)):
            jobs[name] = Job(Path(folder, name), size, keys, value_bytes)
            opened.callback(jobs[name].database.close)
        found: dict[str, list[Turn]] = {name: [] for name in jobs}
        for _ in range(turns + 1):
            for name, job in jobs.items():
                found[name].append(job.turn(records))
        return {name: each[1:] for name, each in found.items()}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    scale = parser.parse_args().scale
    rows: list[tuple[object, ...]] = []
    result: dict[str, dict[str, object]] = {}
    for value_bytes, keys in STATES:
        found = measure(value_bytes, max(1_000, int(keys * scale)), TURNS, int(RECORDS * min(1.0, scale * 4)))
        pairs = list(zip(found["8"], found["64"], strict=True))
        low, speedup, high = statistics.quantiles([large.wall_us / small.wall_us for small, large in pairs], n=4)
        processor = statistics.median(small.processor_us / large.processor_us for small, large in pairs)
        us = {name: round(statistics.median(turn.wall_us for turn in turns), 2) for name, turns in found.items()}
        result[f"{value_bytes} x {keys}"] = {
            "wall_us": us,
            "speedup": round(speedup, 2),
            "spread": [round(low, 2), round(high, 2)],
            "processor": round(processor, 2),
        }
        shown = f"{speedup:.2f} ({low:.2f}–{high:.2f})"
        rows.append((f"{value_bytes:,} bytes", f"{keys:,}", us["8"], us["64"], shown, round(processor, 2)))
    if scale < 1:
        print(json.dumps(result))
        return
    report(
        "write_buffer",
        title="RocksDB with write buffers of 8 and of 64 MiB, µs a record",
        columns=("values of", "keys", "8 MiB", "64 MiB", "speed, 64 MiB = 1", "processor time, 64 MiB = 1"),
        rows=rows,
        result=result,
        draw=lambda axes: grouped_bars(
            axes,
            [f"{size:,} bytes\n{keys:,} keys" for size, keys in STATES],
            {"buffers of 8 MiB": [float(str(each["speedup"])) for each in result.values()]},
            ylabel="speed, buffers of 64 MiB = 1",
        ),
    )


if __name__ == "__main__":
    main()
