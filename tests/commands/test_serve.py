"""`millpond serve` as it is run: over LMDB, by one process and by several, with keys, TLS and a log."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import pyarrow.parquet as pq
import pytest

from millpond.features import Aggregation, Field, GroupBy, ServingInfo, compile_group_by, stream_dataset
from millpond.kv import LmdbStore, Put
from millpond.serving import FetchClient

DAY_MS = 86_400_000
DEFINITIONS = """
from millpond.features import Aggregation, Field, GroupBy, Join, JoinPart
route = GroupBy("route", keys=(Field("origin", "string"),), aggregations=(Aggregation("count", windows=("1h", None)),))
flight = Join("flight", (JoinPart(route, key_mapping={"airport": "origin"}),))
"""
ROUTE = GroupBy("route", keys=(Field("origin", "string"),), aggregations=(Aggregation("count", windows=("1h", None)),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with definitions and a store that has a batch of them."""
    folder = tmp_path_factory.mktemp("serve")
    (folder / "flights.py").write_text(DEFINITIONS)
    plan = compile_group_by(ROUTE)
    info = ServingInfo(
        "route",
        plan.definition_hash,
        DAY_MS,
        7,
        "route.batch",
        stream_dataset("route", plan.generation),
        plan.generation,
        plan.batch_form,
    )
    key = plan.encode_key(["EWR"])
    batch = plan.batch_ir([(DAY_MS - 1, ()), (0, ())], DAY_MS)
    store = LmdbStore(folder / "store")
    store.put_many(info.batch_dataset, [Put(key, plan.encode_batch(key, batch), DAY_MS)])
    store.put_many("serving_info", [Put(b"route", info.encode())])
    store.close()
    return folder


@contextmanager
def served(folder, *options):
    command = [sys.executable, "-c", "from millpond.cli import main; main()", "serve", "flights.py"]
    process = subprocess.Popen(
        [*command, "--store", "lmdb://store", "--port", "0", *options],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)


def url_said_by(process):
    said = process.stdout.readline()
    assert said.startswith("millpond: serving on http"), said + process.stderr.read()
    return said.split()[-1]


def test_a_server_that_cannot_be_set_up_does_not_say_that_it_serves(folder):
    with served(folder, "--tls-certificate", "flights.py", "--tls-key", "flights.py") as process:
        said, error = process.communicate(timeout=60)
    assert (said, process.returncode) == ("", 2)
    assert "the server cannot be set up with flights.py and flights.py" in error


@pytest.mark.parametrize("processes", ["1", "2"])
def test_group_bys_and_joins_are_served_until_the_command_is_stopped(folder, processes):
    options = ["--processes", processes, "--fetcher-cache-size", "1MB", "--max-requests", "5"]
    with served(folder, *options) as process:
        with FetchClient(url_said_by(process)) as client:
            assert client.fetch("route", {"origin": "EWR"}, DAY_MS).features == {"count_1h": 1, "count": 2}
            joined = client.fetch("flight", {"airport": "EWR"}, DAY_MS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert joined.features == {"route_count_1h": 1, "route_count": 2}


@pytest.mark.parametrize("processes", ["1", "2"])
def test_answers_are_logged_until_the_service_stops(folder, tmp_path, processes):
    options = ["--processes", processes, "--answer-log", str(tmp_path / "answers"), "--answer-sample", "1"]
    with served(folder, *options) as process:
        with FetchClient(url_said_by(process)) as client:
            for airport in ("EWR", "JFK"):
                client.fetch("flight", {"airport": airport}, DAY_MS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    rows = pq.read_table(tmp_path / "answers").to_pylist()
    assert sorted((row["airport"], row["route_count"]) for row in rows) == [("EWR", 2), ("JFK", None)]


def test_keys_tls_and_the_log_of_calls(folder):
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command = ["openssl", "req", "-x509", *curve, "-nodes", "-days", "2", *subject, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "keys.txt").write_text("# of the shop\na-key-0123456789-abc\n")
    options = ["--tls-certificate", certificate, "--tls-key", key, "--api-keys", folder / "keys.txt", "--log-calls"]
    with served(folder, *options) as process:
        url = url_said_by(process)
        assert url.startswith("https://")
        with FetchClient(url, api_key="a-key-0123456789-abc", ca_file=certificate) as client:
            assert client.fetch("route", {"origin": "EWR"}, DAY_MS).features["count"] == 2
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    logged = [json.loads(line) for line in log.splitlines()]
    assert [(line["method"], line["path"], line["status"]) for line in logged] == [
        ("POST", "/v1/fetch/route", 200),
        ("GET", "/v1/fetch/route", 200),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--store", "memory://", "--processes", "2"], "a store in memory is one process's own"),
        (["--tls-key", "key.pem"], "--tls-certificate and --tls-key go together"),
        (["--tls-key", "no.pem", "--tls-certificate", "no.pem"], "cannot be set up with no.pem"),
        (["--api-keys", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--fetcher-cache-size", "many"], "many"),
    ],
)
def test_options_that_cannot_be_end_the_command_with_one_line(folder, options, message):
    with served(folder, *options) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert message in errors
    assert "Traceback" not in errors
