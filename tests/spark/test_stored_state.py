"""Keyed state outside its query: read by a batch job, saved, and begun with by another query, on Spark."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from millpond import OptionError
from millpond.spark import ProcessorHarness, keyed, read_state, savepoint
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


class Everything(StatefulProcessor):
    """Every kind of state, with nested values, and timers."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long, at timestamp")
        self._ids = handle.getListState("ids", "id long, tags array<string>")
        self._last = handle.getMapState("last", "parity long", "id long, seen map<string,long>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count = self._count.get()[0] if self._count.exists() else 0
        at = None
        for row in rows:
            count, at = count + 1, row.at
            self._ids.appendValue((row.id, [str(row.id)]))
            self._last.updateValue((row.id % 2,), (row.id, {str(key[0]): row.id}))
            self._handle.registerTimer(1_000_000 + row.id)
        self._count.update((count, at))
        yield Row(user=key[0], n=count, fired=None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(user=key[0], n=self._count.get()[0], fired=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        pass


OUTPUT = "user string, n long, fired long"


def events(stream: FileStream) -> DataFrame:
    return stream.frame().withWatermark("at", "5 seconds")


def ours(stream: FileStream, **options: Any) -> DataFrame:
    return keyed(events(stream), "user").transformWithState(Everything(), OUTPUT, "Update", "EventTime", **options)


def rows_of(frame: DataFrame, *, without: tuple[str, ...] = ("partition_id",)) -> Counter[str]:
    return Counter(repr(row) for row in frame.drop(*without).collect())


@pytest.fixture(scope="module")
def streams(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileStream]:
    """The same events, worked off by PySpark's operator and by Millpond's."""
    made = {}
    for name in ("pyspark", "millpond"):
        stream = made[name] = FileStream(spark, tmp_path_factory.mktemp(name))
        stream.add([("ann", 1, 10.0), ("bob", 2, 10.0), (None, 3, 10.0)])
        stream.add([("ann", 4, 20.0), ("cid", 5, None)])
        theirs = events(stream).groupBy("user").transformWithState(Everything(), OUTPUT, "Update", "EventTime")
        stream.run(ours(stream) if name == "millpond" else theirs)
    return made


def checkpoint(stream: FileStream) -> str:
    return str(stream.folder / "checkpoint")


def test_state_and_timers_read_as_those_of_pysparks_operator_do(streams: dict[str, FileStream]) -> None:
    theirs, ours = streams["pyspark"], streams["millpond"]
    spark = ours.spark
    source = spark.read.format("statestore")
    for state in ("count", "ids", "last"):
        expected = source.option("stateVarName", state).load(checkpoint(theirs))
        found = read_state(spark, checkpoint(ours), state)
        assert found.schema.simpleString() == expected.schema.simpleString()
        assert rows_of(found) == rows_of(expected)
    expected = spark.read.format("statestore").option("readRegisteredTimers", "true").load(checkpoint(theirs))
    found = read_state(spark, checkpoint(ours), timers=True)
    assert found.columns == expected.columns
    assert rows_of(found) == rows_of(expected)


def test_an_earlier_version_and_what_changed_since(streams: dict[str, FileStream]) -> None:
    spark, location = streams["millpond"].spark, checkpoint(streams["millpond"])
    counts = read_state(spark, location, "count", version=0)
    assert sorted((str(row.user), row.n) for row in counts.select("key.user", "value.n").collect()) == [
        ("None", 1),
        ("ann", 1),
        ("bob", 1),
    ]
    changes = read_state(spark, location, "count", version=1, since=0)
    found = changes.select("change_type", "key.user", "old_value.n", "new_value.n").collect()
    assert sorted(tuple(row) for row in found) == [("added", "cid", None, 1), ("changed", "ann", 1, 2)]
    entries = read_state(spark, location, "last", version=1, since=0)
    found = entries.select("change_type", "key.user", "user_map_key.parity", "new_user_map_value.seen").collect()
    assert sorted(tuple(row) for row in found) == [("added", "ann", 0, {"ann": 4}), ("added", "cid", 1, {"cid": 5})]
    lists = read_state(spark, location, "ids", version=1, since=0)
    ann = next(row for row in lists.collect() if row.key.user == "ann")
    assert ([item.id for item in ann.old_list_value], [item.id for item in ann.new_list_value]) == ([1], [1, 4])
    timers = read_state(spark, location, timers=True, version=1, since=0)
    assert {(row.change_type, row.expiration_timestamp_ms) for row in timers.collect()} == {
        ("added", 1_000_004),
        ("added", 1_000_005),
    }


def test_what_is_not_there_is_refused_by_name(streams: dict[str, FileStream], tmp_path: Path) -> None:
    spark, location = streams["millpond"].spark, checkpoint(streams["millpond"])
    with pytest.raises(OptionError, match=r"no state 'coutn'.*\['count', 'ids', 'last'\]; did you mean 'count'\?"):
        read_state(spark, location, "coutn")
    with pytest.raises(OptionError, match=r"no version 77: Spark keeps those of the batches 0 to \d"):
        read_state(spark, location, "count", version=77)
    with pytest.raises(
        OptionError, match=r"no keyed operator 3; say which with operator=, or --operator of the command, one of \[0\]"
    ):
        read_state(spark, location, "count", operator=3)
    with pytest.raises(OptionError, match="nowhere is not the checkpoint of a stateful query"):
        read_state(spark, str(tmp_path / "nowhere"), "count")
    with pytest.raises(OptionError, match=r"no operator that keyed\(\) made.*0 \(transformWithState"):
        read_state(spark, checkpoint(streams["pyspark"]), "count")
    with pytest.raises(OptionError, match="one state or the timers"):
        read_state(spark, location)
    with pytest.raises(OptionError, match="no version 5"):
        read_state(spark, location, "count", since=5)


# To fewer shards without Spark: tests/state/testing/test_rescaling.py.
@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.soak), 4])
def test_a_new_query_of_another_number_of_shards_goes_on_from_a_savepoint(
    streams: dict[str, FileStream], tmp_path: Path, shards: int
) -> None:
    old = streams["millpond"]
    spark = old.spark
    place = str(tmp_path / "savepoint")
    saved = savepoint(spark, checkpoint(old), place)
    assert {state.name for state in saved.states()} == {"count", "ids", "last", "$timers"}
    with pytest.raises(OptionError, match="is not empty"):
        savepoint(spark, checkpoint(old), place)
    if shards == 1:
        # By way of a harness, which writes and reads the same.
        rows = "user string, id long, at timestamp"
        with ProcessorHarness(
            Everything(), rows=rows, key="user", output=OUTPUT, time_mode="EventTime", event_time="at"
        ) as harness:
            harness.restore_savepoint(place)
            assert {key: value[0] for (key,), value in harness.state("count").items()} == {
                "ann": 2,
                "bob": 1,
                "cid": 1,
                None: 1,
            }
            place = str(tmp_path / "of the harness")
            harness.savepoint(place)
    new = FileStream(spark, tmp_path)
    new.add([("ann", 6, 30.0), ("dan", 7, 30.0)])
    new.add([("dan", 8, 2_000.0)])
    spark.conf.set("spark.sql.shuffle.partitions", str(shards))
    try:
        batches = new.run(ours(new, savepoint=place))
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert sorted((row.user, row.n) for row in batches[0]) == [("ann", 3), ("dan", 1)]
    fired = sorted((str(row.user), row.fired) for batch in batches for row in batch if row.fired)
    times = {"ann": (1, 4, 6), "bob": (2,), "cid": (5,), "dan": (7, 8), "None": (3,)}
    assert fired == sorted((user, 1_000_000 + at) for user, ats in times.items() for at in ats)
    found = read_state(spark, checkpoint(new), "ids").select("partition_id", "key.user", "list_element.id").collect()
    assert {row.partition_id for row in found} <= set(range(shards))
    assert sorted(row.id for row in found) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_savepoint_that_does_not_fit_is_refused_before_the_query_starts(
    streams: dict[str, FileStream], tmp_path: Path
) -> None:
    old = streams["millpond"]
    place = str(tmp_path / "savepoint")
    savepoint(old.spark, checkpoint(old), place)
    with pytest.raises(OptionError, match=r"keyed by \[user: string\] and the query keys by \[id: int64\]"):
        keyed(events(old), "id").transformWithState(Everything(), OUTPUT, "Update", "EventTime", savepoint=place)
    with pytest.raises(OptionError, match=r"timers that were set in EventTime"):
        keyed(events(old), "user").transformWithState(Everything(), OUTPUT, "Update", "ProcessingTime", savepoint=place)
    # Of a query that began long ago it may be gone.
    keyed(events(old), "user").transformWithState(
        Everything(), OUTPUT, "Update", "EventTime", savepoint=str(tmp_path / "gone")
    )
