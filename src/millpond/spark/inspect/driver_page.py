"""The page beside a Spark driver: `millpond.spark.ui(spark)`.

Place on the data path: beside it. A listener collects the progress of queries. Operators and tables come from the
driver's list of what it planned. The checkpoints are those of the running queries and those that the caller names.
"""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Self

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millpond.cache.curves import CacheReport, reports
from millpond.cache.curves.telling import heard, together
from millpond.errors import UnavailableError
from millpond.metrics.families import Family
from millpond.metrics.prometheus import PrometheusRecorder
from millpond.spark.environment.session import is_connect
from millpond.spark.inspect.driver_metrics import driver_families
from millpond.spark.inspect.query_progress import QueryProgress, QueryProgressListener
from millpond.spark.inspect.query_state import QueryState
from millpond.spark.spec.driver_counts import operators_of, table_reports
from millpond.spark.spec.metrics import COUNTERS, KeyedMetrics
from millpond.state.checkpoint.stored_state import FilesState, StoredState, is_query
from millpond.ui.cache_views import cache_views
from millpond.ui.server import PageSource, View, page_server
from millpond.ui.stored_state import StoredStateView
from millpond.ui.totals import totals
from millpond.ui.views import (
    Caches,
    Features,
    GroupTemperature,
    HotGroup,
    OperatorView,
    Overview,
    Queries,
    QueryView,
    ShardView,
)

PORT = 8766
"""The default port of the page."""

_HOT_GROUPS = 10
_SHARD_FIELDS = [name for name in ShardView.__struct_fields__ if name not in ("heap_bytes", "disk_bytes")]
_OPERATOR_FIELDS = [*COUNTERS, "state_rows", "state_bytes"]


class DriverPage:
    """The page of a driver, made by `ui`. It ends with `close`, at the end of a `with`, or with the process.

    Attributes:
        url: the page's address.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        host: str,
        port: int,
        state: Iterable[str],
        recorder: PrometheusRecorder | None,
        api_keys: Iterable[str],
    ) -> None:
        self._spark = spark
        self._named = list(state)
        self._recorder = recorder
        self._application = "" if is_connect(spark) else str(spark.sparkContext.applicationId)
        self._listener = QueryProgressListener()
        self._closing = threading.Lock()
        self._stack = ExitStack()
        with ExitStack() as begun:
            views: dict[str, View] = {
                "overview": lambda _: Overview("Spark driver", totals(self.families()), self._notices()),
                "caches": self._caches,
                "features": lambda _: Features(),
                "queries": lambda _: self._queries(),
                "state": StoredStateView(self._locations, self._open),
            }
            self.url = begun.enter_context(page_server(PageSource(views, self.families), host, port, api_keys))
            for query in spark.streams.active:
                self._listener.known(str(query.id), query.name)
            spark.streams.addListener(self._listener)
            self._stack = begun.pop_all()

    def families(self) -> list[Family]:
        """Return all metrics of the driver, for an exporter."""
        return driver_families(operators_of(self._application), self._listener.queries(), self._recorder)

    def close(self) -> None:
        """End the page. Idempotent."""
        with self._closing, self._stack.pop_all():
            if self.url:
                self.url = ""
                # A stopped session raises here, and has no listeners to remove.
                with contextlib.suppress(PySparkException, Py4JError, OSError):
                    self._spark.streams.removeListener(self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _caches(self, query: Mapping[str, str]) -> Caches:
        return cache_views(self.families(), {}, query.get("filter", ""), [*reports(), *self._executors_reports()])

    def _executors_reports(self) -> list[CacheReport]:
        """Return the hit-rate curves of the caches in state hosts and workers, under the names that the page uses."""
        states: dict[str, list[CacheReport]] = defaultdict(list)
        for operator in operators_of(self._application):
            details = [batch.detail for batch in operator.total().shards.values()]
            states[operator.name] += heard(each.report for each in details if each is not None)
        found = [together(f"state of {name}", reports) for name, reports in states.items()]
        found += [msgspec.structs.replace(report, name=f"lookup {report.name}") for report in table_reports()]
        return [report for report in found if report is not None]

    def _notices(self) -> list[str]:
        return [
            f"Query {query.name} failed: {query.error}" for query in self._listener.queries() if query.error is not None
        ]

    def _queries(self) -> Queries:
        operators: dict[str, list[OperatorView]] = defaultdict(list)
        for operator in operators_of(self._application):
            total = operator.total()
            if total.batches:
                operators[total.query].append(operator_view(operator.name, total))
        queries = self._listener.queries()
        for query in queries:
            for name, total in query.observed.items():
                operators[query.id].append(operator_view(name.split()[1], total))
        views = [_query_view(query, operators.pop(query.id, [])) for query in queries]
        for query_id, others in operators.items():
            name = f"query {query_id[:8]}" if query_id else "Batch DataFrames"
            views.append(QueryView(id=query_id or "batch", name=name, is_active=False, operators=others))
        return Queries(views)

    def _locations(self) -> list[str]:
        return list(dict.fromkeys([*self._named, *_checkpoints(self._spark)]))

    def _open(self, location: str) -> StoredState:
        return QueryState(self._spark, location) if is_query(location) else FilesState(location)


def ui(
    spark: SparkSession,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    state: Iterable[str] = (),
    recorder: PrometheusRecorder | None = None,
    api_keys: Iterable[str] = (),
) -> DriverPage:
    """Serve the web page beside a Spark driver, on its own threads. `/metrics` has the same numbers for Prometheus.

    Call it before the queries start, since Spark reports progress only from then on.

    Args:
        spark: the session whose queries are shown.
        host: the address to listen on. The default is reachable from this machine only.
        port: the port to listen on; 0 takes a free one.
        state: checkpoints and savepoints to show beside those of the running queries.
        recorder: the recorder that streams of tiles and uploads were given as `recorder=`. Its metrics are shown too.
        api_keys: a browser must have one of these keys. Without keys, everybody who reaches the port is let in.

    Raises:
        UnavailableError: the port cannot be listened on.
        OptionError: an API key cannot be used.
    """
    return DriverPage(spark, host=host, port=port, state=state, recorder=recorder, api_keys=api_keys)


def operator_view(name: str, total: KeyedMetrics) -> OperatorView:
    """Return what the page shows of an operator."""
    details = [(shard, batch.detail) for shard, batch in sorted(total.shards.items())]
    hot = [
        HotGroup(key_group, rows, shard)
        for shard, detail in details
        if detail is not None
        for key_group, rows in detail.hot_groups
    ]
    return OperatorView(
        name=name,
        **{field: getattr(total, field) for field in _OPERATOR_FIELDS},
        shards=[
            ShardView(
                **{field: getattr(batch, field) for field in _SHARD_FIELDS},
                heap_bytes=None if batch.detail is None else batch.detail.heap_bytes,
                disk_bytes=None if batch.detail is None else batch.detail.disk_bytes,
            )
            for _, batch in sorted(total.shards.items())
        ],
        hot_groups=sorted(hot, key=lambda group: -group.rows)[:_HOT_GROUPS],
        groups=[GroupTemperature(*group) for _, detail in details if detail is not None for group in detail.groups],
    )


def _query_view(query: QueryProgress, operators: list[OperatorView]) -> QueryView:
    return QueryView(
        id=query.id,
        name=query.name,
        is_active=query.is_active,
        error=query.error,
        batches=list(query.batches),
        operators=operators,
    )


def _checkpoints(spark: SparkSession) -> list[str]:
    """Return the checkpoint locations of the running queries; none under Spark Connect, which does not tell them."""
    if is_connect(spark):
        return []
    try:
        running: list[Any] = [query._jsq for query in spark.streams.active]  # noqa: SLF001 - what PySpark wraps
        return [str(query.streamingQuery().resolvedCheckpointRoot()).removeprefix("file:") for query in running]
    except (PySparkException, Py4JError, OSError) as error:
        raise UnavailableError(f"the session does not tell of its queries: {error}. Was it stopped?") from error
