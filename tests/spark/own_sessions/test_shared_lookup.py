"""A partial cache that two executors share: each key is loaded once, and the death of an owner changes no answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.history_run import SHORT_LIVED

pytestmark = [pytest.mark.spark, pytest.mark.clusters]

JOB = Path(__file__).with_name("shared_lookup_job.py")
KEYS = 400


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """What the job on two executors tells."""
    folder = tmp_path_factory.mktemp("cluster")
    job = subprocess.run(
        [sys.executable, str(JOB), str(folder)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=os.environ | SHORT_LIVED,
    )
    assert job.returncode == 0, job.stderr[-5000:]
    return json.loads(job.stdout.splitlines()[-1])


def test_each_key_is_loaded_once_by_one_of_two_executors_and_no_event_is_shuffled(cluster):
    assert cluster["once as Spark"]
    assert cluster["shuffles"] == 0
    assert (cluster["keys"], cluster["loads of a key"], cluster["processes"]) == (KEYS, 1, 2)
    assert cluster["loads"] == KEYS
    assert cluster["asked"] > 0
    assert cluster["failed"] == 0


def test_an_invalidated_key_is_loaded_again_once_by_its_owner(cluster):
    assert cluster["invalidated as Spark"]
    assert cluster["loaded again"] == list(range(0, KEYS, 2))


def test_an_owner_that_is_killed_while_it_answers_changes_no_answer(cluster):
    assert cluster["killed as Spark"]
    assert cluster["failed with the owner"] > 0
