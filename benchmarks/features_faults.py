"""What is left of uploads and streams of which processes were killed: a run for `benchmarks.features`, and by itself.

    .venv/bin/python -m benchmarks.features_faults [--rounds N]    # kill, look, and print the counts
    .venv/bin/python -m benchmarks.features_faults upload|stream FOLDER    # the job that is killed

The jobs read the files of a folder and write into LMDB, on a cluster of two executors on this machine. At times drawn
at random the parent kills

- the *driver*, with the whole process group of the job: the next run goes on;
- an *executor*: Spark starts another one, and tasks again;
- the *state hosts* of an executor, which a stream alone has: its tasks start others.

After each kill it looks at the store, and in the end it lets a last run end. Every event is one in a count, so what is
missing or counted twice shows.
"""

import argparse
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.killed_job import CLUSTER, KilledJob
from millpond.errors import CorruptionError
from millpond.features import (
    MARKER_ADDRESS,
    Aggregation,
    Field,
    GroupBy,
    compile_group_by,
    layer_of,
    stream_dataset,
)
from millpond.features.windows import DAY_MS
from millpond.kv import Get, LmdbStore
from millpond.spark.features.upload import read_serving_info, upload

USERS = 500
FILES, ROWS = 12, 4_000
"""Of each run of a stream; an upload reads the same files again."""

B = 20_000 * DAY_MS
FAULTS = ("lost", "twice", "mixed_generations", "half_uploads_seen")
VICTIMS = {"upload": ("driver", "executor"), "stream": ("driver", "executor", "host")}
LEAST_S, MOST_S = 6.0, 16.0
"""A driver is killed so long after its start: while its session starts, in its work, or near its end."""

PAUSE_S = 6.0
"""An executor or host is killed at most so long after it was seen to run."""

LOOK_S = 0.5
"""How often it is looked whether one runs."""

LONGEST_S = 600

VISITS = GroupBy(
    "visits",
    keys=(Field("user", "long"),),
    inputs=(Field("price", "double"),),
    aggregations=(Aggregation("count", windows=("1h", None)), Aggregation("sum", "price", ("1h",))),
)
PLAN = compile_group_by(VISITS)


def faults(folder: Path, kills: int) -> dict[str, int]:
    """Kill each kind of process of uploads and streams so many times, and count what should not be.

    Beside `FAULTS` it gives how many were killed, as ``killed_upload_driver`` and so on.
    """
    counted = dict.fromkeys(FAULTS, 0)
    rng = random.Random(17)
    for job, victims in VICTIMS.items():
        run = _Runs(job, folder / job, rng, counted)
        for victim in victims:
            counted[f"killed_{job}_{victim}"] = run.kill(victim, kills)
        run.end()
    return counted


class _Runs:
    """The runs of one job in one folder, one after the other.

    Args:
        job: ``upload`` or ``stream``.
        folder: with events, store, checkpoint and log.
        rng: draws when something is killed.
        counted: where faults are counted.
    """

    def __init__(self, job: str, folder: Path, rng: random.Random, counted: dict[str, int]) -> None:
        self._job = job
        self._folder = folder
        self._rng = rng
        self._counted = counted
        self._expected: Counter[int] = Counter()
        self._files = 0
        (folder / "events").mkdir(parents=True)

    def kill(self, victim: str, times: int) -> int:
        """Run the job until so many of its processes were killed; give how many."""
        killed = 0
        while killed < times:
            with self._run() as job:
                if victim == "driver":
                    if not job.ends_within(self._rng.uniform(LEAST_S, MOST_S)):
                        killed += job.kill_all()
                        self._look()
                    continue
                while killed < times and not job.ends_within(LOOK_S):
                    if job.running(victim) and not job.ends_within(self._rng.uniform(0, PAUSE_S)):
                        killed += job.kill(victim)
                        self._look()
                self._finish(job)
        return killed

    def end(self) -> None:
        """Let a last run end, and compare what the store has with every event."""
        with self._run() as job:
            self._finish(job)
        _compare(_counts(self._job, self._folder), self._expected, self._counted)

    def _run(self) -> KilledJob:
        if self._job == "stream" or not self._files:
            self._expected += _write_events(self._folder / "events", self._files, is_past=self._job == "upload")
            self._files += FILES
        return KilledJob(
            [sys.executable, "-m", "benchmarks.features_faults", self._job, str(self._folder)], self._folder
        )

    def _finish(self, job: KilledJob) -> None:
        assert job.ends_within(LONGEST_S), f"the {self._job} does not end: see {self._folder}/job.log"
        assert job.code == 0, f"the {self._job} failed: see {self._folder}/job.log"
        self._look()

    def _look(self) -> None:
        _look(self._job, self._folder, self._counted)


def _write_events(folder: Path, first: int, *, is_past: bool) -> Counter[int]:
    """Write some files, of which a stream reads one a micro-batch, and give the count of each user in them."""
    rng = np.random.default_rng(19 + first)
    expected: Counter[int] = Counter()
    for number in range(first, first + FILES):
        users = rng.integers(0, USERS, ROWS)
        start = B - DAY_MS if is_past else B + number * PLAN.tile_ms
        times = start + rng.integers(0, PLAN.tile_ms, ROWS)
        pq.write_table(
            pa.table({"user": users, "time_ms": times, "price": rng.random(ROWS)}), folder / f"{number:04}.parquet"
        )
        expected.update(users.tolist())
    return expected


def _look(job: str, folder: Path, counted: dict[str, int]) -> None:
    """Look at what a reader could be served now: a whole upload or none, tiles of one generation."""
    store = LmdbStore(folder / "kv")
    try:
        info = read_serving_info(store, "visits")
        if job == "upload" and info is not None:
            held = sum(bool(rows) for rows in _rows(store, info.batch_dataset))
            counted["half_uploads_seen"] += held != info.rows
    finally:
        store.close()
    try:
        _counts(job, folder)
    except CorruptionError:
        counted["mixed_generations"] += 1


def _counts(job: str, folder: Path) -> Counter[int]:
    """The count of each user, as the store has it."""
    store = LmdbStore(folder / "kv")
    found: Counter[int] = Counter()
    try:
        info = read_serving_info(store, "visits")
        dataset = stream_dataset(PLAN.name, PLAN.generation) if job == "stream" else info and info.batch_dataset
        if dataset is None:
            return found
        for user, rows in enumerate(_rows(store, dataset)):
            key = PLAN.encode_key((user,))
            assert key is not None
            for row in rows:
                if job == "upload":
                    (count, *_) = PLAN.batch_since(PLAN.decode_batch(key, row.value), 0) or (0,)
                    found[user] += count
                elif row.time_ms != MARKER_ADDRESS and layer_of(row.time_ms) == 0:
                    found[user] += PLAN.decode_tile(key, row.value).ir[0]
    finally:
        store.close()
    return found


def _rows(store: LmdbStore, dataset: str) -> list[list[object]]:
    keys = [PLAN.encode_key((user,)) for user in range(USERS)]
    return store.get_many([Get(dataset, key) for key in keys if key is not None])


def _compare(found: Counter[int], expected: Counter[int], counted: dict[str, int]) -> None:
    counted["lost"] += (expected - found).total()
    counted["twice"] += (found - expected).total()


def _job(job: str, folder: Path) -> None:
    """What is killed: an upload, or a stream that reads one file a micro-batch."""
    from millpond.spark import session
    from millpond.spark.features.stream import stream

    spark = session(
        "faults",
        master=CLUSTER,
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        # Executors that are killed on purpose are no reason to give up.
        spark__task__maxFailures="8",
        spark__executorEnv__PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
    )
    store = LmdbStore(folder / "kv")
    schema = "user bigint, time_ms bigint, price double"
    if job == "upload":
        # The lease of the job that died before is not waited for: these clocks are minutes apart.
        begun = int((folder / "job.log").stat().st_size) * 1_000_000 + B + DAY_MS
        tables = {"visits": spark.read.schema(schema).parquet(str(folder / "events"))}
        upload(VISITS, B, store, tables=tables, spark=spark, clock=lambda: begun)
    else:
        events = spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(str(folder / "events"))
        query = stream(
            VISITS,
            store,
            str(folder / "checkpoint"),
            start_ms=B,
            lateness_ms=DAY_MS,
            tables={"visits": events},
            trigger={"availableNow": True},
        )
        query.awaitTermination()
    store.close()


def main() -> None:
    """Run a job, or kill jobs and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="how often each kind of process is killed")
    parser.add_argument("job", nargs="?", choices=tuple(VICTIMS), help="the job that is killed, which needs a folder")
    parser.add_argument("folder", nargs="?", type=Path)
    asked = parser.parse_args()
    if asked.job is not None:
        _job(asked.job, asked.folder)
        return
    with TemporaryDirectory(prefix="millpond-faults-") as folder:
        print(json.dumps({"faults": faults(Path(folder), asked.rounds)}))


if __name__ == "__main__":
    main()
