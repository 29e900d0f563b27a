"""Checkpoints of PySpark's own operators, and what is imported of them, made once: the tests only read them."""

from contextlib import contextmanager

import pytest
from pyspark.sql.streaming.state import GroupStateTimeout

from millpond.spark import import_state
from millpond.spark.inspect.reading_session import reading_session
from tests.spark.migration import jobs
from tests.spark.streams import FileStream

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
SPARKS_DEFAULTS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    FORMAT: "1",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
}


@pytest.fixture(scope="package")
def stream_of(spark, tmp_path_factory):
    """Makes a stream with a checkpoint of its own, of rows `(user, id, at)`; the rows are its first batch."""

    def stream_of(rows):
        stream = FileStream(spark, tmp_path_factory.mktemp("stream"))
        stream.add(rows)
        return stream

    return stream_of


def watermarked(stream):
    return stream.frame().withWatermark("at", "0 seconds")


def checkpoint_of(stream):
    return str(stream.folder / "checkpoint")


def spark_states(spark, checkpoint, name):
    """The rows of a state as Spark's own reader shows them, in a session of the checkpoint's format."""
    reader = reading_session(spark, checkpoint).read.format("statestore")
    return reader.option("stateVarName", name).load(checkpoint).collect()


FIRST_ROWS = [("ann", 1, 100), ("ann", 2, 110), ("bob", 3, 100), (None, 4, 100)]


@contextmanager
def settings(spark, values):
    """A session's settings, for a time."""
    before = {name: spark.conf.get(name) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@pytest.fixture(scope="package")
def old_ledger(stream_of):
    """The checkpoint of `Ledger` in the row form."""
    stream = stream_of(FIRST_ROWS)
    grouped = watermarked(stream).groupBy("user")
    stream.run(grouped.transformWithState(jobs.Ledger(), jobs.LEDGER, "Update", "EventTime"))
    return checkpoint_of(stream)


@pytest.fixture(scope="package")
def old_recent(spark, stream_of):
    """The checkpoint of `Recent` in the pandas form, in Spark's older format of checkpoints."""
    stream = stream_of(FIRST_ROWS)
    grouped = stream.frame().groupBy("user")
    output = grouped.transformWithStateInPandas(jobs.Recent(), jobs.RECENT, "Update", "ProcessingTime")
    with settings(spark, {FORMAT: "1"}):
        stream.run_until(output, {("ann", 2), ("bob", 1), (None, 1)})
    return checkpoint_of(stream)


@pytest.fixture(scope="package")
def old_counted(spark, stream_of):
    """The checkpoint of `counted` in `applyInPandasWithState`, under Spark's default settings."""
    stream = stream_of(FIRST_ROWS)
    with settings(spark, SPARKS_DEFAULTS):
        grouped = watermarked(stream).groupBy("user")
        stream.run(
            grouped.applyInPandasWithState(
                jobs.counted, "user string, kind string, n long", "n long", "update", GroupStateTimeout.EventTimeTimeout
            )
        )
    return checkpoint_of(stream)


@pytest.fixture(scope="package")
def saved_ledger(spark, old_ledger, tmp_path_factory):
    """The savepoint that `old_ledger` is imported into."""
    return import_state(spark, old_ledger, str(tmp_path_factory.mktemp("saved") / "ledger"))


@pytest.fixture(scope="package")
def saved_recent(spark, old_recent, tmp_path_factory):
    """The savepoint that `old_recent` is imported into."""
    ttl_ms = dict.fromkeys(("total", "ids", "entries"), jobs.HOUR_MS)
    return import_state(spark, old_recent, str(tmp_path_factory.mktemp("saved") / "recent"), ttl_ms=ttl_ms)
