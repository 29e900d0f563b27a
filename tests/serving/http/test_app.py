"""The service end to end over loopback: what it answers, what it refuses, and how."""

import json
import logging

import pytest

from millpond.errors import CorruptionError, UnavailableError
from millpond.serving import http_app, running_server
from millpond.serving.http.running.log import JsonLines

from .answering import NOW_MS

EWR = {"origin": "EWR", "carrier": "UA"}
FETCH = "/v1/fetch/route"


def test_an_answer_has_the_documented_form(url, call):
    body = {"requests": [{"keys": EWR, "at": 5}, {"keys": {"origin": "JFK", "carrier": None}}]}
    status, headers, answer = call(url, "POST", FETCH, body)
    assert status == 200
    assert headers["Millpond-Definition"] == "c0ffee"
    assert answer["results"] == [
        {
            "name": "route",
            "keys": EWR,
            "at": 5,
            "features": {"count_1h": 3, "dep_delay_average_7d": 12.5},
            "batch_end_ms": 0,
        },
        {
            "name": "route",
            "keys": {"origin": "JFK", "carrier": None},
            "at": NOW_MS,
            "features": {"count_1h": None, "dep_delay_average_7d": None},
            "states": {"count_1h": "null", "dep_delay_average_7d": "null"},
            "batch_end_ms": 0,
        },
    ]


def test_features_context_and_explain_reach_the_fetcher(url, call, fetcher):
    keys = dict.fromkeys(fetcher.targets["typed"].keys)
    item = {"keys": keys, "at": 7, "context": {"amount": 2, "tags": ["a", None], "rates": {"3": 0.5}}}
    body = {"requests": [item], "features": ["amount", "rates"], "explain": True}
    _, _, answer = call(url, "POST", "/v1/fetch/typed", body)
    asked = fetcher.asked[0][0]
    assert asked.context == {"amount": 2.0, "tags": ["a", None], "rates": {3: 0.5}}
    assert type(asked.context["amount"]) is float
    assert (asked.features, asked.explain) == (("amount", "rates"), True)
    assert answer["results"][0]["features"] == {"amount": 2.0, "rates": {"3": 0.5}}
    assert answer["results"][0]["explain"] == {"rows": 1}


def test_a_call_of_many_requests_is_answered_in_slices_and_in_order(serving, call, fetcher):
    fetcher.values = {str(number): {"count_1h": number} for number in range(250)}
    requests = [{"keys": {"origin": str(number), "carrier": None}} for number in range(250)]
    _, _, answer = call(serving(), "POST", FETCH, {"requests": requests, "features": ["count_1h"]})
    assert [result["features"]["count_1h"] for result in answer["results"]] == list(range(250))
    assert [len(requests) for requests in fetcher.asked] == [100, 100, 50]


def test_what_json_has_no_word_for_is_left_out_and_named_and_never_null(url, call, fetcher):
    fetcher.values["EWR"] = {"count_1h": 2**70, "dep_delay_average_7d": float("inf")}
    _, _, answer = call(url, "POST", FETCH, {"requests": [{"keys": EWR}]})
    result = answer["results"][0]
    assert result["features"] == {"count_1h": 2**70}
    assert result["states"] == {"dep_delay_average_7d": "unavailable"}
    assert "JSON has no word" in result["errors"]["dep_delay_average_7d"]
    fetcher.values["EWR"] = {"count_1h": 1, "dep_delay_average_7d": [1.0, {"x": float("nan")}]}
    _, _, answer = call(url, "POST", FETCH, {"requests": [{"keys": EWR}]})
    assert answer["results"][0]["features"] == {"count_1h": 1}


def test_what_is_served_is_told_with_its_batches(url, call):
    _, _, group_bys = call(url, "GET", "/v1/group_bys")
    _, _, joins = call(url, "GET", "/v1/joins")
    _, _, route = call(url, "GET", FETCH)
    assert group_bys == {"group_bys": [route]}
    assert route == {
        "name": "route",
        "kind": "group_by",
        "definition_hash": "c0ffee",
        "keys": {"origin": "string", "carrier": "string"},
        "context": {},
        "features": {"count_1h": "long", "dep_delay_average_7d": "double"},
        "batches": {"route": {"batch_end_ms": 0, "batch_landing_ms": 7}},
    }
    assert [join["batches"]["aircraft"] for join in joins["joins"]] == [None]


def test_health_is_alive_and_ready_is_able_to_answer(url, call, fetcher):
    assert call(url, "GET", "/health")[::2] == (200, {"status": "ok"})
    status, headers, answer = call(url, "GET", "/ready")
    assert (status, headers["Retry-After"]) == (503, "1")
    assert answer["error"] == {"code": "not_ready", "message": "no batch has been uploaded of aircraft."}
    assert call(url, "HEAD", "/health")[::2] == (200, b"")
    assert call(url, "GET", "/v1/stats")[2]["caches"] == {"route": {"hits": 1, "misses": 2}}


def test_metrics_count_calls_by_route_method_and_status(serving, call):
    url = serving()
    call(url, "POST", FETCH, {"requests": []})
    call(url, "POST", FETCH, "{")
    call(url, "PATCH", "/somewhere/else")
    _, headers, text = call(url, "GET", "/metrics")
    lines = text.decode().splitlines()
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert 'millpond_http_requests_total{path="/v1/fetch/route",method="POST",status="200"} 1' in lines
    assert 'millpond_http_requests_total{path="/v1/fetch/route",method="POST",status="400"} 1' in lines
    assert 'millpond_http_requests_total{path="other",method="other",status="404"} 1' in lines
    assert 'millpond_http_request_duration_seconds_count{path="/v1/fetch/route"} 2' in lines
    assert 'millpond_cache_requests_total{cache="route",result="hit"} 1' in lines


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "message"),
    [
        ("POST", "/v1/fetch/rout", {"requests": []}, 404, "not_served", "'rout' is served here"),
        ("POST", FETCH, "{", 400, "bad_request", "is not what a fetch of 'route' takes"),
        ("POST", FETCH, "", 400, "bad_request", "is not what a fetch of 'route' takes"),
        ("POST", FETCH, b"\xff\xfe", 400, "bad_request", "is not what a fetch of 'route' takes"),
        ("POST", FETCH, b'{"requests": [{"keys": {"origin": "\xff"}}]}', 400, "bad_request", "takes"),
        ("POST", FETCH, "[" * 15_000, 400, "bad_request", "takes"),
        ("POST", FETCH, '{"requests": [{"keys": ' + '{"a":' * 3_000, 400, "bad_request", "takes"),
        ("POST", FETCH, "[]", 400, "bad_request", "Expected `object`, got `array`"),
        ("POST", FETCH, {"requests": [], "extra": 1}, 400, "bad_request", "extra"),
        ("POST", FETCH, {"requests": [{"keys": EWR, "at": "now"}]}, 400, "bad_request", "$.requests[0].at"),
        ("POST", FETCH, {"requests": [{"keys": EWR, "at": 1.5}]}, 400, "bad_request", "$.requests[0].at"),
        ("POST", FETCH, {"requests": [{"keys": EWR, "at": 2**64}]}, 400, "bad_request", "$.requests[0].at"),
        ("POST", FETCH, '{"requests": [{"keys": NaN}]}', 400, "bad_request", "malformed"),
        ("POST", FETCH, '{"requests": [], "requests": []}', 400, "bad_request", "'requests' appears twice"),
        (
            "POST",
            FETCH,
            '{"requests": [{"keys": {"origin": "EWR", "origin": "JFK", "carrier": "UA"}}]}',
            400,
            "bad_request",
            "'origin' appears twice",
        ),
        ("POST", FETCH, {"requests": [{"keys": {"origin": "EWR"}}]}, 400, "bad_request", "carrier"),
        (
            "POST",
            FETCH,
            {"requests": [{"keys": {**EWR, "gate": "A"}}]},
            400,
            "bad_request",
            "'gate' is not in the keys",
        ),
        ("POST", FETCH, {"requests": [{"keys": {**EWR, "origin": 7}}]}, 400, "bad_request", "keys.origin"),
        (
            "POST",
            FETCH,
            {"requests": [{"keys": EWR, "context": {"x": 1}}]},
            400,
            "bad_request",
            "'x' is not in the con",
        ),
        ("POST", FETCH, {"requests": [{"keys": EWR, "at": 13}]}, 400, "bad_request", "bad luck"),
        ("POST", FETCH, {"requests": [{"keys": EWR}], "features": ["no"]}, 400, "bad_option", "no feature 'no'"),
        ("POST", FETCH, {"requests": [], "features": ["x"] * 11}, 400, "bad_request", "length <= 10"),
        ("POST", FETCH, {"requests": [{"keys": EWR}] * 51}, 400, "bad_request", "length <= 50"),
        ("POST", FETCH, " " * 20_001, 413, "too_large", "over 20000 bytes"),
        ("PUT", FETCH, None, 405, "method_not_allowed", "this path takes GET, POST"),
        ("GET", "/nowhere", None, 404, "not_found", "GET /nowhere"),
        ("POST", "/v1/fetch/typed", {"requests": [{"keys": {"a_decimal": "1E+999999999"}}]}, 400, "bad_request", ""),
    ],
)
def test_a_wrong_call_gets_a_status_a_code_and_a_message(url, call, fetcher, method, path, body, status, code, message):
    got, _, answer = call(url, method, path, body)
    assert (got, answer["error"]["code"]) == (status, code)
    assert message in answer["error"]["message"]
    assert call(url, "POST", FETCH, {"requests": [{"keys": EWR}]})[0] == 200


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
        ({"Accept": "text/html"}, 406, "not_acceptable"),
        ({"Accept": "application/json;q=0"}, 406, "not_acceptable"),
        ({"Accept": "application/json; Q=0.000, text/*"}, 406, "not_acceptable"),
        ({f"X-{number}": "1" for number in range(101)}, 431, "head_too_large"),
    ],
)
def test_headers_that_cannot_be_met_are_refused(url, call, headers, status, code):
    got, _, answer = call(url, "POST", FETCH, {"requests": []}, headers)
    assert (got, answer["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    "accept", ["text/html, */*;q=0.1", "*/*;q=0.001", "application/*", "Application/JSON; charset=utf-8"]
)
def test_json_is_the_answer_to_all_that_accept_it(url, call, accept):
    headers = {"Accept": accept, "Content-Type": "Application/JSON; charset=utf-8"}
    assert call(url, "POST", FETCH, {"requests": []}, headers)[2] == {"results": []}


def test_a_time_with_colons_is_no_reason_to_refuse(url, call, fetcher):
    keys = dict.fromkeys(fetcher.targets["typed"].keys) | {"a_timestamp": "2013-01-31T12:00:00Z", "a_string": ":::"}
    assert call(url, "POST", "/v1/fetch/typed", {"requests": [{"keys": keys}]})[0] == 200


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [(UnavailableError("the store is away"), 503, "unavailable"), (CorruptionError("a torn record"), 500, "corrupt")],
)
def test_what_the_fetcher_raises_is_said_with_its_code(serving, call, fetcher, failure, status, code):
    url = serving()
    fetcher.failure = failure
    got, headers, answer = call(url, "POST", FETCH, {"requests": [{"keys": EWR}]})
    assert (got, answer["error"]) == (status, {"code": code, "message": str(failure)})
    assert headers["Retry-After"] == ("1" if status == 503 else None)
    assert call(url, "GET", "/ready")[2]["error"]["message"] == str(failure)
    assert call(url, "GET", "/health")[0] == 200


def test_a_bug_is_a_500_without_its_traceback_which_is_in_the_log(url, call, fetcher, caplog):
    fetcher.failure = ZeroDivisionError("secret")
    status, _, answer = call(url, "POST", FETCH, {"requests": []}, {"X-Request-Id": "mine-1"})
    assert (status, answer["error"]["code"]) == (500, "internal")
    assert answer["error"]["message"] == "ZeroDivisionError in the server; its log has the traceback under mine-1."
    line = json.loads(JsonLines().format(caplog.records[-1]))
    assert line["request_id"] == "mine-1"
    assert "ZeroDivisionError: secret" in line["traceback"]


def test_every_answer_has_the_callers_request_id_or_a_new_one(url, call):
    ids = {call(url, "GET", "/health")[1]["X-Request-Id"] for _ in range(3)}
    assert len(ids) == 3
    assert call(url, "GET", "/health", headers={"X-Request-Id": "a.b:1"})[1]["X-Request-Id"] == "a.b:1"
    assert call(url, "GET", "/health", headers={"X-Request-Id": "x" * 200})[1]["X-Request-Id"] not in {"x" * 200, None}


def test_calls_are_logged_as_json_lines_if_wanted(fetcher, call, caplog):
    app = http_app(fetcher, log_calls=True)
    with caplog.at_level(logging.INFO, "millpond.access"), running_server(app) as url:
        call(url, "POST", FETCH, {"requests": [{"keys": EWR}]}, {"X-Request-Id": "mine-2"})
    line = json.loads(JsonLines().format(caplog.records[-1]))
    assert line["ms"] > 0
    assert {name: line[name] for name in ("message", "request_id", "method", "path", "status", "client")} == {
        "message": "call",
        "request_id": "mine-2",
        "method": "POST",
        "path": FETCH,
        "status": 200,
        "client": "127.0.0.1",
    }


def test_without_one_of_the_api_keys_nothing_but_the_probes_is_answered(serving, call):
    url = serving(api_keys=["first-key-0123456789", "second-key-012345678"])
    body = {"requests": [{"keys": EWR}]}
    for value in (None, "Bearer wrong", "Basic first-key-0123456789", "Bearer", "Bearer first-key-0123456789x"):
        status, headers, answer = call(url, "POST", FETCH, body, {"Authorization": value} if value else {})
        assert (status, headers["WWW-Authenticate"], answer["error"]["code"]) == (401, "Bearer", "unauthorized")
    for key in ("first-key-0123456789", "second-key-012345678"):
        assert call(url, "POST", FETCH, body, {"Authorization": f"bearer {key}"})[0] == 200
    assert call(url, "GET", "/metrics")[0] == 401
    assert call(url, "GET", "/health")[0] == 200
    assert call(url, "GET", "/ready")[0] == 503
