"""The whole demo, killed once without mercy at a drawn moment, and the same command again.

The moment is a stage of its progress and a little after its start, drawn from a seed that is printed.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from benchmarks import redis_servers
from millpond.demo.aircraft_day import AircraftDay

pytestmark = [pytest.mark.spark, pytest.mark.clusters]

EVENTS = 4_000
EVENTS_ON_DISK = 1_000
STAGES = 11
TIMEOUT_S = 400
SEED = int(os.environ.get("MILLPOND_TEST_SEED", random.SystemRandom().randrange(1_000_000)))


def start(workdir: Path, result: Path, events: int = EVENTS, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-c", "from millpond.cli import main; main()", "demo"]
    options = ["--events", str(events), "--workdir", str(workdir), "--json", str(result), *more]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        command + options, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )


def kill_at(process: subprocess.Popen, stage: int, seconds_later: float) -> list[str]:
    """Kill the process and all it started (but what made itself a session) some time after a stage began."""
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith(f"[{stage}]"):
            break
    try:
        process.wait(seconds_later)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return seen


def answered(workdir: Path, result: Path) -> dict:
    """The result of a run of which every feature is right, served, logged and in the training set."""
    outcome = json.loads(result.read_text())
    questions = pq.read_table(workdir / "requests.parquet").num_rows
    features = pq.read_table(workdir / "expected.parquet").num_columns - 1
    assert outcome["mismatches"] == 0
    assert outcome["features_checked"] == 2 * questions * features > 10_000
    checked = outcome["consistency"]
    assert checked == {"equal": 2 * questions * features, "arrived_later": 0, "different": 0, "unavailable": 0}
    assert pq.read_table(workdir / "training").num_rows == questions
    for cache in ("route_batch", "route_tiles", "aircraft_batch", "aircraft_tiles", "airport_batch"):
        assert outcome["caches"][cache]["hits"] > 0, cache
    assert outcome["fetcher"]["batch_gets_saved"] > 0
    return outcome


def known_aircraft(workdir: Path) -> dict:
    import sqlite3

    with sqlite3.connect(workdir / "planes.sqlite") as database:
        return dict(database.execute("SELECT tailnum, seats FROM planes"))


def followed_by_hand(workdir: Path) -> dict[int, tuple]:
    """What PySpark's own tester makes of the slices, one call per aircraft and slice as in a micro-batch."""
    tester, answers = TwsTester(AircraftDay()), {}
    for path in sorted((workdir / "events").glob("slice-*.parquet")):
        rows: dict[str, list[Row]] = {}
        for event in pq.read_table(path).to_pylist():
            if event["tailnum"] is not None:
                rows.setdefault(event["tailnum"], []).append(Row(**event, seats=None, visib=None))
        for tailnum, events in rows.items():
            for answer in tester.test(tailnum, events):
                answers[answer.flight_id] = (answer.legs_today, answer.arrived_late_minutes, answer.ground_minutes)
    return answers


def test_a_demo_killed_at_any_moment_resumes_and_every_feature_is_right(tmp_path: Path) -> None:
    drawn = random.Random(SEED)
    stage, later = drawn.randint(1, STAGES), drawn.uniform(0, 3)
    sys.stdout.write(f"MILLPOND_TEST_SEED={SEED}: kill {later:.2f} s after the start of stage {stage}\n")
    workdir, result = tmp_path / "run", tmp_path / "result.json"

    seen = kill_at(start(workdir, result), stage, later)
    again = start(workdir, result)
    _, progress = again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 0, "".join(seen) + "--- again ---\n" + progress

    outcome = answered(workdir, result)
    assert outcome["events"] == EVENTS
    assert outcome["resumed"]
    assert (workdir / "summary.png").read_bytes().startswith(b"\x89PNG")

    batches = sorted((workdir / "aircraft").glob("batch-*.parquet"))
    rows = [row for path in batches for row in pq.read_table(path).to_pylist()]
    got = {row["flight_id"]: (row["legs_today"], row["arrived_late_minutes"], row["ground_minutes"]) for row in rows}
    assert len(got) == len(rows)
    assert got == followed_by_hand(workdir)
    seats = known_aircraft(workdir)
    assert all(row["seats"] == seats.get(row["tailnum"]) for row in rows)


@pytest.fixture
def redis_url():
    """A Redis of this test alone."""
    with redis_servers.redis_server() as server:
        yield server.url


# Every run tests the parts: RocksDB under `keyed` (tests/spark/test_keyed.py), the store (tests/kv), and that the
# demo hands these options on (tests/demo/test_cli.py).
@pytest.mark.soak
def test_the_demo_on_rocksdb_serves_the_same_answers_from_redis(tmp_path: Path, redis_url: str) -> None:
    workdir = tmp_path / "run"
    finished(workdir, "--backend", "rocksdb", "--state-cache", "100", "--store", redis_url)
    assert not (workdir / "features.lmdb").exists()


@pytest.mark.soak
def test_the_demo_on_a_heap_that_spills_gives_the_same_answers(tmp_path: Path) -> None:
    finished(tmp_path / "run", "--backend", "spillable")


def finished(workdir: Path, *options: str) -> None:
    """Run a short demo to its end, and compare all its answers."""
    result = workdir.with_name("result.json")
    demo = start(workdir, result, EVENTS_ON_DISK, *options)
    _, progress = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == 0, progress

    answered(workdir, result)
    batches = (workdir / "aircraft").glob("batch-*.parquet")
    rows = [row for path in batches for row in pq.read_table(path).to_pylist()]
    got = {row["flight_id"]: (row["legs_today"], row["arrived_late_minutes"], row["ground_minutes"]) for row in rows}
    assert got == followed_by_hand(workdir)
