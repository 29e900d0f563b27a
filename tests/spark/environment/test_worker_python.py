"""Spark's Python workers import the PySpark that is installed, and not the sources in Spark's zip file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.spark.environment.session import _worker_python

SCRIPT = Path(__file__).parents[3] / "bin" / "millpond-python"


@pytest.fixture
def environment(tmp_path):
    """An environment whose Python says what is on its path, and its arguments."""
    made = tmp_path / "an environment"
    packages = made / "lib" / "python3.11" / "site-packages"
    for file in ("pyspark/worker.py", "pyspark/python/lib/pyspark.zip", "pyspark/python/lib/py4j-1-src.zip", "py4j/a"):
        (packages / file).parent.mkdir(parents=True, exist_ok=True)
        (packages / file).touch()
    python = made / "bin" / "python3"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$PYTHONPATH" "$@"\n')
    python.chmod(0o755)
    (made / "bin" / "millpond-python").write_bytes(SCRIPT.read_bytes())
    (made / "bin" / "millpond-python").chmod(0o755)
    return made


def _told(environment, *path):
    ran = subprocess.run(
        [environment / "bin" / "millpond-python", "-m", "a worker"],
        env=os.environ | {"PYTHONPATH": ":".join(map(str, path))},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, *arguments = ran.stdout.splitlines()
    assert (arguments, ran.stderr) == (["-m", "a worker"], "")
    return kept.split(":") if kept else []


def _zips(environment):
    lib = environment / "lib" / "python3.11" / "site-packages" / "pyspark" / "python" / "lib"
    return [lib / "pyspark.zip", lib / "py4j-1-src.zip"]


def test_the_zips_of_the_installed_pyspark_are_taken_off_and_nothing_else(environment):
    assert _told(environment, *_zips(environment)) == []
    others = ["/some jar*.jar", "/home/me/my code"]
    assert _told(environment, others[0], *_zips(environment), others[1]) == others
    assert _told(environment) == []


def test_zips_stay_where_no_pyspark_is_installed_beside_them(environment):
    zips = [str(path) for path in _zips(environment)]
    (environment / "lib" / "python3.11" / "site-packages" / "pyspark" / "worker.py").unlink()
    assert _told(environment, *zips) == zips


def test_zips_of_another_spark_stay(environment, tmp_path):
    other = tmp_path / "other" / "lib" / "python3.11" / "site-packages" / "pyspark"
    (other / "python" / "lib").mkdir(parents=True)
    (other / "worker.py").touch()
    (other.parent / "py4j").touch()
    (tmp_path / "other" / "bin").mkdir()
    for zips in ([str(other / "python" / "lib" / "pyspark.zip")], ["/opt/spark/python/lib/pyspark.zip"]):
        assert _told(environment, *zips) == zips


@pytest.mark.parametrize(
    ("master", "variables", "by_script"),
    [
        ("local[2]", ["SPARK_HOME"], True),
        (None, [], True),
        (None, ["PYSPARK_GATEWAY_PORT"], False),
        (None, ["SPARK_CONF_DIR"], False),
        ("yarn", [], False),
        ("spark://host:7077", [], False),
    ],
)
def test_workers_of_a_cluster_run_the_interpreter_itself(environment, monkeypatch, master, variables, by_script):
    """Its machines may have the interpreter at that path, and not the script."""
    monkeypatch.setattr(sys, "executable", str(environment / "bin" / "python3"))
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in variables:
        monkeypatch.setenv(name, "given")
    assert Path(_worker_python(master)).name == ("millpond-python" if by_script else "python3")


@pytest.mark.spark
def test_workers_of_a_session_import_the_installed_pyspark(spark):
    def told(batches):
        import pyarrow as pa
        import pyspark

        for batch in batches:
            yield pa.RecordBatch.from_pylist([{"file": pyspark.__file__, "python": sys.executable}] * len(batch))

    (row,) = spark.range(1).mapInArrow(told, "file string, python string").collect()
    assert ".zip" not in row.file
    assert Path(row.python).parent == Path(sys.executable).parent
