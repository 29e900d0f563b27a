"""Collecting a table by array operations gives what collecting each group's events gives."""

import datetime as dt
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError
from millpond.features import Aggregation, Field, GroupBy
from millpond.features.columnar.collect_table import collect_table, group_rows, store_table
from millpond.features.compiled_cells import compile_cells
from millpond.features.operations import OPERATIONS
from millpond.features.point_in_time.sorted_rows import edge_values
from millpond.features.types import parse_type
from tests.features import operation_oracle
from tests.features.test_compiled_cells import values_of
from tests.features.values import SCALARS

KEYS = (Field("k", "string"),)
SHAPED = ("array<long>", "array<double>", "array<string>", "map<string,long>", "map<int,double>")
PARAMETERS = {"k": operation_oracle.K, "percentiles": operation_oracle.PERCENTILES}


def aggregations(type_):
    """Every operation that takes a type, plain and by bucket."""
    found = []
    for name, operation in OPERATIONS.items():
        if parse_type(type_).scalar.kind in operation.types:
            parameter = {operation.parameter: PARAMETERS[operation.parameter]} if operation.parameter else {}
            found += [Aggregation(name, "x", **parameter), Aggregation(name, "x", **parameter, buckets=("shop",))]
            if type_.startswith("array"):
                found.append(Aggregation(name, "x", ("1h",), **parameter, element_wise=True))
    return (*found, Aggregation("count"), Aggregation("count", buckets=("shop",)))


def compiled(type_, *given_):
    inputs = (Field("x", type_), Field("shop", "string"))
    return compile_cells(GroupBy("g", KEYS, inputs, given_ or aggregations(type_)))


def rows_of(type_):
    return st.lists(
        st.tuples(
            st.none() | st.sampled_from("ab"),
            st.integers(0, 3) | st.integers(-(1 << 40), 1 << 42),
            st.none() | values_of(type_),
            st.none() | st.sampled_from(("s", "t")),
        ),
        max_size=12,
    )


def table_of(rows, type_):
    keys, times, values, shops = zip(*rows, strict=True) if rows else [()] * 4
    return pa.table(
        {
            "k": pa.array(keys, pa.string()),
            "at": pa.array(times, pa.int64()),
            "x": pa.array(values, parse_type(type_).arrow()),
            "shop": pa.array(shops, pa.string()),
        }
    )


def collected_each(cells, rows, part_ms):
    """The oracle: the IR of each (key, part), from its events alone."""
    events = defaultdict(list)
    for key, time, value, shop in rows:
        if key is not None:
            events[key, time // part_ms].append((time, (value, shop)))
    return {
        group: cells.collect([time for time, _ in own], [inputs for _, inputs in own]) for group, own in events.items()
    }


def stored(cells, ir):
    return [cell.encode(one) for cell, one in zip(cells.cells, ir, strict=True)]


@pytest.mark.parametrize("type_", [*SCALARS, *SHAPED])
@given(data=st.data())
@settings(deadline=None, max_examples=15)
def test_a_table_is_collected_as_the_events_of_each_group_are(type_, data):
    rows = data.draw(rows_of(type_))
    cells, table = compiled(type_), table_of(rows, type_)
    parts = np.asarray(table["at"]) // 2
    groups = group_rows(table.select(["k"]), parts)
    irs = collect_table(cells, groups, table["at"], table).irs()
    at_once = [list(column) for column in store_table(cells, groups, table["at"], table)]
    assert at_once == [list(column) for column in zip(*(stored(cells, ir) for ir in irs), strict=True)] or not irs
    found = {(rows[first][0], rows[first][1] // 2): ir for first, ir in zip(groups.first_rows, irs, strict=True)}
    expected = collected_each(cells, rows, 2)
    assert {key: stored(cells, ir) for key, ir in found.items()} == {
        key: stored(cells, ir) for key, ir in expected.items()
    }
    assert all(found[key] == ir for key, ir in expected.items())
    assert groups.without_key == sum(key is None for key, _, _, _ in rows)


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from((5e-324, -5e-324, 1.7e308)), min_size=1)
)
@settings(deadline=None)
def test_sums_by_limbs_are_exact_for_all_doubles(values):
    cells = compiled("double", Aggregation("sum", "x"))
    table = table_of([("a", 0, value, None) for value in values], "double")
    groups = group_rows(table.select(["k"]))
    (ir,) = collect_table(cells, groups, table["at"], table).irs()
    assert ir == cells.collect([0] * len(values), [(value, None) for value in values])
    assert [column[0] for column in store_table(cells, groups, table["at"], table)] == stored(cells, ir)


def test_sums_stay_exact_beyond_what_one_addition_of_limbs_can_hold():
    rows = (1 << 21) + 5
    worst = np.nextafter(2.0, 0.0)  # 53 ones
    table = pa.table({"k": np.zeros(rows, np.int64), "x": np.full(rows, worst), "shop": pa.nulls(rows, pa.string())})
    cells = compiled("double", Aggregation("sum", "x"))
    (ir,) = collect_table(cells, group_rows(table.select(["k"])), np.zeros(rows, np.int64), table).irs()
    one, _ = cells.collect([0], [(float(worst), None)])
    assert ir == (one * rows, rows)


def test_sums_of_longs_are_exact_beyond_64_bits():
    values = [(1 << 63) - 1] * 3 + [-(1 << 63)]
    table = table_of([("a", 0, value, None) for value in values], "long")
    cells = compiled("long", Aggregation("sum", "x"))
    assert collect_table(cells, group_rows(table.select(["k"])), table["at"], table).irs() == [(sum(values), 4)]


@given(
    st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from([None, 0.0, -0.0, 1.5]), st.integers(-2, 2)))
)
@settings(deadline=None)
def test_rows_are_of_one_group_exactly_when_all_their_keys_and_parts_are_equal(rows):
    names, numbers, parts = zip(*rows, strict=True) if rows else [()] * 3
    keys = pa.table({"n": pa.array(names, pa.string()), "d": pa.array(numbers, pa.float64())})
    groups = group_rows(keys, np.asarray(parts, np.int64))
    keyed = [row for row in rows if None not in row]
    assert len(groups.first_rows) == len(set(keyed))
    assert groups.without_key == len(rows) - len(keyed)
    for number, row in zip(groups.numbers.tolist(), rows, strict=True):
        if None in row:
            assert number == -1
        else:
            assert rows[groups.first_rows[number]] == row
            assert rows.index(row) == groups.first_rows[number]


@pytest.mark.parametrize(
    ("type_", "column", "expected"),
    [
        ("long", pa.array([3], pa.int8()), 3),
        ("double", pa.array([3], pa.int32()), 3.0),
        ("double", pa.array([0.5], pa.float32()), 0.5),
        ("string", pa.array(["a"]).dictionary_encode(), "a"),
        ("string", pa.array(["a"], pa.large_string()), "a"),
        ("timestamp", pa.array([5_000], pa.timestamp("ns", tz="Europe/Paris")), 5),
        ("decimal(38,2)", pa.array([None, 1], pa.decimal128(3, 0)).slice(1), 100),
        ("decimal(9,2)", pa.array([None, 1], pa.decimal128(9, 2)).slice(1), 100),
        ("long", pa.chunked_array([pa.array([None, 7], pa.int64()).slice(1)]), 7),
        ("double", pa.nulls(1), None),
    ],
)
def test_columns_that_widen_without_loss_are_taken(type_, column, expected):
    table = pa.table({"k": ["a"], "x": column, "shop": ["s"]})
    cells = compiled(type_, Aggregation("max", "x"))
    assert collect_table(cells, group_rows(table.select(["k"])), [0], table).irs() == [(expected,)]


@pytest.mark.parametrize(
    ("type_", "column", "named"),
    [
        ("double", pa.array([1.0, float("nan")]), ["'x'", "double", "nan", "not finite"]),
        ("float", pa.array([1.0, 1e39]), ["'x'", "1e+39", "32 bits"]),
        ("int", pa.array([1, 1 << 31]), ["'x'", "2147483648", "32 bits"]),
        ("long", pa.array([1, 1 << 63], pa.uint64()), ["'x'", "64 bits"]),
        ("long", pa.array(["1", "2"]), ["'x'", "long", "string", "int64"]),
        ("long", pa.array([1.0, 2.0]), ["'x'", "long", "double"]),
        ("timestamp", pa.array([1, 2], pa.timestamp("us")), ["'x'", "timestamp[us]", "tz=UTC"]),
        ("decimal(5,2)", pa.array([1, 1000], pa.decimal128(9, 0)), ["'x'", "1000", "3 digits before"]),
        ("array<long>", pa.array([["b"], [None, "a"]], pa.list_(pa.string())), ["'x'", "array<long>"]),
    ],
)
def test_a_column_that_does_not_fit_is_refused_by_name(type_, column, named):
    table = pa.table({"k": ["a", "b"], "x": column, "shop": ["s", "s"]})
    with pytest.raises(DataError) as refused:
        collect_table(compiled(type_, Aggregation("max", "x")), group_rows(table.select(["k"])), [0, 0], table)
    for part in ["'g'", *named]:
        assert part in str(refused.value)


def test_a_missing_column_and_missing_times_are_refused():
    table = pa.table({"k": ["a"], "x": [1]})
    groups, cells = group_rows(table.select(["k"])), compiled("long", Aggregation("sum", "x"))
    with pytest.raises(DataError, match="'shop' is not among the columns"):
        collect_table(cells, groups, [0], table)
    with pytest.raises(DataError, match="without nulls"):
        collect_table(cells, groups, pa.array([None], pa.int64()), table.append_column("shop", [["s"]]))


DAYS = pa.array([0, None, 3_000_000], pa.int32()).cast(pa.date32())
MOMENTS = pa.array([0, None, (1 << 63) - 1]).cast(pa.timestamp("us", tz="UTC"))
LONG_AGO = pa.array([-800_000, None, 0], pa.int32()).cast(pa.date32())


@pytest.mark.parametrize(
    ("type_", "column", "named"),
    [
        ("date", DAYS, "10183-09-21"),
        ("date", LONG_AGO, "-0221-09-04"),
        ("timestamp", MOMENTS, "32103"),
        ("array<date>", pa.ListArray.from_arrays([0, 1, 1, 3], DAYS), "10183-09-21"),
        ("map<string,date>", pa.MapArray.from_arrays([0, 1, 1, 3], ["a", "b", "c"], DAYS), "10183-09-21"),
    ],
)
def test_a_date_that_could_not_be_read_back_is_refused(type_, column, named):
    visits = GroupBy(
        "visits",
        (Field("k", "string"),),
        (Field("x", type_),),
        (Aggregation("max", "x"), Aggregation("last_k", "x", k=2), Aggregation("count", "x")),
    )
    cells = compile_cells(visits)
    table = pa.table({"x": column, "k": ["a"] * 3})

    def collect(rows):
        return collect_table(cells, group_rows(rows.select(["k"])), np.zeros(len(rows), np.int64), rows)

    with pytest.raises(DataError, match=rf"(?s)'visits'.*'x'.*{named}.*years 1 and 9999"):
        collect(table)
    wrong_first = named.startswith("-")
    assert collect(table.slice(2 if wrong_first else 0, 1)).count == 1


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York"])
def test_timestamps_of_the_first_and_last_hours_are_taken_in_every_zone(zone):
    """In the zone of the session they lie in the year 0 or 10000."""
    ends = [dt.datetime.min.replace(tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)]
    moments = pa.array(ends, pa.timestamp("us", tz="UTC")).cast(pa.timestamp("us", tz=zone))
    columns = {
        "timestamp": moments,
        "array<timestamp>": pa.ListArray.from_arrays([0, 1, 2], moments),
        "map<string,timestamp>": pa.MapArray.from_arrays([0, 1, 2], ["a", "a"], moments),
    }
    for type_, column in columns.items():
        visits = GroupBy("visits", (Field("k", "string"),), (Field("x", type_),), (Aggregation("max", "x"),))
        cells = compile_cells(visits)
        table = pa.table({"x": column})
        (ir,) = collect_table(cells, group_rows(pa.table({"k": ["a", "a"]})), np.array([0, 0]), table).irs()
        expected = {"a": ends[1]} if type_.startswith("map") else ends[1]
        assert cells.features[0].finish(*ir) == expected
        of_edge = edge_values(column, parse_type(type_))
        assert of_edge[1] in (ends[1], [ends[1]], {"a": ends[1]})
