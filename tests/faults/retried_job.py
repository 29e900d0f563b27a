"""Streams of one session that retries tasks, each befallen by something in its second batch: `FOLDER [DEED]`.

Every event has an id, and the state of a key is the list of its ids. Each call of the processor leaves a line in the
file `calls`: deed, batch, partition, attempt, process, user. At the end of each stream a line of JSON tells what came
out, batch by batch, and why it ended if that was not at the end of its files.
"""

import contextlib
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from millpond.spark import StateConfig, keyed, session
from millpond.spark.runtime.slots import Slot
from millpond.state.spillable import SpillableBackend
from millpond.state.spillable.spill_file import SpillFile
from tests.faults.keyed_history import History

_SPILLS_AT_ONCE = {
    "state.backend.spillable.memory-limit": "1gb",
    "state.backend.spillable.high-watermark.ratio": "0.03",
    "state.backend.spillable.load-end.ratio": "0.02",
    "state.backend.spillable.load-start.ratio": "0.01",
    "state.backend.spillable.trigger-interval": "1 ms",
    "state.backend.spillable.heap-status.check-interval": "1 ms",
}
CONFIGS = {
    "killed host": StateConfig(),
    "killed worker": StateConfig(),
    "idle workers": StateConfig(),
    "spill file": StateConfig("spillable", options=_SPILLS_AT_ONCE),
    "page of a spill file": StateConfig("spillable", options=_SPILLS_AT_ONCE, hosts=2),
    "rocksdb folder": StateConfig("rocksdb", options={"state.backend.rocksdb.write-buffer-size": "64kb"}),
}
BATCHES = 3
PAGE_BYTES = 4_096
PADDING = "x" * 2_000
"""Enough state for RocksDB to write files."""


def wait_for(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    if not any(condition() or pause.wait(0.02) for _ in range(3000)):
        raise TimeoutError("it did not come")


class Befallen(History):
    """Appends ids to its user's list; something befalls the first call of the second batch."""

    def __init__(self, deed: str, folder: Path) -> None:
        self._deed = deed
        self._folder = folder

    def init(self, handle: Any) -> None:
        super().init(handle)
        self._padding = handle.getValueState("padding", "text string")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        task = TaskContext.get()
        batch = int(task.getLocalProperty("streaming.sql.batchId"))
        with (self._folder / "calls").open("a") as calls:
            said = [self._deed, batch, task.partitionId(), task.attemptNumber(), os.getpid(), key[0]]
            calls.write(json.dumps(said) + "\n")
        self._padding.update((PADDING,))
        marker = self._folder / f"{self._deed}-{task.partitionId()}"
        if batch == 1 and not marker.exists():
            marker.touch()
            befall(self._deed, task)
        yield from super().handleInputRows(key, rows, timerValues)


def befall(deed: str, task: Any) -> None:
    if deed == "killed host" and task.partitionId() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "killed worker" and task.partitionId() == 0:
        # A state host is told its executor as the last argument.
        kill_workers(psutil.Process(int(sys.argv[-1])))
        wait_for(lambda: has_come_after(task.taskAttemptId()))
    if deed == "idle workers":
        raise ValueError("the first attempt")
    if deed in ("spill file", "rocksdb folder"):
        spoiled = spoil(".sst" if deed == "rocksdb folder" else "millpond-spill")
        assert spoiled, "there was nothing to spoil"
    if deed == "page of a spill file":
        spill_all()
        assert flip_bits(), "there was no page"


def spill_all() -> None:
    """Spill all key groups of the shard that is at work: a host has one of each stream, and the others rest."""
    (backend,) = (each for each in gc.get_objects() if isinstance(each, SpillableBackend) and each._owner._taken)
    backend.spill_now(backend.key_groups)


def flip_bits() -> int:
    """Flip a bit within every page of the host's spill files, as of a disk that is read again; how many there were.

    Files of former streams are among them, whose key groups rest in the host's memory and on its disk.
    """
    flipped = 0
    for file in [each for each in gc.get_objects() if isinstance(each, SpillFile)]:
        # Under the lock, since a page that was compared may be used.
        with file.lock:
            if file._pages.closed:
                continue
            file._end_reading()
            file._seals.check_again()
            with Path(f"/proc/self/fd/{file._pages.fileno()}").open("r+b", buffering=0) as disk:
                for page in range(0, os.fstat(disk.fileno()).st_size, PAGE_BYTES):
                    place = page + PAGE_BYTES * 3 // 4
                    os.pwrite(disk.fileno(), bytes([os.pread(disk.fileno(), 1, place)[0] ^ 8]), place)
                    flipped += 1
    return flipped


def has_come_after(attempt: int) -> bool:
    """Whether a later attempt waits for a shard of this host."""
    slots = [each for each in gc.get_objects() if isinstance(each, Slot)]
    return any(slot._latest.attempt.order > attempt for slot in slots)


def kill_workers(executor: psutil.Process) -> None:
    """Kill -9 the Python workers of an executor, and leave their daemon."""
    for each in executor.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "pyspark.daemon" in each.cmdline() and "pyspark.daemon" in each.parent().cmdline():
                each.kill()


def spoil(name: str) -> int:
    """Write over every file of such a name that this process has open; how many there were."""
    spoiled = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if name in str(link.readlink()) and os.fstat(int(link.name)).st_size:
                with link.open("r+b") as file:
                    file.write(b"\xa5" * os.fstat(file.fileno()).st_size)
                spoiled += 1
    return spoiled


def main() -> None:
    folder = Path(sys.argv[1])
    spark = session(
        "retried",
        master="local[2,4]",
        spark__sql__shuffle__partitions="2",
        spark__ui__enabled="false",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
    )
    spark.sparkContext.setLogLevel("FATAL")
    for deed, config in CONFIGS.items() if len(sys.argv) == 2 else [(sys.argv[2], CONFIGS[sys.argv[2]])]:
        print(json.dumps({"deed": deed, **run(spark, folder, deed, config)}), flush=True)


def run(spark: SparkSession, folder: Path, deed: str, config: StateConfig) -> dict[str, Any]:
    batches: list[dict[str, list[int]]] = []

    def keep(batch: DataFrame, _: int) -> None:
        batches.append({row.user: row.history for row in batch.collect()})
        if deed == "idle workers":
            # As Spark does with those that had no task for a minute.
            kill_workers(psutil.Process())

    reader = spark.readStream.schema("id long, user string").option("maxFilesPerTrigger", 1)
    histories = keyed(reader.parquet(str(folder / "events")), "user").transformWithState(
        Befallen(deed, folder), "user string, history array<long>", "Update", "None", state=config
    )
    writer = histories.writeStream.foreachBatch(keep).outputMode("update").trigger(availableNow=True)
    try:
        writer.option("checkpointLocation", str(folder / deed)).start().awaitTermination()
    except StreamingQueryException as error:
        return {"batches": batches, "failed": " ".join(str(error).split())[:10_000]}
    return {"batches": batches, "failed": None}


if __name__ == "__main__":
    main()
