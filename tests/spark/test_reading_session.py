"""A checkpoint is read in its own format, whatever the session is set to."""

import pytest

from millpond import CorruptionError
from millpond.spark.environment.session import FORMAT_KEY
from millpond.spark.inspect.reading_session import reading_session

pytestmark = pytest.mark.spark

FORMAT_1 = '{"nextBatchWatermarkMs":0}'
FORMAT_2 = '{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a"],["b"]]}}'


def checkpoint(folder, *commits):
    (folder / "commits").mkdir()
    for number, commit in enumerate(commits, start=9):
        (folder / "commits" / str(number)).write_text(f"v1\n{commit}")
    return str(folder)


def test_in_another_format_it_is_a_new_session_with_the_same_other_settings(spark, tmp_path):
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        reading = reading_session(spark, checkpoint(tmp_path, FORMAT_2, FORMAT_1))
        assert reading.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert reading.conf.get(FORMAT_KEY) == "1"
    assert spark.conf.get(FORMAT_KEY) == "2"


def test_in_the_sessions_format_it_is_that_session(spark, tmp_path):
    assert reading_session(spark, checkpoint(tmp_path, FORMAT_1, FORMAT_2)) is spark


def test_without_a_commit_it_is_the_session_as_it_is(spark, tmp_path):
    assert reading_session(spark, str(tmp_path / "nothing")) is spark
    assert reading_session(spark, checkpoint(tmp_path)) is spark


def test_a_commit_that_was_cut_off_is_named(spark, tmp_path):
    with pytest.raises(CorruptionError, match="commits/9, which Spark wrote for the last batch, cannot be read"):
        reading_session(spark, checkpoint(tmp_path, ""))
