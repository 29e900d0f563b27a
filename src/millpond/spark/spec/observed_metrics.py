"""The metrics of a keyed operator under Spark Connect, which has no accumulators.

Spark can observe a DataFrame: it aggregates the rows that pass, and reports the result with a stream's
progress or with a batch's result. So each batch of a shard adds one row to the operator's output, with its
metrics and no blob. Spark sums these rows as they pass, and the code that unpacks blobs drops them.
"""

import secrets
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from millpond.errors import OptionError
from millpond.spark.spec.metrics import COUNTERS, BatchMetrics, KeyedMetrics

METRICS = "metrics"
"""The output column that holds the metrics. It is null in a row with a blob."""

_TYPES = {int: "long", float: "double"}
_NUMBERS = {name: kind for name, kind in BatchMetrics.__annotations__.items() if kind in _TYPES}
METRICS_TYPE = f"struct<{', '.join(f'{name}: {_TYPES[kind]}' for name, kind in _NUMBERS.items())}>"
_LEVELS = "levels"

OBSERVED = "millpond "
"""Prefix of the names under which Spark reports these metrics."""


def metrics_row(metrics: BatchMetrics) -> Row:
    """Return the metrics of one batch of one shard as a value of `METRICS_TYPE`."""
    return Row(**{name: getattr(metrics, name) for name in _NUMBERS})


class ObservedMetrics:
    """The metrics of one operator, as Spark reports them to a client.

    Args:
        operator: the operator's name. It is part of the name of a stream's metrics in `observedMetrics` of the
            query's progress.
    """

    def __init__(self, operator: str) -> None:
        # Names must be unique within a query.
        self.name = f"{OBSERVED}{operator} {secrets.token_hex(4)}"
        self._of_batch: Any = None

    def on(self, operated: DataFrame) -> DataFrame:
        """Return the operator's output with its metrics observed."""
        of_shard = F.col(METRICS)
        sums = [F.sum(of_shard[name]).alias(name) for name in COUNTERS if name != "batches"]
        level = F.array(of_shard["shard"], of_shard["state_rows"], of_shard["state_bytes"])
        levels = F.collect_list(F.when(of_shard.isNotNull(), level)).alias(_LEVELS)
        observed = [F.max(F.when(of_shard.isNotNull(), 1)).alias("batches"), *sums, levels]
        if operated.isStreaming:
            return operated.observe(self.name, *observed)
        from pyspark.sql.connect.observation import Observation

        self._of_batch = Observation(self.name)
        return operated.observe(self._of_batch, *observed)

    def total(self, query: StreamingQuery | None) -> KeyedMetrics:
        """Return the sum over the batches in the query's recent progress; for a batch DataFrame, its last run's.

        Raises:
            OptionError: it is a stream, and there is no query.
        """
        if self._of_batch is not None:
            return _metrics(self._of_batch.get)
        if query is None:
            raise OptionError(
                "under Spark Connect the metrics of a stream come with the progress of its query, so say which: "
                "after query = counts.writeStream.start(), metrics(query)."
            )
        observed = [each.observedMetrics.get(self.name) for each in query.recentProgress]
        return sum((metrics_of(row) for row in observed if row is not None), KeyedMetrics())


def metrics_of(row: Row) -> KeyedMetrics:
    """Return the metrics of one batch from its row in the progress."""
    return _metrics(_by_name(row))


def _by_name(row: Row) -> dict[str, Any]:
    """Return the fields of a row. In Connect's progress a row comes as its values and its schema."""
    fields: dict[str, Any] = row.asDict()
    if fields.keys() == {"values", "schema"}:
        return dict(zip((each["name"] for each in row.schema["fields"]), row["values"], strict=True))
    return fields


def _metrics(observed: dict[str, Any]) -> KeyedMetrics:
    """Return the metrics of one batch. A sum over no shard is null and becomes 0."""
    levels = {int(shard): (int(rows), int(size)) for shard, rows, size in observed.get(_LEVELS) or ()}
    counted: dict[str, Any] = {name: observed.get(name) or 0 for name in COUNTERS}
    return KeyedMetrics(**counted, levels=levels)
