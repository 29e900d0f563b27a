"""A Join of many GroupBys, over several keys, in a training set."""

import pytest

from millpond.features import Aggregation, Derivation, Field, GroupBy, Join, JoinPart
from millpond.spark.features.training_set import training_set
from tests.features import oracle
from tests.spark.features.test_training_set import EVENTS, QUERIES, at, of_key, random_events

pytestmark = pytest.mark.spark

DAY = oracle.DAY
PARTS = 12
OPERATIONS = ("count", "sum", "average", "min", "max")
WINDOWS = ("30m", "6h", "1d", "30d", None)
KEYS = (
    (Field("origin", "string"),),
    (Field("carrier", "string"),),
    (Field("origin", "string"), Field("carrier", "string")),
)


def group_by(number):
    """One of many; no two are alike, and every sixth is a snapshot."""
    operation = OPERATIONS[number % len(OPERATIONS)]
    snapshot = number % 6 == 5
    windows = ("2d", None) if snapshot else (WINDOWS[number % len(WINDOWS)], "7d")
    return GroupBy(
        f"part{number}",
        keys=KEYS[number % len(KEYS)],
        inputs=(Field("delay", "double"), Field("legs", "long")),
        aggregations=(Aggregation(operation, "delay", windows), Aggregation("count", "legs", windows)),
        accuracy="snapshot" if snapshot else "temporal",
    )


WIDE = Join(
    "wide",
    parts=tuple(
        JoinPart(group_by(number), {"airport": "origin"} if number % 3 != 1 else {}) for number in range(PARTS)
    ),
    derivations=(Derivation("legs_seen", "coalesce(part0_legs_count_7d, 0) + coalesce(part10_legs_count_7d, 0)"),),
)


def test_a_join_of_many_parts_answers_each_query_by_the_rule_alone(spark):
    events = random_events(200, seed=3)
    asked = [
        (origin, gate, carrier, 1.5, at(time), f"label {number}")
        for number, (origin, gate, carrier, _, _, time) in enumerate(random_events(30, seed=4))
    ]
    history = spark.createDataFrame(events, EVENTS).repartition(2)
    queries = spark.createDataFrame(asked, QUERIES).repartition(2)
    tables = {part.group_by.name: history for part in WIDE.parts}
    rows = training_set(queries, WIDE, time_column="asked", tables=tables)
    assert rows.columns == [*queries.columns, *WIDE.feature_names, "legs_seen"]
    found = {row.label: row.asDict() for row in rows.collect()}
    assert len(found) == len(asked)
    for origin, _, carrier, _, time, label in asked:
        named = {"origin": origin, "carrier": carrier}
        expected = {}
        for part in WIDE.parts:
            key = tuple(named[field.name] for field in part.group_by.keys)
            time_ms = int(time.timestamp() * 1000)
            until_ms = time_ms // DAY * DAY if part.group_by.accuracy == "snapshot" else time_ms
            answers = oracle.features(part.group_by, of_key(events, part.group_by, key), until_ms)
            expected |= {f"{part.group_by.name}_{name}": value for name, value in answers.items()}
        counts = [expected[f"part{number}_legs_count_7d"] or 0 for number in (0, 10)]
        assert found[label] == found[label] | expected | {"legs_seen": sum(counts)}
