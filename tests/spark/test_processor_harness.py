"""A PySpark `StatefulProcessor` alone: batches, times, failures and restarts as on Spark, and no JVM anywhere."""

import datetime as dt
import os
import subprocess
import sys

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType

from millpond.errors import DataError, OptionError
from millpond.spark.testing.processor_harness import ProcessorHarness, ProcessorSnapshot
from tests.spark.pysparks_output import given, plain


class Diary(StatefulProcessor):
    """One of each kind of state."""

    def init(self, handle):
        self._count = handle.getValueState("count", "n long")
        self._ids = handle.getListState("ids", StructType([StructField("id", LongType())]))
        self._last = handle.getMapState("last", "parity long", "id long, at timestamp")

    def handleInputRows(self, key, rows, timerValues):
        count = self._count.get()[0] if self._count.exists() else 0
        for row in rows:
            if row.id < 0:
                raise ZeroDivisionError(row.user)
            count += 1
            self._count.update((count,))
            self._ids.appendValue((row.id,))
            self._last.updateValue((row.id % 2,), (row.id, row.at))
        last = {parity: value[0] for (parity,), value in self._last.iterator()}
        yield Row(user=key[0], n=count, ids=[seen[0] for seen in self._ids.get()], last=last)

    def close(self):
        pass


class Alarm(StatefulProcessor):
    """Counts a user's events and tells of them 10 s after the first, then starts again."""

    def init(self, handle):
        self._handle = handle
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if not self._count.exists():
                self._handle.registerTimer(int(row.at.timestamp() * 1000) + 10_000)
            count = self._count.get()
            self._count.update(((count[0] if count else 0) + 1,))
        yield Row(user=key[0], n=self._count.get()[0], fired=None, watermark=timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        fired, watermark = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield Row(user=key[0], n=self._count.get()[0], fired=fired, watermark=watermark)
        self._count.clear()

    def close(self):
        pass


EVENTS = "user string, id long, at timestamp"
DIARY = "user string, n long, ids array<long>, last map<long,long>"
ALARM = "user string, n long, fired long, watermark long"

BATCHES = (
    (0, [("ann", 1, 100.0), ("bob", 2, 101.0), ("cid", 3, 102.0)]),
    (97_000, [("ann", 4, 108.0), ("dan", 5, 120.0)]),
    (115_000, [("bob", 6, 104.0), ("eve", 7, 116.0), ("ann", 8, 117.0)]),
    (115_000, [("fay", 9, 200.0), ("bob", 10, 112.0)]),
    (195_000, [("ann", 11, 190.0), ("gus", 12, 260.0)]),
    (255_000, []),
)
"""The watermark that Spark computes with a delay of 5 s, and the rows, of each batch."""


def _at(seconds):
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


def _events(rows):
    return [(user, at, _at(seconds)) for user, at, seconds in rows]


@pytest.fixture(params=["heap", "rocksdb", "spillable"])
def diary(request):
    """A harness around a `Diary`."""
    options = {"state.backend.type": request.param}
    with ProcessorHarness(Diary(), rows=EVENTS, key="user", output=DIARY, options=options) as harness:
        yield harness


def _alarm(**changes):
    given = {"rows": EVENTS, "key": "user", "output": ALARM, "time_mode": "EventTime", "event_time": "at"}
    return ProcessorHarness(changes.pop("processor", Alarm()), **(given | changes))


def test_state_of_every_kind_goes_on_from_batch_to_batch_and_over_a_restart(diary):
    first = diary.process([("ann", 1, _at(0)), ("bob", 2, _at(0)), ("ann", 3, _at(1)), (None, 4, None)])
    assert first == [
        Row(user="ann", n=2, ids=[1, 3], last={1: 3}),
        Row(user="bob", n=1, ids=[2], last={0: 2}),
        Row(user=None, n=1, ids=[4], last={0: 4}),
    ]
    diary.restart()
    assert diary.process([("ann", 4, _at(2))]) == [Row(user="ann", n=3, ids=[1, 3, 4], last={1: 3, 0: 4})]
    assert diary.state("count") == {("ann",): (3,), ("bob",): (1,), (None,): (1,)}
    assert diary.state("ids")["ann",] == [(1,), (3,), (4,)]
    assert diary.state("last")["ann",] == {(1,): (3, _at(1)), (0,): (4, _at(2))}


def test_rows_may_be_tuples_dicts_or_rows(diary):
    rows = [("ann", 1, None), {"id": 2, "user": "ann"}, Row(at=None, user="ann", id=3), Row(id=4, user="ann")]
    assert diary.process(rows)[0].ids == [1, 2, 3, 4]


def test_a_row_that_does_not_fit_is_refused_by_column(diary):
    with pytest.raises(DataError, match="a row: field 'id' is int64, got str 'one'"):
        diary.process([("ann", "one", None)])
    with pytest.raises(DataError, match=r"a row has the fields \['usr'\], which are not among the columns"):
        diary.process([{"usr": "ann"}])
    assert diary.state("count") == {}


def test_a_batch_that_fails_leaves_nothing_and_its_error_comes_out_as_it_is(diary):
    diary.process([("ann", 1, None)])
    with pytest.raises(ZeroDivisionError, match="bob") as raised:
        diary.process([("ann", 2, None), ("bob", 3, None), ("bob", -1, None)])
    assert raised.traceback[-1].name == "handleInputRows"
    assert diary.state("count") == {("ann",): (1,)}
    assert diary.process([("ann", 2, None)])[0].ids == [1, 2]


def test_output_that_does_not_fit_is_refused_by_column():
    with ProcessorHarness(Diary(), rows=EVENTS, key="user", output="user string, n string") as harness:
        with pytest.raises(DataError, match="output column 'n' is string, the processor gave int 1"):
            harness.process([("ann", 1, None)])
        assert harness.state("count") == {}


def test_a_savepoint_goes_on_in_another_harness_with_its_timers(tmp_path):
    place = str(tmp_path / "savepoint")
    with _alarm() as first:
        first.process(_events(BATCHES[0][1]), watermark_ms=0)
        first.savepoint(place)
        with pytest.raises(OptionError, match="is not empty"):
            first.savepoint(place)
    with _alarm(options={"state.backend.type": "rocksdb"}) as second:
        second.process(_events([("gus", 1, 100.0)]), watermark_ms=0)
        second.restore_savepoint(place)
        assert second.state("count") == {("ann",): (1,), ("bob",): (1,), ("cid",): (1,)}
        fired = second.advance(watermark_ms=111_000)
        assert sorted((row.user, row.fired) for row in fired) == [("ann", 110_000), ("bob", 111_000)]
        second.restart()
        assert second.state("count") == {("cid",): (1,)}
    with (
        _alarm(time_mode="ProcessingTime", event_time=None) as third,
        pytest.raises(OptionError, match="timers that were set in EventTime"),
    ):
        third.restore_savepoint(place)


class WideAlarm(Alarm):
    """`Alarm` whose count has another field."""

    def init(self, handle):
        self._handle = handle
        self._count = handle.getValueState("count", "n double, note string")


class NarrowAlarm(Alarm):
    """`Alarm` whose count holds less."""

    def init(self, handle):
        self._handle = handle
        self._count = handle.getValueState("count", "n int")


def test_a_snapshot_is_read_as_the_processor_declares_it_now_or_refused():
    with _alarm(processor=NarrowAlarm()) as first:
        first.process(_events(BATCHES[0][1]), watermark_ms=0)
        snapshot = first.snapshot()
    with _alarm(processor=WideAlarm()) as second:
        second.restore(snapshot)
        assert second.state("count")["ann",] == (1.0, None)
    with _alarm() as third:
        third.restore(snapshot)
        third.process(_events([("ann", 4, 108.0)]), watermark_ms=0)
        wide = third.snapshot()
    with _alarm(processor=NarrowAlarm()) as fourth, pytest.raises(OptionError, match=r"n: int64.*n: int32"):
        fourth.restore(wide)


def test_a_snapshot_is_restored_as_often_as_one_likes_and_into_any_backend(diary):
    diary.process([("ann", 1, None)])
    snapshot = diary.snapshot()
    for _ in range(2):
        assert diary.process([("ann", 2, None)])[0].ids == [1, 2]
        diary.restore(snapshot)
    with ProcessorHarness(Diary(), rows=EVENTS, key="user", output=DIARY) as other:
        other.restore(snapshot)
        assert other.process([("ann", 2, None)])[0].ids == [1, 2]
    with (
        ProcessorHarness(Diary(), rows=EVENTS, key="id", output=DIARY) as keyed_otherwise,
        pytest.raises(OptionError, match="under another key"),
    ):
        keyed_otherwise.restore(snapshot)


def test_nothing_stays_on_the_processor_from_batch_to_batch():
    class Remembers(Diary):
        calls = 0

        def handleInputRows(self, key, rows, timerValues):
            self.calls += len(list(rows))
            yield Row(user=key[0], n=self.calls)

    with ProcessorHarness(Remembers(), rows=EVENTS, key=["user"], output="user string, n long") as harness:
        assert [harness.process([("ann", 1, None)])[0].n for _ in range(2)] == [1, 1]


def test_late_rows_are_those_behind_the_watermark_of_the_batch_before():
    with _alarm() as harness:
        harness.process(_events([("ann", 1, 100.0)]), watermark_ms=95_000)
        assert harness.late_rows == 0
        assert [row.user for row in harness.process(_events([("bob", 1, 95.0), ("cid", 1, 95.001)]))] == ["cid"]
        assert harness.late_rows == 1
    with _alarm(late="keep") as harness:
        harness.process(_events([("ann", 1, 100.0)]), watermark_ms=95_000)
        assert [row.user for row in harness.process(_events([("bob", 1, 90.0)]))] == ["bob"]


def test_timers_outlive_a_restart_and_a_batch_without_rows_fires_them():
    with _alarm() as harness:
        harness.process(_events([("ann", 1, 100.0)]))
        harness.restart()
        assert harness.advance(watermark_ms=109_999) == []
        harness.restart()
        assert harness.advance(watermark_ms=110_000) == [Row(user="ann", n=1, fired=110_000, watermark=110_000)]
        assert harness.advance(watermark_ms=200_000) == []


def test_processing_time_timers_fire_by_the_time_given():
    class Once(Alarm):
        def handleInputRows(self, key, rows, timerValues):
            self._count.update((len(list(rows)),))
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 10)
            return iter(())

    with ProcessorHarness(Once(), rows=EVENTS, key="user", output=ALARM, time_mode="ProcessingTime") as harness:
        assert harness.process([("ann", 1, None)], processing_ms=1000) == []
        assert harness.advance(processing_ms=1009) == []
        assert [row.fired for row in harness.advance(processing_ms=1010)] == [1010]


def test_a_snapshot_brings_the_processing_time_it_was_taken_at():
    class Once(Alarm):
        def handleInputRows(self, key, rows, timerValues):
            self._count.update((1,))
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 10)
            return iter(())

    looks = {"rows": EVENTS, "key": "user", "output": ALARM, "time_mode": "ProcessingTime"}
    with ProcessorHarness(Once(), **looks) as first, ProcessorHarness(Once(), **looks) as second:
        first.process([("ann", 1, None)], processing_ms=1000)
        snapshot = first.snapshot()
        assert snapshot.manifest.processing_ms == 1000
        second.restore(snapshot)
        with pytest.raises(OptionError, match="time cannot go back"):
            second.advance(processing_ms=999)
        second.process([("bob", 1, None)])
        assert {row.fired for row in second.advance(processing_ms=5000)} == {1010}
        second.restore(
            ProcessorSnapshot(msgspec.structs.replace(snapshot.manifest, processing_ms=-1), snapshot.segments)
        )
        with pytest.raises(OptionError, match="time cannot go back"):
            second.advance(processing_ms=4999)


def test_state_with_a_ttl_lives_by_the_time_of_the_batch():
    class Recent(Diary):
        def init(self, handle):
            self._ids = handle.getListState("ids", "id long", 1000)

        def handleInputRows(self, key, rows, timerValues):
            self._ids.appendList([(row.id,) for row in rows])
            yield Row(user=key[0], n=len(list(self._ids.get())))

    with ProcessorHarness(
        Recent(), rows=EVENTS, key="user", output="user string, n long", time_mode="ProcessingTime"
    ) as harness:
        assert harness.process([("ann", 1, None)], processing_ms=5000)[0].n == 1
        assert harness.process([("ann", 2, None)], processing_ms=5999)[0].n == 2
        harness.restart()
        assert harness.process([("ann", 3, None)], processing_ms=6000)[0].n == 2
        assert harness.state("ids") == {("ann",): [(2,), (3,)]}
        harness.advance(processing_ms=7000)
        assert harness.state("ids") == {}


def test_the_key_of_a_timer_has_names_and_local_times_as_in_pyspark():
    class Named(Alarm):
        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            yield Row(user=f"{key!r} {key.at!r}")

    naive = dt.datetime(2026, 7, 1, 12, 30)  # noqa: DTZ001 - what PySpark gives
    with ProcessorHarness(
        Named(), rows=EVENTS, key=["user", "at"], output=ALARM, time_mode="EventTime", event_time="at"
    ) as harness:
        harness.process([("ann", 1, naive)])
        (row,) = harness.advance(watermark_ms=1 << 42)
    assert row.user == f"Row(user='ann', at={naive!r}) {naive!r}"


@pytest.mark.parametrize("result", [None, 7])
def test_a_handler_that_returns_nothing_to_go_through_is_named(result):
    class Wrong(Alarm):
        def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
            return result

    class WrongRows(Wrong):
        def handleInputRows(self, key, rows, timerValues):
            return result

    with _alarm(processor=Wrong()) as harness:
        harness.process(_events([("ann", 1, 100.0)]))
        with pytest.raises(DataError, match=rf"Wrong.handleExpiredTimer returned {result} for key \('ann',\)"):
            harness.advance(watermark_ms=200_000)
    with (
        _alarm(processor=WrongRows()) as harness,
        pytest.raises(DataError, match=rf"WrongRows.handleInputRows returned {result} for key \('ann',\)"),
    ):
        harness.process(_events([("ann", 1, 100.0)]))


def test_a_type_error_of_user_code_stays_its_own():
    class Mistaken(Alarm):
        def handleInputRows(self, key, rows, timerValues):
            yield Row(user=1 + "1")

    with _alarm(processor=Mistaken()) as harness, pytest.raises(TypeError, match="unsupported operand"):
        harness.process(_events([("ann", 1, 100.0)]))


def test_times_without_a_zone_are_local_both_ways():
    class Echo(Diary):
        def handleInputRows(self, key, rows, timerValues):
            for row in rows:
                yield Row(at=row.at, nested=Row(at=row.at))

    naive = dt.datetime(2026, 7, 1, 12, 30)  # noqa: DTZ001 - what the test is about
    with ProcessorHarness(Echo(), rows=EVENTS, key="user", output="at timestamp, nested struct<at: timestamp>") as echo:
        assert (
            echo.process([("ann", 1, naive), ("ann", 1, naive.astimezone())])
            == [Row(at=naive, nested=Row(at=naive))] * 2
        )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"key": "usr"}, "column 'usr' is not among the rows' columns"),
        ({"time_mode": "Sometimes"}, "time_mode='Sometimes': expected one of 'None'"),
        ({"late": "maybe"}, "late='maybe'"),
        ({"event_time": None}, "needs the column that has the watermark"),
        ({"time_mode": "None"}, "needs the column that has the watermark"),
        ({"rows": 7}, "a schema must be a StructType or its DDL text, got 7"),
        ({"output": "user strng"}, "expected a type"),
        ({"options": {"state.backend.typ": "heap"}}, "did you mean 'state.backend.type'"),
    ],
)
def test_wrong_arguments_are_refused_at_once(changes, says):
    with pytest.raises(OptionError, match=says):
        _alarm(**changes)


@pytest.mark.parametrize(
    ("processor", "says"),
    [
        (Diary, r"ProcessorHarness takes a StatefulProcessor, got the class Diary.* Write Diary\(\)"),
        (object(), "got object, which has no init and no handleInputRows and no close"),
        (dict, "got the class dict"),
    ],
)
def test_what_is_no_processor_is_refused_by_name(processor, says):
    with pytest.raises(OptionError, match=says):
        _alarm(processor=processor)


def test_a_closed_harness_says_that_it_is_closed():
    harness = _alarm()
    harness.process([("ann", 1, _at(0))])
    harness.close()
    harness.close()
    for act in (lambda: harness.state("seen"), lambda: harness.process([]), harness.restart):
        with pytest.raises(OptionError, match="the harness is closed"):
            act()


def test_a_state_that_nobody_declared_is_refused_with_the_nearest(diary):
    with pytest.raises(OptionError, match=r"no state 'cuont'; the processor declared .*; did you mean 'count'"):
        diary.state("cuont")


def test_a_state_that_cannot_be_declared_is_refused_at_once():
    class Wrong(Diary):
        def init(self, handle):
            handle.getValueState("count", "n lng")

    with pytest.raises(OptionError, match="'n lng' cannot be read"):
        ProcessorHarness(Wrong(), rows=StructType([StructField("user", StringType())]), key="user", output=DIARY)


def test_time_does_not_go_back_and_a_watermark_needs_event_time(diary):
    with pytest.raises(OptionError, match="needs time_mode 'EventTime'"):
        diary.advance(watermark_ms=5)
    diary.advance(processing_ms=5)
    with pytest.raises(OptionError, match="time cannot go back"):
        diary.advance(processing_ms=4)


NO_JVM = """
import psutil
from pyspark import SparkContext
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from millpond.spark.testing.processor_harness import ProcessorHarness, ProcessorSnapshot

class Visits(StatefulProcessor):
    def init(self, handle):
        self.seen = handle.getValueState("seen", "count long, at timestamp")

    def handleInputRows(self, key, rows, timerValues):
        self.seen.update((len(list(rows)), None))
        yield Row(user=key[0], visits=self.seen.get()[0])

    def close(self):
        pass

harness = ProcessorHarness(Visits(), rows="user string", key="user", output="user string, visits long")
assert harness.process([("ada",), ("ada",)]) == [Row(user="ada", visits=2)]
assert SparkContext._gateway is None and SparkContext._jvm is None and SparkContext._active_spark_context is None
assert psutil.Process().children(recursive=True) == []
"""


def test_no_jvm_is_started_and_none_is_needed(tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", NO_JVM], env=environment, check=True, timeout=60)


def test_batch_by_batch_the_output_is_that_of_pyspark():
    with _alarm() as harness:
        alone = [harness.process(_events(rows), watermark_ms=watermark) for watermark, rows in BATCHES]
    assert plain(alone) == given("harness")
    assert any(row.fired for batch in alone for row in batch)


@pytest.mark.spark
@pytest.mark.soak
def test_pyspark_gives_what_the_harness_is_held_to(spark, tmp_path):
    (tmp_path / "events").mkdir()
    for at, (_, rows) in enumerate(BATCHES):
        if rows:
            columns = list(zip(*_events(rows), strict=True))
            types = [pa.string(), pa.int64(), pa.timestamp("us", tz="UTC")]
            arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
            path = tmp_path / "events" / f"{at}.parquet"
            pq.write_table(pa.table(arrays, names=["user", "id", "at"]), path)
            # Spark takes files in the order of their times.
            os.utime(path, (1_700_000_000 + at,) * 2)
    reader = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    events = reader.parquet(str(tmp_path / "events")).withWatermark("at", "5 seconds")
    on_spark = []
    writer = events.groupBy("user").transformWithState(Alarm(), ALARM, "Update", "EventTime").writeStream
    writer = writer.outputMode("update").trigger(availableNow=True)
    writer = writer.foreachBatch(lambda batch, _: on_spark.append(batch.collect()))
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert plain(on_spark) == given("harness")
