"""Keyed streams whose processor is told by its rows to misbehave: `python hungry_job.py FOLDER LIMIT DEED...`.

LIMIT is `spark.executor.pyspark.memory`; for each deed FOLDER has a folder with events. Each batch that fails is told
of, and the query started again once there is room.
"""

import mmap
import os
import resource
import secrets
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import StateConfig, keyed, session
from millpond.spark.host.memory import mapped_bytes, memory_limit_bytes

STATE_BYTES = 100_000
_ROOM = resource.RLIM_INFINITY
_FULL = {"fill": 64 << 10, "choke": 1 << 20}
"""To how many bytes a file may grow on a disk that is full: the host's own, or that of Spark's state store."""

_NO_RESERVE = 0x4000
"""Linux's MAP_NORESERVE, which Python names from 3.12 on."""

_CONFIGS = {"fill": StateConfig("rocksdb", options={"state.backend.rocksdb.write-buffer-size": "64kb"})}


class Hungry(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long, padding string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self._count.get()
        for row in rows:
            with Path(row.folder, "hosts").open("a") as hosts:
                hosts.write(f"{os.getpid()}\n")
            if not Path(row.folder, "fed").exists():
                _misbehave(row.deed, Path(row.folder))
            before = ((before[0] if before else 0) + 1, secrets.token_hex(STATE_BYTES // 2))
        self._count.update(before)
        yield Row(user=key[0], n=before[0])

    def close(self) -> None:
        pass


def _misbehave(deed: str, folder: Path) -> None:
    if deed == "eat":
        bytearray(64 << 30)
    if deed == "leak" and not hasattr(sys, "leaked"):
        # Address space that is not used, and that no batch gives back.
        room = memory_limit_bytes() - mapped_bytes()
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        sys.leaked = mmap.mmap(-1, room * 91 // 100, flags=flags)
    if deed in _FULL:
        # As on a disk that is full: files can grow no more, until somebody has made room.
        # A state host is told its executor as the last argument.
        victim = os.getpid() if deed == "fill" else int(sys.argv[-1])
        (folder / "victim").write_text(str(victim))
        resource.prlimit(victim, resource.RLIMIT_FSIZE, (_FULL[deed], _ROOM))


def wait_until_gone(process: int) -> None:
    pause = threading.Event()
    if not any(not psutil.pid_exists(process) or pause.wait(0.1) for _ in range(600)):
        raise TimeoutError(f"the host {process} was not replaced")


def main() -> None:
    folder, limit, *deeds = sys.argv[1:]
    spark = session(
        "hungry",
        master="local[1]",
        spark__sql__shuffle__partitions="1",
        spark__ui__enabled="false",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        spark__executor__pyspark__memory=limit,
    )
    spark.sparkContext.setLogLevel("FATAL")
    for deed in deeds:
        run(spark, Path(folder, deed), deed)
    print("done", flush=True)


def run(spark: SparkSession, folder: Path, deed: str) -> None:
    def tell(batch: DataFrame, batch_id: int) -> None:
        counts = {row.user: row.n for row in batch.collect()}
        print(deed, "batch", batch_id, sorted(set(counts.values())), len(counts), flush=True)
        if deed == "leak":
            hosts = list(dict.fromkeys((folder / "hosts").read_text().split()))
            print(deed, "hosts", len(hosts), flush=True)
            if batch_id == 1:
                wait_until_gone(int(hosts[-1]))

    reader = spark.readStream.schema("user string, deed string, folder string").option("maxFilesPerTrigger", 1)
    counts = keyed(reader.json(str(folder / "events")), "user").transformWithState(
        Hungry(), "user string, n long", "Update", "None", state=_CONFIGS.get(deed, StateConfig())
    )
    writer = counts.writeStream.foreachBatch(tell).outputMode("update").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    for _ in range(2):
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as error:
            print(deed, "failed", " ".join(str(error).split()), flush=True)
            (folder / "fed").touch()
            if (folder / "victim").exists():
                resource.prlimit(int((folder / "victim").read_text()), resource.RLIMIT_FSIZE, (_ROOM, _ROOM))


if __name__ == "__main__":
    main()
