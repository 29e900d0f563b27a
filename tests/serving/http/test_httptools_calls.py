"""That an answer is one write, and that what uvicorn does for a connection is still done."""

import http.client
import json
import socket
import sys
from urllib.parse import urlsplit

import pytest

from millpond.serving import Limits

FETCH = json.dumps({"requests": [{"keys": {"origin": "EWR", "carrier": "UA"}}]}).encode()


def connected(url):
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def sent(method, path="/v1/fetch/route", body=FETCH, headers=()):
    lines = [f"{method} {path} HTTP/1.1", "host: x", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


@pytest.mark.parametrize("method", ["POST", "HEAD"])
def test_a_caller_gets_a_small_answer_in_one_piece(url, method):
    with connected(url) as caller:
        for _ in range(3):
            caller.sendall(sent(method, body=FETCH if method == "POST" else b""))
            head, _, body = caller.recv(1 << 16).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert (b'"count_1h":3' in body) == (method == "POST")


def test_who_waits_for_100_continue_gets_it_before_the_answer(url):
    head, _, body = sent("POST", headers=["expect: 100-continue"]).partition(b"\r\n\r\n")
    with connected(url) as caller:
        caller.sendall(head + b"\r\n\r\n")
        assert caller.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.sendall(body)
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_connection_that_is_not_to_be_kept_is_closed_and_the_answer_says_so(url, version):
    asked = sent("POST", headers=["connection: close"] if version == "1.1" else []).replace(
        b"HTTP/1.1", f"HTTP/{version}".encode()
    )
    with connected(url) as caller:
        caller.sendall(asked)
        answer = b""
        while piece := caller.recv(1 << 16):
            answer += piece
    assert answer.partition(b"\r\n\r\n")[0].endswith(b"\r\nconnection: close")
    assert b'"count_1h":3' in answer


def test_a_body_that_comes_byte_by_byte_is_read_whole(url):
    with connected(url) as caller:
        for byte in sent("POST"):
            caller.sendall(bytes([byte]))
        assert b'"count_1h":3' in caller.recv(1 << 16)


def test_a_path_may_be_written_with_percent_signs(url, call):
    assert call(url, "POST", "/v1/fetch/%72oute", FETCH)[0] == 200


def test_calls_of_a_caller_who_does_not_read_its_answers_are_not_taken_in(serving, call):
    url = serving(limits=Limits(timeout_ms=60_000))
    ahead, taken = sent("GET", "/openapi.json", b"") * 1_000, 0
    with connected(url) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        silent.settimeout(0.5)
        try:
            while taken < 16_000_000:
                taken += silent.send(ahead)
        except TimeoutError:
            pass
        assert call(url, "POST", "/v1/fetch/route", FETCH)[0] == 200
    assert taken < 8_000_000


def test_calls_ahead_of_a_slow_reader_are_all_answered_in_order(url):
    paths = ["/openapi.json", "/health", "/v1/group_bys"] * 40
    with connected(url) as caller:
        caller.sendall(b"".join(sent("GET", path, b"") for path in paths))
        stream = caller.makefile("rb")
        for path in paths:
            assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
            length = int(http.client.parse_headers(stream)["content-length"])
            answer = json.loads(stream.read(length))
            assert {"/openapi.json": "openapi", "/health": "status", "/v1/group_bys": "group_bys"}[path] in answer


def test_without_httptools_h11_parses(serving, call, monkeypatch):
    monkeypatch.setitem(sys.modules, "httptools", None)
    monkeypatch.delitem(sys.modules, "millpond.serving.http.httptools_calls", raising=False)
    url = serving()
    assert call(url, "POST", "/v1/fetch/route", FETCH)[0] == 200
    with connected(url) as caller:
        caller.sendall(b"hello\r\n\r\n")
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 400")
    assert "millpond.serving.http.httptools_calls" not in sys.modules
