"""Rows that are combined before the shuffle give the state and the output that they give one by one."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError, OptionError
from millpond.spark import ArrowStatefulProcessor
from millpond.spark.forms.arrow_combine import Combining
from millpond.spark.testing.processor_harness import ProcessorHarness

ROWS = "user string, rate double, amount long"
OUTPUT = "user string, rate double, events long, total long"
STATE = "events long, total long"
KEY = ("user", "rate")
KEY_SCHEMA = pa.schema([("user", pa.string()), ("rate", pa.float64())])


class Spending(ArrowStatefulProcessor):
    """Counts rows and sums amounts."""

    def init(self, handle):
        self.spending = handle.getValueState("spending", STATE)

    def handleInputTable(self, keys, rows, key_index, timerValues):
        yield self.added(keys, np.ones(len(rows)), rows["amount"], key_index)

    def added(self, keys, events, amounts, key_index):
        before = self.spending.get_many(keys)
        after = {
            name: pc.add(pc.fill_null(before[name], 0), summed(keys, key_index, values))
            for name, values in (("events", events), ("total", amounts))
        }
        self.spending.update_many(keys, after)
        return pa.table({**after, "user": keys["user"], "rate": keys["rate"]})


class Combined(Spending):
    """The same, of a row a key."""

    def combine(self, keys, rows, key_index):
        count = summed(keys, key_index, np.ones(len(rows)))
        return keys.append_column("n", count).append_column("sum", summed(keys, key_index, rows["amount"]))

    def handleInputTable(self, keys, rows, key_index, timerValues):
        assert rows.column_names == ["user", "rate", "n", "sum"]
        yield self.added(keys, rows["n"], rows["sum"], key_index)


class Halves(Combined):
    """The same, of two rows a key, the keys backwards."""

    def combine(self, keys, rows, key_index):
        whole = super().combine(keys, rows, key_index)
        whole = whole.take(pa.array(np.arange(len(whole))[::-1].copy()))
        half = pc.floor(pc.divide(pc.cast(whole["sum"], pa.float64()), 2)).cast(pa.int64())
        rest = pc.subtract(whole["sum"], half)
        none = pa.array([0] * len(whole), pa.int64())
        return pa.concat_tables(
            [whole.set_column(3, "sum", half), whole.set_column(3, "sum", rest).set_column(2, "n", none)]
        )


def summed(keys, key_index, values):
    sums = np.bincount(key_index, weights=np.asarray(values, dtype=float), minlength=len(keys))
    return pa.array(sums.astype(np.int64))


def harness(processor, **options):
    return ProcessorHarness(processor, rows=ROWS, key=KEY, output=OUTPUT, form="arrow", **options)


users = st.sampled_from(["ann", "bob", None])
rates = st.sampled_from([0.0, -0.0, float("nan"), 1.5, None])
batches = st.lists(st.lists(st.tuples(users, rates, st.integers(-5, 5)), max_size=9), max_size=3)


@given(batches)
@settings(max_examples=40, deadline=None)
def test_combined_rows_give_what_the_rows_give(drawn):
    with harness(Spending()) as plain, harness(Combined()) as combined, harness(Halves()) as halves:
        for rows in drawn:
            expected = sorted(map(repr, plain.process(rows)))
            assert sorted(map(repr, combined.process(rows))) == expected
            assert sorted(map(repr, halves.process(rows))) == expected
        states = [each.state("spending") for each in (plain, combined, halves)]
        assert repr(sorted(states[0].items(), key=repr)) == repr(sorted(states[1].items(), key=repr))
        assert repr(sorted(states[0].items(), key=repr)) == repr(sorted(states[2].items(), key=repr))


def combining(combine, **changes):
    """How the processor whose `combine` this is combines rows of a user and an amount."""
    processor = type("Given", (Spending,), {"combine": combine})()
    schema = pa.schema([("user", pa.string()), ("count", pa.int64())])
    return Combining(processor, pa.schema([("user", pa.string())]), (0,), ("user", "amount"), schema)


def batch(*rows):
    """Rows of a task, with a hash of the user's that tells who it is."""
    names, amounts = [row[0] for row in rows], [row[1] for row in rows]
    hashes = [None if name is None else ord(name[0]) for name in names]
    return pa.record_batch(
        [pa.array(names, pa.string()), pa.array(amounts, pa.int64()), pa.array(hashes, pa.int64())],
        names=["c0", "c1", "h"],
    )


def counted(self, keys, rows, key_index):
    return keys.append_column("count", pa.array(np.bincount(key_index, minlength=len(keys))))


def test_a_combined_row_travels_by_the_hash_of_its_key():
    given_ = [batch(("ann", 1), ("bob", 2)), batch(("bob", 3), ("cid", 4))]
    made = pa.Table.from_batches(combining(counted).batches(iter(given_)))
    assert made.to_pylist() == [
        {"user": "ann", "count": 1, "hash": ord("a")},
        {"user": "bob", "count": 2, "hash": ord("b")},
        {"user": "cid", "count": 1, "hash": ord("c")},
    ]

    def bob_twice(self, keys, rows, key_index):
        return pa.table({"user": ["bob", "ann", "bob"], "count": [1, 2, 3]})

    made = pa.Table.from_batches(combining(bob_twice).batches(iter(given_)))
    assert made["hash"].to_pylist() == [ord("b"), ord("a"), ord("b")]


def test_types_are_those_of_what_is_made_of_rows():
    """For no rows at all NumPy adds up whole numbers, whatever the weights are."""

    def summed_up(self, keys, rows, key_index):
        return keys.append_column("sum", pa.array(np.bincount(key_index, weights=rows["amount"], minlength=len(keys))))

    class Sums(Spending):
        combine = summed_up

        def handleInputTable(self, keys, rows, key_index, timerValues):
            assert rows["sum"].to_pylist() == [1.75]
            return iter(())

    with ProcessorHarness(Sums(), rows="user string, amount double", key="user", output=OUTPUT, form="arrow") as made:
        made.process([])
        made.process([("ann", 0.5), ("ann", 1.25)])


def test_a_task_without_rows_combines_none():
    assert list(combining(counted).batches(iter([]))) == []
    assert list(combining(counted).batches(iter([batch()]))) == []


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (lambda keys: [1], r"Given.combine gave list \[1\]; expected a pyarrow.Table"),
        (lambda keys: keys, r"columns \['user'\]; for no rows it gave \['user', 'count'\]"),
        (lambda keys: pa.table({"count": [1]}), r"expected each of the key's columns \['user'\] in it, once"),
        (lambda keys: pa.table({"user": ["zoe"], "count": [1]}), r"row for the key \{'user': 'zoe'\}, which none of"),
        (lambda keys: pa.table({"user": [7], "count": [1]}), r"which none of its rows has|column 'user' is string"),
    ],
    ids=["no table", "other columns", "no key", "another key", "a key of another type"],
)
def test_what_cannot_be_shuffled_is_refused_by_name(gives, message):
    task = combining(lambda self, keys, rows, key_index: gives(keys))
    with pytest.raises(DataError, match=message):
        list(task.batches(iter([batch(("ann", 1))])))


def test_a_combine_without_the_keys_columns_is_refused_when_the_operator_is_planned():
    class Keyless(Spending):
        def combine(self, keys, rows, key_index):
            return rows.select(["amount"])

    with pytest.raises(DataError, match=r"Keyless.combine gave a table with the columns \['amount'\]"):
        harness(Keyless())


def test_rows_that_may_be_late_are_not_combined():
    class Timed(Combined):
        pass

    options = {"rows": "user string, rate double, amount long, at timestamp", "time_mode": "EventTime"}
    for late in ("drop", "keep"):
        made = {"key": KEY, "output": OUTPUT, "form": "arrow", "event_time": "at", "late": late, **options}
        if late == "drop":
            with pytest.raises(OptionError, match=r"Timed combines rows .* Say late='keep'"):
                ProcessorHarness(Timed(), **made)
        else:
            ProcessorHarness(Timed(), **made).close()


def test_the_state_of_combined_rows_is_that_of_the_other_forms():
    with harness(Combined()) as first:
        first.process([("ann", 1.0, 3), ("ann", 1.0, 4)])
        kept = first.snapshot()
    with harness(Spending()) as second:
        second.restore(kept)
        assert second.process([("ann", 1.0, 5)])[0].asDict() == {"user": "ann", "rate": 1.0, "events": 3, "total": 12}
