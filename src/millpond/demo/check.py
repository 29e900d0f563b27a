"""Who is asked for what, and whether the answers are right.

Last stage of the demo's data path. Asked is every flight scheduled between the batch end and two days
after it, as of its scheduled departure rounded down to five minutes (a tile cannot tell what came
before a moment inside it). Checked is every feature of every answer, against the SQL of
`millpond.demo.oracle`: the values must be equal, not close, since delays are whole minutes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.demo.data import DAY_MS, MINUTE_MS

HORIZON_MS = 2 * DAY_MS
MARK_MS = 5 * MINUTE_MS

Answers = Mapping[int, Mapping[str, Any]]
"""The features of each request, by `request_id`."""


@dataclass(frozen=True)
class Mismatch:
    """One feature that was not what the raw events give."""

    group_by: str
    request_id: int
    feature: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return f"{self.group_by} of flight {self.request_id}: {self.feature} is {self.got}, expected {self.expected}"


def requests(events: pa.Table, batch_end_ms: int, keys: Sequence[str]) -> pa.Table:
    """The requests for one GroupBy, in the order of their moments: `request_id`, `query_ms` and the keys.

    A flight that lacks a key (a tail number) asks nothing.

    >>> flights = pa.table({"flight_id": [7, 8], "sched_ms": [DAY_MS + 400_000, 0], "tailnum": ["N1", "N1"]})
    >>> requests(flights, DAY_MS, ["tailnum"]).to_pylist()
    [{'request_id': 7, 'query_ms': 86700000, 'tailnum': 'N1'}]
    """
    within = (pc.field("sched_ms") >= batch_end_ms) & (pc.field("sched_ms") < batch_end_ms + HORIZON_MS)
    for key in keys:
        within &= pc.field(key).is_valid()
    asked = events.filter(within).sort_by([("sched_ms", "ascending"), ("flight_id", "ascending")])
    moments = pc.multiply(pc.divide(asked["sched_ms"], MARK_MS), MARK_MS)
    columns = {"request_id": asked["flight_id"], "query_ms": moments} | {key: asked[key] for key in keys}
    return pa.table(columns)


def mismatches(group_by: str, expected: pa.Table, got: Answers) -> list[Mismatch]:
    """Every feature of every request that differs from what the raw events give.

    A feature that is missing from an answer, and one that the check does not know, count as different.

    Args:
        group_by: which GroupBy was asked.
        expected: what `millpond.demo.oracle.expected` gives for the requests.
        got: the answers.
    """
    wrong: list[Mismatch] = []
    for row in expected.to_pylist():
        request_id = row.pop("request_id")
        answer = got.get(request_id, {})
        wrong += [
            Mismatch(group_by, request_id, feature, row.get(feature), answer.get(feature))
            for feature in sorted(row.keys() | answer.keys())
            if feature not in row or feature not in answer or row[feature] != answer[feature]
        ]
    return wrong
