"""Without Spark, a processor runs in each form, and calls that fail are set aside, as in a state host."""

import datetime as dt

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond.errors import DataError, OptionError
from millpond.spark import ArrowStatefulProcessor
from millpond.spark.testing.processor_harness import ProcessorHarness

EVENTS = "user string, id long, at timestamp"
COUNTS = "user string, n long, total long"


class Rows(StatefulProcessor):
    """Counts and sums a user's ids; a negative one fails, after the state was changed."""

    def init(self, handle):
        self._handle = handle
        self._sums = handle.getValueState("sums", "n long, total long")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self._add(1, row.id)
            if row.id < 0:
                raise ValueError(f"{key[0]} has {row.id}")
        if timerValues.getCurrentWatermarkInMs() >= 0:
            self._handle.registerTimer(10_000)
        yield self._told(key)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        self._add(100, 0)
        if key[0] == "eve":
            raise KeyError("eve")
        yield self._told(key)

    def _add(self, n, total):
        before = self._sums.get() or (0, 0)
        self._sums.update((before[0] + n, before[1] + total))

    def _told(self, key):
        return Row(user=key[0], n=self._sums.get()[0], total=self._sums.get()[1])

    def close(self):
        pass


class Pandas(Rows):
    """The same over DataFrames."""

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            assert isinstance(frame, pd.DataFrame)
            self._add(len(frame), int(frame.id.sum()))
            if (frame.id < 0).any():
                raise ValueError(f"{key[0]} has {frame.id.min()}")
        if timerValues.getCurrentWatermarkInMs() >= 0:
            self._handle.registerTimer(10_000)
        yield self._told(key)

    def _told(self, key):
        n, total = self._sums.get()
        return pd.DataFrame({"user": [key[0]], "n": [n], "total": [total]})


class Arrow(ArrowStatefulProcessor):
    """The same over tables."""

    def init(self, handle):
        self._sums = handle.getValueState("sums", "n long, total long")

    def handleInputTable(self, keys, rows, key_index, timerValues):
        before = self._sums.get_many(keys)
        n = pc.add(pc.fill_null(before["n"], 0), pa.array(np.bincount(key_index)))
        sums = np.bincount(key_index, weights=rows["id"].to_numpy()).astype("int64")
        total = pc.add(pc.fill_null(before["total"], 0), pa.array(sums))
        self._sums.update_many(keys, {"n": n, "total": total})
        yield keys.append_column("n", n).append_column("total", total)


def harness_of(processor, form, **changes):
    return ProcessorHarness(processor, rows=EVENTS, key="user", output=COUNTS, form=form, **changes)


def at(seconds):
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


FORMS = [(Rows(), "rows"), (Pandas(), "pandas"), (Arrow(), "arrow")]
PER_KEY = FORMS[:2]


@pytest.mark.parametrize(("processor", "form"), FORMS)
@pytest.mark.parametrize("backend", ["heap", "rocksdb", "spillable"])
def test_every_form_gives_the_same_rows_and_goes_on_after_a_restart(processor, form, backend):
    with harness_of(processor, form, options={"state.backend.type": backend}) as harness:
        assert harness.process([("ann", 1, at(0)), ("bob", 2, at(0)), ("ann", 3, None)]) == [
            Row(user="ann", n=2, total=4),
            Row(user="bob", n=1, total=2),
        ]
        harness.restart()
        assert harness.process([("bob", 5, None), (None, 7, None)]) == [
            Row(user="bob", n=2, total=7),
            Row(user=None, n=1, total=7),
        ]
        assert harness.state("sums") == {("ann",): (2, 4), ("bob",): (2, 7), (None,): (1, 7)}
        assert harness.advance() == []


@pytest.mark.parametrize(("processor", "form"), PER_KEY)
def test_a_call_that_fails_is_undone_and_set_aside_with_its_rows(processor, form):
    with harness_of(processor, form, on_error="dead-letter") as harness:
        output = harness.process([("ann", 1, at(0)), ("bob", -2, at(1)), ("ann", 3, None), ("bob", 4, None)])
        assert output == [Row(user="ann", n=2, total=4)]
        (letter,) = harness.dead_letters
        assert letter.key == Row(user="bob")
        assert [(row.user, row.id) for row in letter.rows] == [("bob", -2), ("bob", 4)]
        assert letter.error == "ValueError: bob has -2"
        assert "handleInputRows" in letter.traceback
        assert (letter.timer_ms, letter.batch_id) == (None, None)
        assert harness.state("sums") == {("ann",): (2, 4)}
        harness.restart()
        assert harness.process([("bob", 5, None)]) == [Row(user="bob", n=1, total=5)]
        assert harness.dead_letters == [letter]


@pytest.mark.parametrize(("processor", "form"), PER_KEY)
def test_a_timer_whose_handler_fails_is_set_aside_and_used_up(processor, form):
    with harness_of(processor, form, on_error="dead-letter", time_mode="EventTime", event_time="at") as harness:
        harness.process([("ann", 1, at(1)), ("eve", 2, at(1))], watermark_ms=0)
        assert harness.advance(watermark_ms=20_000) == [Row(user="ann", n=101, total=1)]
        (letter,) = harness.dead_letters
        assert (letter.key.user, letter.timer_ms, letter.rows) == ("eve", 10_000, [])
        assert harness.state("sums")["eve",] == (1, 2)
        assert harness.advance(watermark_ms=30_000) == []


@pytest.mark.parametrize(("processor", "form"), PER_KEY)
def test_without_dead_letters_a_call_that_fails_fails_the_batch(processor, form):
    with harness_of(processor, form) as harness:
        harness.process([("ann", 1, None)])
        with pytest.raises(ValueError, match="bob has -2"):
            harness.process([("ann", 1, None), ("bob", -2, None)])
        assert harness.state("sums") == {("ann",): (1, 1)}
        assert harness.dead_letters == []


def test_output_that_does_not_fit_is_a_letter_of_its_key():
    class Late(Rows):
        def _told(self, key):
            return Row(user=key[0], n="many" if key[0] == "bob" else 1, total=0)

    with harness_of(Late(), "rows", on_error="dead-letter") as harness:
        assert harness.process([("ann", 1, None), ("bob", 1, None)]) == [Row(user="ann", n=1, total=0)]
        assert [letter.key.user for letter in harness.dead_letters] == ["bob"]
        assert "output column 'n'" in harness.dead_letters[0].error
        assert set(harness.state("sums")) == {("ann",)}


@pytest.mark.parametrize(
    ("processor", "changes", "says"),
    [
        (Rows(), {"form": "polars"}, "form='polars': expected one of 'rows', 'pandas', 'arrow'"),
        (Rows(), {"form": "rows", "on_error": "ignore"}, "on_error='ignore': expected one of 'fail', 'dead-letter'"),
        (Rows(), {"form": "arrow"}, "ProcessorHarness takes an ArrowStatefulProcessor, got Rows"),
        (Arrow(), {"form": "pandas"}, "ProcessorHarness takes a StatefulProcessor, got Arrow"),
        (Arrow(), {"form": "arrow", "on_error": "dead-letter"}, "has one call for all keys"),
    ],
)
def test_what_cannot_run_in_a_form_is_refused(processor, changes, says):
    with pytest.raises(OptionError, match=says):
        harness_of(processor, **changes)


def test_form_and_on_error_are_read_in_any_case():
    with harness_of(Pandas(), "Pandas", on_error="Dead-Letter") as harness:
        assert harness.process([("ann", -1, None)]) == []
        assert [letter.key.user for letter in harness.dead_letters] == ["ann"]


def test_an_output_column_that_dead_letters_need_is_refused():
    with pytest.raises(OptionError, match="the output has a column 'dead_letter'"):
        ProcessorHarness(Rows(), rows=EVENTS, key="user", output="dead_letter long", on_error="dead-letter")


def test_a_table_that_lacks_an_output_column_is_refused_and_leaves_nothing():
    class Lacking(Arrow):
        def handleInputTable(self, keys, rows, key_index, timerValues):
            for table in super().handleInputTable(keys, rows, key_index, timerValues):
                yield table.drop_columns(["n"])

    with harness_of(Lacking(), "arrow") as harness:
        with pytest.raises(DataError, match=r"gave a table with the columns .* \['n'\] are missing"):
            harness.process([("ann", 1, None)])
        assert harness.state("sums") == {}
