"""The Join names the features that the check knows, and agrees with it on drawn flights."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.demo.check import by_request, mismatches, requests
from millpond.demo.data import DAY_MS, MINUTE_MS
from millpond.demo.definitions import AIRCRAFT, AIRPORT, DAILY, FLIGHT, ROUTE, STREAMED
from millpond.demo.oracle import expected
from millpond.kv import MemoryStore
from millpond.serving import Fetcher
from tests.demo.filled_store import EVENTS, fill

END = 16_000 * DAY_MS

drawn_flights = st.lists(
    st.tuples(
        st.integers(-32 * 24 * 60, 24 * 60 - 1),
        st.none() | st.integers(-30, 120),
        st.sampled_from(["JFK", "EWR"]),
        st.sampled_from(["N1", "N2", None]),
        st.sampled_from(["SFO", "BOS"]),
    ),
    min_size=1,
    max_size=25,
)


def as_events(flights: list) -> pa.Table:
    rows = [
        {
            "flight_id": number,
            "sched_ms": END + minute * MINUTE_MS,
            "time_ms": END + (minute + (delay or 0)) * MINUTE_MS,
            "origin": origin,
            "carrier": "UA",
            "tailnum": tailnum,
            "dest": dest,
            "dep_delay": None if delay is None else float(delay),
            "delayed_15": None if delay is None else float(delay > 15),
        }
        for number, (minute, delay, origin, tailnum, dest) in enumerate(flights)
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS)


@settings(max_examples=40, deadline=None)
@given(flights=drawn_flights)
def test_batch_and_tiles_give_what_the_raw_events_give(flights: list) -> None:
    events = as_events(flights)
    store = MemoryStore()
    fill(store, events, END)
    asked = requests(events, END)
    fetcher, got = Fetcher(store, [FLIGHT]), {}
    for request_id, row in by_request(asked).items():
        keys = {name: row[name] for name in ("origin", "carrier", "tailnum")}
        got[request_id] = fetcher.fetch(FLIGHT, keys, row["query_ms"], context={"dest": row["dest"]}).features
    assert mismatches("in-process", by_request(expected(asked, events)), got) == []


def test_features_have_the_names_that_the_check_gives_them() -> None:
    events = as_events([(0, 0, "JFK", "N1", "SFO")])
    checked = expected(requests(events, END), events).column_names[1:]
    assert sorted(checked) == sorted(Fetcher(MemoryStore(), [FLIGHT]).targets["flight"].features)
    assert len(checked) == 58


def test_every_group_by_of_the_join_is_streamed_or_uploaded_each_day() -> None:
    assert {part.group_by for part in FLIGHT.parts} == {*STREAMED, *DAILY} == {ROUTE, AIRCRAFT, AIRPORT}
