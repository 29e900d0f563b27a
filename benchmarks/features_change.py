"""How many bytes of checkpoint a small batch of the stream of tiles writes, when very many keys have an open tile.

For `benchmarks.features`, and by itself:

    .venv/bin/python -m benchmarks.features_change [--keys N]

The first run gives each of 2,000,000 keys an event in one five-minute tile. The second has 1,000 events of other times
in that tile, each of another key. Counted are the bytes of all files that the second run adds to the checkpoint's
state. Beside that stand the bytes of the changed tiles themselves, with their keys.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.features_ingest import LATENESS_MS, PLAN, SCHEMA, SPENT, B
from millpond.features import stream_dataset
from millpond.kv import Get, LmdbStore
from millpond.spark.features.stream import stream

KEYS, EVENTS = 2_000_000, 1_000


def change(spark: SparkSession, folder: Path, keys: int = KEYS) -> dict[str, int]:
    """Measure the second run."""
    rng = np.random.default_rng(23)
    (folder / "events").mkdir(parents=True)
    _write(folder / "events" / "0.parquet", np.arange(keys), rng)
    _run(spark, folder)
    before = _files(folder)
    changed = rng.choice(keys, min(EVENTS, keys), replace=False)
    _write(folder / "events" / "1.parquet", changed, rng)
    _run(spark, folder)
    written = sum(size for file, size in _files(folder).items() if before.get(file) != size)
    return {"keys": keys, "events": len(changed), "written": written, "changed": _stored_bytes(folder, changed)}


def _write(file: Path, users: "np.ndarray[tuple[int], np.dtype[np.int64]]", rng: np.random.Generator) -> None:
    columns = {
        "user": users,
        "time_ms": B + rng.integers(0, PLAN.tile_ms, len(users)),
        "price": np.round(rng.lognormal(3, 1, len(users)), 2),
    }
    pq.write_table(pa.table(columns), file)


def _run(spark: SparkSession, folder: Path) -> None:
    events = spark.readStream.schema(SCHEMA).parquet(str(folder / "events"))
    store = LmdbStore(folder / "kv", sync=False)
    try:
        query = stream(
            SPENT,
            store,
            str(folder / "checkpoint"),
            start_ms=B,
            lateness_ms=LATENESS_MS,
            tables={"spent": events},
            trigger={"availableNow": True},
        )
        query.awaitTermination()
    finally:
        store.close()


def _files(folder: Path) -> dict[str, int]:
    state = folder / "checkpoint" / "state"
    return {str(file): file.stat().st_size for file in state.rglob("*") if file.is_file()}


def _stored_bytes(folder: Path, users: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> int:
    """The bytes of the tiles of some users as the KV store has them, with their keys."""
    keys = [key for user in users.tolist() if (key := PLAN.encode_key((user,))) is not None]
    store = LmdbStore(folder / "kv", sync=False)
    try:
        found = store.get_many([Get(stream_dataset(PLAN.name, PLAN.generation), key) for key in keys])
    finally:
        store.close()
    assert all(len(rows) == 1 for rows in found)
    return sum(len(key) + len(rows[0].value) for key, rows in zip(keys, found, strict=True))


def main() -> None:
    """Measure, and print the figures."""
    from benchmarks.features import spark_session

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=KEYS, help="how many have an open tile")
    asked = parser.parse_args()
    spark = spark_session()
    try:
        with tempfile.TemporaryDirectory(prefix="millpond-change-") as folder:
            print(json.dumps({"change": change(spark, Path(folder), asked.keys)}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
