"""The pandas form gives user code the very frames that PySpark gives, and takes what PySpark takes."""

import datetime as dt
import decimal
import itertools
from collections import namedtuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from millpond.errors import DataError
from millpond.spark.environment.versions import SPARK, to_arrow_type
from millpond.spark.forms.pandas_form import OutputFrames, PandasObjects
from millpond.spark.spec.operator import OperatorSpec, PandasSettings, StateConfig

ZONE = "America/New_York"
SETTINGS = PandasSettings(timezone=ZONE, max_rows=1000)
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - Spark's times have no zone in pandas
_TIMES = st.integers(-8_000_000_000, 7_000_000_000).map(lambda seconds: _EPOCH + dt.timedelta(0, seconds))
COLUMNS = {
    "text": (pa.string(), st.sampled_from(["", "a", "é"])),
    "whole": (pa.int64(), st.integers(-(1 << 53), 1 << 53)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "number": (pa.float64(), st.floats()),
    "single": (pa.float32(), st.floats(width=32)),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates(dt.date(1700, 1, 1), dt.date(2200, 1, 1))),
    "at": (pa.timestamp("us", tz="UTC"), _TIMES),
    "wall": (pa.timestamp("us"), _TIMES),
    "took": (pa.duration("us"), st.timedeltas(dt.timedelta(-9), dt.timedelta(9))),
    "price": (pa.decimal128(12, 2), st.decimals(-9, 9, places=2)),
    "data": (pa.binary(), st.binary(max_size=3)),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(-3, 3), max_size=3)),
}


def _spec(names, keys=1, output=None, **changes):
    given = {
        "application": "app",
        "processor": None,
        "key_schema": pa.schema([("key", pa.string())]),
        "key_positions": tuple(range(keys)),
        "row_names": tuple(names),
        "output_schema": output or pa.schema([("key", pa.string())]),
        "time_mode": "none",
        "event_time": None,
        "keep_late": False,
        "metrics": None,
        "hosts": 1,
        "config": StateConfig(),
        "pandas": SETTINGS,
    }
    return OperatorSpec(**(given | changes))


def _pysparks_frames(table, keys):
    """The oracle: what PySpark's worker does with the batches of one task, in a few lines."""
    local = table.schema
    for at, field in enumerate(local):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            local = local.set(at, field.with_type(pa.timestamp("us", tz=ZONE)))
    series = _pyspark_series(table.cast(local).combine_chunks())
    rows = list(pd.concat(series, axis=1).itertuples(index=False))
    groups = {}
    for row in rows:
        groups.setdefault(row[:keys], []).append(row)
    return [(group[0][:keys], pd.DataFrame(group)) for group in groups.values()]


def _pyspark_series(table):
    """What PySpark's worker makes of a batch, by the class that its version has for that."""
    if SPARK < (4, 2):
        worker = _worker_of_41()
        return [worker.arrow_to_pandas(column, at) for at, column in enumerate(table.itercolumns())]
    from pyspark.sql.conversion import ArrowBatchTransformer

    return ArrowBatchTransformer.to_pandas(table, timezone=ZONE)


def _pyspark_struct(frame, schema):
    """What PySpark's worker makes of a frame that user code gives."""
    if SPARK < (4, 2):
        return _worker_of_41()._create_struct_array(frame, to_arrow_type(schema), schema)
    from pyspark.sql.conversion import PandasToArrowConversion

    batch = PandasToArrowConversion.convert(
        [frame],
        StructType([StructField("_0", schema)]),
        timezone=ZONE,
        safecheck=False,
        arrow_cast=True,
        assign_cols_by_name=True,
    )
    return batch.column(0)


def _worker_of_41():
    from pyspark.sql.pandas.serializers import TransformWithStateInPandasSerializer

    return TransformWithStateInPandasSerializer(
        ZONE,
        safecheck=False,
        assign_cols_by_name=True,
        arrow_max_records_per_batch=1000,
        arrow_max_bytes_per_batch=1 << 31,
        int_to_decimal_coercion_enabled=False,
    )


def _same(ours, theirs):
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
    for column in ours:
        assert list(map(type, ours[column])) == list(map(type, theirs[column]))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_key_gets_the_frame_that_pyspark_makes(data):
    names = ["key", *data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, min_size=1, max_size=4))]
    length = data.draw(st.integers(1, 12))
    nulls = data.draw(st.booleans())

    def column(kind, values):
        values = st.one_of(st.none(), values) if nulls else values
        return pa.array(data.draw(st.lists(values, min_size=length, max_size=length)), type=kind)

    columns = [column(pa.string(), st.sampled_from("xyz")), *(column(*COLUMNS[name]) for name in names[1:])]
    table = pa.table(columns, names=names)
    found = [(key, next(frames)) for _, key, frames in PandasObjects(_spec(names)).grouped(table)]
    expected = _pysparks_frames(table, 1)
    assert [key for key, _ in found] == [key for key, _ in expected]
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        _same(ours, theirs)


def test_keys_are_the_values_that_pandas_shows_and_state_has_its_own():
    at = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    table = pa.table({"at": pa.array([at], type=pa.timestamp("us", tz="UTC")), "n": pa.array([1], type=pa.int32())})
    ((key, users_key, _),) = PandasObjects(_spec(["at", "n"], keys=2)).grouped(table)
    assert key == (at, 1)
    assert users_key == (pd.Timestamp("2024-05-01 08:00:00"), 1)
    assert type(users_key[0]) is pd.Timestamp


def test_columns_with_odd_names_are_called_as_pyspark_calls_them():
    names = ["event type", "user", "class", "_private", "user"]
    table = pa.table([pa.array(["a"])] * 5, names=names)
    spec = _spec(names, key_positions=(1,))
    ((_, _, frames),) = PandasObjects(spec).grouped(table)
    in_pysparks_order = namedtuple(  # noqa: PYI024 - as PySpark
        "Rows", ["user", "event type", "class", "_private", "user"], rename=True
    )._fields
    expected = [in_pysparks_order[at] for at in (1, 0, 2, 3, 4)]
    assert list(next(frames).columns) == expected == ["_1", "user", "_2", "_3", "_4"]


def test_what_one_call_does_to_its_frame_is_not_seen_by_the_next():
    table = pa.table({"key": ["a", "b", "a", "c"], "n": [1.0, 2.0, 3.0, 4.0]})
    kept = []
    for _, _, frames in PandasObjects(_spec(["key", "n"])).grouped(table):
        frame = next(frames)
        kept.append(frame.copy())
        frame["n"] *= -1
        frame.loc[0, "key"] = "changed"
        frame["new"] = 1
        frame.columns.name = "changed"
        frame.index.name = "changed"
        frame.drop(frame.index, inplace=True)  # noqa: PD002 - what user code may do
    for frame, (_, theirs) in zip(kept, _pysparks_frames(table, 1), strict=True):
        _same(frame, theirs)
        assert frame.columns.name is frame.index.name is None


def test_a_hidden_key_column_is_not_shown():
    table = pa.table({"n": [1, 2], "hidden": ["a", "b"]})
    found = list(PandasObjects(_spec(["n"], key_positions=(1,))).grouped(table))
    assert [key for _, key, _ in found] == [("a",), ("b",)]
    assert [list(next(frames).columns) for _, _, frames in found] == [["n"], ["n"]]


def test_many_rows_of_a_key_come_in_frames_of_at_most_sparks_limit():
    table = pa.table({"key": ["a"] * 5, "n": list(range(5))})
    spec = _spec(["key", "n"], pandas=PandasSettings(max_rows=2))
    ((_, _, frames),) = PandasObjects(spec).grouped(table)
    assert [(list(frame["n"]), list(frame.index)) for frame in frames] == [
        ([0, 1], [0, 1]),
        ([2, 3], [0, 1]),
        ([4], [0]),
    ]


@pytest.mark.parametrize(
    ("max_rows", "max_bytes", "sizes"),
    [
        (0, 1 << 30, [5]),
        (-1, 1 << 30, [5]),
        (-1, 1, [1] * 5),
        (3, 1, [1] * 5),
        (2, 1 << 30, [2, 2, 1]),
        (9, 40, [3, 2]),
    ],
)
def test_frames_keep_to_sparks_limits_in_rows_and_in_bytes(max_rows, max_bytes, sizes):
    table = pa.table({"key": [1] * 5, "n": list(range(5)), "hidden": ["x" * 1000] * 5})  # 16 bytes a row are shown
    spec = _spec(["key", "n"], pandas=PandasSettings(max_rows=max_rows, max_bytes=max_bytes))
    ((_, _, frames),) = PandasObjects(spec).grouped(table)
    found = list(frames)
    assert [len(frame) for frame in found] == sizes
    assert [n for frame in found for n in frame["n"]] == list(range(5))


OUTPUT = pa.schema(
    [
        ("text", pa.string()),
        ("whole", pa.int64()),
        ("number", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("flag", pa.bool_()),
        ("list", pa.list_(pa.int64())),
    ]
)
_ROWS = st.tuples(
    st.one_of(st.none(), st.text(max_size=3)),
    st.one_of(st.none(), st.integers(-(1 << 62), 1 << 62)),
    st.one_of(st.none(), st.floats(allow_nan=False)),
    st.one_of(st.none(), _TIMES),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.lists(st.integers(-3, 3), max_size=2)),
)


def _as_pyspark(frames, schema):
    spark_schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    tables = [pa.Table.from_struct_array(_pyspark_struct(frame, spark_schema)).cast(schema) for frame in frames]
    return pa.concat_tables(tables) if tables else schema.empty_table()


@given(st.lists(st.tuples(st.lists(_ROWS, max_size=3), st.permutations(OUTPUT.names)), max_size=6))
@settings(max_examples=60, deadline=None)
def test_frames_become_the_table_that_pyspark_makes_of_each(parts):
    frames = [pd.DataFrame(rows, columns=OUTPUT.names)[order] for rows, order in parts]
    assert OutputFrames(OUTPUT, SETTINGS).table(frames).equals(_as_pyspark(frames, OUTPUT))


def test_columns_are_taken_by_place_where_no_label_is_a_name_and_more_columns_are_left_out():
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    frames = [pd.DataFrame([["x", 1, 9.5]]), pd.DataFrame({"b": [2], "c": [0], "a": ["y"]}), pd.DataFrame()]
    found = OutputFrames(schema, SETTINGS).table(frames)
    assert found.to_pylist() == [{"a": "x", "b": 1}, {"a": "y", "b": 2}]


@pytest.mark.parametrize(
    ("yielded", "message"),
    [
        (("a", 1), r"gave tuple \('a', 1\); expected a pandas.DataFrame with the columns \['a', 'b'\]"),
        (pd.DataFrame({"a": ["x"]}), r"columns \['a'\]; expected \['a', 'b'\]: \['b'\] are missing"),
        (pd.DataFrame([["x"]]), r"with 1 columns; expected 2"),
        (pd.DataFrame({"a": ["x"], "b": ["y"]}), r"output column 'b' is int64, the processor gave str 'y'"),
        (pd.DataFrame({"a": [["x"]], "b": [1]}), r"output column 'a' is string, the processor gave list \['x'\]"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(yielded, message):
    schema = pa.schema([("a", pa.string()), ("b", pa.int64())])
    good = pd.DataFrame({"a": ["x"], "b": [1]})
    with pytest.raises(DataError, match=message):
        OutputFrames(schema, SETTINGS).table([good, yielded])


def test_nulls_in_a_column_without_them_are_refused_by_name():
    schema = pa.schema([pa.field("total", pa.int64(), nullable=False)])
    assert OutputFrames(schema, SETTINGS).table([pd.DataFrame({"total": [1]})]).num_rows == 1
    with pytest.raises(DataError, match="output column 'total' is declared as not null"):
        OutputFrames(schema, SETTINGS).table([pd.DataFrame({"total": [1, None]})])


def test_frames_of_pandas_own_types_and_decimals_are_taken():
    schema = pa.schema([("n", pa.int64()), ("price", pa.decimal128(12, 2)), ("kind", pa.string())])
    frames = [
        pd.DataFrame(
            {
                "n": pd.array([number, None], dtype="Int64"),
                "price": [decimal.Decimal("1.25"), None],
                "kind": pd.Categorical(["a", None]),
            }
        )
        for number in range(2)
    ]
    found = OutputFrames(schema, SETTINGS).table(frames)
    assert found["n"].to_pylist() == [0, None, 1, None]
    assert found["price"].to_pylist() == [decimal.Decimal("1.25"), None] * 2
    assert found["kind"].to_pylist() == ["a", None] * 2


def test_integers_beside_frames_of_floats_keep_all_their_digits():
    schema = pa.schema([("n", pa.int64())])
    frames = [pd.DataFrame({"n": [(1 << 60) + 1]}), pd.DataFrame({"n": [np.nan]}), pd.DataFrame({"n": [3]})]
    found = OutputFrames(schema, SETTINGS).table(list(itertools.chain(frames, frames)))
    assert found["n"].to_pylist() == [(1 << 60) + 1, None, 3] * 2
