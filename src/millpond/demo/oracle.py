"""The independent check: every feature again, in SQL, straight from the raw events.

Last on the demo's data path. It knows the window rule and nothing else of Millpond: no tile, no
batch, no plan, no line of `millpond.features`. An event at t is in window w of a query at q iff
`floor((q - w) / hop) * hop <= t < q`, with hops of a day for windows of 12 days and more, of an hour
from 12 hours, else of 5 minutes; without a window iff `t < q`. What stands as of a midnight is asked at
the last midnight before the query. No data gives null, counts included.

DuckDB joins requests with events once for each kind of key, so all values are checked rather than a
sample, and late events count like any other, since the raw events know no order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Group:
    """The features of one kind of key, each as its name, its aggregate over events `e`, and its window.

    Args:
        prefix: what the names begin with.
        keys: the columns of the key, in requests as in events.
        features: aggregates, and the ending of their windows.
        by: those that are maps: the column whose values are the map's keys, the aggregate of each, the window.
        daily: whether the features stand as of the last midnight.
    """

    prefix: str
    keys: tuple[str, ...]
    features: Mapping[str, tuple[str, str]]
    by: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    daily: bool = False

    @property
    def as_of(self) -> str:
        """The moment that a request `r` asks for."""
        return f"r.query_ms // {DAY_MS} * {DAY_MS}" if self.daily else "r.query_ms"


_MEASURES: Mapping[str, str] = {
    "dep_delay_count": "nullif(count(e.dep_delay) FILTER ({within}), 0)",
    "dep_delay_average": "avg(e.dep_delay) FILTER ({within})",
    "dep_delay_max": "max(e.dep_delay) FILTER ({within})",
    "delayed_15_average": "avg(e.delayed_15) FILTER ({within})",
}
_DELAYS = {
    f"{name}{ending and '_' + ending}": (sql, ending) for ending in WINDOWS_MS for name, sql in _MEASURES.items()
}
GROUPS = (
    Group(
        "route",
        ("origin", "carrier"),
        _DELAYS,
        {f"dep_delay_average_{ending}_by_dest": ("dest", "avg(e.dep_delay)", ending) for ending in ("1d", "7d")},
    ),
    Group("aircraft", ("tailnum",), _DELAYS),
    Group(
        "airport",
        ("origin",),
        {
            "dep_delay_average_1d": (_MEASURES["dep_delay_average"], "1d"),
            "dep_delay_average_30d": (_MEASURES["dep_delay_average"], "30d"),
            "dest_unique_count_7d": ("nullif(count(DISTINCT e.dest) FILTER ({within}), 0)", "7d"),
        },
        {"carrier_histogram_1d": ("carrier", "count(*)", "1d")},
        daily=True,
    ),
)
_DERIVED: Mapping[str, str] = {
    "route_delay_trend": "route_dep_delay_average_1d - route_dep_delay_average_7d",
    "dest_delay_7d": "element_at(route_dep_delay_average_7d_by_dest, dest)[1]",
    "likely_delay": (
        "coalesce(element_at(route_dep_delay_average_7d_by_dest, dest)[1], route_dep_delay_average_7d, "
        "airport_dep_delay_average_30d)"
    ),
    "aircraft_above_route": "aircraft_dep_delay_average_7d - route_dep_delay_average_7d",
}
"""What is computed from other features, and from where the flight goes."""


def hop_ms(window_ms: int) -> int:
    """The step in which a window's start moves.

    >>> [hop_ms(window) // 60_000 for window in (3_600_000, 43_200_000, 1_036_800_000)]
    [5, 60, 1440]
    """
    if window_ms >= 12 * DAY_MS:
        return DAY_MS
    return HOUR_MS if window_ms >= 12 * HOUR_MS else 5 * MINUTE_MS


def expected(requests: pa.Table, events: pa.Table) -> pa.Table:
    """The value of every feature for every request.

    Args:
        requests: `request_id`, `query_ms`, `origin`, `carrier`, `tailnum` and `dest`.
        events: `time_ms`, `dep_delay`, `delayed_15`, `origin`, `carrier`, `tailnum` and `dest`; in any order.
            A null key matches nothing.

    Returns:
        `request_id` and one column per feature, in the order of `request_id`.
    """
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false").fetchall()
        connection.register("requests", requests)
        connection.register("events", events)
        return connection.sql(query()).to_arrow_table()


def query() -> str:
    """The SQL that `expected` runs, for a reader who wants to see or run it."""
    tables: dict[str, str] = {}
    columns, joins = [], []
    for group in GROUPS:
        tables[f"{group.prefix}_questions"] = (
            f"SELECT *, {_STARTS} FROM (SELECT DISTINCT {_listed('r', group)}, {group.as_of} AS as_of FROM requests r)"  # noqa: S608 -- our own names alone
        )
        answers = {group.prefix: _scalars(group)}
        answers |= {f"{group.prefix}_{name}_map": _map(group, name) for name in group.by}
        tables |= answers
        columns += [f'{group.prefix}."{name}" AS "{group.prefix}_{name}"' for name in group.features]
        columns += [f'{group.prefix}_{name}_map.entries AS "{group.prefix}_{name}"' for name in group.by]
        for table in answers:
            same_key = " AND ".join(f"{table}.{key} = r.{key}" for key in group.keys)
            joins.append(f"LEFT JOIN {table} ON {same_key} AND {table}.as_of = {group.as_of}")
    tables["answered"] = "SELECT r.request_id, r.dest,\n  {}\nFROM requests r\n{}".format(
        ",\n  ".join(columns), "\n".join(joins)
    )
    derived = ", ".join(f'{sql} AS "{name}"' for name, sql in _DERIVED.items())
    named = ",\n".join(f"{name} AS (\n{sql}\n)" for name, sql in tables.items())
    return f"WITH {named}\nSELECT * EXCLUDE (dest), {derived} FROM answered ORDER BY request_id"


def _scalars(group: Group) -> str:
    features = ",\n  ".join(
        f'{sql.format(within="WHERE " + _within(ending))} AS "{name}"' for name, (sql, ending) in group.features.items()
    )
    return (
        f"SELECT {_listed('q', group)}, q.as_of,\n  {features}\n"
        f"FROM {group.prefix}_questions q LEFT JOIN events e ON {_same_key(group)} AND e.time_ms < q.as_of\n"
        f"GROUP BY {_listed('q', group)}, q.as_of"
    )


def _map(group: Group, name: str) -> str:
    column, sql, ending = group.by[name]
    return (
        f"SELECT {', '.join(group.keys)}, as_of, map(list(entry), list(value)) AS entries FROM (\n"  # noqa: S608 -- our own names alone
        f"  SELECT {_listed('q', group)}, q.as_of, e.{column} AS entry, {sql} AS value\n"
        f"  FROM {group.prefix}_questions q JOIN events e ON {_same_key(group)}\n"
        f"  WHERE e.time_ms < q.as_of AND {_within(ending)} AND e.{column} IS NOT NULL\n"
        f"  GROUP BY {_listed('q', group)}, q.as_of, e.{column}\n"
        f") WHERE value IS NOT NULL GROUP BY {', '.join(group.keys)}, as_of"
    )


def _listed(table: str, group: Group) -> str:
    return ", ".join(f"{table}.{key}" for key in group.keys)


def _same_key(group: Group) -> str:
    return " AND ".join(f"e.{key} = q.{key}" for key in group.keys)


def _within(ending: str) -> str:
    return f'e.time_ms >= q."start_{ending}"' if ending else "true"


_STARTS = ", ".join(
    f'((as_of - {window_ms}) // {hop_ms(window_ms)}) * {hop_ms(window_ms)} AS "start_{ending}"'
    for ending, window_ms in WINDOWS_MS.items()
    if window_ms is not None
)
"""Where each window begins, by the ending of its name."""
