"""The fetcher over HTTP, end to end over loopback: same answers, same errors, no surprises on the wire."""

import http.client
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import pytest

from millpond.errors import CorruptionError, DataError, MissingDependencyError, OptionError, UnavailableError
from millpond.features import DAY_MS, HOUR_MS
from millpond.kv import MemoryStore, Put
from millpond.serving import FetchClient, Fetcher, FetchRequest, http_app, running_server, serve, server

from .world import AIRCRAFT_PLAN, BATCH_END_MS, EWR, JFK, NOBODY, PLANS, ROUTE_PLAN, FailingStore, small_world, upload

NOON_MS = BATCH_END_MS + 12 * HOUR_MS


@pytest.fixture(scope="module")
def fetcher():
    store, _ = small_world()
    return Fetcher(store, PLANS, fetcher_cache_size=100)


@pytest.fixture(scope="module")
def url(fetcher):
    with running_server(http_app(fetcher, max_body_bytes=20_000)) as url:
        yield url


def call(url, method, path, body=None):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request(method, path, body)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert response.headers["Content-Type"] == "application/json"
    return response.status, json.loads(content)


def test_a_fetch_over_http_equals_the_fetch_in_process(url, fetcher):
    requests = [
        FetchRequest("route", keys, NOON_MS + step) for keys in (EWR, NOBODY, JFK) for step in (0, HOUR_MS, 3 * DAY_MS)
    ]
    requests.insert(1, FetchRequest("aircraft", {"tail": "N1"}, NOON_MS))
    with FetchClient(url) as client:
        assert client.fetch_many(requests) == fetcher.fetch_many(requests)
        assert client.fetch_many([]) == []


def test_the_body_of_an_answer_is_the_documented_one(url):
    body = {"requests": [{"keys": JFK, "at": BATCH_END_MS}, {"keys": NOBODY, "at": BATCH_END_MS - 1}]}
    status, answer = call(url, "POST", "/v1/fetch/route", json.dumps(body))
    assert status == 200
    first, second = answer["results"]
    assert first == {
        "name": "route",
        "keys": JFK,
        "at": BATCH_END_MS,
        "features": {
            "count_1h": None,
            "count_1d": 1,
            "count_30d": 1,
            "count": 1,
            "dep_delay_average_1h": None,
            "dep_delay_average_7d": 5.0,
            "dep_delay_average": 5.0,
            "dep_delay_max_6h": 5.0,
        },
        "batch_end_ms": BATCH_END_MS,
        "states": {"count_1h": "null", "dep_delay_average_1h": "null"},
    }
    assert second["features"] == {}
    assert "before the batch end" in second["errors"]["route"]


def test_a_sum_that_overflowed_is_left_out_and_named_and_never_null():
    store = MemoryStore()
    upload(store, AIRCRAFT_PLAN, {("N1",): [(BATCH_END_MS - HOUR_MS, (1.7e308,))] * 2})
    request = FetchRequest("aircraft", {"tail": "N1"}, BATCH_END_MS)
    fetcher = Fetcher(store, PLANS)
    assert fetcher.fetch_many([request])[0].features == {"dep_delay_sum_1d": float("inf")}
    with running_server(http_app(fetcher)) as url, FetchClient(url) as client:
        response = client.fetch_many([request])[0]
    assert response.features == {}
    assert "overflowed" in response.errors["dep_delay_sum_1d"]


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_ten_answers_on_one_connection_do_not_wait_for_a_delayed_acknowledgement(loop, fetcher, monkeypatch):
    if loop == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    body = json.dumps({"requests": [{"keys": EWR, "at": NOON_MS}]})
    took_ms = []
    with running_server(http_app(fetcher)) as url:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
        for _ in range(10):
            began = time.perf_counter()
            connection.request("POST", "/v1/fetch/route", body)
            assert connection.getresponse().read()
            took_ms.append((time.perf_counter() - began) * 1_000)
        connection.close()
    assert statistics.median(took_ms) < 20


def test_what_is_served_is_listed_with_its_batch(url):
    status, answer = call(url, "GET", "/v1/group_bys")
    assert status == 200
    route, aircraft = answer["group_bys"]
    assert route == {
        "name": "route",
        "definition_hash": ROUTE_PLAN.definition_hash,
        "keys": {"origin": "string", "carrier": "string"},
        "features": list(ROUTE_PLAN.feature_names),
        "batch_end_ms": BATCH_END_MS,
        "batch_landing_ms": 1,
    }
    assert (aircraft["name"], aircraft["batch_end_ms"]) == ("aircraft", None)


def test_the_stats_and_the_health_are_told(url, fetcher):
    assert call(url, "GET", "/health") == (200, {"status": "ok"})
    status, stats = call(url, "GET", "/v1/stats")
    assert status == 200
    assert stats["kv_calls"] == fetcher.stats().kv_calls
    assert stats["caches"]["route"]["hits"] == fetcher.stats().caches["route"].hits


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code", "message"),
    [
        ("POST", "/v1/fetch/rout", '{"requests": []}', 404, "unknown_group_by", "'rout' is served here"),
        ("POST", "/v1/fetch/route", "{", 400, "bad_request", "is not what a fetch takes"),
        ("POST", "/v1/fetch/route", b"\xff\xfe", 400, "bad_request", "is not what a fetch takes"),
        ("POST", "/v1/fetch/route", "[]", 400, "bad_request", "Expected `object`, got `array`"),
        ("POST", "/v1/fetch/route", '{"requests": [], "extra": 1}', 400, "bad_request", "extra"),
        (
            "POST",
            "/v1/fetch/route",
            '{"requests": [{"keys": {}, "at": "now"}]}',
            400,
            "bad_request",
            "$.requests[0].at",
        ),
        (
            "POST",
            "/v1/fetch/route",
            '{"requests": [{"keys": {"origin": "EWR"}, "at": 1}]}',
            400,
            "bad_request",
            "carrier",
        ),
        ("POST", "/v1/fetch/route", " " * 20_001, 413, "too_large", "over 20000 bytes"),
        ("GET", "/v1/fetch/route", None, 405, "method_not_allowed", "GET /v1/fetch/route"),
        ("GET", "/nowhere", None, 404, "not_found", "GET /nowhere"),
    ],
)
def test_a_wrong_call_gets_a_status_a_code_and_a_message(url, method, path, body, status, code, message):
    got, answer = call(url, method, path, body)
    assert (got, answer["error"]["code"]) == (status, code)
    assert message in answer["error"]["message"]


def test_the_client_raises_what_the_fetcher_would(url):
    with FetchClient(url) as client:
        with pytest.raises(OptionError, match="no GroupBy 'weather/x'"):
            client.fetch_many([FetchRequest("weather/x", {}, 0)])
        with pytest.raises(DataError, match="carrier"):
            client.fetch_many([FetchRequest("route", {"origin": "EWR"}, NOON_MS)])
        assert client.fetch_many([FetchRequest("route", EWR, NOON_MS)])[0].errors == {}


def test_a_failing_store_is_a_503_that_asks_to_try_again_and_health_says_so():
    store = FailingStore()
    upload(store, ROUTE_PLAN, {})
    store.failing = True
    with running_server(http_app(Fetcher(store, PLANS, refresh_ms=0))) as url, FetchClient(url) as client:
        status, answer = call(url, "GET", "/health")
        assert (status, answer["error"]["code"]) == (503, "unavailable")
        with pytest.raises(UnavailableError, match="the store is away"):
            client.fetch_many([FetchRequest("route", EWR, NOON_MS)])
        store.failing = False
        assert client.fetch_many([FetchRequest("route", EWR, NOON_MS)])[0].errors == {}
        store.put_many("serving_info", [Put(b"route", b"\x09")])
        with pytest.raises(CorruptionError, match="serving info"):
            client.fetch_many([FetchRequest("route", EWR, NOON_MS)])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_server_is_a_500_in_json_without_its_traceback():
    class Broken(MemoryStore):
        def get_many(self, gets):
            raise ZeroDivisionError("secret")

    with running_server(http_app(Fetcher(Broken(), PLANS))) as url:
        status, answer = call(url, "GET", "/health")
    assert status == 500
    assert answer["error"] == {
        "code": "internal",
        "message": "ZeroDivisionError in the server; its log has the traceback.",
    }


def test_many_threads_get_their_own_answers(url, fetcher):
    expected = {
        step: fetcher.fetch_many([FetchRequest("route", EWR, BATCH_END_MS + step * HOUR_MS)]) for step in range(24)
    }
    wrong = []

    def ask(first):
        with FetchClient(url) as client:
            wrong.extend(
                step
                for step in range(first, 24, 3)
                if client.fetch_many([FetchRequest("route", EWR, BATCH_END_MS + step * HOUR_MS)]) != expected[step]
            )

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)


def test_a_taken_port_is_named_with_a_way_out(fetcher):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=rf"port {port} on 127.0.0.1 is taken .* port=0 takes a free one"):
            serve(fetcher, port=port)
        with (
            pytest.raises(UnavailableError, match=f"port {port}"),
            running_server(http_app(fetcher), port=port),
        ):
            pass


def test_a_port_or_host_that_cannot_be_is_refused(fetcher):
    with pytest.raises(OptionError, match="port is 70000"):
        serve(fetcher, port=70_000)
    with pytest.raises(UnavailableError, match=r"cannot listen on 203\.0\.113\.7"):
        serve(fetcher, host="203.0.113.7", port=0)


def test_a_server_that_has_ended_leaves_its_port_and_its_thread(fetcher):

    def servers():
        return [thread.name for thread in threading.enumerate()].count("millpond-http")

    before = servers()
    with running_server(http_app(fetcher)) as url:
        port = urlsplit(url).port
        assert call(url, "GET", "/health")[0] == 200
    with running_server(http_app(fetcher), port=port) as again:
        assert urlsplit(again).port == port
    assert servers() == before
    with FetchClient(url) as client, pytest.raises(UnavailableError, match=f"no answer from {url}"):
        client.fetch_many([FetchRequest("route", EWR, NOON_MS)])


def test_a_server_ends_though_its_store_hangs(monkeypatch):
    asked, release, outcome = threading.Event(), threading.Event(), []

    class Hanging(MemoryStore):
        def get_many(self, gets):
            asked.set()
            release.wait(60)
            return super().get_many(gets)

    def ask(url):
        with FetchClient(url) as client:
            try:
                outcome.append(client.fetch_many([FetchRequest("route", EWR, NOON_MS)]))
            except UnavailableError as error:
                outcome.append(error)

    monkeypatch.setattr(server, "STOP_SECONDS", 1)
    with running_server(http_app(Fetcher(Hanging(), PLANS))) as url:
        client = threading.Thread(target=ask, args=(url,))
        client.start()
        assert asked.wait(20)
    assert not release.is_set()
    client.join(20)
    release.set()
    assert isinstance(outcome[0], UnavailableError)


def test_a_client_refuses_what_is_no_url_and_what_is_no_fetcher():
    with pytest.raises(OptionError, match="expected something like http://"):
        FetchClient("127.0.0.1:8765")

    def answer(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        with (
            FetchClient(f"http://127.0.0.1:{listener.getsockname()[1]}") as client,
            pytest.raises(UnavailableError, match="something that no fetcher sends: b'hello'"),
        ):
            client.fetch_many([FetchRequest("route", EWR, NOON_MS)])
        thread.join(10)


@pytest.mark.parametrize("package", ["starlette.applications", "uvicorn"])
def test_without_the_servers_packages_the_error_has_the_install_line(package, fetcher, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'millpond\[serving\]'"):
        serve(fetcher, port=0)


def test_importing_the_package_imports_no_server_no_store_and_no_spark():
    heavy = {"starlette", "uvicorn", "httpx", "lmdb", "pyspark", "pandas"}
    code = f"import sys, millpond.serving; print(sorted({heavy!r} & set(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert child.stdout.strip() == "[]"
