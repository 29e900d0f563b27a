"""Invalidations that the driver publishes, and a cache that was not asked for a while."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from millpond.lookup import LookupTable, PythonLookup
from millpond.spark.lookup import invalidations

KEYS = pa.schema([("code", pa.string()), ("hour", pa.int64())])

pytestmark = pytest.mark.spark


def test_a_cache_that_has_missed_invalidations_forgets_every_key(monkeypatch, spark):
    monkeypatch.setattr(invalidations, "MOST_KEYS", 3)
    driver = invalidations.PublishedInvalidations("gates", KEYS, spark)
    try:
        assert driver.place.newest() == b""
        for hour in range(4):
            driver.add([("a", hour)])
        heard = invalidations.Invalidated.decode(driver.place.newest())
        assert (heard.version, heard.since(3), heard.since(1)) == (4, [("a", 3)], [("a", 1), ("a", 2), ("a", 3)])
        assert heard.since(0) is None
        driver.add(None)
        assert invalidations.Invalidated.decode(driver.place.newest()).since(4) is None
        driver.add([("b", 1)])
        heard = invalidations.Invalidated.decode(driver.place.newest())
        assert (heard.since(5), heard.since(4)) == ([("b", 1)], None)
    finally:
        driver.close()


def test_invalidated_times_and_bytes_are_those_of_the_table(spark):
    asked = []
    table = LookupTable(
        "gates",
        PythonLookup(
            lambda at, code: asked.append((at, code)),
            pa.schema([("at", pa.timestamp("us", "UTC")), ("code", pa.binary())]),
            pa.schema([("gate", pa.int64())]),
        ),
        {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 9},
    )
    key = (datetime(2024, 7, 1, 12, tzinfo=UTC), b"JFK")
    changes = spark.sql("select timestamp'2024-07-01 12:00:00Z' as at, cast('JFK' as binary) as code")
    with table, table.open() as gates:
        gates.lookup(key), gates.lookup(key)
        assert len(asked) == 1
        invalidations.invalidate_from(table)(changes, 0)
        gates.lookup(key)
    assert asked == [key, key]
