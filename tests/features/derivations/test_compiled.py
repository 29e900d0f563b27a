"""Derivations over a row: reasons, inputs, order, pickling, and what they cost to import."""

import datetime as dt
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

import millpond
from millpond.errors import MissingDependencyError
from millpond.features.derivations import CompiledDerivations, Derivation


def compiled(columns, **expressions):
    return CompiledDerivations([Derivation(name, text) for name, text in expressions.items()], columns)


def test_a_derivation_may_use_others_in_any_order():
    ready = compiled({"a": "int", "b": "int"}, late="early * 2", early="a + 1", other="b")
    assert ready.apply({"a": 1, "b": 5}) == ({"late": 4, "early": 2, "other": 5}, {})
    assert ready.inputs == {"late": ("a",), "early": ("a",), "other": ("b",)}
    names = [name for name, _ in ready.spark_expressions()]
    assert names.index("early") < names.index("late")


def test_a_failing_derivation_leaves_the_others_alone():
    ready = compiled({"a": "int"}, bad="1 / a", good="a + 1", after="bad + 1")
    assert ready.apply({"a": 0}) == ({"bad": None, "good": 1, "after": None}, {"bad": "1 / a: division by zero"})


def test_a_missing_value_is_a_reason_of_those_that_read_it():
    ready = compiled({"a": "int", "b": "int"}, x="a", y="b")
    assert ready.apply({"b": 1}) == ({"x": None, "y": 1}, {"x": "the row has no value for column 'a'"})


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("double", "1.5"),
        ("double", True),
        ("int", 1.5),
        ("string", 1),
        ("boolean", 1),
        ("timestamp", dt.datetime(2024, 1, 1)),  # noqa: DTZ001 - what is refused
        ("timestamp", "2024-01-01"),
        ("decimal(3,1)", Decimal(1000)),
        ("decimal(3,1)", 1.5),
        ("array<int>", "abc"),
    ],
)
def test_a_value_of_another_type_is_a_reason(type_, value):
    values, reasons = compiled({"a": type_}, v="a").apply({"a": value})
    assert values == {"v": None}
    assert reasons["v"].startswith(f"column 'a' is {type_}: expected")


@pytest.mark.parametrize(
    ("type_", "value", "taken"),
    [
        ("double", 3, 3.0),
        ("decimal(5,2)", Decimal("1.5"), Decimal("1.50")),
        ("decimal(5,2)", 2, Decimal("2.00")),
        ("array<int>", (1, 2), [1, 2]),
        (
            "timestamp",
            dt.datetime(2024, 1, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
            dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        ),
    ],
)
def test_a_value_that_fits_the_type_is_taken(type_, value, taken):
    values, reasons = compiled({"a": type_}, v="a").apply({"a": value})
    assert reasons == {}
    assert str(values["v"]) == str(taken)


def test_a_pickled_copy_computes_the_same():
    ready = compiled({"a": "double"}, v="sqrt(a)")
    copy = pickle.loads(pickle.dumps(ready))
    assert copy.apply({"a": 4.0}) == ({"v": 2.0}, {})
    assert copy.spark_expressions() == ready.spark_expressions()


def test_names_of_any_letters_are_quoted():
    ready = compiled({"a b": "int", "tick`s": "int"}, v="`a b` + `tick``s`")
    assert ready.apply({"a b": 1, "tick`s": 2}) == ({"v": 3}, {})
    assert ready.spark_expressions() == [("v", "try_add(`a b`, `tick``s`)")]


def test_no_derivations_derive_nothing():
    assert CompiledDerivations([], {"a": "int"}).apply({"a": 1}) == ({}, {})


def test_result_types_are_named_as_columns_are():
    ready = compiled(
        {"i": "int", "p": "decimal(10,2)"}, a="i / 2", b="i + 1L", c="p * 2", d="split('a', ',')", e="i > 1"
    )
    assert list(ready.result_types.values()) == ["double", "long", "decimal(12,2)", "array<string>", "boolean"]


def test_importing_features_does_not_import_sqlglot():
    code = "import sys, millpond.features.derivations; assert 'sqlglot' not in sys.modules"
    source = str(Path(millpond.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": source})


def test_without_sqlglot_the_error_has_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "millpond\[features\]"'):
        compiled({}, v="1")
