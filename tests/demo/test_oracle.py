"""The SQL agrees with a loop over the events that anyone can check by eye."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.demo import oracle
from millpond.demo.check import by_request
from millpond.demo.data import DAY_MS, MINUTE_MS
from millpond.demo.oracle import WINDOWS_MS, expected, hop_ms

NOW = 16_000 * DAY_MS
KEY_COLUMNS = {name: pa.string() for name in ("origin", "carrier", "tailnum", "dest")}
EVENTS = pa.schema({"time_ms": pa.int64(), "dep_delay": pa.float64(), "delayed_15": pa.float64(), **KEY_COLUMNS})
REQUESTS = pa.schema({"request_id": pa.int64(), "query_ms": pa.int64(), **KEY_COLUMNS})

flights_keys = st.fixed_dictionaries(
    {
        "origin": st.sampled_from(["JFK", "EWR"]),
        "carrier": st.sampled_from(["UA", "DL"]),
        "tailnum": st.sampled_from(["N1", "N2", None]),
        "dest": st.sampled_from(["SFO", "BOS"]),
    }
)
events_drawn = st.lists(
    st.tuples(
        st.integers(0, 33 * 24 * 12).map(lambda fives: NOW - fives * 5 * MINUTE_MS)
        | st.integers(NOW - DAY_MS, NOW + 10),
        st.none() | st.integers(-20, 90).map(float),
        flights_keys,
    ),
    max_size=20,
)


def rows_of(events: list) -> list[dict]:
    return [
        {"time_ms": time, "dep_delay": delay, "delayed_15": None if delay is None else float(delay > 15), **keys}
        for time, delay, keys in events
    ]


def seen_by(events: list[dict], ending: str, query_ms: int, **keys: str | None) -> list[dict]:
    window = WINDOWS_MS[ending]
    start = 0 if window is None else (query_ms - window) // hop_ms(window) * hop_ms(window)
    return [
        event
        for event in events
        if start <= event["time_ms"] < query_ms
        and all(value is not None and event[name] == value for name, value in keys.items())
    ]


def average(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def delays_by_hand(events: list[dict], query_ms: int, **keys: str | None) -> dict:
    answer = {}
    for ending in WINDOWS_MS:
        delays = [event["dep_delay"] for event in seen_by(events, ending, query_ms, **keys)]
        known = [delay for delay in delays if delay is not None]
        tail = ending and "_" + ending
        answer["dep_delay_count" + tail] = len(known) or None
        answer["dep_delay_average" + tail] = average(delays)
        answer["dep_delay_max" + tail] = max(known, default=None)
        answer["delayed_15_average" + tail] = average([float(delay > 15) for delay in known])
    return answer


def by_dest_by_hand(events: list[dict], ending: str, query_ms: int, **keys: str | None) -> dict | None:
    seen = seen_by(events, ending, query_ms, **keys)
    averages = {
        dest: average([event["dep_delay"] for event in seen if event["dest"] == dest]) for dest in ("SFO", "BOS")
    }
    return {dest: value for dest, value in averages.items() if value is not None} or None


def by_hand(events: list[dict], query_ms: int, origin: str, carrier: str, tailnum: str | None, dest: str) -> dict:
    route = delays_by_hand(events, query_ms, origin=origin, carrier=carrier)
    for ending in ("1d", "7d"):
        answer = by_dest_by_hand(events, ending, query_ms, origin=origin, carrier=carrier)
        route[f"dep_delay_average_{ending}_by_dest"] = answer
    aircraft = delays_by_hand(events, query_ms, tailnum=tailnum)
    midnight = query_ms // DAY_MS * DAY_MS
    today, week, month = (seen_by(events, ending, midnight, origin=origin) for ending in ("1d", "7d", "30d"))
    airport = {
        "dep_delay_average_1d": average([event["dep_delay"] for event in today]),
        "dep_delay_average_30d": average([event["dep_delay"] for event in month]),
        "dest_unique_count_7d": len({event["dest"] for event in week}) or None,
        "carrier_histogram_1d": dict(Counter(event["carrier"] for event in today)) or None,
    }
    day, seven = route["dep_delay_average_1d"], route["dep_delay_average_7d"]
    of_aircraft = aircraft["dep_delay_average_7d"]
    to_dest = (route["dep_delay_average_7d_by_dest"] or {}).get(dest)
    candidates = (to_dest, seven, airport["dep_delay_average_30d"])
    return {
        **{f"route_{name}": value for name, value in route.items()},
        **{f"aircraft_{name}": value for name, value in aircraft.items()},
        **{f"airport_{name}": value for name, value in airport.items()},
        "route_delay_trend": None if day is None or seven is None else day - seven,
        "dest_delay_7d": to_dest,
        "likely_delay": next((value for value in candidates if value is not None), None),
        "aircraft_above_route": None if of_aircraft is None or seven is None else of_aircraft - seven,
    }


@settings(max_examples=40, deadline=None)
@given(
    drawn=events_drawn,
    queries=st.lists(
        st.tuples(st.integers(-2000, 300).map(lambda minutes: NOW + minutes * MINUTE_MS), flights_keys),
        min_size=1,
        max_size=4,
    ),
)
def test_the_sql_is_the_window_rule(drawn: list, queries: list) -> None:
    events = rows_of(drawn)
    requests = [{"request_id": i, "query_ms": moment, **keys} for i, (moment, keys) in enumerate(queries)]
    got = expected(pa.Table.from_pylist(requests, schema=REQUESTS), pa.Table.from_pylist(events, schema=EVENTS))
    assert by_request(got) == {i: by_hand(events, moment, **keys) for i, (moment, keys) in enumerate(queries)}


def test_answers_come_in_the_order_of_their_requests() -> None:
    keys = {"origin": "JFK", "carrier": "UA", "tailnum": None, "dest": "SFO"}
    requests = [{"request_id": number, "query_ms": NOW, **keys} for number in (3, 1, 2)]
    got = expected(pa.Table.from_pylist(requests, schema=REQUESTS), pa.Table.from_pylist([], schema=EVENTS))
    assert all(before < after for before, after in pairwise(got["request_id"].to_pylist()))


def test_the_oracle_knows_nothing_of_the_features_it_checks() -> None:
    text = Path(oracle.__file__).read_text(encoding="utf-8")
    assert "millpond.features" not in text.replace("`millpond.features`", "")
