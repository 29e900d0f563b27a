"""The pages of a service and of a driver as one, and stored state beside them."""

import http.client
import json
import socket
import threading
from contextlib import ExitStack
from urllib.parse import quote, urlsplit

import pytest

from millpond.errors import OptionError
from millpond.serving import http_app, running_server
from millpond.state import Harness
from millpond.state.checkpoint.stored_state import FilesState
from millpond.ui.joined_pages import joined_pages
from millpond.ui.server import PageSource, page_server
from millpond.ui.stored_state import StoredStateView
from millpond.ui.views import Caches, CacheView, Features, Overview, Queries, QueryView, StoredStates
from tests.serving.http.answering import Answering

KEY = "a-key-0123456789-abc"
DRIVER = {
    "overview": lambda _: Overview("Spark driver", {"millpond_keyed_rows_total": {"": 5}}, ["look"]),
    "caches": lambda _: Caches([CacheView(name="lookup planes", hits=1, misses=9)], 1),
    "features": lambda _: Features(),
    "queries": lambda _: Queries([QueryView(id="one", name="visits", is_active=True)]),
    "state": lambda _: StoredStates(),
}


class Clicks:
    """Counts the clicks of each user."""

    def open(self, states):
        self.count = states.value("count", int, default=0)

    def process(self, user, click, context):
        self.count.update(self.count.get() + 1)
        yield user, self.count.get()


@pytest.fixture
def checkpoint(tmp_path):
    location = str(tmp_path / "checkpoints")
    with Harness(Clicks, key=lambda click: click, key_type=str, storage=location) as harness:
        for clicks in (["ada", "bob"], ["ada"]):
            harness.process_many(clicks)
            harness.checkpoint()
    return location


@pytest.fixture
def joined(checkpoint):
    """The URL of a joined page of a service with a key, a driver and one page that is gone."""
    with ExitStack() as running:
        service = running.enter_context(running_server(http_app(Answering(), api_keys=[KEY])))
        driver = running.enter_context(page_server(PageSource(DRIVER, list), "127.0.0.1", 0, [KEY]))
        state = StoredStateView(lambda: [checkpoint], FilesState)
        source = joined_pages([service, driver, "http://127.0.0.1:9"], state, KEY)
        yield running.enter_context(page_server(source, "127.0.0.1", 0))


def got(url, path, body=None):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET" if body is None else "POST", path, body)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def test_the_views_of_all_pages_are_put_together(joined):
    overview = got(joined, "/ui/overview.json")[1]
    assert overview["process"] == "millpond serve + Spark driver"
    assert overview["metrics"]["millpond_keyed_rows_total"] == {"": 5}
    assert "millpond_http_connections" in overview["metrics"]
    assert overview["notices"] == ["look", "The page http://127.0.0.1:9 does not answer, or wants another API key."]
    assert [each["name"] for each in got(joined, "/ui/caches.json")[1]["caches"]] == ["lookup planes", "route"]
    assert [each["name"] for each in got(joined, "/ui/features.json")[1]["targets"]] == ["route", "typed"]
    assert got(joined, "/ui/features.json?name=route")[1]["target"]["name"] == "route"
    assert got(joined, "/ui/queries.json")[1]["queries"][0]["name"] == "visits"


def test_calls_of_the_api_go_to_the_page_that_has_it(joined):
    body = '{"requests": [{"keys": {"origin": "EWR", "carrier": "UA"}}]}'
    status, answer = got(joined, "/v1/fetch/route", body)
    assert (status, answer["results"][0]["features"]["count_1h"]) == (200, 3)
    assert got(joined, "/openapi.json")[1]["openapi"] == "3.1.0"
    assert got(joined, "/v1/fetch/nothing", body)[0] == 404


def test_stored_state_is_listed_searched_and_compared(joined, checkpoint):
    (location,) = got(joined, "/ui/state.json")[1]["locations"]
    assert (location["kind"], location["versions"]) == ("checkpoints", "1-2")
    (count,) = [state for state in location["states"] if state["name"] == "count"]
    assert count["rows"] >= 2
    asked = f"/ui/state.json?location={quote(checkpoint)}&state=count"
    rows = got(joined, asked)[1]
    assert len(rows["rows"]) == 2
    assert len(got(joined, f"{asked}&search=AD")[1]["rows"]) == 1
    changes = got(joined, f"{asked}&since=1")[1]
    assert [row[changes["columns"].index("change")] for row in changes["rows"]] == ["changed"]
    status, refusal = got(joined, f"{asked}&since=first")
    assert (status, "whole number" in refusal["error"]["message"]) == (400, True)


def test_what_is_no_url_of_http_is_refused():
    with pytest.raises(OptionError, match="file:///etc"):
        joined_pages(["file:///etc"], StoredStateView(list, FilesState))


@pytest.mark.parametrize("said", [b"-ERR unknown command\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"])
def test_a_page_that_is_no_http_or_breaks_off_is_left_out(said):
    with ExitStack() as running:
        listener = running.enter_context(socket.create_server(("127.0.0.1", 0)))

        def answer():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65_536)
                    connection.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        other = f"http://127.0.0.1:{listener.getsockname()[1]}"
        driver = running.enter_context(page_server(PageSource(DRIVER, list), "127.0.0.1", 0))
        source = joined_pages([other, driver], StoredStateView(list, FilesState))
        joined = running.enter_context(page_server(source, "127.0.0.1", 0))
        status, overview = got(joined, "/ui/overview.json")
        assert (status, overview["process"]) == (200, "Spark driver")
        assert any(other in notice for notice in overview["notices"])
