"""Both clients: the fetcher's answers and errors, of the same types, and what is tried again."""

import asyncio
import os
import random
import resource
import socket
import threading
from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from millpond.errors import CorruptionError, DataError, MillpondError, OptionError, UnavailableError
from millpond.serving import AsyncFetchClient, FetchClient, FetchRequest, Limits, http_app, running_server
from millpond.serving.client.retries import Retries
from tests.serving.http.answering import Answering

from .scripted import answer, scripted_server

EWR = {"origin": "EWR", "carrier": "UA"}
ROW = {
    "a_boolean": True,
    "an_int": 1,
    "a_long": 2**40,
    "a_float": 0.5,
    "a_double": 1e300,
    "a_string": "é",
    "a_binary": b"\x00\xff",
    "a_date": date(2013, 1, 31),
    "a_timestamp": datetime(2013, 1, 31, 12, 30, tzinfo=UTC),
    "a_decimal": Decimal("12.50"),
}
BUSY = answer(b'{"error":{"code":"too_many_calls","message":"busy"}}', 429, "retry-after: 0\r\n")
AWAY = answer(b'{"error":{"code":"unavailable","message":"the store is away"}}', 503)
DESCRIPTION = answer(
    msgspec.json.encode(
        {
            "name": "route",
            "kind": "group_by",
            "definition_hash": "c0ffee",
            "keys": {},
            "context": {},
            "features": {"count": "long"},
            "batches": {},
        }
    )
)
ANSWER = answer(b'{"results":[{"at":5,"features":{"count":1}}]}', headers="Millpond-Definition: c0ffee\r\n")


class Sync:
    """The asynchronous client, called as the blocking one is."""

    def __init__(self, url, **options):
        self._runner = asyncio.Runner()
        self._client = self._runner.run(self._made(url, options))

    async def _made(self, url, options):
        return AsyncFetchClient(url, **options)

    def fetch(self, *arguments, **options):
        return self._runner.run(self._client.fetch(*arguments, **options))

    def fetch_many(self, requests):
        return self._runner.run(self._client.fetch_many(requests))

    def fetch_table(self, *arguments, **options):
        return self._runner.run(self._client.fetch_table(*arguments, **options))

    def close(self):
        self._runner.run(self._client.close())
        self._runner.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture(params=[FetchClient, Sync], ids=["blocking", "asynchronous"])
def client_of(request):
    return request.param


@pytest.fixture(scope="module")
def shared():
    return Answering()


@pytest.fixture(scope="module")
def shared_url(shared):
    with running_server(http_app(shared, limits=Limits(max_requests=100))) as url:
        yield url


@pytest.fixture
def fetcher(shared):
    shared.__init__()
    return shared


@pytest.fixture
def url(shared_url, fetcher):
    return shared_url


def test_a_client_gives_what_the_fetcher_gives(client_of, url, fetcher):
    requests = [
        FetchRequest("route", EWR, 5),
        FetchRequest("typed", ROW, 6, {"amount": 1.5, "tags": ["a", None], "rates": {3: 0.5}}, explain=True),
        FetchRequest("route", {"origin": "JFK", "carrier": None}, features=("count_1h",)),
        FetchRequest("route", EWR, 7),
    ]
    expected = asyncio.run(fetcher.fetch_many_async(requests))
    with client_of(url) as client:
        assert client.fetch_many(requests) == expected
        assert client.fetch_many([]) == []
        assert client.fetch("route", EWR, 5) == expected[0]
    assert [len(asked) for asked in fetcher.asked[1:4]] in ([2, 1, 1], [1, 2, 1], [1, 1, 2])


def test_values_come_back_as_the_python_types_they_were(client_of, url):
    with client_of(url) as client:
        response = client.fetch("typed", ROW, context={"tags": ["x"], "rates": {1: 2.0}})
    assert response.features == {**ROW, "amount": None, "tags": ["x"], "rates": {1: 2.0}, "days": None}
    assert [type(response.features[name]) for name in ROW] == [type(value) for value in ROW.values()]


def test_a_changed_definition_is_noticed_and_its_types_are_asked_for_again(client_of):
    changed = DESCRIPTION.replace(b"c0ffee", b"decaff").replace(b'"long"', b'"date"')
    dated = answer(
        b'{"results":[{"at":5,"features":{"count":"2013-01-31"}}]}', headers="Millpond-Definition: decaff\r\n"
    )
    with (
        scripted_server([ANSWER, DESCRIPTION, ANSWER, dated, changed, dated]) as (url, calls),
        client_of(url) as client,
    ):
        answers = [client.fetch("route", {}).features["count"] for _ in range(4)]
    assert answers == [1, 1, date(2013, 1, 31), date(2013, 1, 31)]
    assert [call.startswith(b"GET") for call in calls] == [False, True, False, False, True, False]


def test_tables_go_and_come_as_arrow(client_of, url):
    keys = pa.table({"origin": ["EWR", "JFK"], "carrier": ["UA", "B6"]})
    with client_of(url) as client:
        assert client.fetch_table("route", keys, features=["count_1h"]) == pa.table({"count_1h": [3, None]})
        with pytest.raises(OptionError, match=r"such as \['count_1h'\]"):
            client.fetch_table("route", keys, features="count_1h")
        with pytest.raises(DataError, match="the columns of a fetch of 'route'"):
            client.fetch_table("route", keys.drop_columns("carrier"))


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (FetchRequest("weather/x", {}), OptionError, "'weather/x' is served here"),
        (FetchRequest("route", {"origin": "EWR"}), DataError, "carrier"),
        (FetchRequest("route", EWR, 13), DataError, "bad luck"),
        (FetchRequest("route", EWR, features=("no",)), OptionError, "no feature 'no'"),
        (FetchRequest("route", EWR, features="count"), OptionError, r"such as \['count'\]"),
        (FetchRequest("route", ("EWR", "UA")), DataError, "keys are .*; expected a mapping"),
        (FetchRequest("route", EWR, 1 << 44), DataError, "at is 17592186044416, .* looks like microseconds"),
        (FetchRequest("route", EWR, datetime(2026, 1, 31, tzinfo=UTC)), DataError, r"int\(moment.timestamp"),
        (FetchRequest("route", EWR, True), DataError, "at is True"),
        (FetchRequest("route", EWR, context=7), DataError, "context is 7; expected a mapping"),
        (FetchRequest(EWR, "route"), DataError, r"requests\[0\].name is {"),
        (EWR, DataError, r"requests\[0\] is {.*expected a list of FetchRequest"),
        (FetchRequest("typed", ROW | {"a_double": float("nan")}), DataError, "'a_double' is nan"),
    ],
)
def test_a_client_raises_what_the_fetcher_would(client_of, url, request_, error, message):
    with client_of(url) as client:
        with pytest.raises(error, match=message):
            client.fetch_many([request_])
        assert client.fetch("route", EWR).errors == {}


@pytest.mark.parametrize("value", [object(), 1j, "\ud800", {(1, 2): 3}], ids=["object", "complex", "surrogate", "pair"])
@pytest.mark.parametrize("place", ["keys", "context"])
def test_what_json_has_no_form_for_is_refused_as_the_fetcher_refuses_it(client_of, url, place, value):
    given = {"keys": EWR, "context": {}}
    given[place] = given[place] | {"origin": value}
    with client_of(url) as client, pytest.raises(DataError, match="'route': a key, a field of the context or a time"):
        client.fetch("route", **given)


@pytest.mark.parametrize(
    ("failure", "error"),
    [(UnavailableError("away"), UnavailableError), (CorruptionError("torn"), CorruptionError)],
)
def test_the_failures_of_a_store_are_typed(client_of, url, fetcher, failure, error):
    fetcher.failure = failure
    with client_of(url, retries=0) as client, pytest.raises(error, match=str(failure)):
        client.fetch("route", EWR)


def test_a_bug_in_the_server_is_an_error_of_millpond(client_of, url, fetcher):
    fetcher.failure = ZeroDivisionError()
    with client_of(url) as client, pytest.raises(MillpondError, match="ZeroDivisionError in the server"):
        client.fetch("route", EWR)


@pytest.mark.parametrize("first", [BUSY, AWAY, None], ids=["busy", "away", "cut"])
def test_a_call_that_may_be_sent_again_is(client_of, first):
    scripts = [[first, ANSWER, DESCRIPTION]] if first else [[None], [ANSWER, DESCRIPTION]]
    with scripted_server(*scripts) as (url, calls), client_of(url, chance=random.Random(0)) as client:
        assert client.fetch("route", {}).features == {"count": 1}
    assert calls[0] == calls[1]


def test_a_connection_that_the_server_left_between_two_calls_is_replaced(client_of):
    # Without retries, so that it is the pool which notices.
    with scripted_server([ANSWER, DESCRIPTION], [ANSWER]) as (url, calls), client_of(url, retries=0) as client:
        client.fetch("route", {})
        for _ in range(100):
            try:
                assert client.fetch("route", {}).features == {"count": 1}
                break
            except UnavailableError:  # the goodbye is still on its way
                continue
    assert len(calls) >= 3


def test_retries_end_and_the_last_answer_is_raised(client_of):
    with (
        scripted_server([AWAY, AWAY]) as (url, calls),
        client_of(url, retries=1) as client,
        pytest.raises(UnavailableError, match="the store is away"),
    ):
        client.fetch("route", {})
    assert len(calls) == 2


def test_a_pause_that_goes_beyond_the_deadline_is_not_begun(client_of):
    wait = answer(b'{"error":{"code":"too_many_calls","message":"busy"}}', 429, "retry-after: 3600\r\n")
    with scripted_server([wait]) as (url, _), client_of(url) as client, pytest.raises(UnavailableError, match="busy"):
        client.fetch("route", {})


def test_nobody_on_the_port_is_named_with_its_url(client_of):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with client_of(url, retries=1) as client, pytest.raises(UnavailableError, match=f"no answer from {url}"):
        client.fetch("route", EWR)


def test_a_server_that_hangs_costs_no_more_than_the_deadline(client_of):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with client_of(url, timeout_ms=100) as client, pytest.raises(UnavailableError, match=r"TimeoutError|time"):
            client.fetch("route", EWR)


@pytest.mark.parametrize(
    "nonsense",
    [
        answer(b"hello"),
        answer(b'{"results":[]}'),
        answer(b"<html>", 502),
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    ],
    ids=["no JSON", "too few", "a proxy", "no HTTP"],
)
def test_what_no_fetcher_sends_is_refused(client_of, nonsense):
    with (
        scripted_server([nonsense, DESCRIPTION]) as (url, _),
        client_of(url, retries=0) as client,
        pytest.raises(UnavailableError, match=r"something that no fetcher sends|no answer from"),
    ):
        client.fetch("route", {})


def test_a_slow_call_is_hedged_if_that_was_asked_for(client_of):
    gone = threading.Event()

    def run(listener):
        slow, _ = listener.accept()
        fast, _ = listener.accept()
        with slow, fast:
            for said in (ANSWER, DESCRIPTION):
                fast.recv(65_536)
                fast.sendall(said)
            gone.wait(10)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run, args=(listener,), daemon=True)
        thread.start()
        with client_of(f"http://127.0.0.1:{listener.getsockname()[1]}", hedge_after_ms=50, timeout_ms=5_000) as client:
            assert client.fetch("route", {}).features == {"count": 1}
        gone.set()
        thread.join(10)


@pytest.mark.parametrize("url", ["127.0.0.1:8765", "ftp://host", "http://", "http://host/path", "http://host:99999"])
def test_what_is_no_url_of_a_service_is_refused(client_of, url):
    with pytest.raises(OptionError, match="expected something like http://"):
        client_of(url)


def test_options_that_cannot_be_are_refused(client_of):
    with pytest.raises(OptionError, match="pool_size is 0"):
        client_of("http://localhost", pool_size=0)
    with pytest.raises(OptionError, match="retries is -1"):
        client_of("http://localhost", retries=-1)


def test_pauses_double_within_their_spread():
    retries = Retries(10, random.Random(1))
    pauses = [retries.pause_ms(sent=sent, retry_after=None, left_ms=10**6) for sent in range(1, 9)]
    assert all(
        low <= pause <= 2 * low + 1 for low, pause in zip([12, 25, 50, 100, 200, 400, 500, 500], pauses, strict=True)
    )


def test_threads_share_a_client_and_its_pool(url, fetcher):
    fetcher.values = {str(number): {"count_1h": number} for number in range(40)}
    wrong = []
    with FetchClient(url, pool_size=2) as client:

        def ask(first):
            wrong.extend(
                number
                for number in range(first, 40, 4)
                if client.fetch("route", {"origin": str(number), "carrier": None}).features["count_1h"] != number
            )

        threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert wrong == []
    with pytest.raises(UnavailableError, match="is closed"):
        client.fetch("route", EWR)


def test_a_program_with_many_open_files_may_fetch(url):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2_048)), hard))
    try:
        with ExitStack() as opened, FetchClient(url) as client:
            for _ in range(1_100):
                opened.enter_context(Path(os.devnull).open())
            assert [client.fetch("route", EWR).features["count_1h"] for _ in range(2)] == [3, 3]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("hedging", [{}, {"hedge_after_ms": 5_000}], ids=["plain", "hedged"])
def test_a_forked_child_and_its_parent_get_their_own_answers(url, fetcher, hedging):
    fetcher.values = {str(number): {"count_1h": number} for number in range(100)}

    def wrong_answers(numbers):
        asked = {number: client.fetch("route", {"origin": str(number), "carrier": None}) for number in numbers}
        return [number for number, answer in asked.items() if answer.features["count_1h"] != number]

    with FetchClient(url, timeout_ms=5_000, **hedging) as client:
        wrong_answers(range(1))
        wrong, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(tell, f"{wrong_answers(range(50))}".encode())
            finally:
                os._exit(0)
        os.close(tell)
        assert wrong_answers(range(50, 100)) == []
        with os.fdopen(wrong) as told:
            assert told.read() == "[]"
        os.waitpid(child, 0)


def test_a_hedging_client_that_was_closed_says_so(url):
    with FetchClient(url, hedge_after_ms=5) as client:
        client.fetch("route", EWR)
    with pytest.raises(UnavailableError, match="is closed"):
        client.fetch("route", EWR)


def test_tasks_share_a_client_and_its_pool(url, fetcher):
    fetcher.values = {str(number): {"count_1h": number} for number in range(40)}

    async def ask():
        async with AsyncFetchClient(url, pool_size=3) as client:
            keys = [{"origin": str(number), "carrier": None} for number in range(40)]
            return await asyncio.gather(*(client.fetch("route", key) for key in keys))

    assert [response.features["count_1h"] for response in asyncio.run(ask())] == list(range(40))


def test_api_keys_are_sent(client_of, fetcher):
    with running_server(http_app(fetcher, api_keys=["a-key-0123456789-abc"])) as url:
        with client_of(url, api_key="a-key-0123456789-abc") as client:
            assert client.fetch("route", EWR).errors == {}
        with client_of(url) as client, pytest.raises(OptionError, match="an API key is needed"):
            client.fetch("route", EWR)
