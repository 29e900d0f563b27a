"""The lookup join on Spark: the answers of Spark's own join, from tables Spark does not know."""

import os
import signal
import sqlite3
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from millpond.errors import OptionError
from millpond.lookup import LookupTable, PythonLookup, SqlLookup, TableScan

PARTIAL = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 100}
FULL = {"lookup.cache": "FULL"}

pytestmark = pytest.mark.spark


@pytest.fixture
def planes(tmp_path):
    path = tmp_path / "planes.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table planes (tailnum varchar(10), year integer, model text)")
        rows = [(f"N{number}", 1990 + number % 20, f"M{number}") for number in range(50)]
        connection.executemany("insert into planes values (?, ?, ?)", [*rows, ("N7", 2001, "second")])
    return SqlLookup(f"sqlite:///{path}", "planes", ["tailnum"], ["tailnum", "year", "model"])


def rows_of(df):
    return sorted(map(tuple, df.collect()), key=repr)


def test_a_partial_join_gives_what_sparks_own_join_gives(spark, planes):
    from millpond.spark import lookup_join

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


def test_a_full_join_maps_one_file_and_follows_reloads(spark):
    from millpond.spark import lookup_join

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


def test_a_stream_is_joined_with_its_watermark_and_one_cache_over_all_batches(spark, planes, tmp_path):
    from pyspark.sql.functions import window

    from millpond.spark import lookup_join

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


@pytest.mark.parametrize(("host", "told"), [("inline", "crashed"), ("process", "in the middle of a batch")])
def test_a_worker_or_host_that_dies_changes_no_answer(spark, tmp_path, host, told):
    from millpond.spark import lookup_join

    died = tmp_path / "died"

    def square(number):
        if number == 13 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [(number * number,)]

    keys, rows = pa.schema([("number", pa.int64())]), pa.schema([("square", pa.int64())])
    events = spark.range(0, 100, 1, 4).selectExpr("id", "id % 50 as number")
    with LookupTable("squares", PythonLookup(square, keys, rows), PARTIAL) as table:
        # A task of a local session has one try only, so the run itself is what is tried again.
        with pytest.raises(Exception, match=told):
            lookup_join(events, table, on="number", host=host).collect()
        assert died.exists()
        answer = rows_of(lookup_join(events, table, on="number", host=host))
    assert answer == sorted(((n, n % 50, (n % 50) ** 2) for n in range(100)), key=repr)


def test_a_lookup_that_fails_fails_the_query_with_the_users_own_error(spark):
    from millpond.spark import lookup_join

    def fail(number):
        raise ZeroDivisionError(f"no row for {number}")

    keys, rows = pa.schema([("number", pa.int64())]), pa.schema([("square", pa.int64())])
    with LookupTable("squares", PythonLookup(fail, keys, rows)) as table:
        joined = lookup_join(spark.range(3).withColumnRenamed("id", "number"), table, on="number")
        with pytest.raises(Exception, match="ZeroDivisionError: no row for"):
            joined.collect()


def test_whole_numbers_of_any_width_and_casts_that_spark_makes_match(spark):
    from millpond.spark import lookup_join

    table = pa.table({"key": pa.array([1, 2], pa.int32()), "day": ["a", "b"]})
    events = spark.sql("select * from values ('1', 1L, 1Y), ('2', 3000000000L, 2Y) as t(text, big, tiny)")
    for column, expected in (("text", ["a", "b"]), ("big", ["a", None]), ("tiny", ["a", "b"])):
        with LookupTable("days", TableScan(table, ["key"]), FULL) as days:
            joined = lookup_join(events, days, on={column: "key"})
            assert joined.columns == ["text", "big", "tiny", "day"]
            assert [row.day for row in joined.orderBy("text").collect()] == expected


def test_moments_and_days_match_as_spark_compares_them_in_any_time_zone(spark):
    from millpond.spark import lookup_join

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


def test_a_join_made_anew_for_every_micro_batch_finds_its_caches_again(spark, tmp_path):
    from millpond.spark import lookup_join

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


def counting_squares(calls):
    """A function that notes the process and key of every call."""

    def square(number):
        with calls.open("a") as log:
            log.write(f"{os.getpid()} {number}\n")
        return [(number * number, -number)]

    keys = pa.schema([("number", pa.int64())])
    return PythonLookup(square, keys, pa.schema([("square", pa.int64()), ("minus", pa.int64())]))


def test_keys_shuffled_to_their_hosts_are_loaded_once_whatever_workers_run(spark, tmp_path):
    from millpond.spark import lookup_join

    calls = tmp_path / "calls"
    events = spark.range(0, 2000, 1, 4).selectExpr("id", "if(id % 100 = 7, null, id % 100) as number")
    with LookupTable("squares", counting_squares(calls), {**PARTIAL, "lookup.partial-cache.max-rows": 200}) as table:
        for _ in range(3):
            joined = lookup_join(events, table, on="number", columns=["square"], shuffle_by_key=True)
            assert joined.columns == ["id", "number", "square"]
            answer = rows_of(joined)
            expected = [(n, None, None) if n % 100 == 7 else (n, n % 100, (n % 100) ** 2) for n in range(2000)]
            assert answer == sorted(expected, key=repr)
        called = [line.split() for line in calls.read_text().splitlines()]
        assert sorted(int(number) for _, number in called) == [n for n in range(100) if n != 7]
        assert len({process for process, _ in called}) == 2
        stats = table.stats()
        assert stats.load_count == stats.miss_count == stats.num_cached_record == 99
        assert stats.num_cached_bytes > 0
        assert stats.num_load_failure == 0


def test_hot_keys_and_nulls_are_spread_over_all_partitions(spark, tmp_path):
    from millpond.spark import lookup_join

    def sizes(batches):
        yield pa.RecordBatch.from_pydict({"rows": [sum(batch.num_rows for batch in batches)]})

    partitions = int(spark.conf.get("spark.sql.shuffle.partitions"))
    hot = "case when id % 4 = 0 then null when id % 4 < 3 then 7 else id % 300 end as number"
    events = spark.range(0, 6_000, 1, 2).selectExpr("id", hot)
    with LookupTable(
        "squares", counting_squares(tmp_path / "calls"), {**PARTIAL, "lookup.partial-cache.max-rows": 999}
    ) as table:
        joined = lookup_join(events, table, on="number", columns=["square"], shuffle_by_key=True)
        expected = events.selectExpr("id", "number", "number * number as square")
        assert rows_of(joined) == rows_of(expected)
        found = [row.rows for row in joined.mapInArrow(sizes, "rows long").collect()]
        assert len(found) == partitions
        assert max(found) < 1.3 * 6_000 / partitions
        assert joined.columns == ["id", "number", "square"]


def hits_of(spark, table, *, ended):
    """The events' hit rate of three batches with skewed keys, with all Python workers ended before each, or not."""
    from millpond.spark import lookup_join

    def processes(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})

    seen, environment = set(), spark.sparkContext.environment
    try:
        for batch in range(3):
            if ended:
                # Of another environment are other workers, so nobody is given one of those that end here.
                environment["LOOKUP_BATCH"] = str(batch)
            workers = {row.pid for row in spark.range(0, 4, 1, 4).mapInArrow(processes, "pid long").collect()}
            events = spark.range(0, 4_000, 1, 4).selectExpr(
                "id", f"cast(200 * pow(rand({batch}), 3) as long) as number"
            )
            assert lookup_join(events, table, on="number").filter("square = number * number").count() == 4_000
            if ended:
                assert not workers & seen
                seen |= workers
                for worker in workers:
                    os.kill(worker, signal.SIGKILL)
    finally:
        environment.pop("LOOKUP_BATCH", None)
    return table.stats().event_hit_rate


def test_workers_that_end_between_batches_take_no_hit_along(spark, tmp_path):
    limits = {**PARTIAL, "lookup.partial-cache.max-rows": 120}
    rates = {}
    for ended in (False, True):
        calls = tmp_path / f"calls {ended}"
        with LookupTable("squares", counting_squares(calls), limits) as table:
            rates[ended] = hits_of(spark, table, ended=ended)
            stats = table.stats()
            assert stats.load_count == stats.miss_count == len(calls.read_text().splitlines())
            assert stats.num_cached_record == 120
        assert len({line.split()[0] for line in calls.read_text().splitlines()}) == 1, "one host asks the source"
    assert abs(rates[True] - rates[False]) <= 0.02
    assert rates[False] > 0.9


@pytest.mark.parametrize("given", [{}, {"shuffle_by_key": True}])
def test_invalidated_keys_are_loaded_anew_by_the_next_batch_wherever_the_cache_is(spark, tmp_path, given):
    from millpond.spark import invalidate_from, lookup_join

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


def test_a_cache_in_hosts_has_the_configured_size_in_an_executor(spark, tmp_path):
    from millpond.spark import lookup_join

    events = spark.range(0, 1000, 1, 2).withColumnRenamed("id", "number")
    with LookupTable("squares", counting_squares(tmp_path / "calls"), PARTIAL) as table:
        assert lookup_join(events, table, on="number", shuffle_by_key=True).count() == 1000
        assert table.stats().num_cached_record == 100


def test_a_failure_in_a_host_fails_the_batch_and_is_counted_with_the_next_answer(spark, tmp_path):
    from millpond.spark import lookup_join

    mended = tmp_path / "mended"

    def square(number):
        if not mended.exists():
            raise ZeroDivisionError(f"no row for {number}")
        return [(number * number,)]

    keys, rows = pa.schema([("number", pa.int64())]), pa.schema([("square", pa.int64())])
    events = spark.range(0, 3, 1, 1).withColumnRenamed("id", "number")
    with LookupTable("squares", PythonLookup(square, keys, rows), PARTIAL) as table:
        with pytest.raises(Exception, match="ZeroDivisionError: no row for"):
            lookup_join(events, table, on="number", shuffle_by_key=True).collect()
        mended.touch()
        # Anew, since adaptive execution remembers of a plan that it failed.
        joined = lookup_join(events, table, on="number", shuffle_by_key=True)
        assert rows_of(joined) == [(0, 0), (1, 1), (2, 4)]
        assert table.stats().num_load_failure > 0
        assert table.stats().num_cached_record == 3


def test_only_the_columns_asked_for_are_read(spark, planes):
    from millpond.spark import lookup_join

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
    from millpond.spark import lookup_join

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
    from millpond.spark import lookup_join
    from millpond.spark.environment.folders import user_folder

    there = set(user_folder().glob("lookup-*"))
    answers = [pa.table({"number": [1], "name": ["one"]})]
    events = spark.range(3).withColumnRenamed("id", "number")
    with LookupTable("names", TableScan(answers.pop, ["number"]), FULL) as table, pytest.raises(IndexError):
        lookup_join(events, table, on="number")
    assert set(user_folder().glob("lookup-*")) <= there


def test_a_table_that_spark_knows_is_scanned_by_name_or_as_a_dataframe(spark, tmp_path):
    from millpond.spark import SparkScan, lookup_join

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
    from millpond.spark import lookup_join
    from millpond.spark.lookup.join import _PLANNED

    arrow = pa.table({"key": range(1_000), "value": range(1_000)})
    with LookupTable("values", TableScan(arrow, ["key"]), FULL) as table:
        lookup_join(spark.range(3).withColumnRenamed("id", "key"), table, on="key")
        planned = next(planned for (_, known, _), planned in _PLANNED.items() if known is table)
        folder = planned.published.place.folder
        table.reload()
        assert [path.name for path in folder.iterdir()] == ["000000000002.table"]
    assert not folder.exists()


def test_what_is_wrong_with_a_join_is_said_when_it_is_planned(spark):
    from millpond.spark import lookup_join

    table = pa.table({"code": ["a"], "hour": [1], "gate": [2]})
    gates = LookupTable("gates", TableScan(table, ["code", "hour"]), FULL)
    events = spark.sql("select 'a' as code, 1 as hour, 2 as gate, 1.5D as ratio, true as flag")
    wrong = [
        ({"on": ["code", "minute"]}, r"no column 'minute'.*code, hour, gate"),
        ({"on": "code"}, r"each key column.*code, hour.*got code"),
        ({"on": ["code", "hour"]}, "gate would be there twice"),
        ({"on": ["code", "hour"], "columns": ["gait"], "prefix": "x_"}, "no column 'gait'"),
        ({"on": {"code": "code", "ratio": "hour"}, "prefix": "x_"}, r"'ratio' is double.*'hour'.*bigint"),
        ({"on": {"hour": "code", "flag": "hour"}, "prefix": "x_"}, r"'hour' is int.*'code'.*string"),
        ({"on": ["code", "hour"], "how": "outer", "prefix": "x_"}, "'left' or 'inner'"),
        ({"on": ["code", "hour"], "prefix": "x_", "shuffle_by_key": True}, "shuffle_by_key: has no effect"),
    ]
    for options, complaint in wrong:
        with pytest.raises(OptionError, match=complaint):
            lookup_join(events, gates, **options)
    gates.close()


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_poison_key_leaves_with_its_reason_where_that_was_chosen(spark, shuffled):
    from pyspark.errors import PySparkException

    from millpond.spark import lookup_join, split_dead_letters

    def model(number):
        if number == 3:
            raise ValueError("number 3 is poison")
        return [(f"M{number}",)]

    source = PythonLookup(model, pa.schema([("number", pa.int64())]), pa.schema([("model", pa.string())]))
    events = spark.range(6).selectExpr("id", "string(id) as number")
    with LookupTable("models", source, PARTIAL) as table:
        joined = lookup_join(events, table, on="number", shuffle_by_key=shuffled, on_error="dead-letter")
        output, letters = split_dead_letters(joined)
        assert rows_of(output) == [(number, str(number), f"M{number}") for number in (0, 1, 2, 4, 5)]
        (letter,) = letters.collect()
        assert (letter.key.number, letter.rows[0].asDict()) == ("3", {"id": 3, "number": "3"})
        assert letter.error == "ValueError: number 3 is poison"
        with pytest.raises(PySparkException, match="number 3 is poison"):
            lookup_join(events, table, on="number", shuffle_by_key=shuffled).collect()


def test_what_cannot_be_set_aside_is_refused(spark, planes):
    from millpond.spark import lookup_join

    events = spark.createDataFrame([("N7",)], "tailnum string")
    table = LookupTable("planes", planes)
    with pytest.raises(OptionError, match="'fail' or 'dead-letter'"):
        lookup_join(events, table, on="tailnum", on_error="ignore")
    with pytest.raises(OptionError, match=r"on_error.*cached in full"):
        lookup_join(events, LookupTable("planes", planes, FULL), on="tailnum", on_error="dead-letter")
