"""The paths of the page: files for everybody, documents for who has a key, and what a query string may ask."""

import http.client
import threading
from urllib.parse import urlsplit

import pytest

from millpond.serving import http_app, running_server
from millpond.ui.static_files import POLICY, static_files

KEY = "a-key-0123456789-abc"
VIEWS = ("overview", "caches", "features", "queries", "state")


def test_the_page_is_at_the_root_with_its_files(url, call):
    for path, file in static_files().items():
        status, headers, body = call(url, "GET", path)
        assert (status, body) == (200, file.body)
        assert headers["Content-Security-Policy"] == POLICY


def test_a_file_that_a_browser_has_is_not_sent_again(url, call):
    etag = call(url, "GET", "/ui/app.js")[1]["ETag"]
    assert call(url, "GET", "/ui/app.js", headers={"If-None-Match": etag})[0::2] == (304, b"")


@pytest.mark.parametrize("view", VIEWS)
def test_documents_need_an_api_key_and_files_do_not(serving, call, view):
    url = serving(api_keys=[KEY])
    assert call(url, "GET", "/")[0] == 200
    assert call(url, "GET", f"/ui/{view}.json")[0] == 401
    status, headers, content = call(url, "GET", f"/ui/{view}.json", headers={"Authorization": f"Bearer {KEY}"})
    assert status == 200
    assert isinstance(content, dict)
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_the_overview_sums_up_what_is_counted(url, call):
    call(url, "GET", "/health")
    found = call(url, "GET", "/ui/overview.json")[2]
    assert found["process"] == "millpond serve"
    assert found["metrics"]["millpond_http_requests_total"]["status=200"] >= 1


def test_features_are_listed_filtered_and_told_one_by_one(url, call):
    listed = call(url, "GET", "/ui/features.json")[2]
    assert [each["name"] for each in listed["targets"]] == ["route", "typed"]
    assert listed["targets"][0]["problem"] is None
    assert "aircraft" in listed["targets"][1]["problem"]
    filtered = call(url, "GET", "/ui/features.json?filter=ROU")[2]
    assert ([each["name"] for each in filtered["targets"]], filtered["total"]) == (["route"], 1)
    told = call(url, "GET", "/ui/features.json?name=route")[2]["target"]
    assert dict(told["definition"])["Aggregations"] == "count(*) over 1h; average(dep_delay) over 7d"
    assert told["plans"][0][1].startswith("GroupBy route, definition")
    assert told["freshness"][0]["batch_landing_ms"] == 7
    assert call(url, "GET", "/ui/features.json?name=nothing")[2]["target"] is None


def test_a_query_string_with_another_word_is_refused(url, call):
    status, _, content = call(url, "GET", "/ui/features.json?nmae=route")
    assert status == 400
    assert "nmae" in content["error"]["message"]


@pytest.mark.parametrize("path", ["/metrics", "/ui/overview.json"])
def test_a_scrape_while_the_service_stops_is_whole_or_refused(fetcher, path):
    seen, enough, ended = [], threading.Event(), threading.Event()

    def scrape(address):
        while not ended.is_set():
            connection = http.client.HTTPConnection(address, timeout=10)
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                seen.append((response.status, response.read()[-1:]))
            except http.client.IncompleteRead:
                seen.append("cut off")
            except (OSError, http.client.HTTPException):
                seen.append("refused")
                ended.set()
            finally:
                connection.close()
            if len(seen) >= 5:
                enough.set()

    with running_server(http_app(fetcher)) as url:
        thread = threading.Thread(target=scrape, args=(urlsplit(url).netloc,))
        thread.start()
        assert enough.wait(30)
    thread.join(30)
    whole = (200, b"\n" if path == "/metrics" else b"}")
    assert set(seen) == {whole, "refused"}
