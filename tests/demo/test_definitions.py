"""The two GroupBys name the features that the check knows, and agree with it on drawn flights."""

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.demo.check import mismatches, requests
from millpond.demo.data import DAY_MS, MINUTE_MS
from millpond.demo.definitions import AIRCRAFT, ROUTE
from millpond.demo.oracle import expected
from millpond.features import GroupBy, Tile, compile_group_by, tile_start

END = 16_000 * DAY_MS

drawn_flights = st.lists(
    st.tuples(
        st.integers(-32 * 24 * 60, 2 * 24 * 60),
        st.none() | st.integers(-30, 120),
        st.sampled_from(["JFK", "EWR"]),
        st.sampled_from(["N1", "N2", None]),
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
            "dep_delay": None if delay is None else float(delay),
            "delayed_15": None if delay is None else float(delay > 15),
        }
        for number, (minute, delay, origin, tailnum) in enumerate(flights)
    ]
    schema = pa.schema(
        {
            "flight_id": pa.int64(),
            "sched_ms": pa.int64(),
            "time_ms": pa.int64(),
            "origin": pa.string(),
            "carrier": pa.string(),
            "tailnum": pa.string(),
            "dep_delay": pa.float64(),
            "delayed_15": pa.float64(),
        }
    )
    return pa.Table.from_pylist(rows, schema=schema)


@pytest.mark.parametrize("group_by", [ROUTE, AIRCRAFT], ids=lambda group_by: group_by.name)
@settings(max_examples=40, deadline=None)
@given(flights=drawn_flights)
def test_batch_and_tiles_give_what_the_raw_events_give(group_by: GroupBy, flights: list) -> None:
    events, keys = as_events(flights), [field.name for field in group_by.keys]
    plan = compile_group_by(group_by)
    of_key: dict[tuple, list] = defaultdict(list)
    for row in events.to_pylist():
        of_key[tuple(row[key] for key in keys)].append((row["time_ms"], (row["dep_delay"], row["delayed_15"])))
    got = {}
    for asked in requests(events, END, keys).to_pylist():
        seen = of_key[tuple(asked[key] for key in keys)]
        tiles: dict[int, tuple] = {}
        for time_ms, inputs in seen:
            if time_ms >= END:
                start = tile_start(time_ms, plan.tile_ms)
                tiles[start] = plan.merge(tiles.get(start, plan.new_ir()), plan.collect([time_ms], [inputs]))
        batch = plan.batch_ir(seen, END)
        got[asked["request_id"]] = plan.finish(
            asked["query_ms"], END, batch, [Tile(start, plan.tile_ms, ir=ir) for start, ir in tiles.items()]
        )
    assert mismatches(group_by.name, expected(requests(events, END, keys), events, keys), got) == []


@pytest.mark.parametrize("group_by", [ROUTE, AIRCRAFT], ids=lambda group_by: group_by.name)
def test_features_have_the_names_that_the_check_gives_them(group_by: GroupBy) -> None:
    events, keys = as_events([(0, 0, "JFK", "N1")]), [field.name for field in group_by.keys]
    checked = expected(requests(events, END, keys), events, keys).column_names[1:]
    assert sorted(checked) == sorted(compile_group_by(group_by).feature_names)
    assert len(checked) == 24
