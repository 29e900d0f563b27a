"""The SQL agrees with a loop over the events that anyone can check by eye."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.demo.data import DAY_MS, MINUTE_MS
from millpond.demo.oracle import WINDOWS_MS, expected, hop_ms

NOW = 16_000 * DAY_MS
EVENTS = pa.schema(
    {"time_ms": pa.int64(), "dep_delay": pa.float64(), "delayed_15": pa.float64(), "tailnum": pa.string()}
)

events_drawn = st.lists(
    st.tuples(
        st.integers(0, 33 * 24 * 12).map(lambda fives: NOW - fives * 5 * MINUTE_MS)
        | st.integers(NOW - DAY_MS, NOW + 10),
        st.none() | st.integers(-20, 90).map(float),
        st.sampled_from(["N1", "N2", None]),
    ),
    max_size=20,
)


def by_hand(events: list, tailnum: str | None, query_ms: int) -> dict:
    answer = {}
    for ending, window in WINDOWS_MS.items():
        start = 0 if window is None else (query_ms - window) // hop_ms(window) * hop_ms(window)
        seen = [
            delay
            for time, delay, key in events
            if key is not None and key == tailnum and start <= time < query_ms and delay is not None
        ]
        tail = ending and "_" + ending
        answer["dep_delay_count" + tail] = len(seen) or None
        answer["dep_delay_average" + tail] = sum(seen) / len(seen) if seen else None
        answer["dep_delay_max" + tail] = max(seen, default=None)
        answer["delayed_15_average" + tail] = sum(d > 15 for d in seen) / len(seen) if seen else None
    return answer


@settings(max_examples=40, deadline=None)
@given(
    events=events_drawn,
    queries=st.lists(
        st.tuples(st.sampled_from(["N1", "N2", None]), st.integers(-2000, 300).map(lambda m: NOW + m * MINUTE_MS)),
        min_size=1,
        max_size=4,
    ),
)
def test_the_sql_is_the_window_rule(events: list, queries: list) -> None:
    rows = [
        {"time_ms": t, "dep_delay": d, "delayed_15": None if d is None else float(d > 15), "tailnum": k}
        for t, d, k in events
    ]
    requests = [{"request_id": i, "tailnum": key, "query_ms": moment} for i, (key, moment) in enumerate(queries)]
    got = expected(
        pa.Table.from_pylist(
            requests, schema=pa.schema({"request_id": pa.int64(), "tailnum": pa.string(), "query_ms": pa.int64()})
        ),
        pa.Table.from_pylist(rows, schema=EVENTS),
        ["tailnum"],
    ).to_pylist()
    assert got == [{"request_id": i} | by_hand(events, key, moment) for i, (key, moment) in enumerate(queries)]


def test_the_oracle_knows_nothing_of_the_features_it_checks() -> None:
    from millpond.demo import oracle

    assert "millpond.features" not in open(oracle.__file__, encoding="utf-8").read().replace("`millpond.features`", "")  # noqa: PTH123, SIM115
