"""A shard's batches from Spark's worker to the state host and back, without Spark: over a real pair of sockets."""

import socket
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import SparkFiles, TaskContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import LongType, StructField, StructType

from millpond.spark.host.client import HostAddress
from millpond.spark.host.wire import Connection
from millpond.spark.operator import shard_batches, shard_processor
from millpond.spark.operator.declarations import declarations
from millpond.spark.operator.shard_batches import OLDEST
from millpond.spark.operator.shard_processor import ShardProcessor
from millpond.spark.runtime import shard_run
from millpond.spark.runtime.conversation import converse
from millpond.spark.runtime.slots import Slots
from millpond.spark.shuffle import pack
from millpond.spark.shuffle.pack import KEY_GROUP, Layout
from millpond.spark.shuffle.partitioner import routing_keys
from millpond.spark.spec.operator import OperatorSpec, StateConfig
from millpond.state.checkpoint import Manifest

LAYOUT = Layout(1, 128)
KEYS = pa.schema([("user", pa.string())])
INPUT = pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC"))])
OUTPUT = pa.schema([("user", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


class Counting(StatefulProcessor):
    """Counts a user's rows, and fails for who is called bad."""

    def init(self, handle):
        self._count = handle.getValueState("count", StructType([StructField("n", LongType())]))

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            before = self._count.get()
            self._count.update(((before[0] if before else 0) + 1,))
            yield Row(user=key[0], n=self._count.get()[0], at=row.at)
        if key[0] == "bad":
            raise ZeroDivisionError("bad")

    def close(self):
        pass


class Value:
    """A value state of Spark's."""

    def __init__(self):
        self.value = None

    def exists(self):
        return self.value is not None

    def get(self):
        return self.value

    def update(self, value):
        self.value = value


class Map:
    """A map state of Spark's."""

    def __init__(self):
        self.values = {}

    def exists(self):
        return bool(self.values)

    def getValue(self, key):
        return self.values.get(key)

    def updateValue(self, key, value):
        assert isinstance(value[0], bytes)
        self.values[key] = value

    def removeKey(self, key):
        del self.values[key]


class Handle:
    """Spark's handle of one shard."""

    def __init__(self):
        self.manifest, self.segments, self.timers = Value(), Map(), []

    def getValueState(self, name, schema):
        return self.manifest

    def getMapState(self, name, keys, values):
        return self.segments

    def listTimers(self):
        return iter(self.timers)

    def deleteTimer(self, at_ms):
        self.timers.remove(at_ms)

    def registerTimer(self, at_ms):
        self.timers.append(at_ms)


class Task:
    """What a worker may ask of its task."""

    attempts = 0

    def __init__(self):
        Task.attempts += 1
        self._attempt = Task.attempts

    def stageId(self):
        return 3

    def taskAttemptId(self):
        return self._attempt

    def getLocalProperty(self, name):
        return "a query" if name == "sql.streaming.queryId" else None


def at(seconds):
    return datetime.fromtimestamp(seconds, UTC)


class Job:
    """A query of one shard: what Spark keeps of it, and the host that its worker talks to."""

    def __init__(self, where, timed):
        self.handle, self.slots, self.threads = Handle(), Slots(time.monotonic, 60), []
        declared = declarations(Counting(), "rows", "eventtime", lambda ddl: None, "job")
        self.spec = OperatorSpec(
            application="job",
            processor=Counting(),
            key_schema=KEYS,
            key_positions=(0,),
            row_names=("user", "at"),
            output_schema=OUTPUT,
            time_mode="eventtime",
            event_time=1,
            keep_late=False,
            metrics=None,
            hosts=1,
            config=StateConfig(host=where),
            states=declared.states,
            output_event_time=2 if timed else None,
        )

    def connect(self, timeout):
        mine, theirs = socket.socketpair()
        thread = threading.Thread(target=self._serve, args=(theirs,))
        thread.start()
        self.threads.append(thread)
        return Connection(mine)

    def _serve(self, theirs):
        with Connection(theirs) as connection:
            converse(connection, self.slots, SimpleNamespace(add=lambda parent: None))

    def run(self, rows, watermark_ms=0):
        """One batch, in a worker of its own; of each blob of output the rows, and what Spark is given."""
        processor = cloudpickle.loads(cloudpickle.dumps(ShardProcessor(self.spec)))
        processor.init(self.handle)
        table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=INPUT)
        table = table.append_column(KEY_GROUP, pa.array([7] * len(rows), type=pa.int16()))
        blob = pack._blob(table, LAYOUT)
        given = list(
            processor.handleInputRows(
                (routing_keys(1)[0],), iter([Row(shard=0, blob=blob)]), TimerValues(0, watermark_ms)
            )
        )
        processor.close()
        for thread in self.threads:
            thread.join(20)
        assert all(isinstance(each.blob, bytes) for each in given)
        return [
            ([tuple(row.values()) for row in pa.ipc.open_stream(each.blob).read_all().to_pylist()], each)
            for each in given
        ]

    def lose(self):
        """The host is killed, or the worker was another one."""
        self.slots.close()
        self.slots = Slots(time.monotonic, 60)
        shard_batches._INLINE.drop()


@pytest.fixture(params=["process", "inline"])
def open_job(request, monkeypatch):
    task_context = SimpleNamespace(get=Task)
    monkeypatch.setattr(shard_processor, "TaskContext", task_context)
    monkeypatch.setattr(shard_batches, "TaskContext", task_context)
    monkeypatch.setattr(shard_processor, "leave_modules_out", lambda: None)
    monkeypatch.setattr(Layout, "of_task", staticmethod(lambda: LAYOUT))
    monkeypatch.setattr(shard_run, "OUTPUT_BLOB_ROWS", 2)
    # What a host puts around user code is its process's.
    monkeypatch.setattr(TaskContext, "_taskContext", TaskContext._taskContext)
    for name in ("_root_directory", "_is_running_on_worker"):
        monkeypatch.setattr(SparkFiles, name, getattr(SparkFiles, name))
    jobs = []

    def opened(*, timed=False):
        jobs.append(Job(request.param, timed))
        monkeypatch.setattr(HostAddress, "of_shard", staticmethod(lambda *args: jobs[-1]))
        return jobs[-1]

    yield opened
    for job in jobs:
        job.lose()


def test_batch_after_batch_the_state_goes_on_and_is_restored_from_what_spark_keeps(open_job):
    job = open_job()
    ((rows, _),) = job.run([("ann", at(1)), ("bob", at(2)), ("ann", at(3))])
    assert rows == [("ann", 1, at(1)), ("ann", 2, at(3)), ("bob", 1, at(2))]
    first = Manifest.decode(job.handle.manifest.value[0], "the manifest")
    assert first.version == 1
    assert {key[0] for key in job.handle.segments.values} == {ref.id for ref in first.segments}
    for version in (2, 3, 4):
        if version == 3:
            job.lose()
        ((rows, _),) = job.run([("ann", at(10))])
        assert rows == [("ann", version + 1, at(10))]
    stored = Manifest.decode(job.handle.manifest.value[0], "the manifest")
    assert (stored.version, stored.lineage) == (4, first.lineage)
    assert {key[0] for key in job.handle.segments.values} == {ref.id for ref in stored.segments}
    assert job.handle.timers == [1]


def test_every_blob_comes_with_its_oldest_event_time(open_job):
    job = open_job(timed=True)
    given = job.run([("ann", at(9)), ("ann", at(5)), ("bob", at(7)), ("eve", at(8))])
    assert [min(row[2] for row in rows) for rows, _ in given] == [each[OLDEST] for _, each in given]
    assert sum(len(rows) for rows, _ in given) == 4


def test_a_batch_that_fails_leaves_what_spark_keeps_and_runs_again(open_job):
    job = open_job()
    job.run([("ann", at(1))])
    before = (job.handle.manifest.value, dict(job.handle.segments.values))
    with pytest.raises(ZeroDivisionError, match="bad"):
        job.run([("ann", at(2)), ("bad", at(2))])
    assert (job.handle.manifest.value, job.handle.segments.values) == before
    ((rows, _),) = job.run([("ann", at(2))])
    assert rows == [("ann", 2, at(2))]


def test_a_version_that_spark_did_not_keep_is_taken_back(open_job):
    job = open_job()
    job.run([("ann", at(1))])
    kept = (job.handle.manifest.value, dict(job.handle.segments.values))
    job.run([("ann", at(2))])
    job.handle.manifest.value, job.handle.segments.values = kept
    ((rows, _),) = job.run([("ann", at(3))])
    assert rows == [("ann", 2, at(3))]


def test_the_process_that_declares_the_states_on_the_driver_loads_neither_arrow_nor_the_users_processor(open_job):
    """Spark starts one whenever a query starts, and the first batch waits for it."""
    pickled = cloudpickle.dumps(ShardProcessor(open_job().spec))
    code = (
        "import sys, pickle, pyspark.sql.streaming.transform_with_state_driver_worker\n"
        "pickle.loads(sys.stdin.buffer.read())\n"
        "print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], input=pickled, capture_output=True, check=True)
    loaded = ran.stdout.decode().split()
    assert {name for name in loaded if name.startswith("millpond.spark.operator.")} == {
        "millpond.spark.operator.shard_processor"
    }
    assert not {"numpy", "pandas", "pyarrow", "msgspec", "tests"} & set(loaded)
