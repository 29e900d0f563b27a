"""What expressions are worth: each value is one that Spark gives, see tests/spark/test_derivations.py."""

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.errors import OptionError
from millpond.features.derivations import CompiledDerivations, Derivation
from tests.features.derivations.known_values import FAILING, KNOWN
from tests.features.derivations.random_expressions import COLUMNS, Expressions, random_row


def value_and_reason(expression, **row):
    columns = {name: type_ for name, (type_, _) in row.items()}
    values, reasons = CompiledDerivations([Derivation("v", expression)], columns).apply(
        {name: value for name, (_, value) in row.items()}
    )
    return values["v"], reasons.get("v")


@pytest.mark.parametrize(("expression", "expected"), KNOWN)
def test_an_expression_has_the_value_that_spark_gives(expression, expected):
    value, reason = value_and_reason(expression)
    assert reason is None
    assert type(value) is type(expected)
    assert value == expected or (math.isnan(value) and math.isnan(expected))


@pytest.mark.parametrize(("expression", "reason"), FAILING)
def test_an_operation_that_fails_is_null_and_says_why(expression, reason):
    assert value_and_reason(expression) == (None, reason)


def test_a_failure_that_is_caught_has_no_reason():
    assert value_and_reason("coalesce(1 / 0, 2)") == (2.0, None)


def test_only_the_chosen_branch_is_evaluated():
    assert value_and_reason("CASE WHEN a = 0 THEN NULL ELSE 1 / a END", a=("int", 0)) == (None, None)


def test_null_without_a_failure_has_no_reason():
    assert value_and_reason("a / b", a=("int", None), b=("int", 0)) == (None, None)


def test_floats_are_rounded_to_32_bits():
    assert value_and_reason("f + f", f=("float", 0.10000000149011612)) == (0.20000000298023224, None)


def test_a_missing_key_of_a_map_is_null():
    assert value_and_reason("m['b']", m=("map<string,double>", {"a": 1.0})) == (None, None)


def test_a_subject_of_case_is_evaluated_once():
    ready = CompiledDerivations([Derivation("v", "CASE a + 1 WHEN 1 THEN 'x' WHEN 2 THEN 'y' END")], {"a": "int"})
    assert ready.source.count("= c0 + ") == 1
    assert ready.apply({"a": 1}) == ({"v": "y"}, {})


def test_a_long_case_and_a_long_sum_compile():
    arms = " ".join(f"WHEN a = {number} THEN {number * 2}" for number in range(150))
    assert value_and_reason(f"CASE {arms} END", a=("int", 149)) == (298, None)
    assert value_and_reason(" + ".join(["a"] * 100), a=("int", 2)) == (200, None)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_drawn_expression_gives_a_value_of_its_type_or_a_reason_of_its_own(seed):
    random = Random(seed)
    text = Expressions(random).any(3)
    try:
        ready = CompiledDerivations([Derivation("v", text)], COLUMNS)
    except OptionError:
        return  # two decimals without a common type
    classes = {"int": int, "long": int, "float": float, "double": float, "boolean": bool, "string": str, "array": list}
    kind = ready.result_types["v"].partition("<")[0]
    for _ in range(20):
        values, reasons = ready.apply(random_row(random))
        assert values["v"] is None or "v" not in reasons
        assert "Error" not in reasons.get("v", "")
        if values["v"] is not None and kind in classes:
            assert type(values["v"]) is classes[kind]
