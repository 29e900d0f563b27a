"""What Spark's process on the driver does with the operator: it declares states, and unpickles nothing else."""

from types import SimpleNamespace

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark.operator import deferred_processor
from millpond.spark.operator.deferred_processor import DeferredProcessor


def unpickled():
    return Telling()


class Telling(StatefulProcessor):
    """Tells its handle that it was unpickled, and of each call."""

    def __reduce__(self):
        return unpickled, ()

    def init(self, handle):
        self.handle = handle
        handle.append("unpickled")

    def handleInitialState(self, key, initialState, timerValues):
        self.handle.append(("initial", key, initialState, timerValues))

    def handleInputRows(self, key, rows, timerValues):
        yield "rows", key, rows, timerValues

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield "timer", key, timerValues, expiredTimerInfo

    def close(self):
        self.handle.append("closed")


class Declared(list):
    """A handle of Spark's that remembers what was declared."""

    def getValueState(self, name, schema):
        self.append((name, schema))

    def getMapState(self, name, keys, values):
        self.append((name, keys, values))


@pytest.fixture
def carried():
    """What Spark unpickles."""
    return cloudpickle.loads(cloudpickle.dumps(DeferredProcessor(Telling(), ("count", "segments"))))


def test_the_driver_declares_the_states_and_leaves_the_processor_pickled(carried):
    handle = Declared()
    carried.init(handle)
    assert handle == [("head", "head binary"), ("segments", "id long", "data binary"), ("count", "head binary")]


def test_in_a_task_each_call_reaches_the_processor(carried, monkeypatch):
    monkeypatch.setattr(deferred_processor, "TaskContext", SimpleNamespace(get=object))
    handle = Declared()
    carried.init(handle)
    carried.handleInitialState("key", "row", "times")
    assert list(carried.handleInputRows("key", "rows", "times")) == [("rows", "key", "rows", "times")]
    assert list(carried.handleExpiredTimer("key", "times", "expired")) == [("timer", "key", "times", "expired")]
    carried.close()
    assert handle == ["unpickled", ("initial", "key", "row", "times"), "closed"]
