"""Frames over a real pair of sockets: whole, or refused."""

import os
import socket
import struct
import threading
import tracemalloc
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import CorruptionError, UnavailableError
from millpond.spark.environment.tracebacks import Place
from millpond.spark.host import wire
from millpond.spark.host.raised import Raised
from millpond.spark.host.wire import Blob, Connection, End, Failed, Open, Ready, Restore, Segment
from millpond.spark.spec.batch_done import BatchDone
from millpond.spark.spec.metrics import BatchMetrics

OLDEST = datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=UTC)
MESSAGES = [
    Open(b"\x00head", "app-1", 7, 4711, "token", -1, 1_388_447_999_999, b"task_environment"),
    Ready(),
    Restore(),
    Segment(1 << 40),
    Blob(),
    End(),
    BatchDone(BatchMetrics(shard=1, rows=4, run_seconds=0.5), -1, (None, OLDEST), (1, 2, 3), b"additions"),
    Failed(Raised(b"pickled", "ValueError: Mühle", (Place("job.py", "handle", 7, 7, 4, 9), Place("job.py", "f", 1)))),
]


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    left.settimeout(20)
    right.settimeout(20)
    with Connection(left) as a, Connection(right) as b:
        yield a, b


def _sending(connection, *frames):
    thread = threading.Thread(target=lambda: [connection.send(*frame) for frame in frames])
    thread.start()
    return thread


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("payload", [b"", b"x", b"\x00" * 300], ids=len)
def test_a_frame_arrives_as_it_was_sent(pair, message, payload):
    pair[0].send(message, payload)
    assert pair[1].receive() == (message, payload)


def test_a_payload_is_received_into_memory_once():
    payload = bytes(range(256)) * (32 << 10)
    left, right = socket.socketpair()
    with Connection(left) as a, Connection(right) as b:
        tracemalloc.start()
        try:
            sending = _sending(a, (Blob(), payload))
            _, received = b.receive()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        sending.join()
    assert received == payload
    assert peak < 1.5 * len(payload), "nothing is held twice"


@given(st.lists(st.tuples(st.sampled_from(MESSAGES), st.binary(max_size=50)), max_size=8))
@settings(max_examples=30, deadline=None)
def test_many_frames_arrive_in_order_in_both_directions(frames):
    left, right = socket.socketpair()
    with Connection(left) as a, Connection(right) as b:
        for message, payload in frames:
            a.send(message, payload)
            b.send(message, memoryview(payload))
        assert [b.receive() for _ in frames] == frames
        assert [a.receive() for _ in frames] == frames


def test_payloads_larger_than_any_socket_buffer_arrive_whole(pair):
    payload = os.urandom(1 << 20) * 5
    thread = _sending(pair[0], (Segment(1), payload), (Segment(2), b""), (End(),))
    assert pair[1].receive() == (Segment(1), payload)
    assert pair[1].receive() == (Segment(2), b"")
    assert pair[1].receive() == (End(), b"")
    thread.join(20)


def _frame(message, payload):
    """The bytes of a frame, read off the wire."""
    left, right = socket.socketpair()
    with Connection(left) as connection, right:
        connection.send(message, payload)
        return right.recv(10_000)


def test_a_frame_is_two_lengths_the_message_and_the_payload():
    frame = _frame(Segment(5), b"payload")
    text_length, payload_length = struct.unpack_from("<IQ", frame)
    assert payload_length == 7
    assert frame.endswith(b"payload")
    assert len(frame) == 12 + text_length + 7


FRAME = _frame(Segment(5), b"payload")


@pytest.mark.parametrize("length", range(len(FRAME)))
def test_a_peer_that_closes_in_the_middle_of_a_frame_is_unavailable(length):
    left, right = socket.socketpair()
    with Connection(right) as connection:
        left.sendall(FRAME[:length])
        left.close()
        with pytest.raises(UnavailableError, match="closed in the middle of a batch"):
            connection.receive()


def test_a_peer_that_closes_with_unread_bytes_is_unavailable_too(pair):
    """The system then answers with a reset instead of an end."""
    left, right = socket.socketpair()
    with Connection(right) as connection:
        connection.send(Blob(), b"never read")
        left.close()
        with pytest.raises(UnavailableError, match="closed in the middle of a batch"):
            connection.receive()


def test_sending_to_a_peer_that_is_gone_is_unavailable():
    left, right = socket.socketpair()
    left.close()
    with Connection(right) as connection, pytest.raises(UnavailableError, match="closed in the middle of a batch"):
        connection.send(Blob(), b"x" * 100)


def test_what_a_peer_said_before_it_closed_is_still_heard():
    left, right = socket.socketpair()
    with Connection(left) as gone, Connection(right) as connection:
        gone.send(Failed(Raised(b"", "ValueError: why", ())), b"error")
        gone.__exit__(None, None, None)
        assert connection.receive() == (Failed(Raised(b"", "ValueError: why", ())), b"error")


def test_a_worker_hands_its_log_over(tmp_path, monkeypatch):
    with (tmp_path / "log").open("w") as log:
        monkeypatch.setattr(wire, "_STDERR", log.fileno())
        left, right = socket.socketpair()
        with Connection(left) as worker, Connection(right) as host:
            worker.send_log()
            worker.send(Ready())
            descriptor = host.receive_log()
            assert host.receive() == (Ready(), b"")
    os.write(descriptor, b"from the host")
    os.close(descriptor)
    assert (tmp_path / "log").read_text() == "from the host"


def test_a_peer_that_goes_before_it_gave_its_log_is_unavailable():
    left, right = socket.socketpair()
    left.close()
    with Connection(right) as host, pytest.raises(UnavailableError):
        host.receive_log()


@pytest.mark.parametrize(
    "lengths", [(wire.MOST_MESSAGE_BYTES + 1, 0), (1, wire.MOST_PAYLOAD_BYTES + 1), (1, (1 << 64) - 1)]
)
def test_a_frame_that_says_it_is_larger_than_any_is_refused_before_memory_is_taken(lengths):
    there, here = socket.socketpair()
    with there, Connection(here) as connection:
        there.sendall(struct.pack("<IQ", *lengths) + b"x")
        with pytest.raises(CorruptionError, match=str(lengths[1])):
            connection.receive()


def test_a_length_alone_takes_no_memory():
    there, here = socket.socketpair()
    with Connection(here) as connection:
        text = msgspec.msgpack.encode(Blob())
        there.sendall(struct.pack("<IQ", len(text), 2 << 30) + text + b"x")
        there.close()
        tracemalloc.start()
        with pytest.raises(UnavailableError, match="closed"):
            connection.receive()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 64 << 20


def test_a_frame_of_another_message_is_refused():
    there, here = socket.socketpair()
    with there, Connection(here) as connection:
        there.sendall(struct.pack("<IQ", 1, 0) + b"\xc1")
        with pytest.raises(CorruptionError, match="does not decode"):
            connection.receive()
