"""Joins with a table that is cached in full: what is read of it, its reloads, and its files."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from millpond.lookup import LookupTable, TableScan
from millpond.spark import SparkScan, lookup_join
from millpond.spark.environment.folders import user_folder
from millpond.spark.lookup.join import _PLANNED
from tests.spark.lookup_join.tables import FULL, rows_of

pytestmark = pytest.mark.spark


def test_a_full_join_maps_one_file_and_follows_reloads(spark):
    weather = {"origin": ["JFK", "JFK", "EWR"], "hour": [5, 6, 5], "temp": [1.5, 2.5, None]}
    times = [datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in weather["hour"]]
    tables = []

    def read():
        temp = [None if temp is None else temp + 10 * len(tables) for temp in weather["temp"]]
        return pa.table({"origin": weather["origin"], "time": times, "temp": temp})

    with LookupTable("weather", TableScan(read, ["origin", "time"]), FULL) as table:
        events = spark.createDataFrame(
            [("JFK", 5), ("JFK", 6), ("EWR", 5), ("LGA", 5), (None, 5), ("JFK", None)], "origin string, hour int"
        ).selectExpr("origin", "hour", "timestamp_seconds(1356998400 + hour * 3600) as time")
        joined = lookup_join(events, table, on=["origin", "time"]).select("origin", "hour", "temp")
        before = [
            ("EWR", 5, None),
            ("JFK", 5, 1.5),
            ("JFK", 6, 2.5),
            ("JFK", None, None),
            ("LGA", 5, None),
            (None, 5, None),
        ]
        assert rows_of(joined) == sorted(before, key=repr)
        assert table.stats().named()["loadCount"] == 1
        assert table.stats().hit_count == 4
        assert table.stats().num_cached_record == 3
        tables.append("reloaded")
        table.reload()
        assert ("JFK", 5, 11.5) in rows_of(joined)
        assert table.stats().load_count == 2


def test_only_the_columns_asked_for_are_read(spark, planes):
    asked = []

    class Watched(TableScan):
        def pushed_down(self, columns, where):
            asked.append(tuple(columns))
            return super().pushed_down(columns, where)

    events = spark.createDataFrame([("N1",), ("N999",)], "tailnum string")
    with LookupTable("planes", Watched(planes.scan(), ["tailnum"]), FULL) as table:
        joined = lookup_join(events, table, on="tailnum", columns=["model"])
        assert rows_of(joined) == [("N1", "M1"), ("N999", None)]
        assert asked == [("model",)]
        assert table.stats().load_count == 1
        table.reload()
        assert table.stats().load_count == 2


def test_a_reload_that_fails_or_shrinks_to_nothing_leaves_every_row_matched(spark):
    good = pa.table({"number": [1, 2], "name": ["one", "two"]})
    answers = [good, good, ConnectionError("the source is down"), good.drop_columns(["name"]), good.slice(0, 0), good]

    def read():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    events = spark.range(1, 3, 1, 1).withColumnRenamed("id", "number")
    options = {**FULL, "lookup.max-retries": 0}
    with LookupTable("names", TableScan(read, ["number"]), options) as table:
        joined = lookup_join(events, table, on="number")
        assert rows_of(joined) == [(1, "one"), (2, "two")]
        for failures in (1, 2, 3):
            with pytest.warns(UserWarning, match="goes on with the last good one"):
                table.reload()
            assert rows_of(joined) == [(1, "one"), (2, "two")]
            assert table.stats().num_load_failure == failures
        table.reload()
        assert rows_of(joined) == [(1, "one"), (2, "two")]


def test_a_source_that_is_down_at_the_start_is_an_error_and_leaves_no_folder(spark):
    there = set(user_folder().glob("lookup-*"))
    answers = [pa.table({"number": [1], "name": ["one"]})]
    events = spark.range(3).withColumnRenamed("id", "number")
    with LookupTable("names", TableScan(answers.pop, ["number"]), FULL) as table, pytest.raises(IndexError):
        lookup_join(events, table, on="number")
    assert set(user_folder().glob("lookup-*")) <= there


def test_a_table_that_spark_knows_is_scanned_by_name_or_as_a_dataframe(spark, tmp_path):
    path = str(tmp_path / "planes")
    frame = spark.range(3).selectExpr("concat('N', id) as tailnum", "id as seats", "timestamp_seconds(id) as built")
    frame.write.parquet(path)
    spark.sql(f"create table lookup_planes using parquet location '{path}'")
    try:
        events = spark.createDataFrame([("N1",), ("N7",), (None,)], "tailnum string")
        for source in ("lookup_planes", spark.table("lookup_planes"), lambda: spark.read.parquet(path)):
            scan = SparkScan(source, keys=["tailnum"], spark=spark)
            with LookupTable("planes", scan, FULL) as table:
                joined = lookup_join(events, table, on="tailnum", columns=["seats"])
                assert rows_of(joined) == sorted([("N1", 1), ("N7", None), (None, None)], key=repr)
        with LookupTable("planes", SparkScan("lookup_planes", keys=["tailnum"], spark=spark), FULL) as table:
            few = table.select(["seats"], where=[("seats", ">=", 2)])
            with few:
                joined = lookup_join(events, few, on="tailnum")
                assert [row.seats for row in joined.collect()] == [None, None, None]
                spark.sql("insert into lookup_planes values ('N7', 300, timestamp_seconds(0))")
                few.reload()
                assert sorted(row.seats or 0 for row in joined.collect()) == [0, 0, 300]
    finally:
        spark.sql("drop table lookup_planes")


def test_the_files_of_a_full_table_go_when_it_is_closed(spark):
    arrow = pa.table({"key": range(1_000), "value": range(1_000)})
    with LookupTable("values", TableScan(arrow, ["key"]), FULL) as table:
        lookup_join(spark.range(3).withColumnRenamed("id", "key"), table, on="key")
        planned = next(planned for (_, known, *_), planned in _PLANNED.items() if known is table)
        folder = planned.published.place.folder
        table.reload()
        assert [path.name for path in folder.iterdir()] == ["000000000002.table"]
    assert not folder.exists()
