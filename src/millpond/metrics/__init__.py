"""Metrics: the names of all of them, recorders that collect them, and exporters."""

from millpond.metrics.otlp import otlp_push
from millpond.metrics.prometheus import PrometheusRecorder, prometheus_endpoint
from millpond.metrics.recorder import NO_METRICS, RESULTS, MemoryRecorder, NullRecorder, Recorder
from millpond.metrics.vocabulary import METRICS, VOCABULARY, Metric

__all__ = [
    "METRICS",
    "NO_METRICS",
    "RESULTS",
    "VOCABULARY",
    "MemoryRecorder",
    "Metric",
    "NullRecorder",
    "PrometheusRecorder",
    "Recorder",
    "otlp_push",
    "prometheus_endpoint",
]
