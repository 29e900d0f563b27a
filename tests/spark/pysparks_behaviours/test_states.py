"""What value, list and map states hold, and what is left of a deleted one."""

import datetime as dt

import pytest
from pyspark.errors import PySparkRuntimeError

from tests.spark.pysparks_behaviours.operators import Both, every_run_in, rows_of

pytestmark = pytest.mark.spark


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
