import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import OptionError
from millpond.features import Aggregation, Field
from millpond.features.compiled_cells import compile_cells
from millpond.features.definitions import GroupBy
from millpond.features.operations import OPERATIONS, check_input
from millpond.features.types import parse_type
from tests.features import operation_oracle
from tests.features.values import SCALARS, scalars

DELETING = {"average", "count", "histogram", "kurtosis", "skew", "stddev", "sum", "variance"}
APPROXIMATE = {"approx_histogram_k", "approx_percentile", "approx_unique_count"}
PARAMETERS = {"k": operation_oracle.K, "percentiles": operation_oracle.PERCENTILES}


def aggregation(name, **shape):
    parameter = OPERATIONS[name].parameter
    return Aggregation(name, "x", **({parameter: PARAMETERS[parameter]} if parameter else {}), **shape)


def compiled(name, type_, **shape):
    inputs = (Field("x", type_), Field("b", "string"))
    return compile_cells(GroupBy("g", (Field("k", "string"),), inputs, (aggregation(name, **shape),)))


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_says_whether_it_deletes_and_is_exact(name):
    (feature,) = compiled(name, "long").features
    assert (feature.deletes, feature.exact) == (name in DELETING, name not in APPROXIMATE)


@pytest.mark.parametrize("name", OPERATIONS)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_every_answer_fits_the_type_that_the_operation_states(name, data):
    type_ = data.draw(st.sampled_from([type_ for type_ in SCALARS if parse_type(type_).kind in OPERATIONS[name].types]))
    values = data.draw(st.lists(scalars(type_), min_size=1, max_size=3))
    if name == "sum" and type_ in ("long", "decimal(38,10)"):
        values = values[:1]  # a typed column has 64 bits, or 38 digits
    shape = data.draw(st.sampled_from([{}, {"buckets": ("b",)}]))
    cells = compiled(name, type_, **shape)
    ir = cells.collect(list(range(len(values))), [(value, "b1") for value in values])
    (feature,) = cells.features
    answer = feature.finish(*[ir[position] for position in feature.positions])
    column = pa.array([answer], parse_type(feature.type).arrow())
    assert pairs(column.to_pylist(maps_as_pydicts="strict")[0]) == pairs(answer)


def pairs(value):
    """A value whose maps are lists of pairs: their order counts too."""
    if isinstance(value, dict):
        return [(key, pairs(one)) for key, one in value.items()]
    return [pairs(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("name", "type_", "result"),
    [
        ("sum", "int", "long"),
        ("sum", "boolean", "long"),
        ("sum", "float", "double"),
        ("sum", "decimal(9,2)", "decimal(19,2)"),
        ("sum", "decimal(38,10)", "decimal(38,10)"),
        ("sum", "map<int,decimal(9,2)>", "map<int,decimal(19,2)>"),
        ("average", "decimal(9,2)", "double"),
        ("max", "array<date>", "date"),
        ("top_k", "string", "array<string>"),
        ("histogram", "long", "map<long,long>"),
        ("histogram", "map<string,string>", "map<string,map<string,long>>"),
        ("approx_percentile", "int", "array<double>"),
    ],
)
def test_the_type_of_an_answer_follows_from_the_type_of_its_column(name, type_, result):
    assert compiled(name, type_).features[0].type == result


@pytest.mark.parametrize(
    ("name", "type_", "named"),
    [
        ("average", "string", ["'average'", "'x'", "numbers", "decimal", "'string'", "max"]),
        ("variance", "array<date>", ["'variance'", "'array<date>'", "double"]),
        ("histogram", "double", ["'histogram'", "string, int, long", "'double'", "approx_percentile"]),
        ("approx_percentile", "boolean", ["int, long, float", "'boolean'"]),
    ],
)
def test_a_column_of_a_type_that_does_not_fit_is_refused_with_those_that_do(name, type_, named):
    with pytest.raises(OptionError) as refused:
        check_input(aggregation(name), Field("x", type_))
    for part in named:
        assert part in str(refused.value)


def test_element_wise_needs_an_array():
    with pytest.raises(OptionError, match="element_wise 'sum' of column 'x' needs an array"):
        check_input(aggregation("sum", element_wise=True), Field("x", "map<string,long>"))
