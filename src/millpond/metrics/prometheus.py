"""A recorder that Prometheus can scrape, in any process: a Spark driver, a job, a test.

Place on the data path: beside it. Millpond's parts add their sums to the recorder, and `prometheus_endpoint` answers a
scrape with them. The service of `millpond serve` has a separate endpoint and does not use this one.

Invariant: a scrape does not delay counting. It only copies the sums while it holds the lock, and makes the text
afterwards.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millpond.errors import UnavailableError
from millpond.metrics.families import MEDIA_TYPE, Family, Sample, prometheus_text
from millpond.metrics.recorder import Result
from millpond.metrics.vocabulary import Metric, metric_named

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

_TIMEOUT_SECONDS = 5.0


class PrometheusRecorder:
    """Keeps sums and levels, and returns them as Prometheus' text. Thread-safe.

    >>> recorder = PrometheusRecorder()
    >>> recorder.count("millpond_lookup_requests_total", 3, name="planes", result="hit")
    >>> print(recorder.text().splitlines()[-1])
    millpond_lookup_requests_total{table="planes",result="hit"} 3
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, str, str], float] = {}
        self._levels: dict[tuple[str, str, str], float] = {}

    def count(self, metric: str, amount: float = 1, *, name: str = "", result: Result = "ok") -> None:
        """Add `amount` to a counter."""
        key = (metric, name, result)
        with self._lock:
            self._sums[key] = self._sums.get(key, 0) + amount

    def gauge(self, metric: str, value: float, *, name: str = "") -> None:
        """Set a level."""
        with self._lock:
            self._levels[metric, name, ""] = value

    def families(self) -> list[Family]:
        """Return everything recorded so far, by name."""
        with self._lock:
            told = [*self._sums.items(), *self._levels.items()]
        families: dict[str, Family] = {}
        for (given, name, result), value in sorted(told):
            metric = metric_named(given)
            one = families.setdefault(metric.name, Family(metric.name, metric.kind, metric.help, []))
            one.samples.append(Sample("", _labels(metric, name, result), value))
        return [families[name] for name in sorted(families)]

    def text(self) -> str:
        """Return everything recorded so far, as the text that Prometheus reads."""
        return prometheus_text(self.families())


@contextmanager
def prometheus_endpoint(recorder: PrometheusRecorder, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Answer scrapes of a recorder on a thread during a `with`, and yield the URL. Port 0 takes a free port.

    It answers one scrape at a time, and disconnects a caller who is silent for 5 seconds.

    >>> import urllib.request
    >>> recorder = PrometheusRecorder()
    >>> recorder.gauge("millpond_lookup_cached_records", 7, name="planes")
    >>> with prometheus_endpoint(recorder) as url:
    ...     urllib.request.urlopen(url).read().splitlines()[-1]
    b'millpond_lookup_cached_records{table="planes"} 7'

    Raises:
        UnavailableError: the port cannot be listened on.
    """
    from http.server import HTTPServer

    try:
        server = HTTPServer((host, port), _handler(recorder))
    except OSError as error:
        raise UnavailableError(f"cannot listen on {host}, port {port}: {error}. Choose another port.") from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="millpond-metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def _handler(recorder: PrometheusRecorder) -> "type[BaseHTTPRequestHandler]":
    from http.server import BaseHTTPRequestHandler

    class Scrapes(BaseHTTPRequestHandler):
        """Answers `GET /metrics`."""

        timeout = _TIMEOUT_SECONDS

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            body = recorder.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", MEDIA_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing, since a scrape comes every few seconds."""

    return Scrapes


def _labels(metric: Metric, name: str, result: str) -> dict[str, str]:
    labels = {}
    for label in metric.labels:
        value = result if label == "result" else name
        if value:
            labels[label] = value
    return labels
