"""A full table on Spark: what a failed reload does to queries, and the watermark its trigger sees."""

import json
import os
from contextlib import contextmanager
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from millpond.errors import DataError, UnavailableError
from millpond.lookup import FullCachingLookupProvider, LookupTable, TableScan

pytestmark = pytest.mark.spark

GATES = pa.table({"code": ["JFK", "EWR"], "gate": [1, 2]})


class WhenToldTo:
    """A trigger of a user's own."""

    def open(self, context):
        self.context = context

    def close(self):
        pass


class Source:
    """A table that breaks when told to."""

    def __init__(self):
        self.broken = False

    def __call__(self):
        if self.broken:
            raise DataError("the gates are being rebuilt")
        return GATES


@contextmanager
def running(joined, folder, name):
    """The query of a joined stream, into memory."""
    query = (
        joined.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(folder / f"{name}-checkpoint"))
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


def add_events(folder, number, *lines):
    """One more file of a stream, which is one more batch."""
    folder.mkdir(exist_ok=True)
    path = folder / f".{number}.json"
    path.write_text("\n".join(map(json.dumps, lines)))
    path.rename(folder / f"{number}.json")


def test_a_reload_that_failed_fails_the_query_where_that_was_chosen(spark, tmp_path):
    from pyspark.errors import PySparkException, StreamingQueryException

    from millpond.spark import lookup_join

    source, trigger, events = Source(), WhenToldTo(), tmp_path / "events"
    provider = FullCachingLookupProvider(TableScan(source, ["code"]), trigger, on_reload_failure="fail")
    add_events(events, 1, {"code": "JFK"})
    stream = spark.readStream.schema("code string").json(str(events))
    with LookupTable("gates", provider) as table, running(lookup_join(stream, table, on="code"), tmp_path, "fail") as q:
        q.processAllAvailable()
        source.broken = True
        with pytest.warns(UserWarning, match="fails from now on"), pytest.raises(DataError, match="rebuilt"):
            table.reload()
        add_events(events, 2, {"code": "EWR"})
        with pytest.raises(StreamingQueryException, match=r"'gates': a reload failed.*gates are being rebuilt"):
            q.processAllAvailable()
        source.broken = False
        assert isinstance(trigger.context.trigger_reload().exception(20), UnavailableError)
        with pytest.raises(PySparkException, match="a reload failed"):
            lookup_join(spark.createDataFrame([("EWR",)], "code string"), table, on="code").collect()
    assert [tuple(row) for row in spark.table("fail").collect()] == [("JFK", 1)]
    with LookupTable("gates", provider) as anew:
        batch = spark.createDataFrame([("EWR",)], "code string")
        assert [tuple(row) for row in lookup_join(batch, anew, on="code").collect()] == [("EWR", 2)]


def test_a_query_goes_on_with_the_last_good_table_where_nothing_was_chosen(spark):
    from millpond.spark import lookup_join

    source = Source()
    batch = spark.createDataFrame([("EWR",)], "code string")
    with LookupTable("gates", TableScan(source, ["code"]), {"lookup.cache": "FULL"}) as table:
        joined = lookup_join(batch, table, on="code")
        source.broken = True
        with pytest.warns(UserWarning, match="goes on with the last good one"):
            table.reload()
        assert [tuple(row) for row in joined.collect()] == [("EWR", 2)]
        assert table.stats().num_load_failure == 1


def test_a_trigger_sees_the_watermark_of_the_query_that_reads_its_table(spark, tmp_path):
    from millpond.spark import lookup_join

    def stream(name, *times):
        for number, time in enumerate(times):
            add_events(tmp_path / name, number, {"code": "JFK", "time": time})
            os.utime(tmp_path / name / f"{number}.json", (number, number))
        reader = spark.readStream.schema("code string, time timestamp").option("maxFilesPerTrigger", 1)
        return reader.json(str(tmp_path / name)).withWatermark("time", "1 hour")

    trigger, in_foreach = WhenToldTo(), WhenToldTo()
    scan = TableScan(GATES, ["code"])
    watched = LookupTable("watched", FullCachingLookupProvider.of(scan, trigger))
    each = LookupTable("each", FullCachingLookupProvider.of(scan, in_foreach))

    def join_each(batch, _):
        lookup_join(batch, each, on="code").collect()

    mine = stream("mine", "2013-01-01T05:00:00Z", "2013-01-01T06:00:00Z")
    with watched, each:
        # Another query that is further has no say.
        with running(stream("other", "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z"), tmp_path, "other") as other:
            other.processAllAvailable()
            joined = lookup_join(mine, watched, on="code")
            assert trigger.context.current_watermark_ms() is None
            with running(joined, tmp_path, "mine") as query:
                query.processAllAvailable()
                assert trigger.context.current_watermark_ms() == ms(datetime(2013, 1, 1, 4, tzinfo=UTC))
            checkpoint = str(tmp_path / "each-checkpoint")
            query = mine.writeStream.foreachBatch(join_each).option("checkpointLocation", checkpoint).start()
            try:
                query.processAllAvailable()
                assert in_foreach.context.current_watermark_ms() == ms(datetime(2013, 1, 1, 4, tzinfo=UTC))
            finally:
                query.stop()
        assert trigger.context.current_watermark_ms() == ms(datetime(2013, 1, 1, 4, tzinfo=UTC)), "the last one stays"


def ms(moment):
    return int(moment.timestamp() * 1_000)
