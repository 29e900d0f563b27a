"""That an answer is one write, and that what uvicorn does for a connection is still done."""

import http.client
import json
import socket
import sys
from urllib.parse import urlsplit

import pytest

from millpond.errors import UnavailableError
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


BODIES = {
    "one": FETCH,
    "two": b'{"requests":[{"keys":{"origin":"EWR","carrier":"UA"},"at":5},{"keys":{"origin":"X","carrier":null}}]}',
    "some features": b'{"requests":[{"keys":{"origin":"EWR","carrier":"UA"}}],"features":["count_1h"]}',
    "none": b'{"requests":[]}',
    "no JSON": b"count_1h",
    "an unknown feature": b'{"requests":[{"keys":{"origin":"EWR","carrier":"UA"}}],"features":["nope"]}',
    "a name twice": b'{"requests":[{"keys":{"origin":"EWR","origin":"EWR","carrier":"UA"}}]}',
    "empty": b"",
}
GOOD = ("one", "two", "some features", "none")
HEADERS = {
    "any answer": ["accept: */*"],
    "Arrow": ["accept: application/vnd.apache.arrow.stream"],
    "compressed": ["content-encoding: gzip"],
    "many": [f"x-{number}: 1" for number in range(120)],
}


def answered(url, *asked):
    """What a caller gets who asks in one write, each with an id of its own."""
    with connected(url) as caller:
        caller.sendall(b"".join(asked))
        caller.shutdown(socket.SHUT_WR)
        with caller.makefile("rb") as stream:
            return stream.read().replace(b"connection: close\r\n", b"")


def test_a_whole_call_is_answered_as_the_application_does(url):
    # A path with a percent sign is not looked up before a call is made of it.
    for name, body in BODIES.items():
        whole, made = (
            answered(url, sent("POST", path, body, ["x-request-id: same"]))
            for path in ("/v1/fetch/route", "/v1/fetch/%72oute")
        )
        assert whole == made
        assert whole.startswith(b"HTTP/1.1 200" if name in GOOD else b"HTTP/1.1 400"), name
    for name, headers in HEADERS.items():
        whole, made = (
            answered(url, sent("POST", path, headers=["x-request-id: same", *headers]))
            for path in ("/v1/fetch/route", "/v1/fetch/%72oute")
        )
        assert whole == made, name


def test_whole_calls_and_others_on_one_connection_are_answered_in_order(url):
    asked = [("POST", FETCH), ("GET", b""), ("POST", b"no JSON"), ("POST", FETCH), ("POST", FETCH), ("GET", b"")]
    calls = [sent(method, body=body, headers=[f"x-request-id: {n}"]) for n, (method, body) in enumerate(asked)]
    together = answered(url, *calls)
    assert together == b"".join(answered(url, call) for call in calls)


def test_a_whole_call_needs_a_key_as_any_other_and_is_counted_and_logged(serving, caplog):
    url = serving(api_keys=["a-key-0123456789-abc"], log_calls=True)
    key = "authorization: Bearer a-key-0123456789-abc"
    with caplog.at_level("INFO", logger="millpond.access"):
        refused, allowed = answered(url, sent("POST")), answered(url, sent("POST", headers=[key]))
    assert refused.startswith(b"HTTP/1.1 401")
    assert allowed.startswith(b"HTTP/1.1 200")
    logged = [(one.fields["path"], one.fields["status"], one.fields["bytes"]) for one in caplog.records]
    assert logged[-1] == ("/v1/fetch/route", 200, len(allowed.partition(b"\r\n\r\n")[2]))
    assert answered(url, sent("POST", "/v1/fetch/%72oute", headers=[key])).startswith(b"HTTP/1.1 200")
    counts = answered(url, sent("GET", "/metrics", b"", [key])).decode()
    for status, count in ((200, 2), (401, 1)):
        assert f'requests_total{{path="/v1/fetch/route",method="POST",status="{status}"}} {count}\n' in counts


def test_calls_whose_head_came_before_get_the_answers_to_their_own_bodies(url, fetcher):
    bodies = [
        json.dumps({"requests": [{"keys": {"origin": origin, "carrier": "UA"}}]}).encode()
        for origin in ("EWR", "JFK", "EWR", '"\\"', "EWR", "EW", "JFKK", "EWR")
    ]
    bodies[3:3] = [b"x" * len(bodies[0]), bodies[1]]
    bodies += [FETCH + b" " * spaces for spaces in (0, 3, 1, 7, 0, 2, 4, 5, 6, 8, 9, 0, 3)]
    expected = [answered(url, sent("POST", body=body, headers=["x-request-id: same"])) for body in bodies]
    with connected(url) as caller, caller.makefile("rb") as stream:
        for body, answer in zip(bodies, expected, strict=True):
            caller.sendall(sent("POST", body=body, headers=["x-request-id: same"]))
            assert stream.read(len(answer)) == answer
    assert len({answer.partition(b"\r\n\r\n")[2] for answer in expected}) > 3


def test_a_head_that_is_sent_again_in_parts_or_with_others_is_still_read_right(url):
    call = sent("POST", headers=["x-request-id: same"])
    answer = answered(url, call)
    head = call[: call.index(b"\r\n\r\n") + 4]
    with connected(url) as caller, caller.makefile("rb") as stream:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pieces in (
            [call],
            [call],
            [call + call],
            [call],
            [head, FETCH],
            [call[:9], call[9:]],
            [b"\r\n" + call],
            [call],
        ):
            for piece in pieces:
                caller.sendall(piece)
            for _ in range(b"".join(pieces).count(b"POST")):
                assert stream.read(len(answer)) == answer


def test_a_call_alike_that_cannot_be_answered_at_once_is_answered_by_the_application(url, fetcher):
    with connected(url) as caller, caller.makefile("rb") as stream:
        for failure, status in ((None, b"200"), (None, b"200"), (UnavailableError("down"), b"503"), (None, b"200")):
            fetcher.failure = failure
            caller.sendall(sent("POST"))
            assert stream.readline().split()[1] == status
            stream.read(int(http.client.parse_headers(stream)["content-length"]))


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


UPGRADES = {
    "HTTP/2": ["connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAEAAEAAAAIAAAAB"],
    "websocket": ["connection: keep-alive, Upgrade", "upgrade: websocket", "sec-websocket-version: 13"],
}


@pytest.mark.parametrize("headers", UPGRADES.values(), ids=UPGRADES)
@pytest.mark.parametrize("piece_bytes", [1 << 16, 50, 1])
def test_an_offer_of_another_protocol_is_not_taken_and_the_call_answered(url, headers, piece_bytes):
    plain = [sent("POST", headers=["x-request-id: same"]), sent("GET", "/health", b"", ["x-request-id: same"])] * 2
    offering = [one.replace(b"\r\n", "\r\n".join(["", *headers, ""]).encode(), 1) for one in plain]
    asked = b"".join([*offering, *plain, offering[0]])
    with connected(url) as caller:
        for at in range(0, len(asked), piece_bytes):
            caller.sendall(asked[at : at + piece_bytes])
        caller.shutdown(socket.SHUT_WR)
        with caller.makefile("rb") as stream:
            found = stream.read().replace(b"connection: close\r\n", b"")
    assert found == answered(url, *plain, *plain, plain[0])
    assert found.count(b"HTTP/1.1 200") == 9


def test_chunked_bodies_and_a_wish_to_continue_are_read_after_an_offer_of_another_protocol(url):
    head = sent("POST", headers=UPGRADES["HTTP/2"]).partition(b"content-length")[0]
    with connected(url) as caller:
        caller.sendall(head + b"transfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n")
        assert caller.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        caller.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(FETCH), FETCH))
        assert b'"count_1h":3' in caller.recv(1 << 16)


def test_many_offers_of_another_protocol_in_one_write_are_all_answered(url):
    call = sent("GET", "/health", b"", ["connection: upgrade", "upgrade: h2c"])
    assert answered(url, *[call] * 2_000).count(b"HTTP/1.1 200") == 2_000


def test_without_httptools_h11_parses(serving, call, monkeypatch):
    monkeypatch.setitem(sys.modules, "httptools", None)
    monkeypatch.delitem(sys.modules, "millpond.serving.http.running.httptools_calls", raising=False)
    url = serving()
    assert call(url, "POST", "/v1/fetch/route", FETCH)[0] == 200
    with connected(url) as caller:
        caller.sendall(b"hello\r\n\r\n")
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 400")
    assert "millpond.serving.http.running.httptools_calls" not in sys.modules
