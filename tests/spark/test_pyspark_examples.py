"""What PySpark's documentation shows of `transformWithState`, under `keyed` with nothing else changed.

Two things its pages print do not run under PySpark itself: handlers without `timerValues`, and a value
state compared as if it were not a tuple. Here they are as PySpark needs them.
"""

import datetime as dt

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegerType, StringType, StructField, StructType, TimestampType

from millpond.spark import keyed

pytestmark = pytest.mark.spark

COUNTS = StructType([StructField("id", StringType(), True), StructField("count", IntegerType(), True)])
VIOLATIONS = StructType([StructField("value", IntegerType(), True)])
HOT = 100


class Sensors(StatefulProcessor):
    """Readings of a batch, and a running number of those above a limit."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.violations = handle.getValueState("numViolations", VIOLATIONS)

    def _remember(self, new):
        existing = self.violations.get()[0] if self.violations.exists() else 0
        self.violations.update((new + existing,))

    def handleInputRows(self, key, rows, timerValues):
        temperatures = [row.temperature for row in rows if row.temperature is not None]
        self._remember(sum(temperature > HOT for temperature in temperatures))
        yield Row(id=key[0], count=len(temperatures))

    def close(self) -> None:
        pass


class SensorFrames(Sensors):
    def handleInputRows(self, key, rows, timerValues):
        new, count = 0, 0
        for pdf in rows:
            count += pdf.count().get("temperature")
            new += pdf.loc[pdf["temperature"] > HOT].count().get("temperature")
        self._remember(new)
        yield pd.DataFrame({"id": key, "count": count})


@pytest.fixture
def readings(spark):
    rows = [("0", 123), ("0", 23), ("1", 33), ("1", 188), ("1", 88), ("1", None)]
    return spark.createDataFrame(rows, "id string, temperature long")


def _both(df, key, operate):
    """What an operator gives under PySpark's `groupBy` and under `keyed`."""
    return [sorted(map(tuple, operate(grouped).collect())) for grouped in (df.groupBy(key), keyed(df, key))]


def test_the_sensors_of_the_docstrings(readings):
    for processor, method in ((Sensors(), "transformWithState"), (SensorFrames(), "transformWithStateInPandas")):
        own, ours = _both(
            readings,
            "id",
            lambda grouped, processor=processor, method=method: getattr(grouped, method)(
                statefulProcessor=processor, outputStructType=COUNTS, outputMode="Update", timeMode="None"
            ),
        )
        assert own == ours == [("0", 2), ("1", 3)]


class DownTime(StatefulProcessor):
    """Sets a timer for each key anew whenever newer rows come; the guide's detector of what has gone silent."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.last_seen = handle.getValueState("last_seen", StructType([StructField("value", TimestampType(), True)]))

    def handleInputRows(self, key, rows, timerValues):
        latest = max((tuple(pdf.iloc[0]) for pdf in rows), key=lambda row: row[1])
        seen = self.last_seen.get()[0] if self.last_seen.exists() else dt.datetime.fromtimestamp(0)  # noqa: DTZ006
        now = timerValues.getCurrentProcessingTimeInMs()
        if seen < latest[1]:
            for timer in self.handle.listTimers():
                self.handle.deleteTimer(timer)
            self.last_seen.update((latest[1],))
        self.handle.registerTimer(now)
        assert list(self.handle.listTimers()) == [now]
        yield pd.DataFrame({"id": key, "timeValues": "up"})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        silent = self.last_seen.get()[0]
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 10_000)
        yield pd.DataFrame({"id": key, "timeValues": f"down since {silent.isoformat()}"})

    def close(self) -> None:
        pass


def test_the_downtime_detector_of_the_guide(spark):
    at = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
    events = spark.createDataFrame([("a", at), ("b", at + dt.timedelta(hours=1))], "key string, at timestamp")
    own, ours = _both(
        events,
        "key",
        lambda grouped: grouped.transformWithStateInPandas(
            statefulProcessor=DownTime(),
            outputStructType="id string, timeValues string",
            outputMode="Update",
            timeMode="ProcessingTime",
        ),
    )
    assert own == ours
    assert [(key, told.split()[0]) for key, told in ours] == [("a", "down"), ("a", "up"), ("b", "down"), ("b", "up")]


class Recent(StatefulProcessor):
    """State of each kind with a time to live, as the guide declares it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        handle.deleteIfExists("old")
        self.count = handle.getValueState("count", "count int", ttlDurationMs=60_000)
        self.seen = handle.getListState("seen", "temperature int", ttlDurationMs=60_000)
        self.by_level = handle.getMapState("byLevel", "level string", "count int", ttlDurationMs=60_000)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if row.temperature is not None:
                level = ("hot" if row.temperature > HOT else "cold",)
                self.seen.appendValue((row.temperature,))
                before = self.by_level.getValue(level).count(0) if self.by_level.containsKey(level) else 0
                self.by_level.updateValue(level, (before + 1,))
        self.count.update((len(list(self.seen.get())),))
        yield Row(id=key[0], count=self.count.get()[0] * 10 + len(list(self.by_level.keys())))

    def close(self) -> None:
        pass


def test_state_with_a_time_to_live(readings):
    own, ours = _both(
        readings, "id", lambda grouped: grouped.transformWithState(Recent(), COUNTS, "Update", "ProcessingTime")
    )
    assert own == ours == [("0", 22), ("1", 32)]
