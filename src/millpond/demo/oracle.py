"""The independent check: every feature again, in SQL, straight from the raw events.

Last on the demo's data path. It knows the window rule and nothing else of Millpond: no tile, no
batch, no plan, no line of `millpond.features`. An event at t is in window w of a query at q iff
`floor((q - w) / hop) * hop <= t < q`, with hops of a day for windows of 12 days and more, of an hour
from 12 hours, else of 5 minutes; without a window iff `t < q`. No data gives null, counts included.

DuckDB does it as one join of requests with events per kind of key, so all values are checked rather
than a sample, and late events count like any other, since the raw events know no order.
"""

from collections.abc import Mapping, Sequence

import duckdb
import pyarrow as pa

from millpond.demo.data import DAY_MS, HOUR_MS, MINUTE_MS

WINDOWS_MS: Mapping[str, int | None] = {
    "1h": HOUR_MS,
    "6h": 6 * HOUR_MS,
    "1d": DAY_MS,
    "7d": 7 * DAY_MS,
    "30d": 30 * DAY_MS,
    "": None,
}
"""The windows by the ending of the feature's name; the empty one has no start."""

_MEASURES: Mapping[str, str] = {
    "dep_delay_count": "nullif(count(e.dep_delay) FILTER ({within}), 0)",
    "dep_delay_average": "avg(e.dep_delay) FILTER ({within})",
    "dep_delay_max": "max(e.dep_delay) FILTER ({within})",
    "delayed_15_average": "avg(e.delayed_15) FILTER ({within})",
}


def hop_ms(window_ms: int) -> int:
    """The step in which a window's start moves.

    >>> [hop_ms(window) // 60_000 for window in (3_600_000, 43_200_000, 1_036_800_000)]
    [5, 60, 1440]
    """
    if window_ms >= 12 * DAY_MS:
        return DAY_MS
    return HOUR_MS if window_ms >= 12 * HOUR_MS else 5 * MINUTE_MS


def expected(requests: pa.Table, events: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The value of every feature for every request.

    Args:
        requests: `request_id`, `query_ms` and the key columns.
        events: `time_ms`, `dep_delay`, `delayed_15` and the key columns; in any order.
        keys: the key columns. A null key matches nothing.

    Returns:
        `request_id` and one column per feature, in the order of `request_id`.
    """
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false").fetchall()
        connection.register("requests", requests)
        connection.register("events", events)
        return connection.sql(query(keys)).to_arrow_table()


def query(keys: Sequence[str]) -> str:
    """The SQL that `expected` runs, for a reader who wants to see or run it."""
    same_key = " AND ".join(f"e.{key} = r.{key}" for key in keys)
    features = ",\n  ".join(
        f'{sql.format(within=_within(window))} AS "{name}{ending and "_" + ending}"'
        for ending, window in WINDOWS_MS.items()
        for name, sql in _MEASURES.items()
    )
    return (
        f"SELECT r.request_id,\n  {features}\n"
        f"FROM requests r LEFT JOIN events e ON {same_key} AND e.time_ms < r.query_ms\n"
        "GROUP BY r.request_id ORDER BY r.request_id"
    )


def _within(window_ms: int | None) -> str:
    if window_ms is None:
        return "WHERE true"
    hop = hop_ms(window_ms)
    return f"WHERE e.time_ms >= ((r.query_ms - {window_ms}) // {hop}) * {hop}"
