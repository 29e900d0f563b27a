"""Rows of the fault matrix where Spark runs a task again: what befell the first attempt shows nowhere.

One job with a session of its own, since the tests' session retries no task.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.faults.history_run import SHORT_LIVED, write_events
from tests.faults.retried_job import BATCHES

pytestmark = [pytest.mark.spark, pytest.mark.clusters, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Call:
    """One call of the processor."""

    deed: str
    batch: int
    partition: int
    attempt: int
    process: int
    user: str


@dataclass(frozen=True)
class Story:
    """What the job told.

    Attributes:
        told: of each deed.
        calls: of the processor, in order.
        expected: what comes out of each batch if nothing befalls it: the ids of each user, in no order.
    """

    told: dict[str, dict[str, Any]]
    calls: list[Call]
    expected: list[dict[str, set[int]]]

    def attempts(self, deed: str, batch: int) -> set[tuple[int, int]]:
        """Partition and attempt of every task that called the processor."""
        return {(call.partition, call.attempt) for call in self.calls if (call.deed, call.batch) == (deed, batch)}

    def check_nothing_shows(self, deed: str) -> None:
        """Each batch came out once, as if nothing had befallen it."""
        told = self.told[deed]
        assert told["failed"] is None, told["failed"]
        found = [{user: set(ids) for user, ids in batch.items()} for batch in told["batches"]]
        assert found == self.expected
        assert all(len(ids) == len(set(ids)) for batch in told["batches"] for ids in batch.values()), "counted twice"


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("retried")
    write_events(folder / "events", random.Random(3), BATCHES)
    job = subprocess.run(
        [sys.executable, "-m", "tests.faults.retried_job", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        env=os.environ | SHORT_LIVED,
    )
    assert job.returncode == 0, job.stderr[-3000:]
    lines = [line for line in job.stdout.splitlines() if line.startswith("{")]
    told = {each["deed"]: each for each in map(json.loads, lines)}
    calls = [Call(*json.loads(line)) for line in (folder / "calls").read_text().splitlines()]
    seen: dict[str, set[int]] = {}
    expected = []
    for path in sorted((folder / "events").glob("*.parquet")):
        came = set()
        for at, user in zip(*(column.to_pylist() for column in pq.read_table(path).columns), strict=True):
            seen.setdefault(user, set()).add(at)
            came.add(user)
        expected.append({user: set(seen[user]) for user in came})
    return Story(told, calls, expected)


def test_kill_9_a_state_host(story: Story) -> None:
    """The task fails once; the other task of the batch does not notice."""
    story.check_nothing_shows("killed host")
    assert story.attempts("killed host", 1) == {(0, 0), (0, 1), (1, 0)}
    assert story.attempts("killed host", 2) == {(0, 0), (1, 0)}
    first, second = (
        {call.process for call in story.calls if (call.deed, call.partition) == ("killed host", 0) and call.batch == at}
        for at in (0, 2)
    )
    assert first.isdisjoint(second), "another host has the shard"


def test_kill_9_a_python_worker(story: Story) -> None:
    """What it left behind lets go of the shard at its next key: no call of it follows one of the next attempt's."""
    story.check_nothing_shows("killed worker")
    calls = [call for call in story.calls if (call.deed, call.batch, call.partition) == ("killed worker", 1, 0)]
    attempts = [call.attempt for call in calls]
    assert attempts.count(0) == 1, "the call that was under way was the last one"
    assert attempts == sorted(attempts)
    assert set(attempts) == {0, 1}


def test_trigger_interval_over_a_minute(story: Story) -> None:
    """After a minute without a task Spark ends its workers. The first attempt of the next batch fails as well."""
    story.check_nothing_shows("idle workers")
    assert {partition for partition, attempt in story.attempts("idle workers", 1) if attempt} == {0, 1}
    hosts = {call.process for call in story.calls if call.deed == "idle workers"}
    assert len(hosts) <= 2, "hosts outlive workers, with what they hold"


@pytest.mark.parametrize("deed", ["spill file", "page of a spill file", "rocksdb folder"])
def test_local_cache_spill_file_or_rocksdb_folder_corrupt(story: Story, deed: str) -> None:
    story.check_nothing_shows(deed)
    assert any(attempt for _, attempt in story.attempts(deed, 1)), "it was noticed, and restored"
