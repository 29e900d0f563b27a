import dataclasses

import pytest

from millpond.errors import OptionError
from millpond.features import Aggregation, Field, GroupBy, compile_group_by

KEYS = (Field("origin", "string"),)
INPUTS = (Field("dep_delay", "double"), Field("dest", "string"))


def test_feature_names_are_input_operation_window():
    group_by = GroupBy(
        "route",
        KEYS,
        INPUTS,
        (
            Aggregation("average", "dep_delay", ("1h", "7d", None)),
            Aggregation("count", windows=("1h", None)),
            Aggregation("count", "dest"),
        ),
    )
    assert group_by.feature_names == (
        "dep_delay_average_1h",
        "dep_delay_average_7d",
        "dep_delay_average",
        "count_1h",
        "count",
        "dest_count",
    )


def test_lists_are_taken_and_kept_as_tuples():
    group_by = GroupBy("route", list(KEYS), list(INPUTS), [Aggregation("count", windows=["1h"])])
    assert group_by == GroupBy("route", KEYS, INPUTS, (Aggregation("count", windows=("1h",)),))
    assert hash(group_by) == hash(dataclasses.replace(group_by))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Field("", "string"), ["name"]),
        (lambda: Field("origin", "String"), ["'origin'", "'String'", "did you mean 'string'"]),
        (lambda: Field("n", "integer"), ["'n'", "'integer'", "did you mean"]),
        (lambda: Aggregation("avg", "dep_delay"), ["'avg'", "did you mean 'average'"]),
        (lambda: Aggregation("sum"), ["'sum'", "needs a column"]),
        (lambda: Aggregation("sum", "x", "1h"), ["'x_sum'", "('1h',)"]),
        (lambda: Aggregation("sum", "x", ()), ["'x_sum'", "no windows"]),
        (lambda: Aggregation("sum", "x", ("1w",)), ["'1w'", "'7d'"]),
        (lambda: Aggregation("sum", "x", ("0d",)), ["'0d'", "'1d'"]),
        (lambda: Aggregation("sum", "x", ("30 days",)), ["'30 days'", "'30d'"]),
        (lambda: Aggregation("sum", "x", (7,)), ["7", "'7h'"]),
        (lambda: GroupBy("my route", KEYS, INPUTS, (Aggregation("count"),)), ["'my route'", "'my_route'"]),
        (lambda: GroupBy("a.b", KEYS, INPUTS, (Aggregation("count"),)), ["'a.b'", "'a_b'"]),
        (lambda: GroupBy("2", KEYS, INPUTS, (Aggregation("count"),)), ["'2'", "'group_2'"]),
        (lambda: GroupBy("route", (), INPUTS, (Aggregation("count"),)), ["'route'", "no keys"]),
        (lambda: GroupBy("route", KEYS, INPUTS, ()), ["'route'", "no aggregations"]),
        (lambda: GroupBy("route", ("origin",), INPUTS, (Aggregation("count"),)), ["'route'", "keys", "'origin'"]),
        (lambda: GroupBy("route", "origin", INPUTS, (Aggregation("count"),)), ["'route'", "keys", "'origin'"]),
        (lambda: GroupBy("route", KEYS * 2, INPUTS, (Aggregation("count"),)), ["'route'", "'origin'", "twice"]),
        (lambda: GroupBy("route", KEYS, INPUTS * 2, (Aggregation("count"),)), ["'dep_delay'", "twice"]),
        (lambda: GroupBy("route", KEYS, INPUTS, (Aggregation("count"),) * 2), ["feature 'count'", "twice"]),
        (
            lambda: GroupBy("route", KEYS, INPUTS, (Aggregation("sum", "delay"),)),
            ["'route'", "'delay'", "did you mean 'dep_delay'"],
        ),
        (
            lambda: GroupBy("route", KEYS, (), (Aggregation("sum", "x"),)),
            ["'x'", "not among its inputs; none are declared"],
        ),
        (lambda: GroupBy("route", KEYS, INPUTS, (Aggregation("average", "dest"),)), ["'route'", "'dest'", "numbers"]),
    ],
)
def test_a_wrong_definition_is_refused_with_its_name_and_the_nearest_right_one(make, named):
    with pytest.raises(OptionError) as refused:
        make()
    for part in named:
        assert part in str(refused.value)


def test_the_definition_hash_changes_with_the_definition_and_only_with_it():
    def digest(**changed):
        definition = {"name": "route", "keys": KEYS, "inputs": INPUTS, "aggregations": (Aggregation("count"),)}
        return compile_group_by(GroupBy(**(definition | changed))).definition_hash

    assert digest() == digest()
    others = [
        digest(name="routes"),
        digest(keys=(Field("origin", "long"),)),
        digest(inputs=INPUTS[::-1]),
        digest(aggregations=(Aggregation("count", windows=("1h",)),)),
    ]
    assert len({digest(), *others}) == 5
