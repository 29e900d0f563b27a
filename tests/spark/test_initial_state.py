"""An initial state reaches `handleInitialState` as in PySpark: once, in the first batch, before the key's rows."""

from datetime import UTC, datetime

import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond import DataError, OptionError
from millpond.spark import StateConfig, keyed
from tests.spark.pysparks_output import OPERATORS, given, plain
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

OUTPUT = "user string, kind string, seen array<long>"


class Ledger(StatefulProcessor):
    """Remembers what it was begun with and what came, and tells both, and its timers."""

    def init(self, handle):
        self._handle = handle
        self._seen = handle.getListState("seen", "amount long")

    def handleInitialState(self, key, initialState, timerValues):
        assert isinstance(initialState, Row)
        assert initialState.who == key[0]
        self._seen.appendValue((initialState.amount,))
        if initialState.amount < 0:
            self._handle.registerTimer(max(timerValues.getCurrentProcessingTimeInMs(), 1))

    def handleInputRows(self, key, rows, timerValues):
        self._seen.appendList([(row.id,) for row in rows])
        yield Row(user=key[0], kind="rows", seen=[amount for (amount,) in self._seen.get()])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield Row(user=key.user, kind="timer", seen=[amount for (amount,) in self._seen.get()])

    def close(self):
        pass


@pytest.fixture
def initial(spark):
    rows = [("ann", 100), ("cid", 300), ("ann", 101), (None, 400)]
    return spark.createDataFrame(rows, "who string, amount long")


def _told(batches):
    return [sorted(((row.user, row.kind, row.seen) for row in batch), key=repr) for batch in batches]


def test_it_comes_before_the_rows_of_the_first_batch_and_only_there(spark, tmp_path, initial):
    stream = FileStream(spark, tmp_path)
    stream.add([("ann", 1, None), ("bob", 2, None)])
    stream.add([("ann", 3, None), ("cid", 4, None), (None, 5, None)])

    def ledger(host):
        return keyed(stream.frame(), "user").transformWithState(
            Ledger(), OUTPUT, "Update", "None", initial.groupBy("who"), state=StateConfig(host=host)
        )

    first, second = _told(stream.run(ledger("inline")))
    # The order of an initial state's rows of one key is the order in which Spark reads them.
    assert [(user, kind, sorted(seen)) for user, kind, seen in first] == [
        ("ann", "rows", [1, 100, 101]),
        ("bob", "rows", [2]),
    ]
    assert first[0][2][-1] == 1, "the key's rows come after its initial state"
    assert second == [
        ("ann", "rows", [*first[0][2], 3]),
        ("cid", "rows", [300, 4]),
        (None, "rows", [400, 5]),
    ]
    stream.add([("cid", 6, None)])
    assert _told(stream.run(ledger("process"))) == [[("cid", "rows", [300, 4, 6])]]


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_output_is_that_of_pyspark(spark, tmp_path, initial, operator):
    stream = FileStream(spark, tmp_path)
    stream.add([("ann", 1, None), ("bob", 2, None), ("cid", 7, None)])
    stream.add([("ann", 3, None), ("dan", 4, None)])
    grouped = stream.frame().groupBy("user") if operator == "pyspark" else keyed(stream.frame(), "user")
    batches = stream.run(
        grouped.transformWithState(Ledger(), OUTPUT, "Update", "None", initialState=initial.groupBy("who"))
    )
    told = [[(user, kind, sorted(seen)) for user, kind, seen in batch] for batch in _told(batches)]
    assert plain(told) == given("initial_state")


def test_a_batch_dataframe_has_one_too(spark, initial):
    events = spark.createDataFrame([("ann", 1), ("bob", 2)], "user string, id long")
    grouped = [events.groupBy("user"), keyed(events, "user")]
    told = [
        _told([each.transformWithState(Ledger(), OUTPUT, "Update", "None", initial.groupBy("who")).collect()])
        for each in grouped
    ]
    assert [sorted(seen) for _, _, seen in told[0][0]] == [sorted(seen) for _, _, seen in told[1][0]]


class Frames(Ledger):
    """The same with pandas: one frame with all of a key's initial rows."""

    def handleInitialState(self, key, initialState, timerValues):
        assert list(initialState.columns) == ["who", "amount"]
        self._seen.appendValue((int(initialState.amount.sum()),))

    def handleInputRows(self, key, rows, timerValues):
        self._seen.appendList([(int(number),) for frame in rows for number in frame.id])
        seen = [amount for (amount,) in self._seen.get()]
        yield pd.DataFrame({"user": [key[0]], "kind": ["rows"], "seen": [seen]})


def test_pandas_processors_get_it_as_frames(spark, initial):
    events = spark.createDataFrame([("ann", 1), ("bob", 2), ("ann", 3)], "user string, id long")
    told = [
        _told([each.transformWithStateInPandas(Frames(), OUTPUT, "Update", "None", initial.groupBy("who")).collect()])
        for each in (events.groupBy("user"), keyed(events, "user"))
    ]
    assert told[0] == told[1]
    assert told[1] == [[("ann", "rows", [201, 1, 3]), ("bob", "rows", [2])]]


@pytest.mark.parametrize("mode", ["None", "ProcessingTime"])
def test_it_is_not_lost_when_the_first_batch_has_no_rows(spark, tmp_path, mode):
    """Without rows no batch of a shard runs by itself."""
    stream = FileStream(spark, tmp_path)
    (stream.folder / "events" / "0000.json").touch()
    (stream.folder / "events" / "0001.json").write_text('{"user": "ann", "id": 1}\n')
    reader = spark.readStream.schema("user string, id long").option("maxFilesPerTrigger", 1)
    initial = spark.createDataFrame([("ann", 100), ("cid", -300)], "who string, amount long")
    ledger = keyed(reader.json(str(stream.folder / "events")), "user").transformWithState(
        Ledger() if mode == "ProcessingTime" else Untimed(), OUTPUT, "Update", mode, initial.groupBy("who")
    )
    wanted = {("ann", "rows"), ("cid", "timer")} if mode == "ProcessingTime" else {("ann", "rows")}
    told = [told for batch in _told(stream.run_until(ledger, wanted)) for told in batch]
    assert ("ann", "rows", [100, 1]) in told
    assert (("cid", "timer", [-300]) in told) == (mode == "ProcessingTime")


class Untimed(Ledger):
    def handleInitialState(self, key, initialState, timerValues):
        self._seen.appendValue((initialState.amount,))


class Reminded(Ledger):
    def handleInitialState(self, key, initialState, timerValues):
        super().handleInitialState(key, initialState, timerValues)
        self._handle.registerTimer(100_000)


def test_timers_set_for_it_fire_for_keys_that_never_had_a_row(spark, tmp_path, initial):
    stream = FileStream(spark, tmp_path)
    stream.add([("bob", 1, 50.0)])
    stream.add([("bob", 2, 150.0)])
    events = stream.frame().withWatermark("at", "1 second")
    batches = stream.run(
        keyed(events, "user").transformWithState(Reminded(), OUTPUT, "Update", "EventTime", initial.groupBy("who"))
    )
    fired = [(row.user, sorted(row.seen)) for batch in batches for row in batch if row.kind == "timer"]
    assert sorted(fired, key=repr) == [("ann", [100, 101]), ("cid", [300]), (None, [400])]


def test_several_key_columns_may_have_other_names(spark):
    at = datetime(2026, 1, 1, tzinfo=UTC)
    events = spark.createDataFrame([("ann", at, 1)], "user string, at timestamp, id long")
    initial = spark.createDataFrame([(at, 7, "ann"), (at, 8, "bob")], "since timestamp, amount long, who string")
    (row,) = (
        keyed(events, "user", "at")
        .transformWithState(Ledger(), OUTPUT, "Update", "None", initial.groupBy("WHO", "since"))
        .collect()
    )
    assert (row.user, row.seen) == ("ann", [7, 1])


def test_what_cannot_be_an_initial_state_is_refused(spark, initial):
    events = spark.createDataFrame([("ann", 1)], "user string, id long")

    def given(state):
        return keyed(events, "user").transformWithState(Ledger(), OUTPUT, "Update", "None", state)

    with pytest.raises(OptionError, match=r"initialState is a DataFrame; expected .*=initial.groupBy\('user'\)"):
        given(initial)
    with pytest.raises(OptionError, match="initialState is a stream"):
        given(spark.readStream.format("rate").load().groupBy("value"))
    with pytest.raises(DataError, match=r"grouped by \[amount: bigint\], the stream is keyed by \[user: string\]"):
        given(initial.groupBy("amount"))
    with pytest.raises(DataError, match=r"grouped by \[who: string, amount: bigint\]"):
        given(initial.groupBy("who", "amount"))
