"""In one JVM, hosts end with their application; on a cluster in one, a hundred random kills show nowhere."""

import os
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import state_round, whole_path_round
from tests.faults.history_run import LOCAL, LOCAL_CLUSTER, Job, check_history, hosts_of, left_over, write_events

pytestmark = [pytest.mark.spark, pytest.mark.clusters]


def test_hosts_end_with_their_application_though_its_jvm_goes_on(tmp_path: Path) -> None:
    write_events(tmp_path / "events", random.Random(5), 2)
    with Job(tmp_path, LOCAL, backend="rocksdb") as job:
        assert job.wait_for_batches(1)
        executors = job.executors()
        hosts = hosts_of(executors)
        held = [Path(file.path).parent for each in hosts for file in each.open_files() if "backend-" in file.path]
        assert held
        assert not job.wait_for_batches(1)
        assert job.process.stdout.readline() == "stopped\n"
        assert not left_over(hosts, executors)
        assert job.executors() == executors, "the JVM still runs"
        assert not [folder for folder in held if folder.exists()]
        assert job.finish() == 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("MILLPOND_SOAK_ROUNDS", "7"))))
@pytest.mark.parametrize("format_version", ["1", "2"])
def test_random_kills_on_a_cluster(
    tmp_path: Path, seed: int, format_version: str, record_property: Callable[[str, object], None]
) -> None:
    draw = random.Random(seed)
    victims = [*draw.choices(["host", "worker", "executor", "driver"], weights=[4, 4, 3, 1], k=20), "host"]
    print("seed", seed, "victims", victims)
    settings = {"spark__sql__streaming__stateStore__checkpointFormatVersion": format_version}
    backend = draw.choice(["heap", "rocksdb"])
    write_events(tmp_path / "events", random.Random(seed), 60)
    kinds, killed, done = set(victims), defaultdict(int), False
    while not done:
        with Job(tmp_path, LOCAL_CLUSTER, backend=backend, **settings) as job:
            while not (done := not job.wait_for_batches(1)):
                if not victims:
                    continue
                victim = victims.pop(0)
                killed[victim] += len(job.kill(victim))
                if victim == "driver":
                    break
            code = job.finish()
    assert code == 0
    assert not victims, "the job ended before all were killed"
    record_property("kills", sum(killed.values()))
    assert min(killed[victim] for victim in kinds) > 0, dict(killed)
    check_history(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("MILLPOND_SOAK_ROUNDS", "7"))))
def test_all_kinds_of_state_and_timers_through_random_kills(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """In every run: test_retried_tasks.py and test_standalone.py."""
    done = state_round.run_round(tmp_path, seed, kills=20)
    print(done)
    record_property("kills", sum(done.killed.values()))
    assert sum(done.killed.values()) >= 20
    assert done.timers


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(int(os.environ.get("MILLPOND_SOAK_ROUNDS", "7"))))
def test_the_whole_path_through_random_kills(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Lookups, keyed state, timers of both kinds, tiles and fetches; the store is killed too."""
    done = whole_path_round.run_round(tmp_path, seed, kills=20)
    print(done)
    record_property("kills", sum(done.killed.values()))
    assert sum(done.killed.values()) >= 20
    assert done.timers
    assert done.reminded
    assert done.fetches
