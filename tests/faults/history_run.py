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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

from tests.faults.keyed_history import FILES_PER_BATCH

JOB = Path(__file__).parent / "keyed_history.py"
ROOT = Path(__file__).parents[2]
ROWS, USERS = 400, 150
GONE_SECONDS = 10
HOST = "millpond.spark.runtime.server"
EXECUTOR = "CoarseGrainedExecutorBackend"
SHORT_LIVED = {"JAVA_TOOL_OPTIONS": os.environ.get("SPARK_SUBMIT_OPTS", "")}
"""The options of all JVMs of the tests, for those too that a JVM starts."""
LOCAL = "local[2,8]"
LOCAL_CLUSTER = "local-cluster[2,1,1024]"


def write_events(folder: Path, draw: random.Random, files: int) -> None:
    folder.mkdir()
    for number in range(files):
        ids = list(range(number * ROWS, (number + 1) * ROWS))
        users = [f"user-{draw.randrange(USERS)}" for _ in ids]
        path = folder / f"{number:04d}.parquet"
        pq.write_table(pa.table({"id": ids, "user": users}), path)
        # Spark takes files in the order of their times, in whole seconds on some file systems.
        os.utime(path, (1_700_000_000 + number,) * 2)


def command(process: psutil.Process) -> list[str]:
    """A process's command line; nothing for one that has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def children(process: psutil.Process) -> list[psutil.Process]:
    """A process's children and theirs; none for one that has just ended."""
    try:
        return process.children(recursive=True)
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
    """One run of the streaming job, until it ends or is killed. A context manager: leaving it kills what is left.

    Args:
        folder: with the events; it gets checkpoint, output and logs.
        master: Spark's.
        workers: the daemons that start the executors, where the job itself does not.
        script: the job.
        settings: Spark's, with `__` for dots, and the job's own.
    """

    def __init__(
        self,
        folder: Path,
        master: str = LOCAL,
        workers: Sequence[psutil.Process] = (),
        script: Path = JOB,
        **settings: str,
    ) -> None:
        self.folder = folder
        self.workers = workers
        arguments = [str(folder / name) for name in ("events", "checkpoint", "output")]
        found = os.pathsep.join((str(ROOT), *filter(None, sys.path)))
        environment = os.environ | SHORT_LIVED | {"PYTHONPATH": found}
        if master.startswith("local-cluster"):
            environment["SPARK_HOME"] = str(spark_home(folder))
        if master != LOCAL:
            settings["spark__executorEnv__PYTHONPATH"] = found
            # Executors that are killed on purpose are no reason to give up.
            settings.setdefault("spark__task__maxFailures", "8")
        self.log = (folder / "job.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments, master, json.dumps(settings)],
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

    def kill(self, victim: str) -> list[psutil.Process]:
        """Kill -9 all processes of a kind, of executors one; which they were."""
        family = self.family()
        if victim == "driver":
            chosen = family
        elif victim == "worker":
            below = {each for executor in self.executors() for each in children(executor)}
            chosen = [each for each in below if "pyspark.daemon" in command(each)]
        elif victim == "executor":
            chosen = self.executors()[:1]
        else:
            chosen = hosts_of(self.executors())
        for each in chosen:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        return chosen

    def family(self) -> list[psutil.Process]:
        """All processes of the job but its hosts."""
        return [*(each for each in children(self.me) if HOST not in command(each)), self.me]

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks."""
        family = [*self.family(), *(child for each in self.workers for child in children(each))]
        commands = {each: command(each) for each in family}
        javas = [each for each, words in commands.items() if words and "java" in words[0]]
        return [each for each in javas if any(EXECUTOR in word for word in commands[each])] or javas

    def finish(self) -> int:
        """Let the job end; its exit code."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.read()
        code = self.process.wait(60)
        self.log.close()
        return code


def hosts_of(executors: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The state hosts of these executors."""
    owners = {str(each.pid) for each in executors}
    commands = {each: command(each) for each in psutil.process_iter()}
    return [each for each, words in commands.items() if HOST in words and words[-1] in owners]


def left_over(hosts: list[psutil.Process], executors: list[psutil.Process]) -> list[object]:
    """Which of these hosts, and what of theirs in the temporary folder, is still there when it should be gone."""
    _, alive = psutil.wait_procs(hosts, timeout=GONE_SECONDS)
    names = [f"millpond-*/executor-{each.pid}-*" for each in executors]
    return [*alive, *(folder for name in names for folder in Path(tempfile.gettempdir()).glob(name))]


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


def check_undisturbed(folder: Path) -> None:
    """Each batch gave what it gives when nothing disturbs it; within a batch the order of a key's rows is Spark's."""
    files = sorted((folder / "events").glob("*.parquet"))
    seen: dict[str, set[int]] = defaultdict(set)
    found = histories(folder)
    assert len(found) == -(-len(files) // FILES_PER_BATCH)
    for number, batch in enumerate(found):
        came = set()
        for path in files[number * FILES_PER_BATCH :][:FILES_PER_BATCH]:
            for at, user in zip(*(column.to_pylist() for column in pq.read_table(path).columns), strict=True):
                seen[user].add(at)
                came.add(user)
        assert {user: sorted(history) for user, history in batch.items()} == {user: sorted(seen[user]) for user in came}


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
