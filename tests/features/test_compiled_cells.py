import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import DataError
from millpond.features import Aggregation, Field, GroupBy
from millpond.features.cells import sets_and_maps
from millpond.features.compiled_cells import compile_cells
from millpond.features.operations import OPERATIONS
from millpond.features.types import parse_type
from tests.features import operation_oracle
from tests.features.values import scalars

KEYS = (Field("k", "string"),)
TYPES = ("long", "double", "decimal(9,2)", "array<long>", "array<double>", "map<string,long>", "map<int,double>")


def group_by(type_, *aggregations):
    return GroupBy("g", KEYS, (Field("x", type_), Field("shop", "string")), aggregations)


def values_of(type_):
    if type_.startswith("array<"):
        return st.lists(st.none() | scalars(type_[6:-1]), max_size=3)
    if type_.startswith("map<"):
        key, _, element = type_[4:-1].partition(",")
        return st.dictionaries(scalars(key), st.none() | scalars(element), max_size=3)
    return scalars(type_)


def rows_of(type_):
    return st.lists(
        st.tuples(st.integers(0, 9), st.none() | values_of(type_), st.none() | st.sampled_from(("a", "b", ""))),
        max_size=6,
    )


def answers(compiled, *parts):
    irs = [compiled.collect([row[0] for row in part], [row[1:] for row in part]) for part in parts]
    stored = [[cell.decode(cell.encode(one)) for cell, one in zip(compiled.cells, ir, strict=True)] for ir in irs]
    merged = [cell.merge_all(column) for cell, column in zip(compiled.cells, zip(*stored, strict=True), strict=True)]
    return {feature.name: feature.finish(*[merged[n] for n in feature.positions]) for feature in compiled.features}


def aggregation(operation, windows=(None,), **shape):
    parameter = OPERATIONS[operation].parameter
    given_ = {"k": operation_oracle.K, "percentiles": operation_oracle.PERCENTILES}
    return Aggregation(operation, "x", windows, **({parameter: given_[parameter]} if parameter else {}), **shape)


def types_of(operation, types):
    return [type_ for type_ in types if parse_type(type_).scalar.kind in OPERATIONS[operation].types]


@pytest.mark.parametrize("operation", OPERATIONS)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_arrays_maps_and_buckets_answer_as_the_oracle_does(operation, data):
    type_ = data.draw(st.sampled_from(types_of(operation, TYPES)))
    rows = data.draw(rows_of(type_))
    cut = data.draw(st.integers(0, len(rows)))
    plain, by_bucket = aggregation(operation), aggregation(operation, ("1h",), buckets=("shop",))
    given_ = answers(compile_cells(group_by(type_, plain, by_bucket)), rows[:cut], rows[cut:])
    present = [(time, value) for time, value, _ in rows if value is not None]
    assert given_ == {
        plain.feature_names[0]: operation_oracle.shaped_answer(operation, present, type_),
        by_bucket.feature_names[0]: operation_oracle.bucketed_answer(operation, rows, type_),
    }


@pytest.mark.parametrize("operation", OPERATIONS)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_arrays_are_aggregated_by_position_where_asked(operation, data):
    type_ = data.draw(st.sampled_from(types_of(operation, ["array<long>", "array<double>"])))
    rows = data.draw(rows_of(type_))
    cut = data.draw(st.integers(0, len(rows)))
    by_position = aggregation(operation, element_wise=True)
    by_bucket = aggregation(operation, ("1h",), buckets=("shop",), element_wise=True)
    given_ = answers(compile_cells(group_by(type_, by_position, by_bucket)), rows[:cut], rows[cut:])
    present = [(time, value) for time, value, _ in rows if value is not None]
    oracle = operation_oracle
    assert given_ == {
        by_position.feature_names[0]: oracle.shaped_answer(operation, present, type_, element_wise=True),
        by_bucket.feature_names[0]: oracle.bucketed_answer(operation, rows, type_, element_wise=True),
    }


@pytest.mark.parametrize("type_", ["long", "array<double>", "map<string,long>"])
@pytest.mark.parametrize("element_wise", [False, True])
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_a_delete_undoes_a_collect_in_every_shape(type_, element_wise, data):
    shape = {"element_wise": element_wise and type_.startswith("array")}
    by_bucket = Aggregation("average", "x", ("1d",), buckets=("shop",), **shape)
    compiled = compile_cells(group_by(type_, Aggregation("average", "x", **shape), by_bucket))
    assert all(feature.deletes for feature in compiled.features)
    kept, gone = data.draw(rows_of(type_)), data.draw(rows_of(type_))
    one, other, both = (
        compiled.collect([row[0] for row in rows], [row[1:] for row in rows]) for rows in (kept, gone, kept + gone)
    )
    for position, cell in enumerate(compiled.cells):
        assert cell.delete(both[position], other[position]) == one[position]
        assert cell.merge(cell.delete(cell.empty, other[position]), both[position]) == one[position]


def test_aggregations_share_their_cells_but_not_across_shapes_and_buckets():
    compiled = compile_cells(
        group_by(
            "array<double>",
            Aggregation("average", "x", ("1h", "1d")),
            Aggregation("sum", "x"),
            Aggregation("sum", "x", ("1d",), element_wise=True),
            Aggregation("count", windows=("1d",), buckets=("shop",)),
        )
    )
    assert [cell.id for cell in compiled.cells] == [
        "sum:double:x[]",
        "count:double:x[]",
        "sum:double:x[i]",
        "count:double:x[i]",
        "count by shop",
    ]
    assert [(feature.name, feature.type, feature.window) for feature in compiled.features] == [
        ("x_average_1h", "double", "1h"),
        ("x_average_1d", "double", "1d"),
        ("x_sum", "double", None),
        ("x_sum_1d", "array<double>", "1d"),
        ("count_1d_by_shop", "map<string,long>", "1d"),
    ]


def test_events_are_counted_per_bucket_and_those_without_a_bucket_left_out():
    compiled = compile_cells(group_by("long", Aggregation("count", buckets=("shop",))))
    assert answers(compiled, [(0, 1, "a"), (1, None, "a"), (2, 1, None)]) == {"count_by_shop": {"a": 2}}


@pytest.mark.parametrize("shape", [{}, {"buckets": ("shop",)}, {"element_wise": True}])
def test_a_met_limit_is_told_in_every_shape(shape, monkeypatch):
    monkeypatch.setattr(sets_and_maps, "MAX_DISTINCT", 2)
    type_ = "array<long>" if "element_wise" in shape else "long"
    compiled = compile_cells(group_by(type_, Aggregation("unique_count", "x", **shape)))
    (feature,) = compiled.features
    rows = [([n] if "element_wise" in shape else n, "a") for n in range(3)]
    assert not feature.limit_met(*compiled.collect([0, 1], rows[:2]))
    assert feature.limit_met(*compiled.collect([0, 1, 2], rows))


def test_times_stay_beside_their_values_where_nulls_are_dropped():
    rows = compile_cells(group_by("long", Aggregation("sum", "x")))
    assert rows.collect([5, 6, 7], [(None, None), (2, None), (None, None)]) == (2, 1)
    assert rows.collect([], []) == rows.empty_ir == (0, 0)


@pytest.mark.parametrize(
    ("type_", "inputs", "named"),
    [
        ("double", ("1", None), ["'x'", "double", "'1'", "str"]),
        ("double", (float("nan"), None), ["'x'", "nan", "None"]),
        ("long", (1 << 63, None), ["'x'", "64 bits"]),
        ("long", (1, 7), ["'shop'", "string", "7"]),
        ("array<long>", ([1, "2"], None), ["'x'", "array<long>", "'2'"]),
        ("long", (1,), ["'x', 'shop'", "[1] values"]),
    ],
)
def test_an_input_that_is_not_as_declared_is_refused_by_name(type_, inputs, named):
    with pytest.raises(DataError) as refused:
        compile_cells(group_by(type_, Aggregation("count", "x"))).collect([0], [inputs])
    for part in ["'g'", *named]:
        assert part in str(refused.value)
