"""Metrics pushed over OTLP, read back by a collector of our own with OpenTelemetry's own messages."""

import logging
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from millpond.errors import OptionError
from millpond.metrics import METRICS, PrometheusRecorder, otlp_push
from millpond.metrics.families import Family, family, histogram
from millpond.metrics.otlp import _Pusher


@contextmanager
def collector(port=0):
    """Takes what is pushed."""
    taken, arrived = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((dict(self.headers), ExportMetricsServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            arrived.set()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/metrics", taken, arrived
    finally:
        server.shutdown()
        server.server_close()


def metrics_of(request):
    return {metric.name: metric for metric in request.resource_metrics[0].scope_metrics[0].metrics}


def attributes(point):
    return {each.key: each.value.string_value for each in point.attributes}


def test_counters_and_levels_arrive_with_labels_units_and_resource():
    recorder = PrometheusRecorder()
    recorder.count("millpond_lookup_requests_total", 3, name="planes", result="hit")
    recorder.gauge("millpond_lookup_cached_bytes", 70, name="planes")
    with collector() as (endpoint, taken, arrived):
        with otlp_push(recorder.families, endpoint, service="shop", interval_ms=10, headers={"x-token": "t"}):
            assert arrived.wait(20)
        headers, request = taken[-1]
    found = metrics_of(request)
    hits = found["millpond_lookup_requests_total"]
    assert (hits.sum.is_monotonic, hits.sum.data_points[0].as_double or hits.sum.data_points[0].as_int) == (True, 3)
    assert attributes(hits.sum.data_points[0]) == {"table": "planes", "result": "hit"}
    assert found["millpond_lookup_cached_bytes"].unit == "By"
    assert hits.description == METRICS["millpond_lookup_requests_total"].help
    resource = attributes(request.resource_metrics[0].resource)
    assert resource["service.name"] == "shop"
    assert headers["x-token"] == "t"


def test_a_histogram_keeps_its_buckets_its_sum_and_its_count():
    samples = histogram({"path": "/health"}, (0.1, 1.0), (4, 2, 1), 3.5)
    told = [family("millpond_http_request_duration_seconds", samples)]
    with collector() as (endpoint, taken, _), otlp_push(lambda: told, endpoint):
        pass
    (point,) = metrics_of(taken[0][1])["millpond_http_request_duration_seconds"].histogram.data_points
    assert list(point.explicit_bounds) == [0.1, 1.0]
    assert list(point.bucket_counts) == [4, 2, 1]
    assert (point.count, point.sum, attributes(point)) == (7, 3.5, {"path": "/health"})


def test_a_collector_that_is_gone_is_reported_once_until_it_is_back(caplog, monkeypatch):
    monkeypatch.setattr("millpond.metrics.otlp._TIMEOUT_SECONDS", 0.2)
    with collector() as (endpoint, _, _):
        port = int(endpoint.split(":")[2].split("/")[0])
    caplog.set_level(logging.INFO)
    told: list[Family] = [family("millpond_http_connections", [])]
    pusher = _Pusher(lambda: told, endpoint, {}, None, lambda: 7)
    for _ in range(2):
        pusher.push()
    assert [record.message.split(";")[0] for record in caplog.records] == ["the OTLP collector does not take metrics"]
    with collector(port) as (_, taken, _):
        pusher.push()
        pusher.end()
    assert len(taken) == 2
    assert "takes metrics again" in caplog.records[-1].message
    assert len(caplog.records) == 2


@pytest.mark.parametrize(("endpoint", "interval_ms"), [("collector:4318", 1_000), ("http://127.0.0.1:1", 0)])
def test_an_option_that_cannot_be_is_refused(endpoint, interval_ms):
    with pytest.raises(OptionError), otlp_push(list, endpoint, interval_ms=interval_ms):
        pass


def test_metrics_that_cannot_be_read_once_are_pushed_the_next_time(caplog):
    recorder = PrometheusRecorder()
    recorder.count("millpond_lookup_requests_total", 3, name="planes", result="hit")
    readings = [RuntimeError("the driver is busy"), recorder.families(), recorder.families()]

    def families():
        reading = readings.pop(0) if len(readings) > 1 else readings[0]
        if isinstance(reading, Exception):
            raise reading
        return reading

    with collector() as (endpoint, taken, arrived), otlp_push(families, endpoint, interval_ms=10):
        assert arrived.wait(20)
    assert set(metrics_of(taken[0][1])) == {"millpond_lookup_requests_total"}
    assert "the driver is busy" in caplog.text


def test_metrics_that_cannot_be_read_at_the_end_fail_nothing():
    def families():
        raise RuntimeError("the driver has ended")

    with collector() as (endpoint, taken, _), otlp_push(families, endpoint):
        pass
    assert taken == []
