"""`breakpoint()` in a process without a terminal: whoever comes to its socket has the debugger."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PROGRAM = """
from millpond.spark.environment.remote_breakpoint import breakpoints_over_a_socket

def handle(rows):
    total = sum(rows)
    breakpoint()
    return total

with breakpoints_over_a_socket():
    print("the batch gave", handle([1, 2, 3]), flush=True)
    print("and", handle([4]), flush=True)
"""


@pytest.fixture
def folder():
    """Where sockets go: sockets' paths must be short."""
    with tempfile.TemporaryDirectory() as short:
        yield Path(short)


def _started(folder, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(folder)} | environment,
    )


def _visited(batch, typed):
    """What a visitor sees who follows the advice in the log and types this."""
    line = batch.stderr.readline()
    assert line.startswith("breakpoint() waits for a terminal: "), line + batch.stderr.read()
    command = line.partition(": ")[2].split()
    assert Path(command[-1]).parent.stat().st_mode & 0o777 == 0o700
    visit = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, check=True)
    return visit.stdout


def test_a_visitor_looks_around_and_lets_the_batch_go_on(folder):
    with _started(folder) as batch:
        seen = _visited(batch, "p total * 7\nw\nc\n")
        assert "42" in seen
        assert "handle" in seen
        assert batch.stdout.readline() == "the batch gave 6\n"
        assert "28" in _visited(batch, "p total * 7\nc\n")
        assert batch.stdout.readline() == "and 4\n"
        assert batch.wait(30) == 0
    assert not list(folder.glob("millpond-*/breakpoint-*"))


def test_a_visitor_who_quits_fails_the_batch(folder):
    with _started(folder) as batch:
        _visited(batch, "q\n")
        assert batch.wait(30) == 1
        assert "BdbQuit" in batch.stderr.read()


def test_who_has_chosen_a_debugger_keeps_it(folder):
    with _started(folder, PYTHONBREAKPOINT="0") as batch:
        assert batch.stdout.readline() == "the batch gave 6\n"
        assert batch.wait(30) == 0
