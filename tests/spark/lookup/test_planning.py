"""Joins that several queries plan with one table at the same moment."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import ClassVar

import pyarrow as pa
import pytest

from millpond.lookup import LookupTable, TableScan
from millpond.spark.lookup import join

PATIENCE_S = 20


class Loaded:
    """What the driver holds of a full table; its load takes until the test lets it end."""

    made: ClassVar[list["Loaded"]]
    leave: ClassVar[threading.Event]

    def __init__(self, *_):
        self.closed = 0
        self.made.append(self)
        assert self.leave.wait(PATIENCE_S)

    def close(self):
        self.closed += 1


@pytest.fixture
def session(monkeypatch):
    Loaded.made, Loaded.leave = [], threading.Event()
    monkeypatch.setattr(join, "PublishedTable", Loaded)
    monkeypatch.setattr(join, "ReadingQueries", lambda _: SimpleNamespace(add=lambda _: None))
    context = SimpleNamespace(applicationId="app", accumulator=lambda start, _: SimpleNamespace(value=start))
    return SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))


def full_table(name):
    return LookupTable(name, TableScan(pa.table({"code": ["JFK"], "gate": [7]}), ["code"]), {"lookup.cache": "FULL"})


def test_queries_that_plan_with_one_table_at_once_share_one_load_of_it(session):
    table, other = full_table("gates"), full_table("halls")
    with ThreadPoolExecutor(5) as pool:
        planned = [pool.submit(join._planned, session, table, ("gate",)) for _ in range(4)]
        # Another table does not wait for the load of this one.
        elsewhere = pool.submit(join._planned, session, other, ("gate",))
        while len(Loaded.made) < 2:
            threading.Event().wait(0.001)
        Loaded.leave.set()
        assert len({id(each.result(PATIENCE_S)) for each in planned}) == 1
        elsewhere.result(PATIENCE_S)
    assert len(Loaded.made) == 2
    table.close()
    other.close()
    assert [loaded.closed for loaded in Loaded.made] == [1, 1]
