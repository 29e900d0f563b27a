"""Logged answers, compared with the training set, and taken into it."""

from dataclasses import replace

import pytest
from pyspark.sql import functions as F

from millpond.errors import DataError
from millpond.features import Aggregation, Derivation, EventSource, Field, GroupBy, Join, JoinPart
from millpond.spark.features.check import (
    ARRIVED_LATER,
    DIFFERENT,
    EQUAL,
    NOT_KNOWN,
    FeatureCheck,
    _exact_features,
    check,
)
from millpond.spark.features.training_set import training_set

pytestmark = pytest.mark.spark

DAY, HOUR = 86_400_000, 3_600_000
B = 16_000 * DAY
SPENT = GroupBy(
    "spent",
    keys=(Field("user", "string"),),
    inputs=(Field("price", "double"), Field("shop", "string")),
    aggregations=(
        Aggregation("sum", "price", ("1d",)),
        Aggregation("count", "price", ("1d",), buckets=("shop",)),
        Aggregation("approx_unique_count", "shop"),
    ),
    sources=(EventSource("purchases", arrival_time_column="arrived"),),
)
JOIN = Join(
    "score",
    parts=(JoinPart(SPENT, {"customer": "user"}, prefix=""),),
    context=(Field("amount", "double"),),
    derivations=(Derivation("share", "amount / price_sum_1d"),),
)
PURCHASES = "user string, price double, shop string, time_ms bigint, arrived bigint"
FEATURES = ["price_sum_1d", "price_count_1d_by_shop", "shop_approx_unique_count", "share"]


@pytest.fixture
def purchases(spark):
    rows = [
        ("ann", 1.0, "x", B - HOUR, B - HOUR + 1),
        ("ann", 2.0, "y", B + HOUR, B + HOUR + 1),
        ("bob", 4.0, "x", B + HOUR, B + 5 * HOUR),  # seen by a stream only after five hours
        ("cid", 1.0, "x", B - HOUR, B - HOUR),
        ("cid", 3.0, "x", B - HOUR, B + HOUR),  # came after midnight: left to the next upload
    ]
    return spark.createDataFrame(rows, PURCHASES)


def logged(spark, answers):
    """`answers` are (customer, amount, time, sum, counts, shops, share, unavailable)."""
    rows = [("score", *answer) for answer in answers] + [("another", "ann", 1.0, 0, None, None, None, None, [])]
    return spark.createDataFrame(
        rows,
        "name string, customer string, context_amount double, time_ms bigint, price_sum_1d double, "
        "price_count_1d_by_shop map<string,bigint>, shop_approx_unique_count bigint, share double, "
        "unavailable array<string>",
    )


ANSWERS = [
    ("ann", 6.0, B + 2 * HOUR, 3.0, {"y": 1, "x": 1}, 2, 2.0, []),
    ("bob", 6.0, B + 2 * HOUR, None, None, None, None, []),
    ("cid", 6.0, B + 2 * HOUR, 1.0, {"x": 1}, 1, 6.0, []),
    ("ann", 6.0, B + 3 * HOUR, 9.0, {"x": 1, "y": 1}, 2, None, ["share"]),
]


def test_each_feature_of_each_answer_falls_into_one_class(spark, purchases):
    found = check(logged(spark, ANSWERS).repartition(3), JOIN, tables={"purchases": purchases})
    assert found.answers == 4
    assert found.features == {
        "price_sum_1d": FeatureCheck(exact=True, equal=1, arrived_later=2, different=1, unavailable=0),
        "price_count_1d_by_shop": FeatureCheck(exact=True, equal=2, arrived_later=2, different=0, unavailable=0),
        "shop_approx_unique_count": FeatureCheck(exact=False, equal=3, arrived_later=1, different=0, unavailable=0),
        "share": FeatureCheck(exact=True, equal=1, arrived_later=2, different=0, unavailable=1),
    }
    assert not found.agrees
    shown = {(one.feature, one.kind): one for one in found.examples}
    wrong = shown["price_sum_1d", DIFFERENT]
    assert (wrong.time_ms, wrong.logged, wrong.computed) == (B + 3 * HOUR, "9.0", "3.0")
    assert wrong.question == '{"customer":"ann","amount":6.0}'
    late = shown["share", ARRIVED_LATER]
    assert late.logged in ("null", "6.0")
    assert {kind for _, kind in shown} == {EQUAL, ARRIVED_LATER, DIFFERENT, NOT_KNOWN}
    assert found.rows.where(F.col("kind") == DIFFERENT).count() == 1


def test_without_arrival_times_late_events_are_differences_like_others(spark, purchases):
    source = EventSource("purchases")
    of_source = GroupBy("spent", SPENT.keys, SPENT.inputs, SPENT.aggregations, sources=(source,))
    found = check(
        logged(spark, ANSWERS[1:2]),
        Join(
            "score",
            (JoinPart(of_source, {"customer": "user"}, ""),),
            derivations=JOIN.derivations,
            context=JOIN.context,
        ),
        tables={"purchases": purchases},
        examples=0,
    )
    assert found.features["price_sum_1d"].different == 1
    assert found.examples == ()


def test_answers_that_agree_say_so(spark, purchases):
    assert check(logged(spark, ANSWERS[:3]), JOIN, tables={"purchases": purchases}).agrees


def test_a_log_without_a_feature_is_refused_by_name(spark, purchases):
    with pytest.raises(DataError, match=r"'score'.*'share'"):
        check(logged(spark, ANSWERS).drop("share"), JOIN, tables={"purchases": purchases})


def test_logged_answers_are_taken_instead_of_computed_ones(spark, purchases):
    queries = spark.createDataFrame(
        [
            ("ann", 6.0, B + 2 * HOUR, "a"),
            ("ann", 6.0, B + 3 * HOUR, "b"),
            ("ann", 7.0, B + 2 * HOUR, "c"),
            (None, 7.0, B, "d"),
        ],
        "customer string, amount double, time_ms bigint, label string",
    )
    # The first was logged, twice; the second with a feature that was not known; the third with another context.
    log = logged(
        spark, [(*ANSWERS[0][:3], 100.0, *ANSWERS[0][4:]), (*ANSWERS[0][:3], 200.0, *ANSWERS[0][4:]), ANSWERS[3]]
    )
    rows = training_set(queries, JOIN, tables={"purchases": purchases}, bootstrap=log)
    assert rows.columns == [*queries.columns, *FEATURES]
    found = {row.label: row for row in rows.collect()}
    assert {label: (row.price_sum_1d, row.share) for label, row in found.items()} == {
        "a": (100.0, 2.0),
        "b": (3.0, 2.0),
        "c": (3.0, 7.0 / 3.0),
        "d": (None, None),
    }


def test_a_derivation_of_a_sketch_is_not_exact():
    spent = replace(SPENT, derivations=(Derivation("shops", "shop_approx_unique_count + 1"), Derivation("a", "user")))
    derived = (Derivation("many", "shops > 2"), Derivation("share", "amount / price_sum_1d"))
    found = _exact_features(replace(JOIN, parts=(JoinPart(spent, {"customer": "user"}, ""),), derivations=derived))
    assert {name for name, is_exact in found.items() if not is_exact} == {"shop_approx_unique_count", "shops", "many"}
    assert {"share", "a"} <= set(found)


def test_keys_and_features_may_have_the_names_of_the_logs_own_columns(spark):
    """The fetcher's log gives such a column a prefix."""
    named = GroupBy(
        "named",
        keys=(Field("name", "string"),),
        inputs=(Field("unavailable", "string"), Field("time_ms", "long"), Field("Batch_end_ms", "string")),
        accuracy="snapshot",
    )
    tables = {
        "named": spark.createDataFrame(
            [("a", "yes", B - 5, "x")], "name string, unavailable string, time_ms long, Batch_end_ms string"
        )
    }
    log = spark.createDataFrame(
        [("named", "a", B, "yes", B - 5, "x", B, []), ("named", "a", B + 1, "no", B - 5, "x", B, [])],
        "name string, key_name string, time_ms long, feature_unavailable string, feature_time_ms long, "
        "feature_Batch_end_ms string, batch_end_ms long, unavailable array<string>",
    )
    found = check(log, named, tables=tables)
    counts = {name: (one.equal, one.different) for name, one in found.features.items()}
    assert counts == {"unavailable": (1, 1), "time_ms": (2, 0), "Batch_end_ms": (2, 0)}
    queries = spark.createDataFrame([("a", B, 7), ("b", B, 8)], "name string, asked long, label int")
    logged_b = spark.createDataFrame([("named", "b", B, "log", 1, "log", B, [])], log.schema)
    rows = training_set(queries, named, time_column="asked", tables=tables, bootstrap=logged_b).collect()
    assert sorted((row.label, row.unavailable, row.time_ms) for row in rows) == [(7, "yes", B - 5), (8, "log", 1)]


def test_answers_are_found_by_context_of_every_type_beside_any_columns(spark, purchases):
    join = replace(
        JOIN, context=(Field("amount", "double"), Field("cart", "map<string,long>"), Field("seen", "array<string>"))
    )
    answers = [({"x": 1, "y": 2}, ["a"], 100.0), ({"x": 1}, ["a", "b"], 200.0), (None, None, 300.0)]
    log = spark.createDataFrame(
        [("score", "ann", 1.0, cart, seen, B, price, None, None, None, []) for cart, seen, price in answers],
        "name string, customer string, context_amount double, context_cart map<string,bigint>, "
        "context_seen array<string>, time_ms bigint, price_sum_1d double, "
        "price_count_1d_by_shop map<string,bigint>, shop_approx_unique_count bigint, share double, "
        "unavailable array<string>",
    )
    asked = [({"y": 2, "x": 1}, ["a"]), ({"x": 1}, ["a", "b"]), (None, None), ({"x": 2}, ["a"])]
    queries = spark.createDataFrame(
        [("ann", 1.0, cart, seen, B, f"question {number}") for number, (cart, seen) in enumerate(asked)],
        "customer string, amount double, cart map<string,bigint>, seen array<string>, time_ms bigint, question string",
    )
    rows = training_set(queries, join, tables={"purchases": purchases}, bootstrap=log)
    assert rows.columns == [*queries.columns, *FEATURES]
    found = {row.question: row.price_sum_1d for row in rows.collect()}
    assert found == {"question 0": 100.0, "question 1": 200.0, "question 2": 300.0, "question 3": 1.0}
