"""What all tests share: one Spark session, folders in memory, and how three processes divide the tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from benchmarks.database_servers import NotInstalledError
from tests import jvms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION_TESTS = (
    "tests/spark/test_",
    "tests/spark/features/",
    "tests/spark/lookup_join/",
    "tests/spark/migration/",
    "tests/spark/pysparks_behaviours/",
    "tests/faults/test_session_faults.py",
    "tests/test_docs.py",
    "tests/ui/test_slow_query.py",
    "tests/lookup/test_every_source.py::test_on_spark",
    "tests/spark/environment/test_worker_python.py",
    *(
        f"tests/commands/test_{name}.py"
        for name in ("backfill", "check", "state", "stream", "training_set", "upload", "waiting")
    ),
)
"""How the ids begin of all tests that ask for `spark`. One elsewhere would start a second session, and is refused."""

LONG = ("tests/features/equality/", "tests/simulation/", "tests/state/models/")
"""Whose files take longest of all others."""

collect_ignore = ["spark/own_sessions/bare_job.py"]
"""A program for spark-submit, which imports what only its own run has."""

IN_MEMORY = "/dev/shm"  # noqa: S108 - pytest makes folders of its own there, as it does in /tmp
ROOMY_BYTES = 1 << 30
LEAST_FREE_BYTES = 2 << 30

FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""How the session of the tests writes its checkpoints.

Spark's default renames by Hadoop's `FileContext`. Without Hadoop's native library, which PySpark does not have, that
starts a process `readlink` for each look at a name: eight a file, a hundred a batch, and a fifth of the CPU time of a
test of streams. Tests with a Spark of their own (`make clusters`) have the default.
"""

# How long one example takes says more of the machine than of the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Where `tmp_path` lies: what the code under test syncs costs a disk milliseconds each time.
if os.access(IN_MEMORY, os.W_OK) and shutil.disk_usage(IN_MEMORY).free > ROOMY_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", IN_MEMORY)

os.environ.setdefault("SPARK_SUBMIT_OPTS", jvms.options())


def pytest_sessionstart():
    """Refuse a disk that is nearly full: Spark and RocksDB hang or fail on one in ways that name no cause."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        pytest.exit(f"the tests need {LEAST_FREE_BYTES >> 30} GB free in {folder}, found {free / 2**30:.1f} GB", 3)


@contextmanager
def _skipped_without_its_server():
    """Skip a test that needs a server which is not on this machine."""
    try:
        yield
    except NotInstalledError as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup():
    """The fixtures of a test start its servers."""
    with _skipped_without_its_server():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """A test may start a server itself."""
    with _skipped_without_its_server():
        return (yield)


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One small local session; tests choose their own checkpoint folders."""
    from millpond.spark.environment.session import session

    spark = session(
        "millpond-tests",
        master="local[2]",
        spark__ui__enabled="false",
        spark__sql__shuffle__partitions="2",
        spark__driver__bindAddress="127.0.0.1",
        spark__driver__host="127.0.0.1",
        spark__sql__streaming__checkpointFileManagerClass=FILE_MANAGER,
    )
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


def _is_of_the_session(nodeid: str) -> bool:
    return nodeid.startswith(SESSION_TESTS)


def _turn(nodeid: str) -> int:
    """When it comes where there are several processes: the session, which is the largest share, then long files."""
    if _is_of_the_session(nodeid):
        return 0
    return 1 if nodeid.startswith(LONG) else 2


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Where there are several processes, begin with what takes longest, so that they end together.

    It comes last, when what the run leaves out is out.
    """
    if hasattr(config, "workerinput"):
        for item in items:
            if "spark" in getattr(item, "fixturenames", ()) and not _is_of_the_session(item.nodeid):
                raise RuntimeError(f"{item.nodeid} asks for `spark`: add it to SESSION_TESTS in tests/conftest.py")
        items.sort(key=lambda item: _turn(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """One process runs all tests of the session; the rest goes file by file to who is free."""
    from xdist.scheduler import LoadFileScheduling

    class SessionAndFiles(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "the session" if _is_of_the_session(nodeid) else super()._split_scope(nodeid)

    return SessionAndFiles(config, log)
