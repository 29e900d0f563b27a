"""A real standalone cluster of two hosts: tasks are run twice, anything is killed -9, and nothing shows.

All tests look at one stream of one history: first Spark runs copies of slow tasks, then a state host, an
executor and a Python worker are killed, in an order drawn by `MILLPOND_TEST_SEED`, and last the driver.
A second application works off the rest, and ends.
"""

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from millpond.spark import read_state
from tests.faults.history_run import (
    Job,
    check_history,
    check_undisturbed,
    histories,
    hosts_of,
    left_over,
    logs,
    write_events,
)
from tests.faults.keyed_history import DUELS, FILES_PER_BATCH, SAID
from tests.faults.standalone import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.clusters, pytest.mark.timeout(600)]

BATCHES = 8
SPECULATIVE = {
    "spark__speculation": "true",
    "spark__speculation__interval": "100ms",
    "spark__speculation__multiplier": "1.1",
    "spark__speculation__quantile": "0.5",
    "spark__speculation__efficiency__enabled": "false",
}
TWO_EXECUTORS = {
    "spark__executor__cores": "1",
    "spark__executor__memory": "512m",
    "spark__cores__max": "2",
    "spark__scheduler__minRegisteredResourcesRatio": "1",
}


@dataclass
class Story:
    """What happened to a stream.

    Attributes:
        folder: of its events, checkpoint and output; `duels` in it tells of the tasks that were run twice.
        hosts: at each look, how many state hosts and executors there were.
        killed: what of each kind was.
        left: what was left of hosts, soon after what they belong to had ended.
        said: how often each executor logged what the processor prints.
    """

    folder: Path
    hosts: list[tuple[int, int]] = field(default_factory=list)
    killed: dict[str, list[psutil.Process]] = field(default_factory=dict)
    left: dict[str, list[object]] = field(default_factory=dict)
    said: list[int] = field(default_factory=list)

    def look(self, job: Job) -> tuple[list[psutil.Process], list[psutil.Process]]:
        executors = job.executors()
        hosts = hosts_of(executors)
        self.hosts.append((len(hosts), len(executors)))
        return hosts, executors

    def fought(self, which: str) -> list[str]:
        """The process of an attempt in each duel."""
        return [(self.folder / "duels" / f"{batch}-{which}").read_text() for batch in DUELS]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    seed = int(os.environ.get("MILLPOND_TEST_SEED", "11"))
    draw = random.Random(seed)
    victims = [*draw.sample(["host", "executor", "worker"], 3), "driver"]
    print("seed", seed, "victims", victims)
    folder = tmp_path_factory.mktemp("standalone")
    story = Story(folder)
    write_events(folder / "events", draw, BATCHES * FILES_PER_BATCH)
    (folder / "duels").mkdir()
    with Cluster(folder) as cluster:
        settings = SPECULATIVE | {"duels": str(folder / "duels")}
        with Job(folder, cluster.url, cluster.workers(), **TWO_EXECUTORS, **settings) as job:
            assert job.wait_for_batches(max(DUELS))
            for victim in victims:
                assert job.wait_for_batches(1)
                hosts, executors = story.look(job)
                story.killed[victim] = job.kill(victim)
                if victim == "executor":
                    executors = story.killed[victim]
                    story.left[victim] = left_over(hosts_of(executors), executors)
        story.left["driver"] = left_over(hosts, executors)
        with Job(folder, cluster.url, cluster.workers(), **TWO_EXECUTORS) as job:
            while job.wait_for_batches(1):
                hosts, executors = story.look(job)
            assert job.process.stdout.readline() == "stopped\n"
            story.left["application"] = left_over(hosts, executors)
            assert job.finish() == 0
    story.said = [log.count(SAID) for log in logs(folder)]
    return story


def test_the_output_is_that_of_an_undisturbed_run(story: Story) -> None:
    assert all(story.killed.values()), story.killed
    check_history(story.folder)
    check_undisturbed(story.folder)


def test_the_final_state_is_that_of_an_undisturbed_run(story: Story, spark: SparkSession) -> None:
    seen = read_state(spark, str(story.folder / "checkpoint"), "seen").groupBy("key.user")
    kept = seen.agg(F.sort_array(F.collect_list("list_element.id")).alias("ids")).collect()
    last = {user: sorted(history) for batch in histories(story.folder) for user, history in batch.items()}
    assert {row.user: row.ids for row in kept} == last


def test_spark_ran_speculative_copies_of_which_either_attempt_won(story: Story) -> None:
    original, copy, winner = story.fought("0"), story.fought("1"), story.fought("winner")
    assert all(map(str.__ne__, original, copy)), "a copy runs on another executor"
    assert winner[:2] == [copy[0], original[1]]
    assert original[0] in winner[1:], "the shard moved to another executor, and back to where the loser had it"


def test_an_executor_never_has_more_hosts_than_cores(story: Story) -> None:
    assert all(hosts <= executors <= 2 for hosts, executors in story.hosts)
    assert any(hosts == 2 for hosts, _ in story.hosts)


def test_hosts_are_gone_soon_after_their_executor_their_driver_or_their_application(story: Story) -> None:
    assert story.left == {"executor": [], "driver": [], "application": []}


def test_what_hosts_print_goes_to_the_log_of_their_executor(story: Story) -> None:
    assert sum(story.said) >= 2 * BATCHES
    assert len([times for times in story.said if times]) > 2, "whichever executor that is"
