"""Rows for user code are PySpark's own in every respect, and what it gives back is taken by name or refused by name."""

import datetime as dt
import decimal
import gc
import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from millpond.errors import DataError
from millpond.spark.forms.rows import OutputColumns, output_arrow_schema, row_maker, rows_of
from millpond.spark.testing.ddl import parse_ddl as _parse_ddl

names_of_columns = st.lists(
    st.sampled_from(["user", "amount", "count", "index", "asDict", "a b", "_hidden", "class", "größe", "x"]),
    min_size=1,
    max_size=5,
    unique=True,
)


@given(names_of_columns, st.data())
@settings(max_examples=60, deadline=None)
def test_a_made_row_is_pysparks_own_row(names, data):
    values = tuple(data.draw(st.one_of(st.none(), st.integers(0, 3), st.text("ab", max_size=2))) for _ in names)
    made, own = row_maker(names)(values), Row(**dict(zip(names, values, strict=True)))
    assert isinstance(made, Row)
    assert (made, hash(made), repr(made), str(made), len(made)) == (own, hash(own), repr(own), str(own), len(own))
    assert list(made.__fields__) == list(own.__fields__)
    assert type(made).__name__ == "Row"
    for name in names:
        assert made[name] == own[name]
        assert name in made
        if name not in ("count", "index", "asDict"):
            assert getattr(made, name) == getattr(own, name)
    if "asDict" not in names:
        assert made.asDict() == own.asDict()
    assert ("nowhere" in made) is False
    for read in (lambda row: row.nowhere, lambda row: row["nowhere"], lambda row: row.__nowhere__):
        errors = []
        for row in (made, own):
            with pytest.raises(Exception, match="nowhere") as raised:
                read(row)
            errors.append(type(raised.value))
        assert errors[0] is errors[1]
    back = pickle.loads(pickle.dumps(made))
    assert (back, repr(back), back.__fields__) == (own, repr(own), list(names))


def test_columns_named_like_tuples_methods_stay_the_methods():
    made, own = row_maker(["count", "index"])((7, 8)), Row(count=7, index=8)
    assert made.count(7) == own.count(7) == 1
    assert made.index(8) == own.index(8) == 1
    assert (made["count"], made["index"]) == (7, 8)
    assert made.asDict() == {"count": 7, "index": 8}


def test_made_rows_sort_compare_and_unpack_like_tuples():
    make = row_maker(["user", "amount"])
    rows = [make(("bob", 2)), Row(user="ann", amount=3), make(("ann", 1))]
    assert sorted(rows) == [("ann", 1), ("ann", 3), ("bob", 2)]
    user, amount = make(("ann", 3))
    assert (user, amount) == make(("ann", 3)) == ("ann", 3)
    assert {make(("ann", 3)): 1}[Row(user="ann", amount=3)] == 1
    assert make(("ann", 3))[0:1] == ("ann",)


def test_rows_are_made_whenever_the_cycle_collector_runs():
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        made = [row_maker(["user", "amount", "at"])(("ann", 1, 2)) for _ in range(20)]
    finally:
        gc.set_threshold(*threshold)
    assert {(row.user, row.amount, row.at) for row in made} == {("ann", 1, 2)}


def test_a_made_row_is_read_only():
    made = row_maker(["user"])(("ann",))
    with pytest.raises(RuntimeError, match="read-only"):
        made.user = "bob"


def test_of_two_columns_with_one_name_the_first_is_found_as_in_pyspark():
    made = row_maker(["a", "a"])((1, 2))
    assert made.a == made["a"] == 1


def test_nested_rows_become_dictionaries_where_asked():
    made = row_maker(["inner", "many"])((row_maker(["x"])((1,)), [row_maker(["x"])((2,))]))
    assert made.asDict(recursive=True) == {"inner": {"x": 1}, "many": [{"x": 2}]}


def test_the_first_columns_of_a_table_become_rows():
    table = pa.table({"user": ["ann", None], "amount": [1, 2], "hidden": [True, False]})
    make = row_maker(["user", "amount"])
    assert list(rows_of(table, 2, make)) == [Row(user="ann", amount=1), Row(user=None, amount=2)]
    assert list(rows_of(table.slice(0, 0), 2, make)) == []


def test_maps_are_lists_of_pairs_and_structs_dictionaries_as_in_pysparks_rows():
    counts = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    nested = pa.array([{"tags": [("b", "c")]}, None], pa.struct([("tags", pa.map_(pa.string(), pa.string()))]))
    plain = pa.array([{"x": 1}, None], pa.struct([("x", pa.int64())]))
    table = pa.table({"counts": counts, "nested": nested, "plain": plain})
    assert [tuple(row) for row in rows_of(table, 3, row_maker(table.column_names))] == [
        ([("a", 1)], {"tags": [("b", "c")]}, {"x": 1}),
        (None, None, None),
    ]


FLAT = pa.schema([("user", pa.string()), ("amount", pa.int64())])
NESTED = pa.schema([("user", pa.string()), ("parts", pa.list_(pa.struct([("x", pa.int64())])))])


def test_output_is_matched_by_name_a_missing_field_is_null_and_an_extra_one_is_dropped():
    rows = [
        Row(user="ann", amount=1),
        Row(amount=2, user="bob"),
        Row(user="cy"),
        Row(note="extra", amount=4, user="dee"),
        Row("amount", "user")(5, "eve"),
        row_maker(["user", "amount"])(("fay", 6)),
    ]
    expected = [("ann", 1), ("bob", 2), ("cy", None), ("dee", 4), ("eve", 5), ("fay", 6)]
    table = OutputColumns(FLAT).table(rows)
    assert table.schema == FLAT
    assert [tuple(row.values()) for row in table.to_pylist()] == expected
    for row, values in zip(rows, expected, strict=True):
        assert tuple(OutputColumns(FLAT).table([row]).to_pylist()[0].values()) == values


def test_no_rows_are_an_empty_table_of_the_schema():
    for schema in (FLAT, NESTED):
        table = OutputColumns(schema).table([])
        assert (table.num_rows, table.schema) == (0, schema)


@pytest.mark.parametrize("make", [lambda x: Row(x=x), lambda x: {"x": x}, lambda x: (x,)], ids=["Row", "dict", "tuple"])
def test_nested_output_is_taken_from_rows_dictionaries_or_tuples(make):
    rows = [Row(user="ann", parts=[make(1), None]), Row(user="bob", parts=None), Row(user="cy")]
    found = OutputColumns(NESTED).table(rows).column("parts").to_pylist()
    assert found == [[{"x": 1}, None], None, None]


@pytest.mark.parametrize("schema", [FLAT, NESTED], ids=["flat", "nested"])
@pytest.mark.parametrize("wrong", [("ann", 1), {"user": "ann"}, 7, "ann", None, Row("ann", 1)], ids=repr)
@pytest.mark.parametrize(
    "before", [[], [Row(user="a")], [Row(user="a", amount=1)]], ids=["alone", "after partial", "after whole"]
)
def test_what_is_no_row_with_names_is_refused_with_the_names_expected(schema, wrong, before):
    with pytest.raises(DataError) as refused:
        OutputColumns(schema).table([*before, wrong])
    for named in ("the processor gave", type(wrong).__name__, repr(wrong), "'user'"):
        assert named in str(refused.value)


def test_a_missing_value_in_a_column_without_nulls_is_named():
    schema = output_arrow_schema(_parse_ddl("user string, total long NOT NULL"))
    assert OutputColumns(schema).table([Row(user=None, total=1)]).to_pylist() == [{"user": None, "total": 1}]
    for row in (Row(user="ann", total=None), Row(user="ann")):
        with pytest.raises(DataError, match="output column 'total' is declared as not null"):
            OutputColumns(schema).table([row])


@pytest.mark.parametrize("kind", ["interval year to month", "char(3)", "interval"])
def test_an_output_column_of_a_type_that_python_does_not_have_is_named(kind):
    with pytest.raises(DataError, match="output column 'odd' is "):
        output_arrow_schema(_parse_ddl(f"user string, odd {kind}"))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), "many"),
        (pa.int64(), 1.5),
        (pa.int64(), decimal.Decimal("1.5")),
        (pa.int64(), 1 << 63),
        (pa.int32(), 1 << 31),
        (pa.int64(), True),
        (pa.float64(), "1.5"),
        (pa.string(), 1),
        (pa.string(), "\ud800"),
        (pa.bool_(), 1),
        (pa.date32(), dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)),
        (pa.timestamp("us", tz="UTC"), "2020-01-01"),
        (pa.decimal128(4, 2), decimal.Decimal("1.234")),
        (pa.decimal128(4, 2), 1.5),
        (pa.list_(pa.int64()), ["many"]),
        (pa.int64(), object),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_a_value_that_does_not_fit_its_column_is_named(kind, value):
    columns = OutputColumns(pa.schema([("user", pa.string()), ("total", kind)]))
    with pytest.raises(DataError) as refused:
        columns.table([Row(user="ann", total=None), Row(user="bob", total=value)])
    for named in ("'total'", str(kind), type(value).__name__, repr(value)):
        assert named in str(refused.value)


def test_whole_floats_and_numpy_numbers_fit_a_column_of_whole_numbers():
    np = pytest.importorskip("numpy")
    columns = OutputColumns(pa.schema([("total", pa.int64())]))
    rows = [Row(total=2.0), Row(total=np.int32(3)), Row(total=np.float64(4)), Row(total=None)]
    assert columns.table(rows).column("total").to_pylist() == [2, 3, 4, None]
