"""The answers of sorted rows, against the rule alone: each event asked for each window of each query."""

import datetime as dt
import math
import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError
from millpond.features import Aggregation, Field, GroupBy, Tile, compile_group_by
from millpond.features.compiled_cells import compile_cells
from millpond.features.latest_rows import latest_row
from millpond.features.operations import OPERATIONS
from millpond.features.point_in_time.changing_rows import ChangingRows
from millpond.features.point_in_time.column_features import arrow_value
from millpond.features.point_in_time.sorted_rows import PointInTime, edge_values
from millpond.features.types import parse_type
from tests.features import oracle
from tests.features.values import scalars

MINUTE, HOUR, DAY = oracle.MINUTE, oracle.HOUR, oracle.DAY
B = 16_000 * DAY
KEYS = (Field("user", "string"), Field("shop", "long"))
WINDOWS = ("1m", "7m", "59m", "1h", "5h", "12h", "1d", "11d", "12d", "40d", None)
ALL = tuple(sorted(OPERATIONS))
PLAIN = ("average", "count", "max", "min", "sum")
PARAMETERS = {"k": {"k": 2}, "percentiles": {"percentiles": (0.5,)}, None: {}}
TYPES = ("boolean", "int", "long", "float", "double", "string", "binary", "date", "timestamp", "decimal(9,2)")
SHAPES = ("{}", "{}", "{}", "array<{}>", "map<string,{}>")


def times():
    near = st.builds(lambda hop, offset: B + hop + offset, st.integers(-50, 3).map(DAY.__mul__), st.integers(-2, 2))
    return (
        near | st.integers(B - 2 * HOUR, B + 2 * HOUR) | st.integers(B - 3 * MINUTE, B) | st.integers(B - 45 * DAY, B)
    )


def of_type(type_):
    parsed = parse_type(type_)
    if parsed.key is not None:
        return st.dictionaries(st.sampled_from("ab"), st.none() | scalars(parsed.element.name), max_size=2)
    if parsed.element is not None:
        return st.lists(st.none() | scalars(parsed.element.name), max_size=3)
    # Totals of a column's longs and doubles stay within what a typed column of results can hold.
    if type_ == "long":
        return st.integers(-(1 << 58), 1 << 58)
    return scalars(type_)


@st.composite
def aggregations(draw, types, operations):
    operation = draw(st.sampled_from(operations))
    rule = OPERATIONS[operation]
    fitting = [n for n, type_ in enumerate(types) if parse_type(type_).scalar.kind in rule.types]
    if operation == "count" and (not fitting or draw(st.booleans())):
        column, element_wise = None, False
    else:
        if not fitting:
            return Aggregation("count")
        number = draw(st.sampled_from(fitting))
        column = f"c{number}"
        element_wise = types[number].startswith("array") and draw(st.booleans())
    return Aggregation(
        operation,
        column,
        tuple(draw(st.lists(st.sampled_from(WINDOWS), min_size=1, max_size=3, unique=True))),
        buckets=("bucket",) if draw(st.integers(0, 5)) == 0 else (),
        element_wise=element_wise,
        **PARAMETERS[rule.parameter],
    )


@st.composite
def cases(draw, operations=ALL, shapes=SHAPES):
    types = draw(
        st.lists(st.builds(str.format, st.sampled_from(shapes), st.sampled_from(TYPES)), min_size=1, max_size=3)
    )
    declared = draw(
        st.lists(aggregations(types, operations), min_size=1, max_size=4, unique_by=lambda one: one.feature_names)
    )
    seen, chosen = set(), []
    for one in declared:
        if not seen & set(one.feature_names):
            seen |= set(one.feature_names)
            chosen.append(one)
    group_by = GroupBy(
        "any",
        keys=KEYS,
        inputs=(*(Field(f"c{n}", type_) for n, type_ in enumerate(types)), Field("bucket", "string")),
        aggregations=tuple(chosen),
    )
    keys = st.tuples(st.sampled_from("ab"), st.integers(1, 2))
    inputs = st.tuples(*(st.none() | of_type(type_) for type_ in types), st.sampled_from([None, "x", "y"]))
    events = draw(st.lists(st.tuples(keys, times(), inputs), max_size=25))
    queries = draw(st.lists(st.tuples(keys, times()), max_size=12))
    return group_by, events, queries, draw(st.integers(1, 12)), draw(st.integers(1, 40))


def sorted_batches(group_by, events, queries, batch_rows):
    """As the training set sorts them; the queries' own column is their number."""
    nothing = (None,) * len(group_by.inputs)
    rows = [(key, time, False, inputs, None) for key, time, inputs in events]
    rows += [(key, time, True, nothing, number) for number, (key, time) in enumerate(queries)]
    rows.sort(key=lambda row: (row[0], row[1], not row[2]))
    types = [parse_type(field.type) for field in (*group_by.keys, *group_by.inputs)]
    width = len(group_by.keys)
    columns = [pa.array([row[0][n] for row in rows], types[n].arrow()) for n in range(width)]
    columns += [pa.array([row[1] for row in rows], pa.int64()), pa.array([row[2] for row in rows], pa.bool_())]
    columns += [
        pa.array([arrow_value(row[3][n], type_) for row in rows], type_.arrow())
        for n, type_ in enumerate(types[width:])
    ]
    columns.append(pa.array([row[4] for row in rows], pa.int64()))
    table = pa.table(columns, names=[f"column_{n}" for n in range(len(columns) - 1)] + ["number"])
    return table.to_batches(max_chunksize=batch_rows)


def answered(group_by, events, queries, batch_rows, piece_rows):
    point_in_time = PointInTime(group_by, piece_rows)
    found = {}
    for table in point_in_time.answers(sorted_batches(group_by, events, queries, batch_rows)):
        assert table.column_names == ["number", *group_by.feature_names]
        columns = [
            edge_values(column.combine_chunks(), parse_type(type_))
            for column, type_ in zip(table.columns[1:], point_in_time.types.values(), strict=True)
        ]
        for row, number in enumerate(table.column("number").to_pylist()):
            found[number] = {name: column[row] for name, column in zip(group_by.feature_names, columns, strict=True)}
    return [found[number] for number in range(len(queries))]


def by_cells(group_by, events, key, query):
    """What the cells of just the events of each window end in."""
    compiled = compile_cells(group_by)
    answer = {}
    for feature in compiled.features:
        held = [
            (t, inputs) for own, t, inputs in events if own == key and oracle.is_in_window(t, query, feature.window)
        ]
        ir = compiled.collect([t for t, _ in held], [inputs for _, inputs in held])
        answer[feature.name] = feature.finish(*[ir[position] for position in feature.positions])
    return {name: answer[name] for name in group_by.feature_names}


def same(left, right):
    return repr(left) == repr(right)


@settings(max_examples=100, deadline=None)
@given(cases(operations=PLAIN, shapes=("{}",)))
def test_columnar_features_have_the_bits_of_the_cells_of_each_window(case):
    group_by, events, queries, *_ = case
    found = answered(*case)
    assert all(same(one, by_cells(group_by, events, *query)) for one, query in zip(found, queries, strict=True))


@settings(max_examples=100, deadline=None)
@given(cases())
def test_every_operation_answers_what_the_cells_of_each_window_end_in(case):
    group_by, events, queries, *_ = case
    for found, query in zip(answered(*case), queries, strict=True):
        assert same(found, by_cells(group_by, events, *query))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(times(), st.floats(-1e9, 1e9) | st.none()), max_size=20),
    st.lists(times(), min_size=1, max_size=5),
)
def test_sums_and_extremes_are_those_of_the_rule_alone(events, queries):
    declared = tuple(Aggregation(operation, "c0", WINDOWS) for operation in PLAIN)
    group_by = GroupBy("any", keys=KEYS, inputs=(Field("c0", "double"),), aggregations=declared)
    key = ("a", 1)
    of_key = [(t, (value,)) for t, value in events]
    found = answered(group_by, [(key, *event) for event in of_key], [(key, query) for query in queries], 7, 9)
    assert found == [oracle.features(group_by, of_key, query) for query in queries]


def by_batch_and_tiles(plan, events, key, query):
    """What the plan answers at the start of a tile, from a batch at the midnight before and one tile for each span."""
    of_key = [(t, inputs) for own, t, inputs in events if own == key]
    batch_end = query // DAY * DAY
    spans = {}
    for t, inputs in of_key:
        if batch_end <= t < query:
            spans.setdefault(t // plan.tile_ms * plan.tile_ms, []).append((t, inputs))
    tiles = [
        Tile(start, plan.tile_ms, ir=plan.collect([t for t, _ in held], [inputs for _, inputs in held]))
        for start, held in spans.items()
    ]
    return plan.finish(query, batch_end, plan.batch_ir(of_key, batch_end), tiles)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_exact_features_are_those_of_batch_and_tiles(case):
    group_by, events, queries, *sizes = case
    plan = compile_group_by(group_by)
    queries = [(key, time // plan.tile_ms * plan.tile_ms) for key, time in queries]
    exact = [feature.name for feature in plan.cells.features if feature.exact]
    for found, query in zip(answered(group_by, events, queries, *sizes), queries, strict=True):
        served = by_batch_and_tiles(plan, events, *query)
        assert same([found[name] for name in exact], [served[name] for name in exact])


def values_as_they_are():
    return GroupBy("any", keys=KEYS, inputs=(Field("c0", "map<string,long>"), Field("c1", "int")), accuracy="snapshot")


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 8), st.none() | st.integers(-9, 9)),
        max_size=20,
    ),
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10)), max_size=8),
    st.integers(1, 9),
)
def test_values_as_they_are_are_those_of_the_latest_row_before_the_query(events, queries, piece_rows):
    rows = [((user, 1), t, ({"x": t}, value)) for user, t, value in events]
    found = answered(values_as_they_are(), rows, [((user, 1), t) for user, t in queries], 5, piece_rows)
    for (user, query), answer in zip(queries, found, strict=True):
        of_user = [(t, inputs) for (own, _), t, inputs in rows if own == user and t < query]
        latest = latest_row([parse_type("map<string,long>"), parse_type("int")], of_user)
        assert tuple(answer.values()) == (latest[1] if latest else (None, None))


def test_times_far_apart_are_still_told_apart_by_key():
    group_by = GroupBy("any", keys=KEYS, aggregations=(Aggregation("count", windows=("1m", None)),))
    far = 1 << 59
    events = [((user, 1), t, ()) for user in "abcdefghij" for t in (-far, 0, far)]
    found = answered(group_by, events, [((user, 1), t + 1) for user in "abcdefghij" for t in (-far, 0)], 100, 100)
    assert found == [{"count_1m": 1, "count": n} for _ in range(10) for n in (1, 2)]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused_by_name(wrong):
    group_by = GroupBy("any", keys=KEYS, inputs=(Field("c0", "double"),), aggregations=(Aggregation("max", "c0"),))
    with pytest.raises(DataError, match=r"'any'.*'c0'.*not finite"):
        answered(group_by, [(("a", 1), 0, (wrong,))], [(("a", 1), 1)], 5, 5)


def test_a_sum_of_more_than_64_bits_is_refused_by_name():
    group_by = GroupBy("any", keys=KEYS, inputs=(Field("c0", "long"),), aggregations=(Aggregation("sum", "c0"),))
    events = [(("a", 1), t, ((1 << 63) - 1,)) for t in (0, 1)]
    assert answered(group_by, events, [(("a", 1), 1)], 5, 5) == [{"c0_sum": (1 << 63) - 1}]
    with pytest.raises(DataError, match=r"'c0_sum'.*long.*decimal"):
        answered(group_by, events, [(("a", 1), 2)], 5, 5)


def test_a_query_in_microseconds_is_refused():
    group_by = GroupBy("any", keys=KEYS, aggregations=(Aggregation("count"),))
    with pytest.raises(DataError, match="'any': time_ms is 1388361600000000, beyond the year 2499"):
        answered(group_by, [(("a", 1), 0, ())], [(("a", 1), 1), (("a", 1), 1_388_361_600_000_000)], 5, 5)


@pytest.mark.parametrize("time", [None, 1 << 61, -(1 << 63)])
def test_a_row_without_a_time_is_refused(time):
    group_by = GroupBy("any", keys=KEYS, aggregations=(Aggregation("count"),))
    batches = sorted_batches(group_by, [(("a", 1), 0, ())], [], 5)
    (batch,) = (one.set_column(2, "column_2", pa.array([time], pa.int64())) for one in batches)
    with pytest.raises(DataError, match=r"'any'.*(no time|milliseconds)"):
        list(PointInTime(group_by).answers([batch]))


def test_a_query_without_a_time_is_refused_with_the_column_of_the_queries():
    group_by = GroupBy("any", keys=KEYS, aggregations=(Aggregation("count"),))
    batches = sorted_batches(group_by, [], [(("a", 1), 0)], 5)
    (batch,) = (one.set_column(2, "column_2", pa.array([None], pa.int64())) for one in batches)
    travelled = pickle.loads(pickle.dumps(PointInTime(group_by, time_column="asked_ms")))
    with pytest.raises(DataError, match="'any': a row of the queries has no 'asked_ms', its time"):
        list(travelled.answers([batch]))


def test_a_map_of_dates_comes_back_as_it_went_in():
    today = dt.date(2024, 2, 29)
    group_by = GroupBy(
        "any", keys=KEYS, inputs=(Field("c0", "map<string,date>"),), aggregations=(Aggregation("max", "c0", ("1d",)),)
    )
    found = answered(group_by, [(("a", 1), 0, ({"x": today, "y": None},))], [(("a", 1), 1), (("b", 1), 1)], 5, 5)
    assert found == [{"c0_max_1d": {"x": today}}, {"c0_max_1d": None}]


@pytest.mark.parametrize("operations", [("max",), ("max", "last_k"), ()])
def test_a_date_that_could_not_be_read_back_is_refused(operations):
    aggregations = tuple(Aggregation(one, "c0", **PARAMETERS[OPERATIONS[one].parameter]) for one in operations)
    accuracy = "temporal" if operations else "snapshot"
    group_by = GroupBy("any", KEYS, (Field("c0", "date"),), aggregations, accuracy=accuracy)
    (batch,) = sorted_batches(group_by, [(("a", 1), 0, (None,))], [(("a", 1), 1)], 5)
    far = pa.array([3_000_000, None], pa.int32()).cast(pa.date32())
    with pytest.raises(DataError, match=r"'any'.*'c0'.*10183-09-21.*years 1 and 9999"):
        list(PointInTime(group_by).answers([batch.set_column(4, batch.schema.names[4], far)]))


LAST = pa.array([dt.datetime.max.replace(tzinfo=dt.UTC)] * 3, pa.timestamp("us", tz="UTC"))


@pytest.mark.parametrize(
    ("type_", "until"),
    [
        ("timestamp", LAST.cast(pa.timestamp("us", tz="Asia/Kolkata"))),
        ("date", pa.array([3_000_000] * 3, pa.int32()).cast(pa.date32())),
    ],
)
def test_keys_of_the_last_hours_and_of_later_years_are_taken(type_, until):
    """In the zone of the session the last hours lie in the year 10000, which Python does not have."""
    keys = (Field("until", type_),)
    group_by = GroupBy("any", keys=keys, aggregations=(Aggregation("count"), Aggregation("count", windows=("1d",))))
    times, is_query = pa.array([0, 1, 2]), pa.array([False, False, True])
    batch = pa.record_batch([until, times, is_query], names=["until", "time_ms", "is_query"])
    batches = [batch.slice(row, 1) for row in range(3)]
    (found,) = PointInTime(group_by, piece_rows=1).answers(batches)
    assert found.to_pylist() == [{"count": 2, "count_1d": 2}]
    changing = pa.record_batch(
        [until, times, is_query, times, pa.array([False] * 3)],
        names=["until", "counting", "is_query", "time_ms", "is_delete"],
    )
    (found,) = ChangingRows(group_by).answers([changing])
    assert found.to_pylist() == [{"count": 2, "count_1d": 2}]
