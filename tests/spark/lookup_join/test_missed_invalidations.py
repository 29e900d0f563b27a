"""Invalidations that the driver publishes, and a cache that was not asked for a while."""

import pyarrow as pa
import pytest

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
