"""Programs with sessions that Millpond did not make: `keyed` runs on them, and says once what would be better."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from millpond.spark.environment.java import find_java
from millpond.spark.environment.session import SESSION_SETTINGS
from tests.faults.history_run import SHORT_LIVED, spark_home

pytestmark = [pytest.mark.spark, pytest.mark.clusters]

JOB = Path(__file__).with_name("bare_job.py")
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = SESSION_SETTINGS[PROVIDER]
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PRICES = "def price(item):\n    return len(item)\n"
SPENT_AT_TARIFF = """
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class SpentAtTariff(StatefulProcessor):
    def init(self, handle):
        self.amount = handle.getValueState("amount", "amount long")

    def handleInputRows(self, key, rows, timerValues):
        self.amount.update((sum(100 for _ in rows),))
        yield Row(user=key[0], amount=self.amount.get()[0])

    def close(self):
        pass
"""
OF_ANY_PROGRAM = {"WARN Utils:", "WARN NativeCodeLoader:"}
LOG_PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "errors-and-logs.md"
FILES = [[("ann", "tea"), ("bob", "coffee")], [("ann", "milk")]]


@pytest.fixture
def project(tmp_path):
    """A user's folder: a program, a module beside it, a zip with another one, and events."""
    shutil.copy(JOB, tmp_path)
    (tmp_path / "prices.py").write_text(PRICES)
    with zipfile.ZipFile(tmp_path / "tariffs.zip", "w") as archive:
        archive.writestr("tariffs/__init__.py", "")
        archive.writestr("tariffs/spent.py", SPENT_AT_TARIFF)
    (tmp_path / "events").mkdir()
    for number, rows in enumerate(FILES):
        path = tmp_path / "events" / f"{number}.json"
        path.write_text("".join(json.dumps({"user": user, "item": item}) + "\n" for user, item in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)
    return tmp_path


def told_by(command, folder, **environ):
    """What the program tells, in one, and what is in its log."""
    job = subprocess.run(
        command,
        cwd=folder,
        env=os.environ
        | SHORT_LIVED
        | {"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(find_java().home), **environ},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert job.returncode == 0, job.stderr[-5000:]
    told = [json.loads(line.partition("FOUND ")[2]) for line in job.stdout.splitlines() if "FOUND " in line]
    return {name: value for each in told for name, value in each.items()} | {"log": job.stderr}


def check_told(found):
    assert found["stream"] == [[["ann", 3], ["bob", 6]], [["ann", 7]]], "a class in __main__ that uses a local module"
    assert found["batch"] == [["ann", 200], ["bob", 100]], "a class from a zip"
    ((message, file, line),) = found["warned"]
    assert (file, line) == ("bare_job.py", JOB.read_text().splitlines().index(here(JOB)) + 1)
    block = message[message.index("spark = (") :]
    for key, value in SESSION_SETTINGS.items():
        assert f'.config("{key}", "{value}")' in block
    compile(block, "the block", "exec")


def check_log(log):
    """The log has only what Spark says of any program, and what the docs tell of, though a query was stopped."""
    told = set(re.findall(r"^\S+ \S+ ((?:WARN|ERROR) \w+:)", log, re.MULTILINE))
    assert {each for each in told - OF_ANY_PROGRAM if f"`{each} " not in LOG_PAGE.read_text()} == set()
    assert "WARN MicroBatchExecution:" in told
    assert not re.search(r"Traceback|Error:|Exception|[Bb]roken ?[Pp]ipe", log)


def here(path):
    (line,) = [line for line in path.read_text().splitlines() if line.endswith("# here")]
    return line


def test_a_session_of_sparks_own_builder_runs_and_is_told_once_what_would_be_faster(project):
    found = told_by([sys.executable, "bare_job.py", ROCKSDB], project)
    check_told(found)
    check_log(found["log"])
    assert found["master"].startswith("local[")


def test_a_program_given_to_spark_submit_runs_on_the_executors_of_a_cluster(project):
    home = spark_home(project)
    submit = [str(home / "bin" / "spark-submit"), "--master", "local-cluster[1,2,1024]", "--py-files", "prices.py"]
    python_path = os.pathsep.join(path for path in sys.path if path)
    submit += ["--conf", f"spark.executorEnv.PYTHONPATH={python_path}", "--conf", "spark.ui.enabled=false"]
    found = told_by([*submit, "bare_job.py", ROCKSDB], project, SPARK_HOME=str(home))
    check_told(found)
    assert found["master"].startswith("local-cluster")
