"""How `make test` divides the tests between processes, and what it makes of one that crashes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLAGS = re.search(r"^DIVIDED := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
WHO_RAN = """
import os
from pathlib import Path

def test_it():
    Path(__file__).with_suffix(".ran").write_text(str(os.getpid()))
"""


@pytest.fixture
def suite(tmp_path):
    """A suite with this conftest: two files of the session, and one of the rest."""
    (tmp_path / "tests" / "spark").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "benchmarks").mkdir()
    for name in ("tests/conftest.py", "tests/jvms.py", "benchmarks/database_servers.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("spark/test_a", "spark/test_b", "test_of_the_rest"):
        (tmp_path / "tests" / f"{name}.py").write_text(WHO_RAN)
    return tmp_path


def _run(suite, *more):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist", *FLAGS, *more, "tests"]
    # Of all plugins that are installed only the one under test is loaded.
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=120, check=False, env=env)


def test_all_tests_of_the_session_run_in_one_process_and_the_rest_in_others(suite):
    done = _run(suite)
    assert done.returncode == 0, done.stdout
    names = ("spark/test_a", "spark/test_b", "test_of_the_rest")
    first, second, rest = ((suite / "tests" / f"{name}.ran").read_text() for name in names)
    assert first == second != rest


def test_what_takes_longest_begins_first(suite):
    (suite / "tests" / "simulation").mkdir()
    (suite / "tests" / "simulation" / "test_long.py").write_text(WHO_RAN)
    done = _run(suite, "-n1")
    assert done.returncode == 0, done.stdout
    names = ("spark/test_a", "spark/test_b", "simulation/test_long", "test_of_the_rest")
    ran = [(suite / "tests" / f"{name}.ran").stat().st_mtime_ns for name in names]
    assert ran == sorted(ran)


def test_a_process_that_crashes_fails_the_run_and_is_named(suite):
    (suite / "tests" / "test_of_the_rest.py").write_text("import os\n\ndef test_it():\n    os._exit(0)\n")
    done = _run(suite)
    assert done.returncode == 1
    assert "crashed while running 'tests/test_of_the_rest.py::test_it'" in done.stdout


def test_a_second_session_is_refused(suite):
    asks = WHO_RAN.replace("()", "(spark)", 1)
    (suite / "tests" / "test_of_the_rest.py").write_text(asks)
    done = _run(suite)
    assert done.returncode != 0
    assert "tests/test_of_the_rest.py::test_it asks for `spark`: add it to SESSION_TESTS" in done.stdout + done.stderr
