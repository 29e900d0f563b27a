"""What HTTP sources do when something is wrong: a typed error that says what, and never a missing row."""

import threading
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from benchmarks import database_servers
from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup import (
    HttpLookup,
    HttpScan,
    PartialCachingLookup,
    Retries,
)
from millpond.lookup.sources.values import readers

from .json_server import json_server

CODE = pa.schema([("code", pa.string())])
GATE = pa.schema([("gate", pa.int64())])
PATIENCE_S = 20


@pytest.fixture
def server():
    with json_server() as server:
        yield server


def closed_port():
    return database_servers.free_port()


def no_wait(max_retries=2):
    return Retries(max_retries, sleep=lambda _: None)


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_status_that_passes_is_tried_again(server, status):
    server.answers["GET", "/JFK"] = 200, {"gate": 4}
    server.failing = [(status, "busy")] * 2
    with PartialCachingLookup(HttpLookup(server.url + "/{code}", CODE, GATE), None, retries=no_wait()) as gates:
        assert gates.lookup(("JFK",)) == [(4,)]
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [301, 400, 401, 403, 418])
def test_a_status_that_stays_is_an_error_at_once_and_no_missing_row(server, status):
    server.failing = [(status, "no")]
    gates = PartialCachingLookup(HttpLookup(server.url + "/{code}", CODE, GATE), None, retries=no_wait())
    with pytest.raises(DataError, match=f"got {status}"):
        gates.lookup(("JFK",))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"<html>", "expected JSON, got '<html>'"),
        ({"terminal": 1}, r"objects with gate, got \{'terminal': 1\}"),
        ([1, 2], "objects with gate, got 1"),
        ({"gate": "x"}, "'gate'.*int64.*'x'"),
        ({"gate": True}, "'gate'.*bool True"),
    ],
)
def test_an_answer_of_another_form_is_refused(server, body, complaint):
    server.answers["GET", "/JFK"] = 200, body
    with pytest.raises(DataError, match=complaint):
        HttpLookup(server.url + "/{code}", CODE, GATE).lookup(("JFK",))


def test_nothing_there_is_no_row_however_the_service_says_it(server):
    server.answers = {
        ("GET", "/null"): (200, None),
        ("GET", "/list"): (200, []),
        ("GET", "/one"): (200, {"gate": None}),
    }
    gates = HttpLookup(server.url + "/{code}", CODE, GATE)
    found = gates.lookup_many([("null",), ("list",), ("none",), ("one",)])
    assert found == {("null",): [], ("list",): [], ("none",): [], ("one",): [(None,)]}


@pytest.mark.parametrize("code", ["", ".", ".."])
def test_a_key_that_would_be_another_path_is_refused_and_never_fetches_the_listing(server, code):
    server.answers["GET", "/"] = 200, [{"gate": 1}, {"gate": 2}]
    with pytest.raises(DataError, match=r"'code'.*another resource"):
        HttpLookup(server.url + "/{code}", CODE, GATE).lookup((code,))
    assert server.asked == []
    server.answers["GET", "/gates?code="] = 200, {"gate": 3}
    assert HttpLookup(server.url + "/gates?code={code}", CODE, GATE).lookup(("",)) == [(3,)]


def test_headers_are_sent_and_a_connection_is_kept_and_renewed_when_the_server_closed_it(server):
    server.answers["GET", "/JFK"] = 200, {"gate": 4}
    with HttpLookup(server.url + "/{code}", CODE, GATE, headers={"Authorization": "Bearer t"}) as gates:
        gates.lookup(("JFK",))
        kept = gates._client._idle[0].sock.getsockname()
        gates.lookup(("JFK",))
        assert gates._client._idle[0].sock.getsockname() == kept
        gates._client._idle[0].sock.shutdown(2)
        assert gates.lookup(("JFK",)) == [(4,)]
    assert {headers["Authorization"] for *_, headers in server.asked} == {"Bearer t"}


def test_a_service_that_is_down_or_too_slow_is_unavailable(server):
    with pytest.raises(UnavailableError, match="no answer"):
        HttpLookup(f"http://127.0.0.1:{closed_port()}/{{code}}", CODE, GATE).lookup(("JFK",))
    answer = threading.Event()
    server.respond = lambda *_: (answer.wait(PATIENCE_S), (200, {"gate": 1}))[1]
    try:
        with pytest.raises(UnavailableError, match="TimeoutError"):
            HttpLookup(server.url + "/{code}", CODE, GATE, timeout_ms=100).lookup(("JFK",))
    finally:
        answer.set()


def test_a_batch_that_answers_for_a_key_that_was_not_asked_for_is_an_error(server):
    server.answers["POST", "/many"] = 200, [{"code": "jfk", "gate": 1}]
    source = HttpLookup(server.url + "/{code}", CODE, GATE, batch_url=server.url + "/many")
    with PartialCachingLookup(source, None) as gates, pytest.raises(DataError, match=r"\('jfk',\).*not asked for"):
        gates.lookup(("JFK",))
    assert server.asked[0][2] == {"keys": [{"code": "JFK"}]}


def test_rows_are_taken_out_of_the_body_and_key_values_are_quoted(server):
    day = pa.schema([("day", pa.date32()), ("open", pa.bool_())])
    server.answers["GET", "/d/2013-01-02/true?x=1"] = 200, {"data": [{"gate": 1}, {"gate": 2}]}
    gates = HttpLookup(server.url + "/d/{day}/{open}?x=1", day, GATE, rows=lambda body: body["data"])
    assert gates.lookup((date(2013, 1, 2), True)) == [(1,), (2,)]


def test_a_url_that_is_none_is_refused():
    with pytest.raises(OptionError, match="http://"):
        HttpLookup("localhost/{code}", CODE, GATE)
    with pytest.raises(OptionError, match="expected the server of"):
        HttpLookup("http://one/{code}", CODE, GATE, batch_url="http://two/many")


def test_a_scan_over_http_of_nothing_is_an_error(server):
    with pytest.raises(DataError, match="nothing"):
        HttpScan(server.url + "/all", CODE, GATE).scan()
    server.answers["GET", "/all"] = 200, [{"code": "JFK", "gate": 1 << 70}]
    with pytest.raises(DataError, match="expected int64"):
        HttpScan(server.url + "/all", CODE, GATE).scan()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"code": "\xff", "gate": 1}', "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b'{"gate": 123456789012345678901234567890}', "expected int64"),
        (b'{"gate": 1' + b"0" * 5_000 + b"}", "expected JSON"),
    ],
    ids=["no text", "deep", "30 digits", "5,000 digits"],
)
def test_json_that_no_column_holds_is_bad_data(server, body, told):
    server.answers["GET", "/JFK"] = 200, body
    with pytest.raises(DataError, match=told):
        HttpLookup(server.url + "/{code}", CODE, GATE).lookup(("JFK",))


@pytest.mark.parametrize("text", ["1E+999999999", "1E-999999999", "NaN", "Infinity", "123456789", "0.001", "-1e8"])
def test_a_decimal_that_its_type_does_not_hold_is_bad_data(text):
    (read,) = readers("planes", pa.schema([("price", pa.decimal128(10, 2))]))
    with pytest.raises(DataError, match=r"expected decimal128\(10, 2\)"):
        read(text)
    assert read("12345678.50") == Decimal("12345678.50")
    assert read("0E+999999999") == 0


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("{code}/x", ("", ".", "..")),
        ("{code}", ("", ".", "..")),
        ("a/{code}/b", ("", ".", "..")),
        ("x.{code}", ("",)),
        (".{code}", ("", ".")),
    ],
)
def test_a_key_is_one_segment_of_a_path_and_never_dots_or_nothing(server, path, refused):
    lookup = HttpLookup(f"{server.url}/api/{path}", CODE, GATE)
    for code in refused:
        with pytest.raises(DataError, match="another resource"):
            lookup.lookup((code,))
    assert server.asked == []
    lookup.lookup(("../admin?x#y",))
    assert server.asked[0][1] == "/api/" + path.format(code="..%2Fadmin%3Fx%23y")


def test_two_keys_cannot_make_dots_together(server):
    two = pa.schema([("one", pa.string()), ("other", pa.string())])
    with pytest.raises(DataError, match="another resource"):
        HttpLookup(server.url + "/api/{one}{other}/admin", two, GATE).lookup((".", "."))
    with pytest.raises(OptionError, match="names no server"):
        HttpLookup("http://{one}/{other}", two, GATE)
    assert server.asked == []
