"""Which streaming queries read a lookup table, and how far they have come.

Beside a fully cached table, whose reload trigger may go by event time. A query reads a table if its
plan has the join, which bears the table's id in its name, or if the join was made in its
`foreachBatch`. The invariant: a query that does not read the table has no say.

Asked when a trigger asks, not told by a listener: so there is nothing to unregister, and no thread.

Trade-off: in `foreachBatch` the query is found if it was started in the session that the program made
first, as Spark gives the function a session of its own.
"""

from datetime import datetime

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_QUERY_ID = "sql.streaming.queryId"


class ReadingQueries:
    """The queries that read one table.

    Args:
        mark: what the plan of a query has in it if it reads the table.
    """

    def __init__(self, mark: str) -> None:
        self._mark = mark
        # A function of `foreachBatch` has a session of its own, which does not know the query.
        self._sessions = {SparkSession.builder.getOrCreate()}
        self._ids: set[str] = set()

    def add(self, session: SparkSession) -> None:
        """A join was made in this session, perhaps in the `foreachBatch` of a query."""
        query_id = session.sparkContext.getLocalProperty(_QUERY_ID)
        if query_id is None:
            self._sessions.add(session)
        else:
            self._ids.add(query_id)

    def watermark_ms(self) -> int | None:
        """The last watermark, the earliest of several queries', in ms since 1970 UTC; None before the first."""
        active = {query.id: query for session in self._sessions for query in session.streams.active}
        known = [_watermark_ms(query) for query in active.values() if self._reads(query)]
        return min((watermark_ms for watermark_ms in known if watermark_ms is not None), default=None)

    def _reads(self, query: StreamingQuery) -> bool:
        return query.id in self._ids or self._mark in query._jsq.explainInternal(False)  # noqa: SLF001 - what explain() prints


def _watermark_ms(query: StreamingQuery) -> int | None:
    """A query's last watermark. Spark calls it 1970 before there is one."""
    progress = query.lastProgress
    told = None if progress is None else progress["eventTime"].get("watermark")
    if told is None:
        return None
    return round(datetime.fromisoformat(told).timestamp() * 1_000) or None
