"""That an answer is one write, and that nothing of it is lost or comes out of order."""

import json
import socket
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from millpond.serving.http.whole_answers import WholeAnswer


class Connection:
    """Keeps what is written."""

    def __init__(self):
        self.written = []
        self.closed = False

    def write(self, data):
        assert not self.closed
        self.written.append(data)

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed


@pytest.fixture
def connection():
    return Connection()


@pytest.fixture
def cycle():
    return SimpleNamespace(response_started=True)


def test_head_and_body_are_one_write_and_later_parts_their_own(connection, cycle):
    answer = WholeAnswer(connection, cycle)
    for part in (b"head ", b"body ", b"more ", b"end"):
        answer.write(part)
    assert connection.written == [b"head body ", b"more ", b"end"]


def test_an_interim_answer_is_sent_at_once(connection, cycle):
    cycle.response_started = False
    answer = WholeAnswer(connection, cycle)
    answer.write(b"100 continue ")
    cycle.response_started = True
    answer.write(b"head ")
    assert connection.written == [b"100 continue "]
    answer.write(b"body")
    assert connection.written == [b"100 continue ", b"head body"]


def test_a_head_without_a_body_is_sent_before_the_connection_is_closed(connection, cycle):
    answer = WholeAnswer(connection, cycle)
    answer.write(b"head")
    assert not answer.is_closing()
    answer.close()
    assert connection.written == [b"head"]
    assert answer.is_closing()


@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_a_caller_gets_a_small_answer_in_one_piece(url, method):
    path, body = ("/v1/fetch/route", {"requests": [{"keys": {"origin": "EWR", "carrier": "UA"}}]})
    sent = json.dumps(body).encode() if method == "POST" else b""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}\r\n"
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as caller:
        for _ in range(3):
            caller.sendall(head.encode() + b"\r\n" + sent)
            answer = caller.recv(1 << 16)
            head_of_answer, _, body_of_answer = answer.partition(b"\r\n\r\n")
            assert head_of_answer.startswith(b"HTTP/1.1 200")
            assert (b'"count_1h":3' in body_of_answer) == (method == "POST")
