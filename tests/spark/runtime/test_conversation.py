"""What becomes of a shard whose batch failed, or whose backend cannot go on."""

import os
import socket
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming import StatefulProcessor

from millpond.errors import CorruptionError, UnavailableError
from millpond.spark.environment.task_environment import TaskEnvironment
from millpond.spark.host.client import restore_wanted
from millpond.spark.host.wire import Blob, Connection, End, Failed, Open, Segment
from millpond.spark.runtime.conversation import _ArrivingSegments, _failure, converse
from millpond.spark.runtime.held_shard import HeldShard, _opening
from millpond.spark.runtime.slots import Slots
from millpond.spark.shuffle.pack import KEY_GROUP, Layout, _blob
from millpond.spark.spec.operator import OperatorSpec, StateConfig
from millpond.state.checkpoint import new_manifest


class Shard:
    """Counts what is asked of it; `refusal` is what its backend answers."""

    def __init__(self, refusal=None):
        self.asked = []
        self._refusal = refusal

    def rollback(self):
        self.asked.append("rollback")
        if self._refusal:
            raise self._refusal

    def holds(self, states):
        return states != "others"

    def begin_at(self, manifest):
        self.rollback()
        return True


class Spec:
    config = StateConfig()
    states = ()
    dead_letter = None


def _held(refusal=None):
    held = object.__new__(HeldShard)
    held.shard, held._opened_with = Shard(refusal), _opening(Spec)
    return held


def test_a_failed_batch_is_rolled_back_and_the_shard_stays():
    held = _held()
    assert held.revert(ZeroDivisionError())
    assert held.shard.asked == ["rollback"]


def test_a_damaged_backend_is_given_up_so_that_the_next_batch_restores():
    held = _held()
    assert not held.revert(CorruptionError("the folder is damaged"))
    assert held.shard.asked == []


@pytest.mark.parametrize("refusal", [UnavailableError("no space"), CorruptionError("damaged"), MemoryError()])
def test_a_backend_that_cannot_roll_back_is_given_up(refusal):
    assert not _held(refusal).revert(ZeroDivisionError())


@pytest.mark.parametrize("refusal", [UnavailableError("no space"), CorruptionError("damaged")])
def test_a_backend_that_cannot_go_back_does_not_stand_at_the_manifest(refusal):
    assert not _held(refusal).begins_at(Spec, None)
    assert _held().begins_at(Spec, None)


def test_a_shard_opened_with_other_options_does_not_stand_at_any_manifest():
    class Other:
        states = ()
        dead_letter = None
        config = StateConfig(options={"state.backend.cache.max-entries-num": "10"})

    assert not _held().begins_at(Other, None)


def test_a_host_without_memory_says_what_can_be_done():
    raised = _failure(MemoryError("10 GiB")).raised
    assert raised.cause.text == "MemoryError: 10 GiB"
    error = raised.error()
    assert isinstance(error, UnavailableError)
    assert "has no more memory" in str(error)
    assert "rocksdb" in str(error)


@pytest.fixture
def ends():
    host, worker = socket.socketpair()
    with Connection(host) as hosts, Connection(worker) as workers:
        yield hosts, workers


def test_segments_are_received_one_by_one_as_they_are_asked_for(ends):
    host, worker = ends
    arriving = _ArrivingSegments(host)
    for segment in (7, 3):
        worker.send(Segment(segment), b"segment %d" % segment)
        assert arriving.get(segment) == b"segment %d" % segment, "before the next one is sent"
    worker.send(End())
    assert arriving.get(9) is None
    arriving.pass_over()


def test_a_segment_that_was_not_asked_for_is_refused(ends):
    host, worker = ends
    worker.send(Segment(3), b"")
    with pytest.raises(UnavailableError, match="sent segment 3 where 7 was expected"):
        _ArrivingSegments(host).get(7)


def test_a_worker_that_still_sends_is_listened_to_until_it_has_ended(ends):
    host, worker = ends
    arriving = _ArrivingSegments(host)

    def send():
        for segment in range(50):
            worker.send(Segment(segment), bytes(100_000))
        worker.send(End())
        worker.send(Segment(99), b"after")

    sending = threading.Thread(target=send)
    sending.start()
    assert arriving.get(0) == bytes(100_000)
    arriving.pass_over()
    sending.join()
    assert host.receive() == (Segment(99), b"after")


class Silent(StatefulProcessor):
    """Says nothing, or fails."""

    def __init__(self, *, fails):
        self._fails = fails

    def init(self, handle):
        if self._fails:
            raise ZeroDivisionError

    def handleInputRows(self, key, rows, timerValues):
        return iter(())

    def close(self):
        pass


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("comes_again", [False, True])
def test_the_shard_of_a_batch_job_is_let_go_of_with_its_task_and_that_of_a_stream_is_kept(ends, comes_again, fails):
    host, worker = ends
    key = pa.schema([("user", pa.string())])
    spec = OperatorSpec(
        application="app",
        processor=Silent(fails=fails),
        key_schema=key,
        key_positions=(0,),
        row_names=("user",),
        output_schema=key,
        time_mode="none",
        event_time=None,
        keep_late=False,
        metrics=None,
        hosts=1,
        config=StateConfig(),
    )
    slots = Slots(lambda: 0.0, 1800.0)
    owners = SimpleNamespace(add=lambda _: None)
    serving = threading.Thread(target=converse, args=(host, slots, owners))
    serving.start()
    manifest = new_manifest("lineage", 0, 1, 128, key).encode()
    environment = TaskEnvironment.of_worker().encode()
    opened = Open(manifest, "app", 1, os.getpid(), "token", -1, -1, environment, comes_again)
    worker.send(opened, cloudpickle.dumps(spec))
    if restore_wanted(worker):
        worker.send(End())
        restore_wanted(worker)
    table = pa.table({"user": ["ada"], KEY_GROUP: pa.array([0], pa.int16())})
    worker.send(Blob(), _blob(table, Layout(1, 128)))
    worker.send(End())
    message, _ = worker.receive()
    assert isinstance(message, Failed) == fails
    while not fails and worker.receive()[0] != End():
        continue
    while not fails and worker.receive()[0] != End():
        continue
    serving.join(20)
    assert not serving.is_alive()
    assert slots.drop_idle() == comes_again
