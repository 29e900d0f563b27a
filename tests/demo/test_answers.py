"""Asking and checking, over a store that was filled by hand: no Spark."""

import http.client
import itertools
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millpond.demo import oracle
from millpond.demo.answers import Facts, ask_and_check, open_fetcher, serve_until_stopped
from millpond.demo.check import by_request, requests
from millpond.demo.data import DAY_MS, MINUTE_MS
from millpond.demo.feature_store import store_url
from millpond.errors import UnavailableError
from millpond.kv import open_store
from millpond.serving import http_app, running_server
from tests.demo.filled_store import EVENTS, fill

END = 16_000 * DAY_MS

FLIGHTS = pa.table(
    {
        "flight_id": list(range(28)),
        "sched_ms": [END + (n - 14) * 97 * MINUTE_MS for n in range(28)],
        "time_ms": [END + ((n - 14) * 97 + n) * MINUTE_MS for n in range(28)],
        "origin": ["JFK", "EWR"] * 14,
        "carrier": ["UA"] * 28,
        "tailnum": pa.array(["N1", "N2", "N3", None] * 7),
        "dest": ["SFO", "SFO", "BOS", "BOS"] * 7,
        "dep_delay": [float(n) for n in range(28)],
        "delayed_15": [float(n > 15) for n in range(28)],
    },
    schema=EVENTS,
)
FEATURES = 58


def asked_of(folder: Path, stored: pa.Table) -> Facts:
    url = store_url(None, folder, "run")
    with closing(open_store(url)) as store:
        fill(store, stored, END)
    asked = requests(FLIGHTS, END)
    right: Mapping = by_request(oracle.expected(asked, FLIGHTS))
    clock = itertools.count()
    return ask_and_check(url, folder / "answers", asked, right, lambda: float(next(clock)), lambda _measure: None)


def test_every_feature_is_right_in_process_and_over_http(tmp_path: Path) -> None:
    facts = asked_of(tmp_path, FLIGHTS)
    assert facts.mismatches == []
    assert (facts.requests, facts.checked) == (14, 14 * FEATURES)
    assert [measure.stage for measure in facts.measures] == ["serve", "http"]


def test_what_was_read_in_process_is_saved_over_http(tmp_path: Path) -> None:
    first, again = asked_of(tmp_path, FLIGHTS).measures
    assert again.caches["aircraft_batch"].misses == 0
    assert first.counts["batch_gets"] > 0
    assert again.counts["batch_gets"] == 0
    assert again.counts["batch_gets_saved"] > 0


def test_every_answer_is_logged_once_each_way(tmp_path: Path) -> None:
    facts = asked_of(tmp_path, FLIGHTS)
    again = asked_of(tmp_path, FLIGHTS)
    logged = pa.concat_tables([pq.read_table(path) for path in (tmp_path / "answers").glob("*.parquet")])
    assert logged.num_rows == 2 * facts.requests == 2 * again.requests


def test_an_event_that_never_reached_the_store_is_found_both_ways(tmp_path: Path) -> None:
    facts = asked_of(tmp_path, FLIGHTS.slice(0, 20))
    assert facts.mismatch_count > 0
    assert facts.mismatch_count % 2 == 0


def test_the_example_is_a_request_that_the_service_answers(tmp_path: Path) -> None:
    example = asked_of(tmp_path, FLIGHTS).example
    with (
        closing(open_store(store_url(None, tmp_path, "run"))) as store,
        running_server(http_app(open_fetcher(store))) as url,
    ):
        host, port = url.removeprefix("http://").split(":")
        with closing(http.client.HTTPConnection(host, int(port))) as connection:
            connection.request("POST", "/v1/fetch/flight", example, {"Content-Type": "application/json"})
            (answer,) = json.load(connection.getresponse())["results"]
    assert len(answer["features"]) == FEATURES


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"port {port}"):
            serve_until_stopped(store_url(None, tmp_path, "run"), port, lambda _url: None)
