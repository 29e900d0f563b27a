"""Kill -9 anything, at any moment: the final state and the output are those of an undisturbed run."""

import os
import random
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

from tests.faults.history_run import (
    CLUSTER,
    LOCAL,
    Job,
    check_history,
    histories,
    host_folders,
    logs,
    write_events,
)
from tests.faults.keyed_history import SAID

pytestmark = pytest.mark.spark


def _survives(folder: Path, victims: list[str], files: int, seed: int, master: str, **settings: str) -> None:
    print("seed", seed, "victims", victims)
    write_events(folder / "events", random.Random(seed), files)
    kinds, killed, done = set(victims), defaultdict(int), False
    while not done:
        with Job(folder, master, **settings) as job:
            while not (done := not job.wait_for_batches(1)):
                if not victims:
                    continue
                victim = victims.pop(0)
                killed[victim] += job.kill(victim)
                if victim == "driver":
                    break
            code = job.finish()
    assert code == 0
    assert not victims, "the job ended before all were killed"
    assert min(killed[victim] for victim in kinds) > 0, dict(killed)
    check_history(folder)


@pytest.mark.timeout(900)
def test_on_a_cluster_state_and_output_are_exact_whatever_is_killed(tmp_path: Path) -> None:
    """When an executor dies, its shard moves to the other one, and back when another was started."""
    seed = int(os.environ.get("MILLPOND_TEST_SEED", "11"))
    _survives(tmp_path, ["host", "executor", "worker", "driver"], files=12, seed=seed, master=CLUSTER)
    said = [log.count(SAID) for log in logs(tmp_path)]
    assert sum(said) >= 2 * len(histories(tmp_path)), "what hosts print goes to the log of their executor"
    assert len([times for times in said if times]) > 2, "whichever executor that is"


def test_hosts_end_when_their_executor_is_killed(tmp_path: Path) -> None:
    write_events(tmp_path / "events", random.Random(5), 14)
    with Job(tmp_path, LOCAL) as job:
        assert job.wait_for_batches(1)
        executors, hosts = job.executors(), job.hosts()
        assert hosts
        assert host_folders(executors)
        job.kill("driver")
        job.finish()
    _, alive = psutil.wait_procs(hosts, timeout=10)
    assert not alive
    assert not host_folders(executors)


def test_hosts_end_with_their_application_though_its_jvm_goes_on(tmp_path: Path) -> None:
    write_events(tmp_path / "events", random.Random(5), 4)
    with Job(tmp_path, LOCAL, backend="rocksdb") as job:
        assert job.wait_for_batches(1)
        executors, hosts = job.executors(), job.hosts()
        held = [Path(file.path).parent for each in hosts for file in each.open_files() if "backend-" in file.path]
        assert held
        while job.wait_for_batches(1):
            pass
        assert job.process.stdout.readline() == "stopped\n"
        _, alive = psutil.wait_procs(hosts, timeout=10)
        assert not alive
        assert job.executors() == executors, "the JVM still runs"
        assert not host_folders(executors)
        assert not [folder for folder in held if folder.exists()]
        assert job.finish() == 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("MILLPOND_SOAK_ROUNDS", "5"))))
@pytest.mark.parametrize("format_version", ["1", "2"])
def test_random_kills_on_a_cluster(tmp_path: Path, seed: int, format_version: str) -> None:
    draw = random.Random(seed)
    victims = draw.choices(["host", "worker", "executor", "driver"], weights=[4, 4, 3, 1], k=20)
    settings = {"spark__sql__streaming__stateStore__checkpointFormatVersion": format_version}
    backend = draw.choice(["heap", "rocksdb"])
    _survives(tmp_path, [*victims, "host"], files=60, seed=seed, master=CLUSTER, backend=backend, **settings)
