"""The page beside a driver: what its documents say of a query that really ran, its state, and its metrics."""

import http.client
import json
import urllib.parse

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond.errors import UnavailableError
from millpond.lookup import LookupTable, PythonLookup
from millpond.metrics import PrometheusRecorder
from millpond.spark import StateConfig, keyed, lookup_join, ui
from millpond.spark.inspect.driver_page import PORT

from .streams import FileStream

KEY = "a-key-0123456789-abc"


class ShownVisits(StatefulProcessor):
    """Counts the visits of each user."""

    def init(self, handle):
        self.seen = handle.getValueState("seen", "count long")

    def handleInputRows(self, key, rows, timerValues):
        before = self.seen.get()
        count = (before[0] if before else 0) + sum(1 for _ in rows)
        self.seen.update((count,))
        yield Row(user=key[0], visits=count)

    def close(self):
        pass


def got(url, path, key=None):
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    if response.headers["Content-Type"] == "application/json":
        body = json.loads(body)
    return response.status, response.headers, body


def fetched(url, path, key=None):
    status, _, body = got(url, path, key)
    assert status == 200, body
    return body


def refused(url, path):
    status, _, body = got(url, path)
    return status, body["error"]["message"]


@pytest.fixture(scope="module")
def shown(spark, tmp_path_factory):
    """A page, after a query with two batches has ended under it."""
    folder = tmp_path_factory.mktemp("shown")
    stream = FileStream(spark, folder)
    stream.add([("ann", 1, 1), ("ann", 2, 2), ("bob", 3, 3)])
    stream.add([("ann", 4, 4), ("cyd", 5, 5)])
    recorder = PrometheusRecorder()
    recorder.count("millpond_stream_events_read_total", 5, name="route")
    options = {"state.backend.cache.max-entries-num": "100"}
    with ui(spark, port=0, state=[str(folder / "checkpoint"), str(folder / "nowhere")], recorder=recorder) as page:
        counted = keyed(stream.frame(), "user").transformWithState(
            ShownVisits(), "user string, visits long", "Update", "None", state=StateConfig("spillable", options=options)
        )
        query = (
            counted.writeStream.outputMode("update")
            .format("noop")
            .queryName("visits")
            .trigger(availableNow=True)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )
        query.awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        yield page.url, query, str(folder / "checkpoint")


def test_the_page_itself_comes_with_its_files(shown):
    url = shown[0]
    status, headers, body = got(url, "/")
    assert status == 200
    assert b"<title>Millpond</title>" in body
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_a_query_is_shown_with_its_batches_operators_and_shards(shown):
    url, query, _ = shown
    (found,) = [each for each in fetched(url, "/ui/queries.json")["queries"] if each["id"] == query.id]
    assert (found["name"], found["is_active"], found["error"]) == ("visits", False, None)
    assert [batch["rows"] for batch in found["batches"]] == [3, 2]
    assert all(sum(batch["phases_ms"].values()) >= batch["ms"] > 0 for batch in found["batches"])
    (operator,) = found["operators"]
    assert (operator["name"], operator["batches"], operator["rows"]) == ("ShownVisits", 2, 5)
    assert operator["cache_hits"] + operator["cache_misses"] > 0
    shards = operator["shards"]
    assert [shard["shard"] for shard in shards] == [0, 1]
    assert sum(shard["rows"] for shard in shards) == 5
    assert all(shard["shuffle_seconds"] > 0 and shard["store_seconds"] > 0 for shard in shards)
    assert all(shard["heap_bytes"] >= 0 and shard["disk_bytes"] == 0 for shard in shards), "the heap that spills tells"
    assert sum(group["rows"] for group in operator["hot_groups"]) in (2, 3), "of each shard's newest batch"
    assert {group["place"] for group in operator["groups"]} == {"heap"}


def test_the_overview_and_the_exporter_have_the_same_numbers(shown):
    url = shown[0]
    metrics = fetched(url, "/ui/overview.json")["metrics"]
    assert metrics["millpond_keyed_rows_total"][""] >= 5
    assert metrics["millpond_keyed_seconds_total"]["phase=store"] > 0
    assert metrics["millpond_stream_events_read_total"][""] == 5
    text = fetched(url, "/metrics").decode()
    assert 'millpond_keyed_batches_total{operator="ShownVisits"} 2' in text
    assert 'millpond_query_rows_total{query="visits"} 5' in text


def test_the_state_cache_of_an_operator_is_among_the_caches(shown):
    (cache,) = [
        each for each in fetched(shown[0], "/ui/caches.json")["caches"] if each["name"] == "state of ShownVisits"
    ]
    assert (cache["hits"], cache["misses"]) == (1, 3)
    assert (cache["curve"], cache["advice"]) == (None, None)


class CurvedVisits(ShownVisits):
    """The same; operators are known by the names of their classes."""


def test_caches_in_executors_have_their_curves_and_advice_on_the_page(spark):
    numbers = pa.schema([("number", pa.int64())])
    options = {
        "lookup.cache": "PARTIAL",
        "lookup.partial-cache.max-rows": 50,
        "lookup.partial-cache.hit-rate-curve": True,
    }
    squares = PythonLookup(lambda number: [(number * number,)], numbers, pa.schema([("square", pa.int64())]))
    cached = {"state.backend.cache.max-entries-num": "70", "state.backend.cache.hit-rate-curve": "true"}
    with LookupTable("curved squares", squares, options) as table, ui(spark, port=0) as page:
        joined = lookup_join(spark.range(300).selectExpr("id % 40 AS number", "id % 60 AS user"), table, on="number")
        visits = keyed(joined, "user").transformWithState(
            CurvedVisits(), "user long, visits long", "Update", "None", state=StateConfig("heap", options=cached)
        )
        assert visits.count() == 60
        caches = {each["name"]: each for each in fetched(page.url, "/ui/caches.json")["caches"]}
    lookups, state = caches["lookup curved squares"], caches["state of CurvedVisits"]
    assert (lookups["curve"]["unit"], lookups["curve"]["present"]) == ("entries", 50)
    assert set(lookups["curve"]["lines"]) == {"lru", "w-tinylfu"}
    assert (state["curve"]["present"], set(state["curve"]["lines"])) == (70, {"lru"})
    assert all("Too few requests" in each["advice"][0] for each in (lookups, state))


def test_the_checkpoint_is_shown_with_versions_sizes_rows_a_search_and_a_diff(shown):
    url, _, checkpoint = shown
    location, nowhere = fetched(url, "/ui/state.json")["locations"]
    assert (location["name"], location["kind"], location["versions"]) == (checkpoint, "query", "0-1")
    assert [state["name"] for state in location["states"]] == ["seen"]
    assert location["states"][0]["rows"] >= 3
    assert location["bytes"] > 0
    assert "nowhere" in nowhere["problem"]

    def rows(**query):
        asked = urllib.parse.urlencode({"location": checkpoint, "state": "seen", **query})
        found = fetched(url, f"/ui/state.json?{asked}")
        return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]

    assert {row["key"]["user"]: row["value"]["count"] for row in rows()} == {"ann": 3, "bob": 1, "cyd": 1}
    assert [row["key"]["user"] for row in rows(search="AN")] == ["ann"]
    assert {row["key"]["user"]: row["change_type"] for row in rows(since=0)} == {"ann": "changed", "cyd": "added"}


def test_no_other_location_can_be_asked_for(shown):
    status, message = refused(shown[0], "/ui/state.json?location=/etc&state=seen")
    assert (status, "not one of the locations" in message) == (400, True)


def test_an_api_key_is_asked_for_by_every_document(spark):
    with ui(spark, port=0, api_keys=[KEY]) as page:
        for path in ("/ui/overview.json", "/ui/queries.json", "/metrics"):
            assert refused(page.url, path)[0] == 401
        assert fetched(page.url, "/ui/overview.json", KEY)["process"] == "Spark driver"


def test_a_taken_port_is_said_with_what_to_do(spark):
    assert PORT == 8766
    with ui(spark, port=0) as page:
        port = int(page.url.rpartition(":")[2])
        with pytest.raises(UnavailableError, match=f"port {port}.*Choose another port"):
            ui(spark, port=port)


def test_a_page_that_was_closed_is_gone_and_can_be_closed_again(spark):
    page = ui(spark, port=0)
    url = page.url
    page.close()
    page.close()
    with pytest.raises(ConnectionRefusedError):
        got(url, "/ui/overview.json")
