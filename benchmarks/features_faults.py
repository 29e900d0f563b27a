"""What is left of uploads and streams whose driver was killed: a run for `benchmarks.features`.

    .venv/bin/python -m benchmarks.features_faults upload|stream FOLDER    # the job that is killed

The jobs read the files of a folder and write into LMDB. The parent kills the whole process group of a job (driver, JVM,
Python workers, state hosts) after a time drawn at random, again and again, looks at the store after each kill, and lets
a last run end. Every event is one in a count, so what is missing or counted twice shows.
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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
B = 20_000 * DAY_MS
FAULTS = ("lost", "twice", "mixed_generations", "half_uploads_seen")
LEAST_S, MOST_S = 6.0, 16.0
"""A job is killed so long after its start: while its session starts, in its work, or near its end."""

VISITS = GroupBy(
    "visits",
    keys=(Field("user", "long"),),
    inputs=(Field("price", "double"),),
    aggregations=(Aggregation("count", windows=("1h", None)), Aggregation("sum", "price", ("1h",))),
)
PLAN = compile_group_by(VISITS)


def faults(folder: Path, kills: int) -> dict[str, int]:
    """Kill uploads and streams so many times each, and count what should not be."""
    counted = dict.fromkeys(FAULTS, 0)
    rng = random.Random(17)
    for job in ("upload", "stream"):
        own = folder / job
        expected = _write_events(own / "events", before_batch_end=job == "upload")
        for _ in range(kills):
            _run(job, own, rng.uniform(LEAST_S, MOST_S))
            _look(job, own, counted)
        code = _run(job, own, None)
        assert code == 0, f"the last run of the {job} failed: see {own}/job.log"
        _look(job, own, counted)
        _compare(_counts(job, own), expected, counted)
    return counted


def _write_events(folder: Path, *, before_batch_end: bool) -> Counter[int]:
    rng = np.random.default_rng(19)
    folder.mkdir(parents=True)
    expected: Counter[int] = Counter()
    for number in range(FILES):
        users = rng.integers(0, USERS, ROWS)
        start = B - DAY_MS if before_batch_end else B + number * PLAN.tile_ms
        times = start + rng.integers(0, PLAN.tile_ms, ROWS)
        pq.write_table(
            pa.table({"user": users, "time_ms": times, "price": rng.random(ROWS)}), folder / f"{number:04}.parquet"
        )
        expected.update(users.tolist())
    return expected


def _run(job: str, folder: Path, seconds: float | None) -> int:
    """Run a job, to its end or until it is killed with all that belongs to it."""
    with (folder / "job.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.features_faults", job, str(folder)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            _end_group(process)


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


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

    spark = session("faults", master="local[2,4]", spark__ui__enabled="false", spark__sql__shuffle__partitions="2")
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


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(json.dumps({"faults": "is run by benchmarks.features"}))
    _job(sys.argv[1], Path(sys.argv[2]))
