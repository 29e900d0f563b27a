"""Keyed state in Spark that is large: what a batch costs as state grows, and how soon state is back after a restart.

Two claims. A batch costs what it touches, and not what is held: with state in RocksDB a stream fills up
to five million keys, and in between come batches of 20,000 keys that are there already; their time
should stay as it is, and memory within 8 GiB. And a restart is quick: a million keys are filled, the
application ends with all its processes, and another one goes on from the checkpoint. What its first
batch takes longer than the first batch of an application without state, which starts as cold, is the
restore.

Every part is an application of its own, in a process of its own, on two cores. Memory is the largest
sum of what all its processes hold (JVM, Python workers, state hosts), sampled; pages that two of them
share count for both. Run it with nothing else running, in about eight minutes:

    .venv/bin/python -m benchmarks.spark_large_state
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import grouped_bars, report
from benchmarks.spark_stateful import OUTPUT, Spending
from millpond.spark import StateConfig, keyed, session

FILLED = 500_000
TOUCHED = 20_000
FILES_PER_BATCH = 2
TOUCHED_AT = (500_000, 1_000_000, 2_500_000, 5_000_000)
RESTARTED_AT = 1_000_000
_MARK = "MILLPOND_BENCHMARK"
_SAMPLE_SECONDS = 0.5


@dataclass(frozen=True)
class Part:
    """What one application did: the seconds of each of its batches, and the most memory that it held."""

    seconds: list[float]
    peak_bytes: int


def write_batch(folder: Path, number: int, keys: "np.ndarray[Any, Any]") -> None:
    """One micro-batch with these keys, a row each."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(number)
    for part, share in enumerate(np.array_split(random.permutation(keys), FILES_PER_BATCH)):
        table = pa.table({"user": [f"user-{key:09d}" for key in share], "amount": random.random(len(share))})
        file = folder / f"{number:04d}-{part}.parquet"
        pq.write_table(table, file)
        # Spark takes files in the order of their times, in whole seconds on some file systems.
        os.utime(file, (1_700_000_000 + number,) * 2)


def write_growing(folder: Path) -> list[tuple[int, int]]:
    """State that grows to the largest size; for each batch the keys held after it, and the keys touched in it."""
    batches = []
    for held in range(FILLED, max(TOUCHED_AT) + 1, FILLED):
        write_batch(folder, len(batches), np.arange(held - FILLED, held))
        batches.append((held, FILLED))
        if held in TOUCHED_AT:
            for _ in range(3):
                write_batch(
                    folder, len(batches), np.random.default_rng(len(batches)).choice(held, TOUCHED, replace=False)
                )
                batches.append((held, TOUCHED))
    return batches


def run_part(events: Path, checkpoint: Path, backend: str) -> Part:
    """Run one application over whatever batches its checkpoint has not seen."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "benchmarks.spark_large_state", "--part", str(events), str(checkpoint), backend]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {_MARK: mark}, text=True)
    peak, ended = [0], threading.Event()
    sampler = threading.Thread(target=_sample, args=(mark, peak, ended))
    sampler.start()
    output, _ = child.communicate()
    ended.set()
    sampler.join()
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}")
    return Part(json.loads(output.splitlines()[-1]), peak[0])


def _sample(mark: str, peak: list[int], ended: threading.Event) -> None:
    while not ended.wait(_SAMPLE_SECONDS):
        held = 0
        for process in psutil.process_iter():
            try:
                if process.environ().get(_MARK) == mark:
                    held += process.memory_info().rss
            except psutil.Error:
                continue
        peak[0] = max(peak[0], held)


def application(events: Path, checkpoint: Path, backend: str) -> list[float]:
    """The application itself: every batch's seconds, by Spark's own clock."""
    spark = session(
        "spark_large_state", master="local[2]", spark__sql__shuffle__partitions="2", spark__ui__enabled="false"
    )
    spark.sparkContext.setLogLevel("ERROR")
    stream = spark.readStream.schema("user string, amount double").option("maxFilesPerTrigger", FILES_PER_BATCH)
    spending = keyed(stream.parquet(str(events)), "user").transformWithState(
        Spending(), OUTPUT, "Update", "None", state=StateConfig(backend)
    )
    query = (
        spending.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = [each["durationMs"]["triggerExecution"] / 1000 for each in query.recentProgress if each["numInputRows"]]
    spark.stop()
    return found


def main() -> None:
    """Measure both claims."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", nargs=3, metavar=("EVENTS", "CHECKPOINT", "BACKEND"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.part:
        events, checkpoint, backend = chosen.part
        print(json.dumps(application(Path(events), Path(checkpoint), backend)))
        return
    with tempfile.TemporaryDirectory(prefix="millpond-benchmark-") as folder:
        touched, peak_gib = _growing(Path(folder))
        restarts = {backend: _restart(Path(folder), backend) for backend in ("heap", "rocksdb")}
    _report(touched, peak_gib, restarts)


def _growing(folder: Path) -> tuple[dict[int, float], float]:
    """The median seconds of a batch that touches few keys, by keys held; and the memory."""
    batches = write_growing(folder / "growing")
    part = run_part(folder / "growing", folder / "growing-checkpoint", "rocksdb")
    touched: dict[int, list[float]] = {held: [] for held in TOUCHED_AT}
    for (held, keys), seconds in zip(batches, part.seconds, strict=True):
        if keys == TOUCHED:
            touched[held].append(seconds)
    print(f"growing: {touched}, {part.peak_bytes / 2**30:.1f} GiB", file=sys.stderr, flush=True)
    return {held: round(float(np.median(seconds)), 2) for held, seconds in touched.items()}, part.peak_bytes / 2**30


def _restart(folder: Path, backend: str) -> float:
    """How much longer an application's first batch takes where a million keys are in its checkpoint."""
    events = folder / f"restart-{backend}"
    filled = RESTARTED_AT // FILLED
    for number in range(filled):
        write_batch(events, number, np.arange(number * FILLED, (number + 1) * FILLED))
    run_part(events, folder / f"{backend}-checkpoint", backend)
    few = folder / f"few-{backend}"
    for number in range(filled, filled + 2):
        keys = np.random.default_rng(number).choice(RESTARTED_AT, TOUCHED, replace=False)
        write_batch(events, number, keys)
        write_batch(few, number, keys)
    restarted = run_part(events, folder / f"{backend}-checkpoint", backend).seconds
    fresh = run_part(few, folder / f"{backend}-fresh-checkpoint", backend).seconds
    print(f"restart, {backend}: {restarted} s, without state {fresh} s", file=sys.stderr, flush=True)
    return round(restarted[0] - fresh[0], 2)


def _report(touched: dict[int, float], peak_gib: float, restarts: dict[str, float]) -> None:
    rows = [
        (f"a batch of {TOUCHED:,} keys, {held:,} in state", f"{seconds:.2f} s") for held, seconds in touched.items()
    ]
    rows.append(("most memory of all processes, up to 5,000,000 keys in RocksDB", f"{peak_gib:.1f} GiB"))
    rows += [
        (f"state of {RESTARTED_AT:,} keys back after a restart, {backend}", f"{seconds:.2f} s")
        for backend, seconds in restarts.items()
    ]
    report(
        "spark_large_state",
        title=f"Large keyed state in Spark: seconds of a batch of {TOUCHED:,} keys",
        columns=("what", "measured"),
        rows=rows,
        result={
            "batch_seconds": {str(held): seconds for held, seconds in touched.items()},
            "peak_gib": round(peak_gib, 2),
            "restart_seconds": restarts,
        },
        draw=lambda axes: grouped_bars(
            axes, [f"{held:,}" for held in touched], {"RocksDB": list(touched.values())}, ylabel="seconds"
        ),
    )


if __name__ == "__main__":
    main()
