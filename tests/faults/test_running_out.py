"""Memory or disk run out in a batch: the query says what ran out, nothing durable is touched, and it goes on later."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.history_run import SHORT_LIVED

pytestmark = [pytest.mark.spark, pytest.mark.clusters, pytest.mark.timeout(600)]

JOB = Path(__file__).parent / "hungry_job.py"
USERS = [f"user-{at}" for at in range(40)]
DEEDS = ["eat", "fill", "choke", "leak"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What one job tells of a query for each deed, which is done in the second batch of three."""
    folder = tmp_path_factory.mktemp("hungry")
    for deed in DEEDS:
        events = folder / deed / "events"
        events.mkdir(parents=True)
        for number, what in enumerate(["count", deed, "count"]):
            rows = [{"user": user, "deed": what, "folder": str(folder / deed)} for user in USERS]
            (events / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
            os.utime(events / f"{number}.json", (1_700_000_000 + number,) * 2)
    job = subprocess.run(
        [sys.executable, str(JOB), str(folder), "6g", *DEEDS],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
        env=os.environ | SHORT_LIVED,
    )
    assert job.returncode == 0, job.stderr[-3000:]
    return job.stdout.splitlines()


def _failure(told: list[str], deed: str) -> str:
    """One batch failed, and the rest is as if nothing had; what was said."""
    lines = [line.removeprefix(f"{deed} ") for line in told if line.startswith(f"{deed} ")]
    assert [line for line in lines if line.startswith("batch")] == [
        f"batch {number} [{number + 1}] {len(USERS)}" for number in range(3)
    ], "\n".join(lines)
    (failed,) = [line for line in lines if line.startswith("failed")]
    return failed


def test_a_processor_that_outgrows_its_memory_fails_the_batch_by_name(told: list[str]) -> None:
    failed = _failure(told, "eat")
    assert "the state host has no more memory (it may map 6144 MiB, from spark.executor.pyspark.memory)" in failed
    assert "bytearray" in failed, "the user's own traceback"


def test_a_local_disk_that_is_full_fails_the_batch_and_is_used_again_when_there_is_room(told: list[str]) -> None:
    failed = _failure(told, "fill")
    assert "UnavailableError" in failed
    assert "File too large" in failed


def test_a_full_disk_under_sparks_state_store_fails_the_batch_and_is_used_again_when_there_is_room(
    told: list[str],
) -> None:
    failed = _failure(told, "choke")
    assert "UnavailableError: shard 0 of operator Hungry in query" in failed
    assert "Spark's state store broke off while it was given a new version" in failed


def test_a_leaking_host_is_replaced_at_rest_and_no_batch_fails(told: list[str]) -> None:
    assert [line for line in told if line.startswith("leak ")] == [
        f"leak batch 0 [1] {len(USERS)}",
        "leak hosts 1",
        f"leak batch 1 [2] {len(USERS)}",
        "leak hosts 1",
        f"leak batch 2 [3] {len(USERS)}",
        "leak hosts 2",
    ]
