"""A suggestion is the name that was meant, or none; every refusal of an unknown name uses the same rule."""

import re
from pathlib import Path

import pytest

from millpond import OptionError
from millpond.features.operations import OPERATION_ALIASES, OPERATIONS
from millpond.features.types import TYPE_ALIASES, parse_type
from millpond.suggestions import did_you_mean, hint, suggestion

SOURCE = Path(__file__).parents[1] / "src"


@pytest.mark.parametrize(
    ("given", "meant"),
    [("INT64", "long"), ("text", "string"), ("float64", "double"), ("varchar", "string"), ("datetime", "timestamp")],
)
def test_a_type_of_another_system_suggests_the_type_that_holds_its_values(given, meant):
    with pytest.raises(OptionError, match=f"did you mean '{meant}'"):
        parse_type(given)


def test_int_suggests_long_where_there_is_no_int():
    assert suggestion("int", ["boolean", "double", "long", "string"], TYPE_ALIASES) == "long"
    assert suggestion("integer", ["int", "long", "string"], TYPE_ALIASES) == "int"


@pytest.mark.parametrize(
    ("given", "meant"), [("mean", "average"), ("distinct", "unique_count"), ("std", "stddev"), ("summ", "sum")]
)
def test_an_operation_is_suggested_by_its_name_elsewhere_or_by_its_letters(given, meant):
    assert suggestion(given, OPERATIONS, OPERATION_ALIASES) == meant


@pytest.mark.parametrize(("given", "valid"), [("stddev", ["count", "sum"]), ("json", ["long", "date"]), ("x", ["y"])])
def test_what_is_not_near_is_not_suggested(given, valid):
    assert suggestion(given, valid) is None
    assert did_you_mean(given, valid) == ""
    assert hint(given, valid) == f"known are {', '.join(valid)}"


def test_a_name_in_other_letter_case_goes_before_a_similar_one():
    assert suggestion("PRICE", ["prices", "Price"]) == "Price"


def test_a_long_list_of_valid_names_is_cut():
    assert hint("x", [f"name {number}" for number in range(25)]).endswith("name 19 and 5 more")


def test_no_other_module_compares_names():
    users = [path.name for path in SOURCE.rglob("*.py") if re.search(r"difflib", path.read_text())]
    assert users == ["suggestions.py"]


def test_every_alias_stands_for_a_valid_name():
    assert {name for names in OPERATION_ALIASES.values() for name in names} <= set(OPERATIONS)
    for names in TYPE_ALIASES.values():
        assert [parse_type(name).name for name in names] == list(names)
