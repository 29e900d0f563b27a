"""The whole demo, killed once without mercy at a drawn moment, and the same command again.

The moment is a line of its progress and a little after it, drawn from a seed that is printed.
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

from millpond.demo.aircraft_day import AircraftDay

pytestmark = pytest.mark.spark

EVENTS = 4_000
EVENTS_ON_DISK = 1_000
LINES_BEFORE_THE_END = 9
SEED = int(os.environ.get("MILLPOND_TEST_SEED", random.SystemRandom().randrange(1_000_000)))


def start(workdir: Path, result: Path, events: int = EVENTS, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-c", "from millpond.cli import main; main()", "demo"]
    options = ["--events", str(events), "--workdir", str(workdir), "--json", str(result), *more]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        command + options, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True
    )


def kill_at(process: subprocess.Popen, line: int, seconds_later: float) -> list[str]:
    """Kill the process and all it started (but what made itself a session) some time after a line of progress."""
    seen = [process.stderr.readline() for _ in range(line)]
    try:
        process.wait(seconds_later)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return seen


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
    line, later = drawn.randint(1, LINES_BEFORE_THE_END), drawn.uniform(0, 3)
    sys.stdout.write(f"MILLPOND_TEST_SEED={SEED}: kill {later:.2f} s after line {line}\n")
    workdir, result = tmp_path / "run", tmp_path / "result.json"

    seen = kill_at(start(workdir, result), line, later)
    again = start(workdir, result)
    _, progress = again.communicate(timeout=200)
    assert again.returncode == 0, "".join(seen) + "--- again ---\n" + progress

    outcome = json.loads(result.read_text())
    assert outcome["events"] == EVENTS
    assert outcome["mismatches"] == 0
    assert outcome["features_checked"] >= 5_000
    assert outcome["resumed"]
    assert (workdir / "summary.png").read_bytes().startswith(b"\x89PNG")

    batches = sorted((workdir / "aircraft").glob("batch-*.parquet"))
    rows = [row for path in batches for row in pq.read_table(path).to_pylist()]
    got = {row["flight_id"]: (row["legs_today"], row["arrived_late_minutes"], row["ground_minutes"]) for row in rows}
    assert len(got) == len(rows)
    assert got == followed_by_hand(workdir)
    seats = known_aircraft(workdir)
    assert all(row["seats"] == seats.get(row["tailnum"]) for row in rows)


@pytest.mark.parametrize("backend", [("rocksdb", "--state-cache", "100"), ("spillable",)], ids=" ".join)
def test_the_demo_on_another_backend_gives_the_same_answers(tmp_path: Path, backend: tuple[str, ...]) -> None:
    workdir, result = tmp_path / "run", tmp_path / "result.json"
    demo = start(workdir, result, EVENTS_ON_DISK, "--backend", *backend)
    _, progress = demo.communicate(timeout=200)
    assert demo.returncode == 0, progress

    assert json.loads(result.read_text())["mismatches"] == 0
    batches = (workdir / "aircraft").glob("batch-*.parquet")
    rows = [row for path in batches for row in pq.read_table(path).to_pylist()]
    got = {row["flight_id"]: (row["legs_today"], row["arrived_late_minutes"], row["ground_minutes"]) for row in rows}
    assert got == followed_by_hand(workdir)
