"""What is asked, and whether the answers are right.

Last stage of the demo's data path. Asked is every flight scheduled between the batch end and two days
after it, as of its scheduled departure rounded down to five minutes (a tile cannot tell what came
before a moment inside it). Checked is every feature of every answer, against the SQL of
`millpond.demo.oracle`: the values must be equal, not close, since delays are whole minutes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.demo.data import DAY_MS, MINUTE_MS

DAYS = 2
"""How many days after the batch end are asked for; a batch answers all windows for so long."""

HORIZON_MS = DAYS * DAY_MS
MARK_MS = 5 * MINUTE_MS

KEYS = ("origin", "carrier", "tailnum")
CONTEXT = ("dest",)

Answers = Mapping[int, Mapping[str, Any]]
"""The features of each request, by `request_id`."""


@dataclass(frozen=True)
class Mismatch:
    """One feature that was not what the raw events give."""

    how: str
    request_id: int
    feature: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return f"{self.how}, flight {self.request_id}: {self.feature} is {self.got}, expected {self.expected}"


def requests(events: pa.Table, batch_end_ms: int) -> pa.Table:
    """The questions, in the order of their moments: `request_id`, `query_ms`, the keys, and where the flight goes.

    >>> flight = {"flight_id": 7, "sched_ms": DAY_MS + 400_000, "origin": "JFK", "carrier": "UA", "tailnum": "N1",
    ...           "dest": "SFO"}
    >>> requests(pa.Table.from_pylist([flight, flight | {"sched_ms": 0}]), DAY_MS).to_pylist()
    [{'request_id': 7, 'query_ms': 86700000, 'origin': 'JFK', 'carrier': 'UA', 'tailnum': 'N1', 'dest': 'SFO'}]
    """
    within = (pc.field("sched_ms") >= batch_end_ms) & (pc.field("sched_ms") < batch_end_ms + HORIZON_MS)
    asked = events.filter(within).sort_by([("sched_ms", "ascending"), ("flight_id", "ascending")])
    moments = pc.multiply(pc.divide(asked["sched_ms"], MARK_MS), MARK_MS)
    columns = {"request_id": asked["flight_id"], "query_ms": moments}
    return pa.table(columns | {name: asked[name] for name in (*KEYS, *CONTEXT)})


def by_request(table: pa.Table) -> dict[int, dict[str, Any]]:
    """The rows of a table by their `request_id`; maps as dicts.

    >>> counts = pa.array([[("UA", 3)]], pa.map_(pa.string(), pa.int64()))
    >>> by_request(pa.table({"request_id": [7], "flights": counts}))
    {7: {'flights': {'UA': 3}}}
    """
    maps = [field.name for field in table.schema if pa.types.is_map(field.type)]
    rows = {}
    for row in table.to_pylist():
        row |= {name: dict(row[name]) for name in maps if row[name] is not None}
        rows[row.pop("request_id")] = row
    return rows


def mismatches(how: str, expected: Answers, got: Answers) -> list[Mismatch]:
    """Every feature of every request that differs from what the raw events give.

    A feature that is missing from an answer, and one that the check does not know, count as different.

    Args:
        how: the way in which the answers were got.
        expected: what `millpond.demo.oracle.expected` gives for the requests.
        got: the answers.
    """
    wrong: list[Mismatch] = []
    for request_id, row in expected.items():
        answer = got.get(request_id, {})
        wrong += [
            Mismatch(how, request_id, feature, row.get(feature), answer.get(feature))
            for feature in sorted(row.keys() | answer.keys())
            if feature not in row or feature not in answer or row[feature] != answer[feature]
        ]
    return wrong
