"""Stateful operators before and after a keyed one: the event time goes on as after PySpark's own operator."""

import datetime as dt

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from millpond import DataError, OptionError
from millpond.spark import keyed
from tests.spark.pysparks_output import OPERATORS, given, plain
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

OUTPUT = "user string, at timestamp, n long, watermark long"
BATCHES = (
    [("ann", 1, 100.0), ("bob", 2, 103.0)],
    [("ann", 3, 131.0), ("bob", 4, 131.5)],
    [("ann", 5, 104.0), ("bob", 6, 145.0), ("bob", 7, 121.0)],
    [("ann", 8, 200.0), ("ann", 9, 122.0)],
)


class Passing(StatefulProcessor):
    """Gives each row on, with a count, moved in time; a timer 20 s later tells of the key again."""

    def __init__(self, seconds=0):
        self._moved = dt.timedelta(seconds=seconds)

    def init(self, handle):
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timerValues):
        watermark = timerValues.getCurrentWatermarkInMs()
        for row in sorted(rows, key=lambda row: row.at):
            before = self._count.get()
            self._count.update(((before[0] if before else 0) + 1,))
            due = int(row.at.timestamp() * 1000) + 20_000
            if due > watermark:
                self._handle.registerTimer(due)
            yield Row(user=key[0], at=row.at + self._moved, n=self._count.get()[0], watermark=watermark)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        watermark = timerValues.getCurrentWatermarkInMs()
        at = dt.datetime.fromtimestamp(max(watermark, expiredTimerInfo.getExpiryTimeInMs()) / 1000 + 1, dt.UTC)
        yield Row(user=key[0], at=at, n=-self._count.get()[0], watermark=watermark)

    def close(self):
        pass


def _own(events):
    return events.groupBy("user")


def _millpond(events):
    return keyed(events, "user")


def _passed(by, events, processor=None, name="at"):
    return by(events).transformWithState(
        processor or Passing(), OUTPUT, "Append", "EventTime", eventTimeColumnName=name
    )


def _windows(events):
    return events.groupBy(F.window("at", "10 seconds"), "user").agg(F.count("*").alias("n"), F.max("at").alias("last"))


def _before_a_window(by, events):
    return _windows(_passed(by, events, name="AT"))


def _before_another_and_deduplication(by, events):
    return _passed(by, _passed(by, events)).dropDuplicatesWithinWatermark(["user", "n"])


def _after_a_window(by, events):
    counted = _windows(events).select("user", "n", F.window_time("window").alias("at"))
    return _passed(by, counted)


def _by_the_end_of_a_window(by, events):
    counted = _windows(events).select("user", "window", F.col("last").alias("at"))
    return by(counted).transformWithState(Passing(), OUTPUT, "Append", "EventTime")


@pytest.mark.parametrize(
    "chain",
    [_before_a_window, _before_another_and_deduplication, _after_a_window, _by_the_end_of_a_window],
    ids=lambda chain: chain.__name__.strip("_"),
)
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_chain_gives_what_it_gives_with_pysparks_own_operator(spark, tmp_path, chain, operator):
    stream = FileStream(spark, tmp_path)
    for batch in BATCHES:
        stream.add(batch)
    events = stream.frame().withWatermark("at", "5 seconds")
    batches = stream.run(chain(_own if operator == "pyspark" else _millpond, events), mode="append")
    assert plain(batches) == given(chain.__name__.strip("_"))
    assert any(batches)


def test_rows_older_than_the_watermark_are_refused_by_spark_itself(spark, tmp_path):
    stream = FileStream(spark, tmp_path)
    for batch in BATCHES[:3]:
        stream.add(batch)
    events = stream.frame().withWatermark("at", "5 seconds")
    with pytest.raises(StreamingQueryException, match="EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED"):
        stream.run(_passed(_millpond, events, Passing(-60)), mode="append")


def test_an_event_time_column_that_cannot_be_is_refused(spark):
    stream = spark.readStream.format("rate").load().selectExpr("string(value) AS user", "timestamp AS at")
    events = stream.withWatermark("at", "5 seconds")
    with pytest.raises(DataError, match=r"eventTimeColumnName='when' must name one column.*'watermark'"):
        _passed(_millpond, events, name="when")
    with pytest.raises(DataError, match="eventTimeColumnName='user': that column is string"):
        _passed(_millpond, events, name="user")
    with pytest.raises(OptionError, match="eventTimeColumnName='at' hands the stream's watermark on, and there is"):
        keyed(stream, "user").transformWithState(Passing(), OUTPUT, "Append", "None", eventTimeColumnName="at")
    with pytest.raises(OptionError, match="timeMode 'EventTime' needs a watermark"):
        keyed(stream, "user").transformWithState(Passing(), OUTPUT, "Append", "EventTime")


def test_a_batch_has_no_watermark_and_no_late_rows_as_in_pyspark(spark):
    events = spark.createDataFrame([("ann", dt.datetime(2020, 1, 1, tzinfo=dt.UTC))], "user string, at timestamp")
    rows = [
        by(events).transformWithState(Passing(), OUTPUT, "Append", "EventTime").collect() for by in (_own, _millpond)
    ]
    assert rows[0] == rows[1]
    assert rows[1][0].watermark == -1
