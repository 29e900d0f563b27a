"""Finds the streaming queries that read a lookup table, and their watermark.

The reload trigger of a fully cached table may use the watermark. A query reads a table if its plan has the join,
whose name contains the table's id, or if the join was made in its `foreachBatch`. The invariant: queries that do
not read the table have no influence.

The queries are looked up when a trigger asks, so there is no listener to unregister, and no thread.

The trade-off: Spark runs a `foreachBatch` function in a session of its own. So a query of such a join is found only
if it was started in the session that the program made first.
"""

from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_QUERY_ID = "sql.streaming.queryId"


class ReadingQueries:
    """The queries that read one table.

    Args:
        mark: a text that the plan of a query contains if it reads the table.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        # A `foreachBatch` function has a session of its own, which does not know the query.
        self._sessions = {SparkSession.builder.getOrCreate()}
        self._ids: set[str] = set()

    def add(self, session: SparkSession) -> None:
        """Add the session, or the query, in which a join was made. In a `foreachBatch` function it is the query."""
        query_id = session.sparkContext.getLocalProperty(_QUERY_ID)
        if query_id is None:
            self._sessions.add(session)
        else:
            self._ids.add(query_id)

    def watermark_ms(self) -> int | None:
        """Return the last watermark, of several queries the earliest, in ms since 1970 UTC; None before the first."""
        active = {query.id: query for session in self._sessions for query in session.streams.active}
        known = [_watermark_ms(query) for query in active.values() if self._reads(query)]
        return min((watermark_ms for watermark_ms in known if watermark_ms is not None), default=None)

    def _reads(self, query: StreamingQuery) -> bool:
        return query.id in self._ids or self._mark in query._jsq.explainInternal(False)  # noqa: SLF001 - what explain() prints


def _watermark_ms(query: StreamingQuery) -> int | None:
    """Return a query's last watermark; None before the first, for which Spark reports 1970."""
    progress = query.lastProgress
    told = None if progress is None else progress["eventTime"].get("watermark")
    if told is None:
        return None
    return round(datetime.fromisoformat(told).timestamp() * 1_000) or None
