"""The keyed operator through Spark Connect, where a client has neither a JVM nor a SparkContext."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="Spark Connect needs millpond[connect]")
pytestmark = [pytest.mark.spark, pytest.mark.clusters]

JOB = Path(__file__).with_name("connect_job.py")
FILES = [
    [("ann", 1), ("bob", 2), ("mallory", 3)],
    [("ann", 30), ("ann", 31)],
    [("bob", 50)],
    # Later than the watermark, as Spark judges it: by that of the batch before.
    [("ann", 51), ("bob", 2)],
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the job tells, in one."""
    folder = tmp_path_factory.mktemp("connect")
    (folder / "events").mkdir()
    for number, rows in enumerate(FILES):
        path = folder / "events" / f"{number}.json"
        path.write_text("".join(f'{{"user": "{user}", "at": "2024-01-01T00:{at:02}:00Z"}}\n' for user, at in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)
    job = subprocess.run(
        [sys.executable, str(JOB), str(folder)], capture_output=True, text=True, timeout=240, check=False
    )
    assert job.returncode == 0, job.stderr[-5000:]
    told = [json.loads(line.partition("FOUND ")[2]) for line in job.stdout.splitlines() if "FOUND " in line]
    return {name: value for each in told for name, value in each.items()}


def test_a_session_with_sparks_defaults_is_told_once_what_would_be_faster(found):
    ((message, file),) = found["warned"]
    assert file == str(JOB)
    assert "stateStore.checkpointFormatVersion" in message


def test_a_batch_dataframe_keeps_state(found):
    assert found["batch"] == {str(user): 15 if user < 2 else 14 for user in range(7)}


def test_a_stream_keeps_state_fires_timers_and_sets_failed_calls_aside(found):
    rows = [sorted((row["user"], row["n"], row["fired"]) for row in batch) for batch in found["stream"]]
    assert rows[0] == [("ann", 1, False), ("bob", 1, False)]
    assert [row for batch in rows for row in batch if not row[2]] == [
        ("ann", 1, False),
        ("bob", 1, False),
        ("ann", 3, False),
        ("bob", 2, False),
        ("ann", 4, False),
    ]
    assert {row for batch in rows for row in batch if row[2]} == {("ann", 3, True), ("bob", 1, True)}
    letters = [row for batch in found["letters"] for row in batch]
    assert [(row["key"], row["error"]) for row in letters] == [({"user": "mallory"}, "ValueError: not you")]


SECONDS = {f"{phase}_seconds": True for phase in ("shuffle", "run", "flush", "commit", "store")}


def test_metrics_of_a_batch_dataframe_come_with_its_result(found):
    assert found["batch_metrics"] == SECONDS | {
        "batches": 1,
        "rows": 100,
        "late_rows": 0,
        "dead_letters": 0,
        "cache_hits": 0,
        "cache_misses": 0,
        "spills": 0,
        "loads": 0,
        "restores": 2,
        "levels": 2,
        "state_rows": 7,
    }


def test_metrics_of_a_stream_come_with_the_progress_of_its_query(found):
    metrics = found["stream_metrics"]
    assert {name: metrics[name] for name in SECONDS} == SECONDS
    assert (metrics["rows"], metrics["late_rows"], metrics["dead_letters"]) == (7, 1, 1)
    assert metrics["levels"] == 2, "shards"
    assert metrics["restores"] == 2, "each shard once"
    assert metrics["state_rows"] >= 2, "ann's and bob's counts"
    (name,) = found["observed"]
    assert name.startswith("millpond Visits ")


def test_a_streams_metrics_without_its_query_are_refused_with_what_to_give(found):
    assert "metrics(query)" in found["refused"]
