"""Joins with a table that is cached in part: Spark's own answers, from one cache over all batches."""

import os
import signal

import pyarrow as pa
import pytest
from pyspark.sql.functions import window

from millpond.errors import OptionError
from millpond.lookup import LookupTable, PythonLookup
from millpond.spark import invalidate_from, lookup_join
from tests.spark.lookup_join.tables import PARTIAL, counting_squares, rows_of

pytestmark = pytest.mark.spark


def test_a_partial_join_gives_what_sparks_own_join_gives(spark, planes):
    events = spark.range(400).selectExpr("id", "if(id % 9 = 0, null, concat('N', id % 60)) as tailnum").repartition(3)
    known = spark.createDataFrame(planes.scan().to_pandas())
    for how in ("left", "inner"):
        with LookupTable("planes", planes, PARTIAL) as table:
            joined = lookup_join(events, table, on="tailnum", how=how)
            assert joined.columns == ["id", "tailnum", "year", "model"]
            expected = rows_of(events.join(known, "tailnum", how).select("id", "tailnum", "year", "model"))
            assert rows_of(joined) == expected
            stats = table.stats()
            assert stats.miss_count == stats.load_count > 0
            assert stats.hit_count + stats.miss_count <= 60 * 3


def test_a_stream_is_joined_with_its_watermark_and_one_cache_over_all_batches(spark, planes, tmp_path):
    source = tmp_path / "events"
    for number in range(3):
        lines = "\n".join(f'{{"tailnum":"N{key % 40}","time":"2013-01-0{number + 1}T05:00:00Z"}}' for key in range(80))
        source.mkdir(exist_ok=True)
        (source / f"{number}.json").write_text(lines)
        os.utime(source / f"{number}.json", (number, number))
    stream = (
        spark.readStream.schema("tailnum string, time timestamp")
        .option("maxFilesPerTrigger", 1)
        .json(str(source))
        .withWatermark("time", "1 hour")
    )
    with LookupTable("planes", planes, PARTIAL) as table:
        joined = lookup_join(stream, table, on="tailnum", columns=["year"], prefix="plane_")
        counted = joined.groupBy(window("time", "1 day")).count()
        query = (
            counted.writeStream.format("memory")
            .queryName("joined_planes")
            .outputMode("append")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        counts = [row["count"] for row in spark.table("joined_planes").orderBy("window").collect()]
        assert counts == [82, 82]
        stats = table.stats()
        assert stats.hit_count > 0
        assert stats.load_count < 3 * 40


def test_a_join_made_anew_for_every_micro_batch_finds_its_caches_again(spark, tmp_path):
    calls = tmp_path / "calls"

    def square(number):
        with calls.open("a") as log:
            log.write(f"{number}\n")
        return [(number * number,)]

    keys, rows = pa.schema([("number", pa.int64())]), pa.schema([("square", pa.int64())])
    events = spark.range(0, 20, 1, 1).withColumnRenamed("id", "number")
    with LookupTable("squares", PythonLookup(square, keys, rows), PARTIAL) as table:
        for _ in range(3):
            assert lookup_join(events, table, on="number").count() == 20
        stats = table.stats()
        assert stats.hit_count + stats.miss_count == 60
        assert stats.load_count == len(calls.read_text().split()) < 60


def keys_joined(spark, table, *, ended):
    """The distinct keys of three batches that were joined, with all Python workers ended after each, or not."""

    def processes(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})

    seen, keys, environment = set(), set(), spark.sparkContext.environment
    try:
        for batch in range(3):
            if ended:
                # Of another environment are other workers, so nobody is given one of those that end here.
                environment["LOOKUP_BATCH"] = str(batch)
            workers = {row.pid for row in spark.range(0, 4, 1, 4).mapInArrow(processes, "pid long").collect()}
            events = spark.range(0, 4_000, 1, 4).selectExpr(
                "id", f"cast(200 * pow(rand({batch}), 3) as long) as number"
            )
            joined = lookup_join(events, table, on="number").filter("square = number * number").collect()
            assert len(joined) == 4_000
            keys |= {row.number for row in joined}
            if ended:
                assert not workers & seen
                seen |= workers
                for worker in workers:
                    os.kill(worker, signal.SIGKILL)
    finally:
        environment.pop("LOOKUP_BATCH", None)
    return keys


@pytest.mark.parametrize("ended", [False, True])
def test_workers_that_end_between_batches_take_nothing_of_the_cache_along(spark, tmp_path, ended):
    calls = tmp_path / "calls"
    with LookupTable("squares", counting_squares(calls), {**PARTIAL, "lookup.partial-cache.max-rows": 200}) as table:
        keys = keys_joined(spark, table, ended=ended)
        stats = table.stats()
    hosts, loaded = zip(*(line.split() for line in calls.read_text().splitlines()), strict=True)
    assert len(set(hosts)) == 1, "one host asks the source"
    assert sorted(map(int, loaded)) == sorted(keys), "each key is loaded once"
    assert stats.load_count == stats.num_cached_record == len(keys)
    assert stats.event_hit_rate > 0.9


@pytest.mark.parametrize("given", [{}, {"share_cache": True}])
def test_invalidated_keys_are_loaded_anew_by_the_next_batch_wherever_the_cache_is(spark, tmp_path, given):
    calls = tmp_path / "calls"
    events = spark.range(0, 6, 1, 1).withColumnRenamed("id", "number")
    options = {**PARTIAL, "lookup.partial-cache.invalidation": True}

    def asked(table):
        before = len(calls.read_text().splitlines()) if calls.exists() else 0
        assert lookup_join(events, table, on="number", **given).count() == 6
        return sorted(int(line.split()[1]) for line in calls.read_text().splitlines()[before:])

    with LookupTable("squares", counting_squares(calls), options) as table:
        assert asked(table) == [0, 1, 2, 3, 4, 5]
        table.invalidate([(3,), (3,), (77,)])
        table.invalidate([(5,)])
        assert asked(table) == [3, 5]
        assert asked(table) == []
        changes = spark.createDataFrame([(1,), (1,), (2,)], "number long")
        invalidate_from(table)(changes, 0)
        assert asked(table) == [1, 2]
        events_of_debezium = spark.createDataFrame([('{"op": "d", "before": {"number": 4}}',)], "value string")
        invalidate_from(table, debezium="value")(events_of_debezium, 1)
        assert asked(table) == [4]
        table.invalidate()
        assert asked(table) == [0, 1, 2, 3, 4, 5]
    with LookupTable("squares", counting_squares(calls), PARTIAL) as table:
        asked(table)
        with pytest.raises(OptionError, match=r"'squares'.*lookup\.partial-cache\.invalidation"):
            table.invalidate([(3,)])
