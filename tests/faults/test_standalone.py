"""A real standalone cluster of two hosts: anything is killed, tasks are run twice, and nothing shows.

The final state and the output are those of an undisturbed run, and no state host outlives its application.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millpond.spark import read_state
from tests.faults.history_run import (
    Job,
    check_history,
    check_undisturbed,
    histories,
    logs,
    wait_until_gone,
    write_events,
)
from tests.faults.keyed_history import DUELS, SAID
from tests.faults.standalone import Cluster

pytestmark = pytest.mark.spark

SPECULATIVE = {
    "spark__speculation": "true",
    "spark__speculation__interval": "100ms",
    "spark__speculation__multiplier": "1.1",
    "spark__speculation__quantile": "0.5",
    "spark__speculation__efficiency__enabled": "false",
    # So a second attempt is a copy, and no retry of one that failed.
    "spark__task__maxFailures": "1",
}
TWO_EXECUTORS = {
    "spark__executor__cores": "1",
    "spark__executor__memory": "512m",
    "spark__cores__max": "2",
    "spark__scheduler__minRegisteredResourcesRatio": "1",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def _job(folder: Path, cluster: Cluster, **settings: str) -> Job:
    return Job(folder, cluster.url, cluster.workers(), **TWO_EXECUTORS, **settings)


def test_a_speculative_copy_of_a_task_changes_nothing_whichever_attempt_wins(
    tmp_path: Path, cluster: Cluster, spark: SparkSession
) -> None:
    write_events(tmp_path / "events", random.Random(7), 8)
    duels = tmp_path / "duels"
    duels.mkdir()
    with _job(tmp_path, cluster, duels=str(duels), **SPECULATIVE) as job:
        while job.wait_for_batches(1):
            pass
        assert job.finish() == 0
    original, copy, winner = (
        [(duels / f"{batch}-{which}").read_text() for batch in DUELS] for which in ("0", "1", "winner")
    )
    assert all(map(str.__ne__, original, copy)), "the copy runs on another executor"
    assert winner[:2] == [copy[0], original[1]]
    assert original[0] in winner[1:], "the shard moved to another executor, and back to where the loser had it"
    check_history(tmp_path)
    check_undisturbed(tmp_path)
    seen = read_state(spark, str(tmp_path / "checkpoint"), "seen").groupBy("key.user")
    kept = {
        row.user: row.ids for row in seen.agg(F.sort_array(F.collect_list("list_element.id")).alias("ids")).collect()
    }
    assert kept == {user: sorted(history) for batch in histories(tmp_path) for user, history in batch.items()}


@pytest.mark.timeout(600)
def test_state_and_output_are_exact_whatever_is_killed_and_hosts_are_few_and_gone_soon(
    tmp_path: Path, cluster: Cluster
) -> None:
    """When an executor dies, its shard moves to the other one, and back when another was started."""
    seed = int(os.environ.get("MILLPOND_TEST_SEED", "11"))
    draw = random.Random(seed)
    victims = [*draw.sample(["host", "executor", "worker"], 3), "driver"]
    print("seed", seed, "victims", victims)
    write_events(tmp_path / "events", draw, 10)
    said_before, killed = logs(cluster.folder), {}
    with _job(tmp_path, cluster) as job:
        for victim in victims:
            assert job.wait_for_batches(1)
            executors = job.executors()
            hosts = job.hosts(executors)
            assert len(hosts) <= len(executors) <= 2, "one a core"
            killed[victim] = job.kill(victim)
            if victim == "executor":
                wait_until_gone(job.hosts(killed[victim]), killed[victim])
    assert all(killed.values()), killed
    assert hosts
    wait_until_gone(hosts, executors)
    with _job(tmp_path, cluster) as job:
        while job.wait_for_batches(1):
            executors = job.executors()
            hosts = job.hosts(executors)
            assert 1 <= len(hosts) <= len(executors) <= 2
        assert job.process.stdout.readline() == "stopped\n"
        wait_until_gone(hosts, executors)
        assert job.finish() == 0
    check_history(tmp_path)
    said = [log.count(SAID) for path, log in logs(cluster.folder).items() if path not in said_before]
    assert sum(said) >= 2 * len(histories(tmp_path)), "what hosts print goes to the log of their executor"
    assert len([times for times in said if times]) > 2, "whichever executor that is"
