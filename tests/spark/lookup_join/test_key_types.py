"""Which keys match though their types differ."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from millpond.errors import OptionError
from millpond.lookup import LookupTable, TableScan
from millpond.spark import lookup_join
from tests.spark.lookup_join.tables import FULL

pytestmark = pytest.mark.spark


def test_whole_numbers_of_any_width_and_casts_that_spark_makes_match(spark):
    table = pa.table({"key": pa.array([1, 2], pa.int32()), "day": ["a", "b"]})
    events = spark.sql("select * from values ('1', 1L, 1Y), ('2', 3000000000L, 2Y) as t(text, big, tiny)")
    for column, expected in (("text", ["a", "b"]), ("big", ["a", None]), ("tiny", ["a", "b"])):
        with LookupTable("days", TableScan(table, ["key"]), FULL) as days:
            joined = lookup_join(events, days, on={column: "key"})
            assert joined.columns == ["text", "big", "tiny", "day"]
            assert [row.day for row in joined.orderBy("text").collect()] == expected


def test_moments_and_days_match_as_spark_compares_them_in_any_time_zone(spark):
    zoned, naive = pa.timestamp("ms", "Europe/Vienna"), pa.timestamp("s")
    midnight = datetime(2013, 6, 1, tzinfo=UTC)
    tables = {
        "zoned": pa.table({"at": pa.array([midnight], zoned), "found": ["zoned"]}),
        "naive": pa.table({"at": pa.array([midnight.replace(tzinfo=None)], naive), "found": ["naive"]}),
        "day": pa.table({"at": pa.array([midnight.date()], pa.date32()), "found": ["day"]}),
    }
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        events = spark.sql(
            "select timestamp_seconds(1370044800) as instant, timestamp_ntz'2013-06-01 00:00:00' as local,"
            " date'2013-06-01' as day, '2013-06-01' as text"
        )
        expected = {
            "zoned": {"instant": "zoned", "local": None, "day": None, "text": None},
            "naive": {"instant": None, "local": "naive", "day": "naive", "text": "naive"},
            "day": {"day": "day", "text": "day"},
        }
        for name, arrow in tables.items():
            with LookupTable(name, TableScan(arrow, ["at"]), FULL) as table:
                joined = {event: lookup_join(events, table, on={event: "at"}) for event in expected[name]}
                assert {event: df.collect()[0].found for event, df in joined.items()} == expected[name]
                if name == "day":
                    with pytest.raises(OptionError, match=r"'instant' is timestamp.*'at'.*date"):
                        lookup_join(events, table, on={"instant": "at"})
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
