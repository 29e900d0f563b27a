"""What PySpark's stateful operators do, one behaviour a test: over rows and pandas, by PySpark's operators and ours.

Each processor is written once.
What differs between the forms is in `Both`.
Each expectation stands here in full, so that a test says what Spark does.
Every run holds Millpond to it; `make soak` and `make matrix` hold PySpark's own operator to it, too.
"""

import datetime as dt
import json

import pandas as pd
import pytest
from pyspark.errors import PySparkRuntimeError, StreamingQueryException, UnsupportedOperationException
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import keyed, read_state
from millpond.spark.environment.versions import SPARK
from tests.spark.pysparks_output import OPERATORS
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

TOLD = "user string, told string"
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


class Operator:
    """One of the four: `by` PySpark or Millpond, over rows or DataFrames."""

    def __init__(self, by, form):
        self.by, self.form = by, form

    def of(self, df, processor, *keys, output=TOLD, mode="None", initial=None, output_mode="Update", event_time=""):
        grouped = df.groupBy(*keys) if self.by == "pyspark" else keyed(df, *keys)
        call = grouped.transformWithState if self.form == "rows" else grouped.transformWithStateInPandas
        processor.form = self.form
        return call(processor, output, output_mode, mode, initial, event_time)


ALL = [pytest.param(("pyspark", "rows"), marks=pytest.mark.soak), ("millpond", "rows"), ("millpond", "pandas")]


def every_run_in(form):
    """Runs a test in one form, and in the other one with `make soak`.

    For what no form has code of its own for: times, timers, restarts. Each form has some of these tests, so that every
    run meets both; what the pandas form does with rows, nulls and output is tested below and in `forms/`.
    """
    operators = [("pyspark", "rows"), ("millpond", "rows"), ("millpond", "pandas")]
    params = [pytest.param(each, marks=() if each == ("millpond", form) else pytest.mark.soak) for each in operators]
    return pytest.mark.parametrize("operator", params, ids="-".join, indirect=True)


@pytest.fixture(params=ALL, ids="-".join)
def operator(request):
    """PySpark's operator in one form, ours in both."""
    return Operator(*request.param)


@pytest.fixture
def stream(spark, tmp_path):
    return FileStream(spark, tmp_path)


@pytest.fixture
def conf(spark):
    """Sets settings of the session for one test."""
    before = {}

    def set_all(**settings):
        for name, value in settings.items():
            key = name.replace("__", ".")
            before.setdefault(key, spark.conf.get(key))
            spark.conf.set(key, value)

    yield set_all
    for key, value in before.items():
        spark.conf.set(key, value)


class Both(StatefulProcessor):
    """A processor of either form: `given` reads a key's rows as dictionaries, `told` makes output of fields."""

    form = "rows"

    def init(self, handle):
        self.handle = handle

    def given(self, rows):
        if self.form == "rows":
            return [row.asDict() for row in rows]
        return [record for frame in rows for record in frame.to_dict("records")]

    def told(self, **fields):
        return Row(**fields) if self.form == "rows" else pd.DataFrame({name: [value] for name, value in fields.items()})

    def close(self):
        pass


def seconds(at):
    """A row's time, whatever form it came in, in seconds. The session's zone and the machine's are one."""
    return int(at.timestamp())


def rows_of(batches):
    return [sorted(tuple(row) for row in batch) for batch in batches]


# Times


class Sessions(Both):
    """Closes a user's session 10 s after its last event, as event times say, whatever order they come in."""

    def init(self, handle):
        super().init(handle)
        self.last = handle.getValueState("last", "at long")
        self.events = handle.getValueState("events", "n long")

    def handleInputRows(self, key, rows, timerValues):
        for row in self.given(rows):
            at = int(row["id"]) * 1000
            last = self.last.get()
            if last is not None and last[0] < at:
                self.handle.deleteTimer(last[0] + 10_000)
            if last is None or last[0] < at:
                self.last.update((at,))
            self.handle.registerTimer(at + 10_000)
            self.events.update(((self.events.get() or (0,))[0] + 1,))
        yield self.told(user=key[0], told=f"events {self.events.get()[0]}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        told = f"closed at {expiredTimerInfo.getExpiryTimeInMs() // 1000}"
        yield self.told(user=key[0], told=told)


@every_run_in("rows")
def test_a_session_gap_timer_of_a_row_out_of_order_fires_in_its_batch(operator, stream):
    # The watermark follows 30 s behind: of the batches it is 0, 70 and 75.
    stream.add([("ann", 100, 100.0)])
    stream.add([("ann", 55, 72.0), ("bob", 105, 105.0)])
    output = operator.of(stream.frame().withWatermark("at", "30 seconds"), Sessions(), "user", mode="EventTime")
    batches = rows_of(stream.run(output))
    assert batches[0] == [("ann", "events 1")]
    # 55 + 10 is before the watermark, and the row is not late.
    assert batches[1] == [("ann", "closed at 65"), ("ann", "events 2"), ("bob", "events 1")]


class AroundTheWatermark(Both):
    """Sets timers at offsets from the watermark; its first expired timers set others, then one at its own time."""

    def init(self, handle):
        super().init(handle)
        self.fired = handle.getValueState("fired", "n long")

    def handleInputRows(self, key, rows, timerValues):
        watermark = timerValues.getCurrentWatermarkInMs()
        for row in self.given(rows):
            self.handle.registerTimer(watermark + int(row["id"]))
        yield self.told(user=key[0], told=f"{watermark}: set {sorted(self.handle.listTimers())}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        watermark, expiry = timerValues.getCurrentWatermarkInMs(), expiredTimerInfo.getExpiryTimeInMs()
        fired = (self.fired.get() or (0,))[0]
        self.fired.update((fired + 1,))
        if fired < 3:
            self.handle.registerTimer([watermark - 5, watermark, expiry][fired])
        # Two iterators at once.
        assert sorted(self.handle.listTimers()) == sorted(self.handle.listTimers())
        yield self.told(user=str(key[0]), told=f"{watermark}: fired {expiry}")


@every_run_in("pandas")
def test_a_timer_at_or_before_the_watermark_fires_at_once_and_one_of_a_handler_in_the_next_batch(
    operator, stream, conf
):
    conf(spark__sql__shuffle__partitions="1" if operator.form == "pandas" else "2")
    stream.add([("ann", 0, 20.0)])
    stream.add([("bob", -3, 45.0)])
    stream.add([("cat", 1, 61.0)])
    output = operator.of(
        stream.frame().withWatermark("at", "10 seconds"), AroundTheWatermark(), "user", mode="EventTime"
    )
    assert rows_of(stream.run(output)) == [
        [("ann", "0: fired 0"), ("ann", "0: set [0]")],
        [("ann", "10000: fired -5"), ("bob", "10000: fired 9997"), ("bob", "10000: set [9997]")],
        [("ann", "35000: fired 10000"), ("bob", "35000: fired 9995"), ("cat", "35000: set [35001]")],
        # ann set one again at its own time, which is lost; bob one at the watermark of the batch before.
        [("bob", "51000: fired 35000"), ("cat", "51000: fired 35001")],
    ]


class Rivals(Both):
    """Sets two timers of the past in its first batch, of which the first deletes the second."""

    def handleInputRows(self, key, rows, timerValues):
        self.handle.registerTimer(-20)
        self.handle.registerTimer(-10)
        yield self.told(user=key[0], told=f"rows, timers {sorted(self.handle.listTimers())}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        self.handle.deleteTimer(-10)
        yield self.told(user=key[0], told=f"fired {expiry}, timers {sorted(self.handle.listTimers())}")


@every_run_in("rows")
def test_a_timer_that_is_due_fires_though_an_earlier_handler_of_its_batch_deleted_it(operator, stream):
    stream.add([("ann", 0, 20.0), ("bob", 0, 20.0)])
    output = operator.of(stream.frame().withWatermark("at", "10 seconds"), Rivals(), "user", mode="EventTime")
    batches = rows_of(stream.run(output))
    assert batches[0] == [
        (user, told)
        for user in ("ann", "bob")
        for told in ("fired -10, timers []", "fired -20, timers [-20]", "rows, timers [-20, -10]")
    ]


class Seen(Both):
    """Gives the earliest time of a key's rows."""

    def handleInputRows(self, key, rows, timerValues):
        yield self.told(user=key[0], told=str(min(seconds(row["at"]) for row in self.given(rows))))


@every_run_in("pandas")
def test_late_rows_are_kept_without_event_time(operator, stream):
    for at in (100.0, 40.0, 20.0):
        stream.add([("ann", 1, at)])
    batches = rows_of(stream.run(operator.of(stream.frame().withWatermark("at", "10 seconds"), Seen(), "user")))
    assert [row[1] for batch in batches for row in batch] == ["100", "40", "20"]


@every_run_in("rows")
def test_what_follows_an_operator_goes_by_its_output_times(operator, stream):
    class OnTime(Seen):
        def handleInputRows(self, key, rows, timerValues):
            yield self.told(user=key[0], at=min(row["at"] for row in self.given(rows)))

    for rows in ([("ann", 1, 10.0), ("bob", 2, 15.0)], [("ann", 3, 11.0), ("cat", 4, 25.0)], [("ann", 5, 5.0)]):
        stream.add(rows)
    timed = operator.of(
        stream.frame().withWatermark("at", "5 seconds"),
        OnTime(),
        "user",
        output="user string, at timestamp",
        mode="EventTime",
        output_mode="Append",
        event_time="at",
    )
    counted = timed.groupBy("at").count().select(F.unix_seconds("at"), "count")
    batches = rows_of(stream.run(counted, "append"))
    # 5 comes after the watermark 10 of the batch before, and is dropped.
    assert [row for batch in batches for row in batch] == [(10, 1), (11, 1), (15, 1)]


class Minutes(Both):
    """State that lives a millisecond, state that lives an hour, and a timer that is due at once."""

    def init(self, handle):
        super().init(handle)
        self.states = [
            (name, ttl, getattr(handle, f"get{name}State")(f"{name}{ttl}", *schemas, ttl))
            for name, schemas in (("Value", ["n long"]), ("List", ["n long"]), ("Map", ["k string", "n long"]))
            for ttl in (1, 3_600_000)
        ]

    def handleInputRows(self, key, rows, timerValues):
        found = [f"{name}{ttl}" for name, ttl, state in self.states if state.exists()]
        for name, _, state in self.states:
            if name == "Value":
                state.update((1,))
            elif name == "List":
                state.put([(1,), (2,)])
            else:
                state.updateValue(("a",), (1,))
        if key[0] == "ann":
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)
        ids = sorted(int(row["id"]) for row in self.given(rows))
        yield self.told(user=key[0], told=f"{ids} {found}")

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        late = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
        yield self.told(user=key[0], told=f"fired {late} ms late")


@every_run_in("pandas")
def test_state_expires_by_processing_time_and_a_timer_of_the_past_fires_at_once(operator, stream):
    stream.add([("ann", 1, 1.0), ("bob", 2, 1.0)])
    stream.add([("ann", 3, 1.0)])
    output = operator.of(stream.frame(), Minutes(), "user", mode="ProcessingTime")
    lives = ["Value3600000", "List3600000", "Map3600000"]
    wanted = {("ann", f"[3] {lives}")}
    seen = [tuple(row) for batch in stream.run_until(output, wanted) for row in batch]
    assert sorted(seen) == sorted(
        [("ann", "[1] []"), ("bob", "[2] []"), ("ann", "fired 1 ms late"), ("ann", "fired 1 ms late"), *wanted]
    )


# States


class Everything(Both):
    """Asks much of each kind of state, and asserts what PySpark gives."""

    def init(self, handle):
        super().init(handle)
        self.value = handle.getValueState("value", "n long, word string")
        self.log = handle.getListState("log", "n long, nothing string")
        self.pages = handle.getMapState("pages", "page string", "n long")
        self.deep = handle.getValueState(
            "deep", "a array<long>, m map<string, array<long>>, mm map<string,map<string,int>>"
        )
        self.moments = handle.getListState("moments", "at timestamp")
        self.large = handle.getMapState("large", "name string", "data string")

    def handleInputRows(self, key, rows, timerValues):
        assert self.value.get() is None
        assert not self.value.exists()
        self.value.clear()
        assert list(self.log.get()) == []
        assert not self.log.exists()
        assert self.pages.getValue(("none",)) is None
        assert not self.pages.exists()
        self.pages.removeKey(("none",))
        self._lists()
        self._maps()
        self.value.update((None, "x"))
        assert self.value.get() == (None, "x")
        assert self.deep.get() is None
        self.deep.update(([0], {"k": [1]}, {"e": {"f": 5}}))
        array, lists, nested = self.deep.get()
        array.append(9)
        assert self.deep.get() == ([0], {"k": [1]}, {"e": {"f": 5}}), "what is not put is not kept"
        self.deep.update((array, {**lists, "l": [2]}, {**nested, "g": {"h": 6}}))
        assert self.deep.get() == ([0, 9], {"k": [1], "l": [2]}, {"e": {"f": 5}, "g": {"h": 6}})
        noon = dt.datetime(2024, 7, 1, 12)  # noqa: DTZ001 - as PySpark's users have it
        self.moments.put([(noon,), (None,)])
        assert list(self.moments.get()) == [(noon,), (None,)]
        data = "a" * (512 * 1024)
        self.large.updateValue(("it",), (data,))
        assert self.large.getValue(("it",)).data == data
        # Each of the composite columns comes in a form of its own; here their sizes will do.
        yield self.told(user=key[0], part=key[1], count=len(self.given(rows)))

    def _lists(self):
        self.log.put([(n, None) for n in range(2500)])
        self.log.appendValue((2500, None))
        self.log.appendList([(n, None) for n in range(2501, 3000)])
        one, other = self.log.get(), self.log.get()
        assert [next(one) for _ in range(150)] == [(n, None) for n in range(150)]
        assert [next(other) for _ in range(3)] == [(n, None) for n in range(3)], "iterators do not disturb each other"
        assert [row[0] for row in one] == list(range(150, 3000))
        assert [row[0] for row in other] == list(range(3, 3000))

    def _maps(self):
        for n in range(1200):
            self.pages.updateValue((f"/{n:04}",), (n,))
        keys, values, pairs = self.pages.keys(), self.pages.values(), self.pages.iterator()
        assert (next(keys), next(values), next(pairs)) == (("/0000",), (0,), (("/0000",), (0,)))
        assert {row[0] for row in keys} == {f"/{n:04}" for n in range(1, 1200)}
        assert {row[0] for row in values} == set(range(1, 1200))
        assert dict(pairs) == {(f"/{n:04}",): (n,) for n in range(1, 1200)}
        assert self.pages.getValue(("/0007",)).n == 7
        # A text of one character is taken for a key of one field.
        self.pages.updateValue("k", (-1,))
        assert self.pages.containsKey("k")
        assert self.pages.getValue("k")[0] == -1
        self.pages.removeKey("k")
        assert not self.pages.containsKey(("k",))
        assert self.pages.exists()
        self.pages.clear()
        assert not self.pages.exists()


def test_states_hold_lists_maps_nulls_nested_and_large_values_under_keys_that_are_not_beside_each_other(
    operator, spark
):
    rows = [("a", 1, "x"), ("a", 2, "x"), ("b", 3, "y")]
    df = spark.createDataFrame(rows, "user string, id long, part string")
    output = operator.of(df, Everything(), "user", "part", output="user string, part string, count long")
    assert rows_of([output.collect()]) == [[("a", "x", 2), ("b", "y", 1)]]


class Composite(Both):
    def handleInputRows(self, key, rows, timerValues):
        inner = {"n": 1, "scores": [1.5], "tags": {"a": "b"}}
        inner = Row(**inner) if self.form == "rows" else inner
        yield self.told(user=key[0], items=["i", "j"], pairs={"k": "v"}, inners=[inner], by_name={"x": inner})


def test_output_may_be_nested(operator, spark):
    inner = "struct<n: int, scores: array<double>, tags: map<string, string>>"
    output = "user string, items array<string>, pairs map<string, string>, "
    output += f"inners array<{inner}>, by_name map<string, {inner}>"
    df = spark.createDataFrame([("ann",)], "user string")
    one = Row(n=1, scores=[1.5], tags={"a": "b"})
    expected = Row(user="ann", items=["i", "j"], pairs={"k": "v"}, inners=[one], by_name={"x": one})
    assert operator.of(df, Composite(), "user", output=output).collect() == [expected]


class Deleting(Both):
    """Deletes a state after it declared it, and one before."""

    def init(self, handle):
        super().init(handle)
        self.gone = {
            "value": handle.getValueState("value", "n long"),
            "list": handle.getListState("list", "n long"),
            "map": handle.getMapState("map", "k string", "n long"),
        }
        for name in [*self.gone, "never declared"]:
            handle.deleteIfExists(name)
        handle.deleteIfExists("empty")
        self.empty = handle.getValueState("empty", "n long")
        self.kept = handle.getValueState("kept", "n long")

    def handleInputRows(self, key, rows, timerValues):
        value, log, entries = self.gone.values()
        for call in (value.exists, value.get, value.clear, log.exists, log.clear, entries.exists, entries.clear):
            with pytest.raises(PySparkRuntimeError):
                call()
        for call in (value.update, log.appendValue):
            with pytest.raises(PySparkRuntimeError):
                call((1,))
        with pytest.raises(PySparkRuntimeError):
            entries.updateValue(("a",), (1,))
        assert [*log.get(), *entries.keys(), *entries.values(), *entries.iterator()] == []
        told = f"empty {self.empty.exists()}, kept {self.kept.exists()}"
        self.empty.update((1,))
        self.kept.update((1,))
        yield self.told(user=key[0], told=told)


@every_run_in("rows")
def test_a_deleted_state_is_not_there_and_one_deleted_before_it_is_declared_is_empty_in_every_batch(operator, stream):
    stream.add([("ann", 1, 1.0)])
    stream.add([("ann", 2, 1.0)])
    batches = rows_of(stream.run(operator.of(stream.frame(), Deleting(), "user")))
    assert batches == [[("ann", "empty False, kept False")], [("ann", "empty False, kept True")]]


# Limits and conversions of the pandas form


class Sizes(Both):
    """How many rows each frame has; of an initial state, how many there were."""

    def init(self, handle):
        super().init(handle)
        self.before = handle.getValueState("before", "n long")

    def handleInitialState(self, key, initialState, timerValues):
        self.before.update(((self.before.get() or (0,))[0] + len(initialState),))

    def handleInputRows(self, key, rows, timerValues):
        before = self.before.get()
        yield self.told(user=key[0], told=f"{[len(frame) for frame in rows]} after {before and before[0]}")


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({RECORDS: "0"}, [4]),
        ({RECORDS: "-1"}, [4]),
        ({RECORDS: "3"}, [3, 1]),
        ({BYTES: "2"}, [1, 1, 1, 1]),
        ({RECORDS: "-1", BYTES: "64m"}, [4]),
    ],
)
@pytest.mark.parametrize("by", OPERATORS)
def test_frames_keep_to_the_limits_in_rows_and_in_bytes(spark, conf, by, limits, sizes):
    if by == "pyspark" and SPARK < (4, 2) and int(limits.get(RECORDS, 1)) <= 0:
        pytest.skip("PySpark 4.1 gives each row a frame of its own where there is no limit; later versions give one")
    conf(**{name.replace(".", "__"): value for name, value in limits.items()})
    df = spark.createDataFrame([("ann", n) for n in range(4)], "user string, id long").coalesce(1)
    initial = spark.createDataFrame([("ann", 7), ("ann", 8)], "user string, n long").groupBy("user")
    operator = Operator(by, "pandas")
    assert rows_of([operator.of(df, Sizes(), "user").collect()]) == [[("ann", f"{sizes} after None")]]
    told = [row.told for row in operator.of(df, Sizes(), "user", initial=initial).collect()]
    if sizes == [3, 1]:
        # Where the pieces end depends on how the rows of the initial state come; ours may come in two calls.
        assert sum(sum(json.loads(each.removesuffix(" after 2"))) for each in told) == 4
    else:
        assert told == [f"{sizes} after 2"]


@pytest.mark.parametrize("by", OPERATORS)
def test_rows_are_never_lost_however_small_the_batches_are(spark, conf, by):
    conf(**{RECORDS.replace(".", "__"): "1", BYTES.replace(".", "__"): "1"})
    df = spark.range(20).selectExpr("string(id % 2) AS user", "id")
    counted = Operator(by, "rows").of(df, Counting(), "user")
    assert rows_of([counted.collect()]) == [[("0", "10 of 10"), ("1", "10 of 10")]]


class Counting(Both):
    """Counts a user's rows: now, and in all."""

    def init(self, handle):
        super().init(handle)
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timerValues):
        count = len(self.given(rows))
        total = (self.count.get() or (0,))[0] + count
        self.count.update((total,))
        yield self.told(user=key[0], told=f"{count} of {total}")


class Costly(Both):
    def handleInputRows(self, key, rows, timerValues):
        yield pd.DataFrame({"user": [key[0]], "price": [12345]})


@pytest.mark.parametrize("by", OPERATORS)
def test_whole_numbers_become_decimals_only_where_the_session_allows_it(spark, conf, by):
    df = spark.createDataFrame([("ann",)], "user string")
    output = {"output": "user string, price decimal(10, 2)"}
    conf(spark__sql__execution__pythonUDF__pandas__intToDecimalCoercionEnabled="true")
    assert float(Operator(by, "pandas").of(df, Costly(), "user", **output).collect()[0].price) == 12345.0
    conf(spark__sql__execution__pythonUDF__pandas__intToDecimalCoercionEnabled="false")
    with pytest.raises(Exception, match=r"(?i)price|decimal"):
        Operator(by, "pandas").of(df, Costly(), "user", **output).collect()


# Initial state


class WithInitial(Counting):
    """Counts from where the initial state stood; with timers, each of its keys is due at once."""

    def __init__(self, *, timers):
        self.timers = timers

    def init(self, handle):
        super().init(handle)
        self.told_of = handle.getListState("told_of", "n long")

    def handleInitialState(self, key, initialState, timerValues):
        amounts = [initialState.n] if self.form == "rows" else initialState["n"].tolist()
        for amount in amounts:
            self.count.update(((self.count.get() or (0,))[0] + amount,))
            self.told_of.appendValue((amount,))
        if self.timers:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield self.told(user=key[0], told=f"due, {len(list(self.told_of.get()))} amounts")


# Every run has each form and each kind of batch once: `test_initial_state.py` has the rows' initial state, too.
@pytest.mark.parametrize(
    ("operator", "timers"),
    [
        pytest.param(("pyspark", "rows"), False, marks=pytest.mark.soak),
        pytest.param(("pyspark", "rows"), True, marks=pytest.mark.soak),
        pytest.param(("millpond", "rows"), False, marks=pytest.mark.soak),
        (("millpond", "rows"), True),
        (("millpond", "pandas"), False),
        pytest.param(("millpond", "pandas"), True, marks=pytest.mark.soak),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else ("timers" if value else "no timers"),
    indirect=["operator"],
)
def test_an_initial_state_comes_once_and_its_timers_fire_in_the_first_batch(operator, stream, spark, timers):
    stream.add([("ann", 1, 1.0), ("bob", 2, 1.0)])
    stream.add([("ann", 3, 1.0), ("cat", 4, 1.0)])
    rows = [(100, "ann"), (100, "ann"), (300, "cat")]
    initial = spark.createDataFrame(rows, "n long, name string").groupBy("name")
    output = operator.of(
        stream.frame(), WithInitial(timers=timers), "user", mode="ProcessingTime" if timers else "None", initial=initial
    )
    wanted = {("ann", "1 of 202"), ("cat", "1 of 301")}
    batches = rows_of(stream.run_until(output, wanted) if timers else stream.run(output))
    due = [("ann", "due, 2 amounts"), ("cat", "due, 1 amounts")] if timers else []
    assert batches[0] == sorted([("ann", "1 of 201"), ("bob", "1 of 1"), *due])
    assert [row for batch in batches[1:] for row in batch] == sorted(wanted)


# Restarts


class Evolving(Both):
    """Remembers, under the schema that it is given, what a key's first rows were."""

    def __init__(self, schema):
        self.schema = schema

    def init(self, handle):
        super().init(handle)
        self.kept = handle.getValueState("kept", self.schema)

    def handleInputRows(self, key, rows, timerValues):
        before = self.kept.get()
        if before is None:
            self.kept.update((1, "one", 1.5))
        yield self.told(user=key[0], told=json.dumps(before))


@every_run_in("rows")
def test_a_schema_may_gain_lose_widen_and_reorder_fields_and_not_narrow_them(operator, stream, conf):
    conf(spark__sql__streaming__stateStore__encodingFormat="avro")

    def run(schema):
        stream.add([("ann", 1, 1.0)])
        return rows_of(stream.run(operator.of(stream.frame(), Evolving(schema), "user")))

    assert run("n int, word string, dropped double") == [[("ann", "null")]]
    assert run("word string, n long, added boolean") == [[("ann", '["one", 1, null]')]]
    with pytest.raises(Exception, match=r"(?i)SCHEMA_EVOLUTION|cannot become int32 without loss"):
        run("word string, n int, added boolean")


@pytest.mark.parametrize("by", OPERATORS)
def test_a_state_whose_field_must_not_be_null_is_refused_by_pyspark_and_taken_by_us(stream, conf, by):
    conf(spark__sql__streaming__stateStore__encodingFormat="avro")
    stream.add([("ann", 1, 1.0)])
    output = "n int not null, word string not null, x double not null"
    if by == "pyspark":
        with pytest.raises(StreamingQueryException, match="SCHEMA_MUST_BE_NULLABLE"):
            stream.run(Operator(by, "rows").of(stream.frame(), Evolving(output), "user"))
    else:
        assert rows_of(stream.run(Operator(by, "rows").of(stream.frame(), Evolving(output), "user"))) == [
            [("ann", "null")]
        ]


@every_run_in("pandas")
def test_a_query_with_two_operators_goes_on_with_both_after_a_restart(operator, stream):
    def counted_twice():
        once = operator.of(stream.frame(), Counting(), "user")
        return operator.of(once.selectExpr("substr(user, 1, 1) AS user", "told"), Counting(), "user")

    stream.add([("ann", 1, 1.0), ("amy", 2, 1.0), ("bob", 3, 1.0)])
    assert rows_of(stream.run(counted_twice())) == [[("a", "2 of 2"), ("b", "1 of 1")]]
    stream.add([("ann", 4, 1.0)])
    assert rows_of(stream.run(counted_twice())) == [[("a", "1 of 3")]]


# Spark's own readers of state


def test_sparks_readers_show_our_shards_and_read_state_shows_the_states(stream, spark):
    stream.add([("ann", 1, 1.0), ("bob", 2, 1.0)])
    stream.run(Operator("millpond", "rows").of(stream.frame(), Counting(), "user"))
    checkpoint = str(stream.folder / "checkpoint")
    (metadata,) = spark.read.format("state-metadata").load(checkpoint).collect()
    assert metadata.operatorName == "transformWithStateInPySparkExec"
    properties = json.loads(metadata.operatorProperties)
    assert {state["stateName"] for state in properties["stateVariables"]} == {"head", "segments", "count"}
    manifests = spark.read.format("statestore").option("path", checkpoint).option("stateVarName", "head").load()
    assert manifests.selectExpr("key.millpond_shard").count() == 2
    counts = spark.read.format("statestore").option("path", checkpoint).option("stateVarName", "count").load()
    # Only its name is known to Spark.
    if SPARK < (4, 3):
        with pytest.raises(UnsupportedOperationException, match="MISSING_COLUMN_FAMILY"):
            counts.count()
    else:
        assert counts.count() == 0
    assert sorted(read_state(spark, checkpoint, "count").select("key.user", "value.n").collect()) == [
        ("ann", 1),
        ("bob", 1),
    ]


@pytest.mark.parametrize("by", OPERATORS)
def test_available_now_does_not_end_in_processing_time(stream, by):
    stream.add([("ann", 1, 1.0)])
    output = Operator(by, "rows").of(stream.frame(), Counting(), "user", mode="ProcessingTime")
    writer = output.writeStream.outputMode("update").trigger(availableNow=True).format("noop")
    query = writer.option("checkpointLocation", str(stream.folder / "checkpoint")).start()
    try:
        # Spark makes batches without rows for as long as it runs.
        while query.isActive and len(query.recentProgress) < 4:
            query.awaitTermination(0.2)
        assert query.isActive
        assert [progress.numInputRows for progress in query.recentProgress[:4]] == [1, 0, 0, 0]
    finally:
        query.stop()
