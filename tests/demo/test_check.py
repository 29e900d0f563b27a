"""Requests are the flights after the batch end; a wrong, missing or unknown feature is a mismatch."""

import pyarrow as pa

from millpond.demo.check import mismatches, requests
from millpond.demo.data import DAY_MS, MINUTE_MS
from millpond.demo.oracle import expected

END = 16_000 * DAY_MS


def flights(*rows: tuple[int, int, str | None]) -> pa.Table:
    return pa.table(
        {
            "flight_id": [row[0] for row in rows],
            "sched_ms": [row[1] for row in rows],
            "time_ms": [row[1] for row in rows],
            "tailnum": pa.array([row[2] for row in rows], pa.string()),
            "dep_delay": [4.0] * len(rows),
            "delayed_15": [0.0] * len(rows),
        }
    )


def test_asked_are_the_flights_scheduled_within_two_days_of_the_batch_end() -> None:
    events = flights((1, END - 1, "N1"), (2, END, "N1"), (3, END + 2 * DAY_MS - 1, "N1"), (4, END + 2 * DAY_MS, "N1"))
    assert requests(events, END, ["tailnum"])["request_id"].to_pylist() == [2, 3]


def test_a_moment_is_the_schedule_rounded_down_to_five_minutes() -> None:
    events = flights((1, END + 9 * MINUTE_MS, "N1"), (2, END + 10 * MINUTE_MS, "N1"))
    assert requests(events, END, ["tailnum"])["query_ms"].to_pylist() == [END + 5 * MINUTE_MS, END + 10 * MINUTE_MS]


def test_a_flight_without_the_key_asks_nothing() -> None:
    assert requests(flights((1, END, None), (2, END, "N1")), END, ["tailnum"])["request_id"].to_pylist() == [2]


def test_right_answers_have_no_mismatch_and_wrong_missing_or_unknown_ones_do() -> None:
    events = flights((1, END - DAY_MS, "N1"), (2, END, "N1"))
    asked = requests(events, END, ["tailnum"])
    checked = expected(asked, events, ["tailnum"])
    (right,) = checked.to_pylist()
    del right["request_id"]
    assert mismatches("aircraft", checked, {2: right}) == []

    wrong = right | {"dep_delay_max": 5.0, "dep_delay_median": 4.0}
    del wrong["dep_delay_count"]
    found = mismatches("aircraft", checked, {2: wrong})
    assert [mismatch.feature for mismatch in found] == ["dep_delay_count", "dep_delay_max", "dep_delay_median"]
    assert str(found[1]) == "aircraft of flight 2: dep_delay_max is 5.0, expected 4.0"


def test_an_unanswered_request_is_wrong_in_every_feature() -> None:
    events = flights((2, END, "N1"))
    checked = expected(requests(events, END, ["tailnum"]), events, ["tailnum"])
    assert len(mismatches("aircraft", checked, {})) == 24
