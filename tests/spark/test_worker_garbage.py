"""Garbage collection in Python workers passes over what was loaded, and over nothing else."""

import gc
import sys
import weakref
from types import ModuleType

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import StateConfig, keyed
from millpond.spark.environment import worker_garbage
from millpond.spark.environment.worker_garbage import leave_modules_out


@pytest.fixture
def nothing_frozen(monkeypatch):
    gc.unfreeze()
    monkeypatch.setattr(worker_garbage, "_frozen_modules", 0)
    yield
    gc.unfreeze()


def test_what_is_loaded_is_not_looked_through_again(nothing_frozen):
    leave_modules_out()
    frozen = gc.get_freeze_count()
    assert frozen > len(sys.modules)
    assert len(gc.get_objects()) < frozen


class _Node:
    """What only garbage collection frees, unless it is passed over."""

    def __init__(self):
        self.itself = self


def test_a_task_that_loads_nothing_leaves_its_garbage_to_be_collected(nothing_frozen):
    leave_modules_out()
    node = _Node()
    left = weakref.ref(node)
    leave_modules_out()
    del node
    gc.collect()
    assert left() is None


def test_what_is_loaded_later_is_left_out_too(nothing_frozen, monkeypatch):
    leave_modules_out()
    frozen = gc.get_freeze_count()
    loaded = ModuleType("loaded_later")
    loaded.table = [[number] for number in range(10_000)]
    monkeypatch.setitem(sys.modules, "loaded_later", loaded)
    leave_modules_out()
    assert gc.get_freeze_count() > frozen + 9_000  # of the frozen before, some may have been freed


class _Frozen(StatefulProcessor):
    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        yield Row(frozen=gc.get_freeze_count())

    def close(self):
        pass


def test_the_workers_of_a_keyed_operator_leave_modules_out(spark):
    rows = spark.createDataFrame([("ann",), ("bob",)], "user string")
    counted = keyed(rows, "user").transformWithState(
        _Frozen(), "frozen long", "Append", "None", state=StateConfig(host="inline")
    )
    assert all(row.frozen > 10_000 for row in counted.collect())
