from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import OptionError
from millpond.features.scalar_values import UnfitError
from millpond.features.types import parse_type
from tests.features.values import SCALARS, scalars


@pytest.mark.parametrize("type_", SCALARS)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_values_survive_the_inside_of_cells(type_, data):
    values = data.draw(st.lists(scalars(type_), max_size=5))
    parsed = parse_type(type_)
    inside = parsed.inward(values)
    assert [parsed.outward(value) for value in inside] == values
    assert [parsed.form.checked(value) for value in inside] == list(inside)


@pytest.mark.parametrize("type_", SCALARS)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_the_order_inside_is_the_order_of_the_values(type_, data):
    values = data.draw(st.lists(scalars(type_), max_size=5))
    parsed = parse_type(type_)
    assert [parsed.outward(value) for value in sorted(parsed.inward(values))] == sorted(values)


@pytest.mark.parametrize(
    "type_", [*SCALARS, "array<long>", "array<decimal(9,2)>", "map<string,double>", "map<int,date>"]
)
@given(data=st.data())
@settings(deadline=None, max_examples=20)
def test_arrow_columns_hold_the_values_of_their_type(type_, data):
    parsed = parse_type(type_)
    one = scalars(parsed.scalar.name)
    if parsed.kind == "array":
        one = st.lists(st.none() | one, max_size=3)
    if parsed.kind == "map":
        one = st.dictionaries(scalars(parsed.key.name), st.none() | one, max_size=3)
    values = data.draw(st.lists(one, max_size=3))
    column = pa.array(values, parsed.arrow())
    assert column.to_pylist(maps_as_pydicts="strict") == values
    assert [parsed.outward(value) for value in parsed.inward(values)] == values


@pytest.mark.parametrize(
    ("text", "name", "spark_name"),
    [
        ("long", "long", "bigint"),
        (" int ", "int", "int"),
        ("decimal( 10 , 2 )", "decimal(10,2)", "decimal(10,2)"),
        ("array< long >", "array<long>", "array<bigint>"),
        ("map<string, decimal(5,0)>", "map<string,decimal(5,0)>", "map<string,decimal(5,0)>"),
        (
            "map<string,map<long,array<float>>>",
            "map<string,map<long,array<float>>>",
            "map<string,map<bigint,array<float>>>",
        ),
    ],
)
def test_a_type_has_one_name_and_a_name_in_spark(text, name, spark_name):
    assert (parse_type(text).name, parse_type(text).spark_name) == (name, spark_name)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("integer", ["'integer'", "did you mean 'int'"]),
        ("bigint", ["did you mean 'long'"]),
        ("String", ["did you mean 'string'"]),
        ("decimal(39,0)", ["decimal(39,0)", "1 to 38"]),
        ("decimal(5,6)", ["decimal(5,6)", "s <= p"]),
        ("map<double,long>", ["string, int, long", "map<string,T>"]),
        ("array<>", ["''"]),
        ("list<long>", ["'list<long>'"]),
        (7, ["7", "'long'"]),
    ],
)
def test_a_text_that_is_no_type_is_refused_with_the_nearest(text, named):
    with pytest.raises(OptionError) as refused:
        parse_type(text)
    for part in named:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("boolean", 1, "type int"),
        ("int", True, "type bool"),
        ("int", 1 << 31, "32 bits"),
        ("long", -(1 << 63) - 1, "64 bits"),
        ("long", 1.0, "type float"),
        ("double", float("nan"), "not finite"),
        ("double", float("-inf"), "not finite"),
        ("double", 1 << 64, "64 bits"),
        ("float", 1e39, "32 bits"),
        ("string", "a\ud800", "surrogates"),
        ("string", b"a", "type bytes"),
        ("binary", "a", "type str"),
        ("date", datetime(2024, 1, 1, tzinfo=UTC), "type datetime"),
        ("timestamp", datetime(2024, 1, 1), "time zone"),  # noqa: DTZ001 - a naive one is what is refused
        ("timestamp", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "years 1 and 9999"),
        ("timestamp", date(2024, 1, 1), "type date"),
        ("decimal(5,2)", Decimal("1234.5"), "3 digits before"),
        ("decimal(5,2)", Decimal("0.001"), "2 digits after"),
        ("decimal(5,2)", Decimal("1.001"), "2 digits after"),
        ("decimal(5,2)", Decimal("1E+1000000"), "3 digits before"),
        ("decimal(5,2)", Decimal("1E-1000000"), "2 digits after"),
        ("decimal(5,2)", Decimal("nan"), "not finite"),
        ("decimal(5,2)", 1, "type int"),
        ("array<long>", (1,), "type tuple, not a list"),
        ("array<long>", ["1"], "type str"),
        ("map<string,long>", [("a", 1)], "type list, not a dict"),
        ("map<string,long>", {1: 1}, "type int"),
        ("map<string,long>", {None: 1}, "a key is None"),
        ("map<string,long>", {"a": 1.5}, "type float"),
    ],
)
def test_a_value_that_is_not_of_its_type_is_refused_with_the_reason(type_, value, reason):
    with pytest.raises(UnfitError) as refused:
        parse_type(type_).inward([value])
    assert reason in refused.value.reason


def test_floats_are_rounded_to_32_bits_and_negative_zero_becomes_zero():
    assert parse_type("float").inward([0.1, -0.0, 3]) == [0.10000000149011612, 0.0, 3.0]
    assert str(parse_type("float").inward([-0.0])[0]) == str(parse_type("double").inward([-0.0])[0]) == "0.0"


def test_null_elements_stay_in_arrays_and_maps():
    assert parse_type("array<date>").inward([[None, date(1970, 1, 2)], []]) == [[None, 1], []]
    assert parse_type("map<long,date>").inward([{5: None, 6: date(1970, 1, 2)}]) == [{5: None, 6: 1}]


@pytest.mark.parametrize(
    ("type_", "stored"),
    [
        ("int", 1 << 31),
        ("long", True),
        ("double", 1),
        ("double", float("inf")),
        ("date", 1 << 40),
        ("string", b""),
        ("boolean", 1),
        ("timestamp", 1 << 62),
        ("decimal(5,2)", 100_000),
        ("binary", ""),
    ],
)
def test_stored_values_that_the_type_cannot_hold_are_refused(type_, stored):
    with pytest.raises((TypeError, ValueError)):
        parse_type(type_).form.checked(stored)
