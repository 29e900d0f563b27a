"""What is refused when derivations are compiled, and what the message says."""

import pytest

from millpond.errors import OptionError
from millpond.features.derivations import CompiledDerivations, Derivation

COLUMNS = {
    "price": "double",
    "count": "long",
    "title": "string",
    "day": "date",
    "raw": "binary",
    "exact": "decimal(38,18)",
    "tags": "array<string>",
    "scores": "map<string,double>",
}


def refusal(*expressions, columns=COLUMNS):
    with pytest.raises(OptionError) as caught:
        CompiledDerivations([Derivation(f"v{at}", text) for at, text in enumerate(expressions)], columns)
    return str(caught.value)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("prise + 1", "line 1, column 1: prise: there is no column 'prise'; did you mean 'price'?"),
        ("count +\n  Price", "line 2, column 3: Price: there is no column 'Price'; did you mean 'price'?"),
        ("1 + uper(title)", "line 1, column 5: UPER(title): the function uper is outside the subset"),
        ("uper(title)", "did you mean 'upper'?"),
        ("title + 1", "+ needs numbers, got string"),
        ("title = 1", "= needs values of one type, got string and int; write a CAST"),
        ("upper(price)", "argument s: expected string, got double; write CAST(… AS STRING) if that is meant"),
        ("price AND true", "AND needs a condition, got double"),
        ("CASE WHEN true THEN 1 ELSE 'a' END", "CASE needs values of one type, got int and string"),
        ("coalesce(exact, 12345678901234567890123.5)", "coalesce needs values of one type"),
        ("CAST(count AS DECIMAL(38,0)) % exact", "cast them to fewer digits"),
        ("abs(exact)", "exactly up to 34 digits"),
        ("CAST(day AS INT)", "date cannot be cast to int"),
        ("day > '2023-02-29'", "'2023-02-29' is not a date"),
        ("TIMESTAMP'noon'", "'noon' is not a timestamp"),
        ("exact * 5L", "beside a decimal, write 5 without L or BIGINT"),
        ("CAST(price AS struct<a:int>)", "type 'struct<a: int>' is none of boolean"),
        ("CAST(CAST(price AS FLOAT) AS STRING)", "cast it to DOUBLE first"),
        ("tags[count]", "expected int, got long"),
        ("price[0]", "[ ] needs an array or a map, got double"),
        ("tags = tags", "= cannot compare array<string>"),
        ("upper()", "upper(s) takes 1 argument(s), got 0"),
        ("price = count = 1", "put parentheses around a condition that is compared"),
        ("price = count IN (1)", "put parentheses around a condition"),
        ("title LIKE title", "argument pattern must be written as a constant string"),
        ("title LIKE 'a\\\\b'", "after the escape"),
        ("split(title, '|')", "use split_part"),
        ("repeat(title, 1000000000)", "argument times must be 0 to 10000"),
        ("date_trunc('eon', day)", "argument unit must be one of"),
        ("round(price, count)", "argument places must be written as a constant int"),
        ("other.price", "a column is one name, without a table"),
        ("sum(price) OVER ()", "WINDOW is outside the subset"),
        ("sum(price)", "written in: derivations work on one row; aggregate in a GroupBy"),
        ("COUNT(price)", "the function count is outside the subset of SQL that derivations are written in: derivat"),
        ("(SELECT 1)", "a query is outside the subset"),
        ("price IN (SELECT 1)", "IN takes a list of values"),
        ("title RLIKE 'a'", "REGEXPLIKE is outside the subset"),
        ("day + INTERVAL 1 DAY", "INTERVAL is outside the subset"),
        ("'it''s'", "write \\'"),
        ("price; count", "expected one expression, found 2"),
        ("price +", "line 1, column 7"),
        ("'open", "not SQL"),
        ("1e3+1.5", "put spaces around operators"),
        ("NULL", "it is always null"),
        ("(" * 3000 + "1" + ")" * 3000, "too deeply nested"),
    ],
)
def test_what_is_outside_the_subset_is_refused_with_its_place(expression, said):
    assert said in refusal(expression)


def test_all_faults_are_reported_together():
    said = refusal("uper(title) = prise", "count + title", "price +")
    assert [line.split(":")[0] for line in said.splitlines()] == [
        "derivation 'v2'",
        "derivation 'v0'",
        "derivation 'v0'",
        "derivation 'v1'",
    ]


def test_a_derivation_that_uses_a_faulty_one_is_not_blamed():
    assert refusal("nothing", "v0 + 1").count("derivation") == 1


def test_a_cycle_is_refused():
    assert "in a cycle: v0 -> v1 -> v0" in refusal("v1 + 1", "v0 + 1")
    assert "in a cycle: v0 -> v0" in refusal("v0 + 1")


def test_names_that_are_taken_are_refused():
    assert "its name is taken by 'column v0'" in refusal("1", columns={"v0": "int"})
    with pytest.raises(OptionError, match="taken by 'derivation x'"):
        CompiledDerivations([Derivation("x", "1"), Derivation("X", "2")], {})


def test_columns_that_differ_in_capital_letters_only_are_refused():
    assert "differs from 'column a' in capital letters only" in refusal("a", columns={"a": "int", "A": "int"})


def test_an_unknown_type_of_a_column_is_refused():
    assert "column 'a': type 'number' is none of boolean" in refusal("a", columns={"a": "number"})


@pytest.mark.parametrize(("name", "expression"), [("", "1"), ("a", ""), ("a", None)])
def test_an_empty_definition_is_refused(name, expression):
    with pytest.raises(OptionError):
        Derivation(name, expression)
