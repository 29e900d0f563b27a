"""Callers who send slowly, too much, nothing, or do not read; and very many of them."""

import http.client
import json
import socket
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from urllib.parse import urlsplit

import pytest

from millpond.serving import Limits
from millpond.serving.http.running.connections import Connections

from .answering import Gate

BODY = b'{"requests": [{"keys": {"origin": "EWR", "carrier": "UA"}}]}'
HEAD = b"POST /v1/fetch/route HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(BODY)


def connected(url):
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def received(connection):
    """All that comes until the server closes."""
    content = b""
    while piece := connection.recv(65_536):
        content += piece
    return content


def read_answer(connection):
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, json.loads(response.read())


class FakeTransport:
    def __init__(self):
        self.ended = None

    def close(self):
        self.ended = "closed"

    def abort(self):
        self.ended = "reset"


class FakeCycle:
    def __init__(self, complete, more_body=False):
        self.response_complete = complete
        self.more_body = more_body


class FakeConnection:
    def __init__(self):
        self.transport = FakeTransport()
        self.cycle = None


@pytest.fixture
def clock():
    class Clock:
        now_ms = 0

        def __call__(self):
            return self.now_ms

    return Clock()


@pytest.fixture
def connections(clock):
    limits = Limits(head_timeout_ms=1_000, timeout_ms=2_000, idle_timeout_ms=5_000)
    return Connections(limits, clock, 40)


def test_a_connection_that_sends_no_call_is_closed_after_a_while(connections, clock):
    silent = FakeConnection()
    assert connections.admit(silent)
    clock.now_ms = 999
    connections.look()
    assert silent.transport.ended is None
    clock.now_ms = 1_000
    connections.look()
    assert (silent.transport.ended, len(connections)) == ("closed", 0)


def test_a_connection_that_stays_in_one_call_is_reset_and_one_that_moves_on_is_kept(connections, clock):
    stuck, busy = FakeConnection(), FakeConnection()
    for connection in (stuck, busy):
        connections.admit(connection)
        connection.cycle = FakeCycle(complete=False)
    for clock.now_ms in range(1_000, 6_000, 1_000):
        busy.cycle = FakeCycle(complete=False)
        connections.look()
    assert (stuck.transport.ended, busy.transport.ended) == ("reset", None)


def test_a_connection_may_be_idle_between_calls_for_longer(connections, clock):
    idle = FakeConnection()
    connections.admit(idle)
    idle.cycle = FakeCycle(complete=True)
    connections.look()
    clock.now_ms = 4_999
    connections.look()
    assert idle.transport.ended is None
    clock.now_ms = 5_000
    connections.look()
    assert idle.transport.ended == "closed"


def test_a_new_connection_takes_the_place_of_those_that_were_idle_longest(connections, clock):
    opened = [FakeConnection() for _ in range(40)]
    for clock.now_ms, connection in enumerate(opened):
        connections.admit(connection)
        connection.cycle = FakeCycle(complete=True)
    opened[0].cycle = FakeCycle(complete=False)
    connections.look()
    newest = FakeConnection()
    assert connections.admit(newest)
    assert [connection.transport.ended for connection in opened[:4]] == [None, "reset", "reset", None]
    assert len(connections) == 39


def test_where_all_are_in_a_call_a_new_connection_is_refused(connections):
    for _ in range(40):
        busy = FakeConnection()
        connections.admit(busy)
        busy.cycle = FakeCycle(complete=False)
    assert not connections.admit(FakeConnection())


def test_many_idle_connections_leave_room_for_who_calls(serving):
    url = serving(limits=Limits(max_connections=50))
    idle = [connected(url) for _ in range(300)]
    with connected(url) as calling:
        for _ in range(3):
            calling.sendall(HEAD + b"\r\n" + BODY)
            assert read_answer(calling)[0] == 200
    for connection in idle:
        connection.close()


def test_a_caller_who_closed_its_sending_side_gets_its_answer(url):
    with connected(url) as connection:
        connection.sendall(HEAD + b"\r\n" + BODY)
        connection.shutdown(socket.SHUT_WR)
        answer = received(connection)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"count_1h":3' in answer


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"\r\n" + BODY[:10]])
def test_a_caller_who_leaves_before_the_end_is_let_go(url, call, sent):
    with connected(url) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert received(connection) == b""
    assert call(url, "GET", "/health")[0] == 200


def test_a_body_that_does_not_come_in_time_is_a_408_and_hurts_nobody_else(serving, call):
    url = serving(limits=Limits(timeout_ms=400, max_in_flight=1))
    with connected(url) as slow:
        slow.sendall(HEAD + b"\r\n" + BODY[:10])
        assert call(url, "POST", "/v1/fetch/route", BODY)[0] == 200
        status, answer = read_answer(slow)
    assert (status, answer["error"]["code"]) == (408, "too_slow")


def test_a_call_that_takes_too_long_is_a_503_and_its_connection_lives_on(serving, fetcher):
    url = serving(limits=Limits(timeout_ms=300))
    with connected(url) as connection:
        fetcher.gate = Gate()
        connection.sendall(HEAD + b"\r\n" + BODY)
        status, answer = read_answer(connection)
        assert (status, answer["error"]["code"]) == (503, "timed_out")
        fetcher.gate = None
        connection.sendall(HEAD + b"\r\n" + BODY)
        assert read_answer(connection)[0] == 200


def test_fetches_beyond_those_in_flight_are_told_to_come_back(serving, call, fetcher):
    url = serving(limits=Limits(max_in_flight=2, timeout_ms=5_000))
    gate = fetcher.gate = Gate()
    waiting = [connected(url) for _ in range(2)]
    for connection in waiting:
        connection.sendall(HEAD + b"\r\n" + BODY)
    deadline = time.monotonic() + 10
    while len(fetcher.asked) < 2 and time.monotonic() < deadline:
        call(url, "GET", "/health")
    status, headers, answer = call(url, "POST", "/v1/fetch/route", BODY)
    assert (status, headers["Retry-After"], answer["error"]["code"]) == (429, "1", "too_many_calls")
    assert call(url, "GET", "/health")[0] == 200
    gate.open()
    for connection in waiting:
        assert read_answer(connection)[0] == 200
        connection.close()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_100_mb_is_refused_and_not_taken_in(url, chunked):
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 100000000"
    piece = b"x" * 65_536
    sent = 0
    with connected(url) as connection:
        connection.sendall(b"POST /v1/fetch/route HTTP/1.1\r\nHost: x\r\n" + length + b"\r\n\r\n")
        try:
            while sent < 100_000_000:
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                sent += len(piece)
        except OSError:
            pass
        answer = connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert sent < 40_000_000


def test_a_head_that_does_not_end_is_refused(url):
    with connected(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        try:
            for _ in range(1_000):
                connection.sendall(b"X-Filler: " + b"x" * 1_000 + b"\r\n")
        except OSError:
            pass
        assert connection.recv(65_536).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("sent", [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET /health HTTP/9.9\r\n\r\n"])
def test_what_is_no_http_is_a_400_in_json(url, sent):
    with connected(url) as connection:
        connection.sendall(sent)
        status, answer = read_answer(connection)
    assert (status, answer["error"]["code"]) == (400, "bad_request")


def test_calls_that_are_sent_ahead_are_answered_in_their_order(url):
    calls = b"".join(
        b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in (b"/health", b"/nowhere", b"/health") * 20
    )
    with connected(url) as connection:
        connection.sendall(calls + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = received(connection)
    assert answer.count(b"HTTP/1.1 200") == 41
    assert answer.count(b"HTTP/1.1 404") == 20


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_ten_answers_on_one_connection_do_not_wait_for_a_delayed_acknowledgement(loop, serving, monkeypatch):
    if loop == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    took_ms = []
    with connected(serving()) as connection:
        for _ in range(10):
            began = time.perf_counter()
            connection.sendall(HEAD + b"\r\n" + BODY)
            assert read_answer(connection)[0] == 200
            took_ms.append((time.perf_counter() - began) * 1_000)
    assert statistics.median(took_ms) < 20


def test_slow_senders_keep_nobody_out(connections, clock):
    slow, working = FakeConnection(), FakeConnection()
    for connection, more_body in ((slow, True), (working, False)):
        connections.admit(connection)
        connection.cycle = FakeCycle(complete=False, more_body=more_body)
    for _ in range(38):
        busy = FakeConnection()
        connections.admit(busy)
        busy.cycle = FakeCycle(complete=False)
    clock.now_ms = 1
    assert connections.admit(FakeConnection())
    assert (slow.transport.ended, working.transport.ended) == ("reset", None)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("half", [HEAD, HEAD + b"\r\n" + BODY[:10]], ids=["head", "body"])
def test_400_half_open_calls_against_256_files_keep_nobody_out(loop, half, call):
    program = [sys.executable, str(Path(__file__).with_name("few_files_program.py")), "256", loop]
    with subprocess.Popen(program, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        half_open = []
        for _ in range(400):
            connection = connected(url)
            with suppress(ConnectionError):
                connection.sendall(half)
            half_open.append(connection)
        assert call(url, "POST", "/v1/fetch/route", BODY)[0] == 200
        for connection in half_open:
            connection.close()
        assert call(url, "POST", "/v1/fetch/route", BODY)[0] == 200
        lines = process.communicate(timeout=20)[1].splitlines()
    assert lines
    assert len(lines) <= 400
    assert {json.loads(line)["level"] for line in lines} == {"WARNING"}


def test_a_refused_connection_is_told_and_logged_in_one_line(serving, fetcher, caplog):
    fetcher.gate = Gate()
    url = serving(limits=Limits(max_connections=1, timeout_ms=5_000))
    with connected(url) as busy:
        busy.sendall(HEAD + b"\r\n" + BODY)
        assert fetcher.gate.reached.wait(10)
        with connected(url) as refused:
            status, answer = read_answer(refused)
        fetcher.gate.open()
        assert read_answer(busy)[0] == 200
    assert (status, answer["error"]["code"]) == (503, "unavailable")
    assert [record.getMessage() for record in caplog.records if record.name == "millpond.serving"] == [
        "a connection was refused"
    ]


@pytest.mark.parametrize(
    "deep",
    [b"[" * 100_000, b'{"requests":' + b"[" * 100_000, b'{"requests": [{"keys": ' + b'{"origin":' * 50_000],
    ids=["arrays", "requests", "keys"],
)
def test_json_that_is_nested_too_deep_is_a_400_and_no_line_in_the_log(serving, call, caplog, deep):
    status, _, answer = call(serving(), "POST", "/v1/fetch/route", deep)
    assert (status, answer["error"]["code"]) == (400, "bad_request")
    assert "\n" not in answer["error"]["message"]
    assert len(answer["error"]["message"]) < 500
    assert not caplog.records
