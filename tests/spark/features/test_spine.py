from datetime import UTC, datetime

import pytest

from millpond.errors import DataError, OptionError
from millpond.features import Aggregation, EventSource, Field, GroupBy, Join, JoinPart
from millpond.spark.features.training_set import training_set

pytestmark = pytest.mark.spark

HOUR = 3_600_000
USER = GroupBy("user", keys=(Field("who", "string"),), aggregations=(Aggregation("count", windows=("1h", None)),))
SHOP = GroupBy("shop", keys=(Field("shop", "string"),), aggregations=(Aggregation("count"),))


def events(spark):
    rows = [("ann", 0), ("ann", HOUR), ("bob", HOUR + 1), (None, 0), ("late", 5 * HOUR)]
    return spark.createDataFrame(rows, "who string, time_ms bigint")


def test_each_key_is_asked_for_at_every_step_after_its_first_row(spark):
    between = (datetime(1970, 1, 1, tzinfo=UTC), 4 * HOUR)
    rows = training_set(None, USER, every="1h", between=between, tables={"user": events(spark)}, spark=spark)
    assert rows.columns == ["who", "time_ms", "count_1h", "count"]
    assert sorted(map(tuple, rows.collect())) == [
        ("ann", HOUR, 1, 1),
        ("ann", 2 * HOUR, 1, 2),
        ("ann", 3 * HOUR, None, 2),
        ("bob", 2 * HOUR, 1, 1),
        ("bob", 3 * HOUR, None, 1),
    ]


def test_the_keys_of_a_join_are_those_of_its_left_source(spark):
    visits = spark.createDataFrame([("ann", "s", 5)], "customer string, shop string, time_ms bigint")
    join = Join("j", parts=(JoinPart(USER, {"customer": "who"}), JoinPart(SHOP)), left=EventSource("visits"))
    tables = {"visits": visits, "user": events(spark), "shop": visits}
    rows = training_set(None, join, every="30m", between=(0, HOUR), tables=tables, spark=spark)
    assert [tuple(row) for row in rows.collect()] == [("ann", "s", HOUR // 2, 1, 1, 1)]
    with pytest.raises(OptionError, match="left source"):
        training_set(None, Join("j", parts=join.parts), every="30m", between=(0, HOUR), tables=tables, spark=spark)


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({}, OptionError, "every="),
        ({"every": "1h"}, OptionError, "between="),
        ({"every": "hourly", "between": (0, 1)}, OptionError, "hourly"),
        ({"every": "1h", "between": (1, 1)}, OptionError, "before the end"),
        ({"every": "1h", "between": (datetime(2024, 1, 1), 1)}, OptionError, "time zone"),  # noqa: DTZ001 - the fault
        ({"every": "1h", "between": ("2024", 1)}, DataError, "2024"),
    ],
)
def test_a_spine_that_cannot_be_made_is_refused(spark, options, error, named):
    with pytest.raises(error, match=named):
        training_set(None, USER, tables={"user": events(spark)}, spark=spark, **options)


def test_context_fields_need_queries(spark):
    join = Join("j", parts=(JoinPart(USER),), context=(Field("amount", "double"),))
    with pytest.raises(OptionError, match="amount"):
        training_set(None, join, every="1h", between=(0, 1), tables={"user": events(spark)}, spark=spark)


def test_a_step_beside_queries_is_refused(spark):
    with pytest.raises(OptionError, match="every"):
        training_set(events(spark), USER, every="1h", tables={"user": events(spark)})


def test_a_key_that_has_no_row_with_a_time_is_not_asked_for(spark):
    """Nor does the name of a key matter."""
    user = GroupBy("user", keys=(Field("first_ms", "string"),), aggregations=(Aggregation("count"),))
    rows = spark.createDataFrame([("ann", 0), ("bob", None)], "first_ms string, time_ms bigint")
    made = training_set(None, user, every="1h", between=(0, 2 * HOUR), tables={"user": rows}, spark=spark)
    assert [tuple(row) for row in made.collect()] == [("ann", HOUR, 1)]
