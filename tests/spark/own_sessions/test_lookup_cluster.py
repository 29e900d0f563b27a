"""A full table on the executors of a cluster: who shares its file, who fetches it, and when copies go."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.history_run import SHORT_LIVED

pytestmark = [pytest.mark.spark, pytest.mark.clusters]

JOB = Path(__file__).with_name("lookup_cluster_job.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """What the job on two executors tells, in one."""
    folder = tmp_path_factory.mktemp("cluster")
    job = subprocess.run(
        [sys.executable, str(JOB), str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | SHORT_LIVED,
    )
    assert job.returncode == 0, job.stderr[-5000:]
    return json.loads(job.stdout.splitlines()[-1])


def test_executors_that_see_the_drivers_folder_share_its_one_file(cluster):
    shared = cluster["shared"]
    assert shared["versions"] == [1, 2]
    assert shared["executors"] == 2
    assert shared["copies"] == [[], []]


def test_executors_that_do_not_see_it_fetch_each_version_once(cluster):
    fetched = cluster["fetched"]
    assert fetched["versions"] == [1, 2]
    assert fetched["executors"] == 2
    assert fetched["copies"] == [["000000000002.table"]] * 2
    assert fetched["hits"] == 2 * 400


def test_a_reload_that_failed_fails_the_query_on_executors_elsewhere(cluster):
    assert "a reload failed" in cluster["failed"]
    assert "the values are being written" in cluster["failed"]


def test_the_copies_of_executors_go_with_them(cluster):
    assert len(cluster["fetched"]["paths"]) == 2
    assert not [path for path in cluster["fetched"]["paths"] if Path(path).exists()]
