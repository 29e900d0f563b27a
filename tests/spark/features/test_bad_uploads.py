"""What goes wrong from one day to the next: the former upload stays served, and the error says why."""

import pytest
from pyspark.sql.functions import col, lit

from millpond.errors import DataError, OptionError
from millpond.features import DAY_MS, HOUR_MS, Aggregation, Field, GroupBy
from millpond.kv import LmdbStore
from millpond.serving import Fetcher
from millpond.spark.features.upload import read_serving_info, upload

B = 16_000 * DAY_MS
ROUTE = GroupBy(
    "route",
    (Field("origin", "string"),),
    (Field("delay", "double"), Field("tail", "string")),
    (Aggregation("sum", "delay", ("7d", None)), Aggregation("count", windows=("1d",), buckets=("tail",))),
)
SCHEMA = "origin string, delay double, tail string, time_ms long"


@pytest.fixture
def yesterday(spark, tmp_path):
    events = spark.createDataFrame([("JFK", 1.5, "N1", B - 1)], SCHEMA)
    store = LmdbStore(tmp_path / "kv")
    info = upload(ROUTE, B, store, tables={"route": events}, landing_ms=B + HOUR_MS, clock=lambda: B + HOUR_MS)
    yield store, info, events
    store.close()


def served(store, at):
    return Fetcher(store, [ROUTE]).fetch("route", {"origin": "JFK"}, at).features


@pytest.mark.parametrize(
    ("column", "type_", "named"),
    [
        ("delay", "string", ["input 'delay'", "double", "string", "cast"]),
        ("delay", "decimal(20,2)", ["input 'delay'", "double", "decimal(20,2)"]),
        ("tail", "bigint", ["input 'tail'", "string", "bigint"]),
        ("origin", "binary", ["key 'origin'", "string", "binary"]),
        ("time_ms", "double", ["time column 'time_ms'", "double", "milliseconds"]),
    ],
)
def test_a_column_whose_type_changed_since_yesterday_is_refused_by_name(yesterday, column, type_, named):
    store, info, events = yesterday
    today = events.withColumn(column, col(column).cast(type_))
    with pytest.raises(DataError) as refused:
        upload(ROUTE, B + DAY_MS, store, tables={"route": today}, clock=lambda: B + 2 * DAY_MS)
    assert all(part in str(refused.value) for part in ["'route'", *named])
    assert read_serving_info(store, "route") == info
    assert served(store, B) == {"delay_sum_7d": 1.5, "delay_sum": 1.5, "count_1d_by_tail": {"N1": 1}}


def test_an_upload_whose_clock_stepped_back_is_refused_and_the_former_one_served(yesterday):
    store, info, events = yesterday
    changed = events.withColumn("delay", lit(9.0))
    with pytest.raises(OptionError, match=rf"'route': landing_ms {B + 5} is before {B + HOUR_MS}"):
        upload(ROUTE, B, store, tables={"route": changed}, clock=lambda: B + 5)
    assert read_serving_info(store, "route") == info
    assert served(store, B)["delay_sum"] == 1.5
    upload(ROUTE, B, store, tables={"route": changed}, clock=lambda: B + HOUR_MS + 1)
    assert served(store, B)["delay_sum"] == 9.0
