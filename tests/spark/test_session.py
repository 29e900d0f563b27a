"""What `keyed` says of the session it is given: once what would be better, and it refuses little."""

import sys

import pytest
from pyspark.sql import SparkSession

from millpond import OptionError
from millpond.spark.environment.session import SESSION_SETTINGS, _warned, check_session, session, setting

pytestmark = pytest.mark.spark

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = SESSION_SETTINGS[PROVIDER]
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


@pytest.fixture
def changed(spark):
    """Sets settings of the session for one test, as if Millpond had not seen the session before."""
    before = {}

    def change(**settings):
        for name, value in settings.items():
            key = name.replace("__", ".")
            before[key] = spark.conf.get(key)
            spark.conf.set(key, value)
        _warned.discard(spark)

    yield change
    for key, value in before.items():
        spark.conf.set(key, value)


@pytest.mark.parametrize("key", ["spark.sql.streaming.checkpointLocation", "spark.nobody.knows.it"])
def test_a_setting_that_nobody_made_is_empty(spark, key) -> None:
    assert setting(spark.conf, key) == ""
    assert setting(spark.conf, PROVIDER) == ROCKSDB


def test_a_session_that_is_only_less_safe_gets_one_warning(spark: SparkSession, changed, recwarn) -> None:
    changed(**{FORMAT.replace(".", "__"): "1", CHANGELOG.replace(".", "__"): "false"})
    check_session(spark, streaming=True)
    check_session(spark, streaming=True)
    (warned,) = recwarn
    assert warned.filename == __file__
    lines = {
        line.partition("  # else ")[0].strip(): line.partition("  # else ")[2]
        for line in str(warned.message).splitlines()
    }
    assert "overwrite" in lines[f'.config("{FORMAT}", "2")']
    assert "uploads" in lines[f'.config("{CHANGELOG}", "true")']
    assert lines[f'.config("{PROVIDER}", "{ROCKSDB}")'] == ""


def test_a_session_with_the_recommended_settings_gets_no_warning(spark: SparkSession, changed, recwarn) -> None:
    changed()
    check_session(spark, streaming=True)
    assert not list(recwarn)


def test_a_batch_needs_no_state_store_of_the_session_and_a_stream_does(spark: SparkSession, changed) -> None:
    other = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    changed(**{PROVIDER.replace(".", "__"): other})
    check_session(spark, streaming=False)
    with pytest.raises(OptionError, match="keyed state lives in Spark's RocksDB state store"):
        check_session(spark, streaming=True)


@pytest.mark.parametrize(
    ("says", "lack"),
    [
        ("echo \"ModuleNotFoundError: No module named 'pyarrow'\" >&2; exit 1", "No module named 'pyarrow'"),
        ("echo 3.7", "that is Python 3.7, and this one is"),
    ],
)
def test_workers_whose_python_cannot_run_millpond_are_refused_by_name(spark, monkeypatch, tmp_path, says, lack) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{says}\n")
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with pytest.raises(OptionError, match=f"{lack}.*PYSPARK_PYTHON"):
        check_session(spark, streaming=True)


def test_workers_of_another_environment_that_has_what_they_need_are_fine(spark, monkeypatch, tmp_path) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    check_session(spark, streaming=True)


def test_a_setting_whose_name_has_no_dot_is_refused_with_the_name_to_write():
    with pytest.raises(OptionError, match=r"setting 'spark_ui_enabled'; .*spark__ui__enabled=\.\.\."):
        session(spark_ui_enabled="false")
