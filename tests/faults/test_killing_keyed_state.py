"""Kill -9 anything, at any moment: the final state and the output are those of an undisturbed run.

A history check in the manner of Jepsen's list-append: every event has an id, the state of a key is
the list of its ids. At the end each id is there exactly once, and every list that ever came out is
a prefix of the last one.
"""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.spark

JOB = Path(__file__).parent / "keyed_history.py"
FILES, ROWS, USERS = 14, 400, 150
HOST = "millpond.spark.host.server"


def write_events(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    folder.mkdir()
    for number in range(FILES):
        ids = list(range(number * ROWS, (number + 1) * ROWS))
        users = [f"user-{draw.randrange(USERS)}" for _ in ids]
        pq.write_table(pa.table({"id": ids, "user": users}), folder / f"{number:04d}.parquet")


def command(process: psutil.Process) -> list[str]:
    """A process's command line; nothing for one that has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


class Job:
    """One run of the streaming job, until it ends or is killed."""

    def __init__(self, folder: Path) -> None:
        arguments = [str(folder / name) for name in ("events", "checkpoint", "output")]
        self.log = (folder / "job.log").open("a")
        self.process = subprocess.Popen(
            [sys.executable, str(JOB), *arguments], stdout=subprocess.PIPE, stderr=self.log, text=True
        )
        self.me = psutil.Process(self.process.pid)

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
        """Kill -9 all processes of a kind; how many there were."""
        family = [*self.me.children(recursive=True), self.me]
        if victim == "driver":
            chosen = [each for each in family if HOST not in command(each)]
        elif victim == "worker":
            chosen = [each for each in family if "pyspark.daemon" in command(each)]
        else:
            chosen = self.hosts()
        for each in chosen:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        return len(chosen)

    def jvm(self) -> psutil.Process:
        return next(each for each in self.me.children(recursive=True) if command(each)[:1] and "java" in each.name())

    def hosts(self) -> list[psutil.Process]:
        executor = str(self.jvm().pid)
        return [each for each in psutil.process_iter() if HOST in command(each) and command(each)[-1] == executor]

    def finish(self) -> None:
        self.process.stdout.close()
        self.process.wait()
        self.log.close()


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


def test_state_and_output_are_exact_after_hosts_workers_and_the_driver_were_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("MILLPOND_TEST_SEED", "11"))
    print("seed", seed)
    write_events(tmp_path / "events", seed)
    victims = ["host", "worker", "driver", "host"]
    job, killed = Job(tmp_path), defaultdict(int)
    while job.wait_for_batches(1):
        if not victims:
            continue
        victim = victims.pop(0)
        killed[victim] += job.kill(victim)
        if victim == "driver":
            job.finish()
            job = Job(tmp_path)
    job.finish()
    assert job.process.returncode == 0
    assert min(killed[victim] for victim in ("host", "worker", "driver")) > 0, dict(killed)
    check_history(tmp_path)


def test_state_hosts_end_with_their_executor(tmp_path: Path) -> None:
    write_events(tmp_path / "events", seed=5)
    job = Job(tmp_path)
    assert job.wait_for_batches(1)
    jvm, hosts = job.jvm(), job.hosts()
    assert hosts
    job.kill("driver")
    job.finish()
    _, alive = psutil.wait_procs(hosts, timeout=10)
    assert not alive
    assert not list(Path(tempfile.gettempdir()).glob(f"millpond-*/executor-{jvm.pid}"))
