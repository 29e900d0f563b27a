"""One cache in a state host answers all workers: over real sockets, without Spark."""

import socket
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pytest
from pyspark import SparkFiles, TaskContext, cloudpickle

from millpond.lookup import LookupTable, PythonLookup
from millpond.spark.environment.task_environment import TaskEnvironment
from millpond.spark.host.client import found_rows
from millpond.spark.host.wire import Connection, End, Keys, OpenLookups
from millpond.spark.lookup.hosted import decoded, serve_lookups
from millpond.spark.lookup.invalidations import Invalidated
from millpond.spark.lookup.rows import RowsWanted, one_batch

KEYS, ROWS = pa.schema([("n", pa.int64())]), pa.schema([("text", pa.string())])
PARTIAL = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 100}
PATIENCE_S = 20
ASKED = {}
"""What each source was asked for; a table is pickled on its way to the host, and so brings no list of its own."""

ANSWERING = {}


def numbers_of(name):
    asked, answering = ASKED.setdefault(name, []), ANSWERING.setdefault(name, threading.Event())
    answering.set()
    return asked, answering


def source_of(name):
    def find(n):
        # Imported here, so that what is unpickled finds this module, and not a copy of its names.
        from tests.spark.lookup import test_hosted

        test_hosted.ASKED[name].append(n)
        text = f"{n}, {len(test_hosted.ASKED[name])}"
        assert test_hosted.ANSWERING[name].wait(PATIENCE_S)
        return [(text,)] if n >= 0 else []

    return PythonLookup(find, KEYS, ROWS)


@contextmanager
def partition(name, options=PARTIAL, invalidated=b""):
    """A worker's conversation with the host; what is yielded looks a batch of keys up."""
    wanted = RowsWanted(name, "numbers", ("text",), (pa.field("text", pa.string()),))
    here, there = socket.socketpair()

    def serve():
        with Connection(there) as connection:
            message, payload = connection.receive()
            serve_lookups(connection, message, payload)

    host = threading.Thread(target=serve)
    host.start()
    with Connection(here) as connection:
        payload = cloudpickle.dumps((wanted, LookupTable("numbers", source_of(name), options), None))
        connection.send(OpenLookups(0, TaskEnvironment().encode(), invalidated), payload)

        def match(*keys):
            connection.send(Keys(), memoryview(one_batch(pa.record_batch([pa.array(keys)], names=["0"]))))
            matches = decoded(*found_rows(connection))
            texts = matches.rows[0].to_pylist()
            ends = (matches.starts + matches.counts).tolist()
            found = [texts[first:end] for first, end in zip(matches.starts.tolist(), ends, strict=True)]
            return found, matches.counted

        yield match
        connection.send(End())
    host.join(PATIENCE_S)
    assert not host.is_alive()


@pytest.fixture
def name(monkeypatch):
    # What a host sets for its process.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(SparkFiles, "_root_directory", None)
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", False)
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    name = uuid.uuid4().hex
    numbers_of(name)
    return name


def test_the_cache_outlives_the_workers_and_is_accounted_once(name):
    with partition(name) as match:
        assert match(1, 2, -1)[0] == [["1, 1"], ["2, 2"], []]
        assert match(2, 3)[0] == [["2, 2"], ["3, 4"]]
    with partition(name) as match, partition(name) as other:
        (found, counted), (_, again) = match(3, 1, -1), other(1)
        assert found == [["3, 4"], ["1, 1"], []]
        assert (counted.stats.hit_count, counted.stats.miss_count) == (3, 0)
        ((cache, level),) = counted.levels.items()
        assert list(again.levels) == [cache]
        assert level.records == 4
    assert ASKED[name] == [1, 2, -1, 3]


def test_workers_that_want_a_key_at_the_same_time_have_it_loaded_once(name):
    ANSWERING[name].clear()
    with partition(name) as one, partition(name) as other, ThreadPoolExecutor(2) as pool:
        first = pool.submit(one, 1, 2)
        while not ASKED[name]:
            threading.Event().wait(0.001)
        second = pool.submit(other, 2, 1, 3)
        ANSWERING[name].set()
        ones, twos = first.result(PATIENCE_S)[0]
        assert second.result(PATIENCE_S)[0][:2] == [twos, ones]
    assert sorted(ASKED[name]) == [1, 2, 3]


def test_a_table_whose_options_differ_is_another_cache(name):
    for max_rows in (100, 50, 100):
        with partition(name, {**PARTIAL, "lookup.partial-cache.max-rows": max_rows}) as match:
            match(1)
    assert ASKED[name] == [1, 1]


def test_a_partition_that_begins_after_an_invalidation_brings_it_and_one_that_began_before_changes_nothing(name):
    def invalidated(version, **keys):
        return Invalidated(
            version, 0, pa.table({"__version": list(keys.values()), "n": [int(key[1:]) for key in keys]})
        )

    with partition(name) as match:
        match(1, 2, 3)
    for version, keys, expected in ((1, {"k1": 1}, [1]), (1, {"k1": 1}, []), (0, {}, []), (3, {"k1": 1, "k2": 3}, [2])):
        before = len(ASKED[name])
        with partition(name, invalidated=invalidated(version, **keys).encode()) as match:
            match(1, 2, 3)
        assert ASKED[name][before:] == expected
