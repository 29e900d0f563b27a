"""Memory or disk run out in a batch: the query says what ran out, nothing durable is touched, and it goes on later."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

JOB = Path(__file__).parent / "hungry_job.py"
USERS = [f"user-{at}" for at in range(40)]


def _run(folder: Path, deed: str, limit: str = "-", backend: str = "heap") -> list[str]:
    (folder / "events").mkdir()
    for number, what in enumerate(["count", deed, "count"]):
        path = folder / "events" / f"{number}.json"
        rows = [{"user": user, "deed": what, "folder": str(folder)} for user in USERS]
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_700_000_000 + number,) * 2)
    job = subprocess.run(
        [sys.executable, str(JOB), str(folder), limit, backend],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert job.returncode == 0, job.stderr[-3000:]
    return [line for line in job.stdout.splitlines() if line.startswith(("batch", "failed"))]


def _check(told: list[str]) -> str:
    """One batch failed, and the rest is as if nothing had; what was said."""
    assert [line for line in told if line.startswith("batch")] == [
        f"batch 0 [1] {len(USERS)}",
        f"batch 1 [2] {len(USERS)}",
        f"batch 2 [3] {len(USERS)}",
    ]
    (failed,) = [line for line in told if line.startswith("failed")]
    return failed


def test_a_processor_that_outgrows_its_memory_fails_the_batch_by_name(tmp_path: Path) -> None:
    failed = _check(_run(tmp_path, "eat", limit="6g"))
    assert "the state host has no more memory (it may map 6144 MiB, from spark.executor.pyspark.memory)" in failed
    assert "bytearray" in failed, "the user's own traceback"


def test_a_local_disk_that_is_full_fails_the_batch_and_is_used_again_when_there_is_room(tmp_path: Path) -> None:
    failed = _check(_run(tmp_path, "fill", backend="rocksdb"))
    assert "UnavailableError" in failed
    assert "File too large" in failed
