"""Runs the job of `keyed_history.py`, kills what belongs to it, and judges what came out.

A history check in the manner of Jepsen's list-append: every event has an id, the state of a key is
the list of its ids. At the end each id is there exactly once, and every list that ever came out is
a prefix of the last one.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Self

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

JOB = Path(__file__).parent / "keyed_history.py"
ROWS, USERS = 400, 150
HOST = "millpond.spark.host.server"
EXECUTOR = "CoarseGrainedExecutorBackend"
LOCAL = "local[2,8]"
CLUSTER = "local-cluster[2,1,1024]"


def write_events(folder: Path, draw: random.Random, files: int) -> None:
    folder.mkdir()
    for number in range(files):
        ids = list(range(number * ROWS, (number + 1) * ROWS))
        users = [f"user-{draw.randrange(USERS)}" for _ in ids]
        pq.write_table(pa.table({"id": ids, "user": users}), folder / f"{number:04d}.parquet")


def command(process: psutil.Process) -> list[str]:
    """A process's command line; nothing for one that has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def spark_home(folder: Path) -> Path:
    """A Spark whose executors keep their logs and files in this folder instead of in the installed package."""
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for part in ("bin", "jars", "sbin"):
            (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    return home


class Job:
    """One run of the streaming job, until it ends or is killed. A context manager: leaving it kills what is left."""

    def __init__(self, folder: Path, master: str = LOCAL, **settings: str) -> None:
        self.folder = folder
        arguments = [str(folder / name) for name in ("events", "checkpoint", "output")]
        environment = dict(os.environ)
        if master != LOCAL:
            environment["SPARK_HOME"] = str(spark_home(folder))
            settings["spark__executorEnv__PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
            # Executors that are killed on purpose are no reason to give up.
            settings["spark__task__maxFailures"] = "8"
        self.log = (folder / "job.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, str(JOB), *arguments, master, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
        )
        self.me = psutil.Process(self.process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill("driver")
            self.process.wait(60)

    def wait_for_batches(self, count: int) -> bool:
        """Read until that many batches have ended; False when the job ends before."""
        for line in self.process.stdout:
            if line.startswith("done"):
                return False
            count -= line.startswith("batch")
            if count <= 0:
                return True
        raise AssertionError(f"the job stopped by itself: {self.process.wait()}; see {self.log.name}")

    def kill(self, victim: str) -> int:
        """Kill -9 all processes of a kind, of executors one; how many there were."""
        family = self.family()
        if victim == "driver":
            chosen = family
        elif victim == "worker":
            chosen = [each for each in family if "pyspark.daemon" in command(each)]
        elif victim == "executor":
            chosen = self.executors()[:1]
        else:
            chosen = self.hosts()
        for each in chosen:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        return len(chosen)

    def family(self) -> list[psutil.Process]:
        """All processes of the job but its hosts."""
        return [*(each for each in self.me.children(recursive=True) if HOST not in command(each)), self.me]

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks."""
        javas = [each for each in self.family() if command(each)[:1] and "java" in command(each)[0]]
        return [each for each in javas if any(EXECUTOR in word for word in command(each))] or javas

    def hosts(self) -> list[psutil.Process]:
        executors = {str(each.pid) for each in self.executors()}
        return [each for each in psutil.process_iter() if HOST in command(each) and command(each)[-1] in executors]

    def finish(self) -> int:
        """Let the job end; its exit code."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.read()
        code = self.process.wait(60)
        self.log.close()
        return code


def host_folders(executors: list[psutil.Process]) -> list[Path]:
    """What the hosts of these executors have in the temporary folder."""
    return [
        folder for each in executors for folder in Path(tempfile.gettempdir()).glob(f"millpond-*/executor-{each.pid}-*")
    ]


def histories(folder: Path) -> list[dict[str, list[int]]]:
    """What came out of each batch, in order."""
    batches = sorted((folder / "output").glob("batch=*"), key=lambda path: int(path.name.partition("=")[2]))
    out = []
    for batch in batches:
        table = pa.concat_tables(pq.read_table(part) for part in sorted(batch.glob("*.parquet")))
        users = table["user"].to_pylist()
        assert len(users) == len(set(users)), f"{batch.name}: a key came out twice"
        out.append(dict(zip(users, table["history"].to_pylist(), strict=True)))
    return out


def logs(folder: Path) -> list[str]:
    """What each executor of a cluster has logged, those of all its runs."""
    return [log.read_text(errors="replace") for log in folder.glob("spark/work/*/*/stderr")]


def check_history(folder: Path) -> None:
    expected = defaultdict(set)
    for path in sorted((folder / "events").glob("*.parquet")):
        table = pq.read_table(path)
        for at, user in zip(table["id"].to_pylist(), table["user"].to_pylist(), strict=True):
            expected[user].add(at)
    last: dict[str, list[int]] = {}
    for batch in histories(folder):
        for user, history in batch.items():
            assert history[: len(last.get(user, []))] == last.get(user, []), f"{user}: history was rewritten"
            last[user] = history
    for user, ids in expected.items():
        assert sorted(last[user]) == sorted(ids), f"{user}: ids lost or counted twice"
