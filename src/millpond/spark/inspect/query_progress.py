"""The progress of Spark's streaming queries, kept for the page and the exporters.

Place on the data path: beside it, on the driver. Spark calls a listener after each micro-batch. The newest batches of
each query are kept, so the page has a history when it is first opened.

Invariant: memory is bounded, in queries and in batches. The listener never fails a query.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from millpond.spark.spec.metrics import KeyedMetrics
from millpond.spark.spec.observed_metrics import OBSERVED, metrics_of
from millpond.ui.views import BatchView

KEPT_BATCHES = 120
KEPT_QUERIES = 50

_STEPS = {
    "latestOffset": "find input",
    "getOffset": "find input",
    "getBatch": "find input",
    "queryPlanning": "plan",
    "addBatch": "run",
    "walCommit": "log",
    "commitOffsets": "log",
    "commitBatch": "log",
}
"""The page's name for each of Spark's steps."""


class QueryProgress:
    """The known progress of one query.

    The listener replaces `batches` and `observed` and never changes them, so any thread may read them.
    """

    def __init__(self, query_id: str, name: str | None) -> None:
        self.id = query_id
        self.name = name or query_id[:8]
        self.is_active = True
        self.error: str | None = None
        self.input_rows = 0
        self.batches: tuple[BatchView, ...] = ()
        self.observed: Mapping[str, KeyedMetrics] = {}
        """Under Spark Connect, the metrics of the keyed operators, by the name of the observation."""


class QueryProgressListener(StreamingQueryListener):  # type: ignore[misc]
    """Keeps the progress of all queries of a session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, QueryProgress] = OrderedDict()

    def queries(self) -> list[QueryProgress]:
        """Return all known queries: running ones first, then by newest."""
        with self._lock:
            newest_first = [*self._queries.values()][::-1]
        return sorted(newest_first, key=lambda query: not query.is_active)

    def known(self, query_id: str, name: str | None) -> QueryProgress:
        """Add a query, if it is not known yet. Beyond `KEPT_QUERIES` the oldest query is dropped."""
        with self._lock:
            query = self._queries.setdefault(query_id, QueryProgress(query_id, name))
            while len(self._queries) > KEPT_QUERIES:
                self._queries.popitem(last=False)
        return query

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Record that a query started or restarted."""
        query = self.known(str(event.id), event.name)
        query.is_active, query.error = True, None

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Add a batch to its query."""
        progress = event.progress
        query = self.known(str(progress.id), progress.name)
        query.batches = (*query.batches, batch_view(progress))[-KEPT_BATCHES:]
        query.input_rows += progress.numInputRows
        observed = dict(query.observed)
        for name, row in (progress.observedMetrics or {}).items():
            if name.startswith(OBSERVED) and row is not None:
                observed[name] = observed.get(name, KeyedMetrics()) + metrics_of(row)
        query.observed = observed

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Do nothing: there was no batch."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Record that a query ended, and its error if it failed."""
        query = self.known(str(event.id), None)
        query.is_active = False
        query.error = None if event.exception is None else str(event.exception).partition("\n")[0]


def batch_view(progress: Any) -> BatchView:
    """Return what the page shows of a batch."""
    duration: Mapping[str, float] = progress.durationMs
    phases: dict[str, float] = {}
    for step, name in _STEPS.items():
        if step in duration:
            phases[name] = phases.get(name, 0) + duration[step]
    whole = duration.get("triggerExecution", sum(phases.values()))
    phases["other"] = max(0, whole - sum(phases.values()))
    watermark, newest = (_ms(progress.eventTime.get(name)) for name in ("watermark", "max"))
    rate = progress.processedRowsPerSecond
    return BatchView(
        batch=progress.batchId,
        time_ms=_ms(progress.timestamp) or 0,
        ms=whole,
        rows=progress.numInputRows,
        rows_per_second=rate if rate is not None and abs(rate) < float("inf") else None,
        phases_ms=phases,
        watermark_ms=watermark or None,  # before there is a watermark, Spark reports 1970
        lag_ms=None if not watermark or newest is None else max(0, newest - watermark),
    )


def _ms(text: str | None) -> int | None:
    return None if text is None else round(datetime.fromisoformat(text).timestamp() * 1_000)
