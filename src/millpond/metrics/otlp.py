"""Push metrics to an OpenTelemetry collector, over OTLP and HTTP.

Place on the data path: beside it. A thread sends the current families at an interval. Counters are cumulative sums,
levels are gauges, and histograms keep their buckets. Names and labels are those of the vocabulary.

Invariant: a collector that is gone costs the process only this thread's attempts. It is logged once, until the
collector answers again.

Source: OpenTelemetry, "Metrics Data Model", and the OTLP specification.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from millpond.errors import MissingDependencyError, OptionError
from millpond.metrics.families import Family, Sample
from millpond.metrics.vocabulary import metric_named

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

ENDPOINT = "http://127.0.0.1:4318/v1/metrics"
"""The default address of a collector on this machine."""

INTERVAL_MS = 60_000
"""The default time between two pushes, the same as in OpenTelemetry's own SDK."""

_TIMEOUT_SECONDS = 5.0
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "": "1"}

log = logging.getLogger("millpond.metrics")


def wall_clock_ns() -> int:
    """Return nanoseconds since 1970, UTC."""
    return time.time_ns()  # noqa: TID251 - a collector orders what it gets by the wall clock


@contextmanager
def otlp_push(
    families: Callable[[], Sequence[Family]],
    endpoint: str = ENDPOINT,
    *,
    service: str = "millpond",
    instance: str = "0",
    interval_ms: int = INTERVAL_MS,
    headers: Mapping[str, str] | None = None,
    now_ns: Callable[[], int] = wall_clock_ns,
) -> Iterator[None]:
    """Push metrics during a `with`, and once more at its end.

    Args:
        families: returns the metrics: `PrometheusRecorder.families`, or `families` of the page beside a Spark driver.
        endpoint: the collector's path for metrics.
        service: the resource attribute ``service.name``.
        instance: the resource attribute ``service.instance.id``.
        interval_ms: time between two pushes.
        headers: HTTP headers to send, such as a token for the collector.
        now_ns: nanoseconds since 1970, UTC.

    Raises:
        MissingDependencyError: the packages of OpenTelemetry are not installed.
        OptionError: the interval is not above 0, or the endpoint is not an HTTP URL.
    """
    if interval_ms <= 0:
        raise OptionError(f"interval_ms is {interval_ms}; a time above 0 is needed.")
    if not endpoint.startswith(("http://", "https://")):
        raise OptionError(f"the OTLP endpoint is {endpoint!r}; a URL is needed, such as {ENDPOINT}.")
    pusher = _Pusher(families, endpoint, {"service.name": service, "service.instance.id": instance}, headers, now_ns)
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(interval_ms / 1_000):
            pusher.push()

    thread = threading.Thread(target=run, name="millpond-otlp", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        pusher.end()
        thread.join(_TIMEOUT_SECONDS)


class _Pusher:
    """Sends the current metrics, and remembers whether the collector answered."""

    def __init__(
        self,
        families: Callable[[], Sequence[Family]],
        endpoint: str,
        attributes: Mapping[str, str],
        headers: Mapping[str, str] | None,
        now_ns: Callable[[], int],
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ImportError as error:
            raise MissingDependencyError(
                "OTLP needs the packages of OpenTelemetry, which are not installed: pip install 'millpond[otlp]'"
            ) from error
        self._families = families
        self._endpoint = endpoint
        self._attributes = dict(attributes)
        self._now_ns = now_ns
        self._began_ns = now_ns()
        self._is_gone = False
        self._lock = threading.Lock()
        # The exporter logs every failed attempt. This class logs a failure once.
        logging.getLogger(OTLPMetricExporter.__module__).setLevel(logging.CRITICAL)
        self._exporter = OTLPMetricExporter(endpoint=endpoint, headers=dict(headers or {}), timeout=_TIMEOUT_SECONDS)

    def push(self) -> None:
        """Send the current metrics. If they cannot be read, this is logged, and the next push tries again."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        try:
            data = metrics_data(self._families(), self._attributes, self._began_ns, self._now_ns())
        except Exception:
            log.exception("the metrics could not be read, and were not pushed to %s", self._endpoint)
            return
        with self._lock:
            try:
                arrived = self._exporter.export(data) is MetricExportResult.SUCCESS
            except Exception:  # noqa: BLE001 - what the HTTP client raises is a collector that is gone; it is reported
                arrived = False
        if not arrived and not self._is_gone:
            log.warning("the OTLP collector does not take metrics; they are sent again and again: %s", self._endpoint)
        elif arrived and self._is_gone:
            log.info("the OTLP collector takes metrics again: %s", self._endpoint)
        self._is_gone = not arrived

    def end(self) -> None:
        """Send the last metrics, unless the collector is gone, and close the exporter."""
        if not self._is_gone:
            self.push()
        self._exporter.shutdown()


def metrics_data(
    families: Sequence[Family], attributes: Mapping[str, str], began_ns: int, now_ns: int
) -> "MetricsData":
    """Convert families to OpenTelemetry's data model."""
    from opentelemetry.sdk.metrics.export import Metric, MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = [
        Metric(one.name, one.help, _UNITS[metric_named(one.name).unit], _data(one, began_ns, now_ns))
        for one in families
    ]
    scope = ScopeMetrics(InstrumentationScope("millpond"), metrics, "")
    return MetricsData([ResourceMetrics(Resource(dict(attributes)), [scope], "")])


def _data(one: Family, began_ns: int, now_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, NumberDataPoint, Sum

    cumulative = AggregationTemporality.CUMULATIVE
    if one.kind == "histogram":
        return Histogram(_histogram_points(one.samples, began_ns, now_ns), cumulative)
    points = [NumberDataPoint(dict(each.labels), began_ns, now_ns, each.value) for each in one.samples]
    return Sum(points, cumulative, is_monotonic=True) if one.kind == "counter" else Gauge(points)


def _histogram_points(samples: Sequence[Sample], began_ns: int, now_ns: int) -> list[Any]:
    """Make one point for each set of labels. Prometheus' buckets are cumulative, OpenTelemetry's are not."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in samples:
        labels = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if sample.suffix == "_bucket":
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.suffix == "_sum":
            sums[labels] = sample.value
    points = []
    for labels, below in buckets.items():
        bounds = [bound for bound, _ in below[:-1]]
        totals = [int(total) for _, total in below]
        counts = [total - before for total, before in zip(totals, [0, *totals], strict=False)]
        points.append(
            HistogramDataPoint(
                dict(labels),
                began_ns,
                now_ns,
                totals[-1],
                sums.get(labels, 0.0),
                counts,
                bounds,
                float("nan"),
                float("nan"),
            )
        )
    return points
