"""What is combined before the shuffle is, for each key and tile, what collecting its events one by one gives."""

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError
from millpond.features import Aggregation, Field, GroupBy, compile_group_by, tile_start
from millpond.spark.features.tiles.combine import EventCounts, combiner, key_values
from millpond.spark.features.tiles.slots import CLOSING_SLOT, decode_combined, slot_of

GROUP_BY = GroupBy(
    "paid",
    keys=(Field("user", "string"), Field("rate", "double")),
    inputs=(Field("price", "double"), Field("shop", "string"), Field("tags", "map<string,long>")),
    aggregations=(
        Aggregation("count", windows=("1h", None)),
        Aggregation("variance", "price", ("1h",)),
        Aggregation("max", "price", ("1h",)),
        Aggregation("sum", "price", ("1h",), buckets=("shop",)),
        Aggregation("last_k", "shop", ("1h",), k=2),
        Aggregation("unique_count", "shop", ("1h",)),
        Aggregation("sum", "tags", ("1h",)),
    ),
)
PLAN = compile_group_by(GROUP_BY)
BEGIN = PLAN.tile_ms

ROWS = st.lists(
    st.tuples(
        st.sampled_from((None, "ann", "bob")),
        st.sampled_from((0.0, -0.0, 1.5)),
        st.none() | st.integers(0, 4 * PLAN.tile_ms),
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from((None, "s", "t")),
        st.none() | st.dictionaries(st.sampled_from("ab"), st.integers(-5, 5), max_size=2),
        st.booleans(),
    ),
    max_size=20,
)


def batches_of(rows, *, with_deletes):
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(7)]
    times = pa.array([None if time is None else time * 1000 for time in columns[2]], pa.timestamp("us", tz="UTC"))
    named = {
        "key_0": pa.array(columns[0], pa.string()),
        "key_1": pa.array(columns[1], pa.float64()),
        "time_ms": pa.array(columns[2], pa.int64()),
        "input_0": pa.array(columns[3], pa.float64()),
        "input_1": pa.array(columns[4], pa.string()),
        "input_2": pa.array(columns[5], pa.map_(pa.string(), pa.int64())),
        "event_time": times,
    }
    deletes = {"is_delete": pa.array(columns[6], pa.bool_())} if with_deletes else {}
    return pa.table(named | deletes).to_batches(max_chunksize=7)


@given(rows=ROWS, with_deletes=st.booleans())
@settings(max_examples=60)
def test_each_key_and_tile_gets_the_ir_of_its_events(rows, with_deletes):
    events = defaultdict(lambda: ([], []))
    for user, rate, time, *inputs, gone in rows:
        if user is not None and time is not None and time >= BEGIN:
            place = (PLAN.encode_key((user, rate)), tile_start(time, PLAN.tile_ms))
            events[place][with_deletes and gone].append((time, inputs))
    expected, latest = {}, []
    for (key, start), (added, gone) in events.items():
        ir = PLAN.collect([time for time, _ in added], [inputs for _, inputs in added])
        if gone:
            ir = PLAN.delete(ir, PLAN.collect([time for time, _ in gone], [inputs for _, inputs in gone]))
        expected[key, start] = (PLAN.tile_codec.pack(ir)[1], len(added) + len(gone))
        latest.append(max(time for time, _ in added + gone))
    combined = list(combiner(PLAN, BEGIN, EventCounts())(iter(batches_of(rows, with_deletes=with_deletes))))
    told = [row for batch in combined for row in batch.to_pylist()]
    assert told.pop() == {"slot": CLOSING_SLOT, "tiles": None, "event_time": None}
    found = [
        (row["slot"], key, start, cells, count)
        for row in told
        for start, tiles in decode_combined(row["tiles"]).items()
        for key, cells, count in zip(tiles.keys, tiles.cells, tiles.events, strict=True)
    ]
    assert {(key, start): (cells, count) for _, key, start, cells, count in found} == expected
    assert len(found) == len(expected)
    assert all(slot == slot_of(key) for slot, key, _, _, _ in found)
    assert len(told) == len({row["slot"] for row in told})
    assert {round(row["event_time"].timestamp() * 1000) for row in told} == ({max(latest)} if latest else set())


@pytest.mark.parametrize(
    ("type_", "far", "named"),
    [
        ("date", pa.array([0, 3_000_000], pa.int32()).cast(pa.date32()), "10183-09-21"),
        ("timestamp", pa.array([0, 253_402_300_800_000_000], pa.timestamp("us", tz="UTC")), "10000-01-01"),
    ],
)
def test_a_key_of_a_year_that_python_does_not_have_is_refused_by_name(type_, far, named):
    plan = compile_group_by(GroupBy("by_day", keys=(Field("day", type_),), aggregations=(Aggregation("count"),)))
    with pytest.raises(DataError, match=rf"'by_day'.*'day'.*{named}.*years 1 and 9999"):
        key_values(plan, [pa.chunked_array([far])])
    assert [len(part) for part in key_values(plan, [pa.chunked_array([far[:1]])])] == [1]
