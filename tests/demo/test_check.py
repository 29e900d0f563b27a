"""Requests are the flights after the batch end; a wrong, missing or unknown feature is a mismatch."""

import pyarrow as pa

from millpond.demo.check import by_request, mismatches, requests
from millpond.demo.data import DAY_MS, MINUTE_MS

END = 16_000 * DAY_MS


def flights(*rows: tuple[int, int, str | None]) -> pa.Table:
    return pa.table(
        {
            "flight_id": [row[0] for row in rows],
            "sched_ms": [row[1] for row in rows],
            "tailnum": pa.array([row[2] for row in rows], pa.string()),
            "origin": ["JFK"] * len(rows),
            "carrier": ["UA"] * len(rows),
            "dest": ["SFO"] * len(rows),
        }
    )


def test_asked_are_the_flights_scheduled_within_two_days_of_the_batch_end() -> None:
    events = flights((1, END - 1, "N1"), (2, END, "N1"), (3, END + 2 * DAY_MS - 1, "N1"), (4, END + 2 * DAY_MS, "N1"))
    assert requests(events, END)["request_id"].to_pylist() == [2, 3]


def test_a_moment_is_the_schedule_rounded_down_to_five_minutes() -> None:
    events = flights((1, END + 9 * MINUTE_MS, "N1"), (2, END + 10 * MINUTE_MS, "N1"))
    assert requests(events, END)["query_ms"].to_pylist() == [END + 5 * MINUTE_MS, END + 10 * MINUTE_MS]


def test_a_flight_whose_aircraft_is_unknown_asks_with_a_null() -> None:
    assert requests(flights((1, END, None), (2, END, "N1")), END)["tailnum"].to_pylist() == [None, "N1"]


def test_right_answers_have_no_mismatch_and_wrong_missing_or_unknown_ones_do() -> None:
    right = {"count": 2, "max": 4.0, "by_dest": {"SFO": 4.0}}
    assert mismatches("in-process", {2: right}, {2: dict(right)}) == []

    wrong = {"max": 5.0, "by_dest": {"SFO": 4.5}, "median": 4.0}
    found = mismatches("in-process", {2: right}, {2: wrong})
    assert [mismatch.feature for mismatch in found] == ["by_dest", "count", "max", "median"]
    assert str(found[2]) == "in-process, flight 2: max is 5.0, expected 4.0"


def test_an_unanswered_request_is_wrong_in_every_feature() -> None:
    assert len(mismatches("in-process", {2: {"count": 2, "max": 4.0}}, {})) == 2


def test_maps_are_compared_whatever_the_order_of_their_entries() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    one, other = (pa.array([entries, None], kind) for entries in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)]))
    rows = [by_request(pa.table({"request_id": [1, 2], "by": column})) for column in (one, other)]
    assert rows[0] == rows[1] == {1: {"by": {"a": 1, "b": 2}}, 2: {"by": None}}
