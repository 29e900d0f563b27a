import pytest

from millpond.errors import DataError, OptionError
from millpond.features import Aggregation, Field, GroupBy
from millpond.features.definitions import EntitySource, EventSource
from millpond.spark.features.sources import batch_rows, comes_and_goes, history_rows, stream_rows

pytestmark = pytest.mark.spark


def group_by(*sources):
    return GroupBy(
        "spent",
        keys=(Field("user", "string"),),
        inputs=(Field("price", "double"),),
        aggregations=(Aggregation("sum", "price"),),
        sources=sources,
    )


def values(rows):
    return sorted(map(tuple, rows.collect()), key=repr)


@pytest.fixture
def purchases(spark):
    rows = [("ann", 5, 10, 11), ("bob", 7, 20, 35), (None, 9, 30, 31), ("ann", -1, 40, 41)]
    return spark.createDataFrame(rows, "user string, price int, time_ms bigint, arrived bigint")


def test_a_table_is_read_by_name_and_a_path_by_its_files(spark, purchases, tmp_path):
    purchases.createOrReplaceTempView("purchases_by_name")
    purchases.write.parquet(str(tmp_path / "purchases"))
    for table in ("purchases_by_name", str(tmp_path / "purchases")):
        read = batch_rows(spark, group_by(EventSource(table)), 30)
        assert read.columns == ["key_0", "time_ms", "input_0"]
        assert values(read) == [("ann", 10, 5.0), ("bob", 20, 7.0)]


def test_selects_and_wheres_look_at_the_tables_own_columns(spark, purchases):
    source = EventSource(
        "p",
        selects={"user": "upper(user)", "price": "price * 2.0D"},
        wheres=("price > 0", "user IS NOT NULL"),
        arrival_time_column="arrived",
    )
    tables = {"p": purchases}
    assert values(batch_rows(spark, group_by(source), 100, tables)) == [("ANN", 10, 10.0), ("BOB", 20, 14.0)]
    assert not comes_and_goes(group_by(source))
    arriving = history_rows(spark, group_by(source), arrivals="streamed", tables=tables)
    assert values(arriving) == [("ANN", 10, 10.0, 11, False), ("BOB", 20, 14.0, 35, False)]


def test_a_group_by_without_sources_reads_the_table_of_its_name(spark, purchases):
    assert batch_rows(spark, group_by(), 100, {"spent": purchases}).count() == 4


def test_the_rows_of_two_sources_are_put_together(spark, purchases):
    sources = (EventSource("p", wheres=("price < 0",)), EventSource("p", wheres=("price = 5",)))
    assert values(batch_rows(spark, group_by(*sources), 100, {"p": purchases})) == [("ann", 10, 5.0), ("ann", 40, -1.0)]


def test_changes_that_a_snapshot_already_holds_are_taken_back_for_earlier_times(spark):
    snapshot = spark.createDataFrame([("ann", 2.0, 0)], "user string, price double, time_ms bigint")
    mutations = spark.createDataFrame(
        [("ann", 1.0, 0, 50, True), ("ann", 2.0, 0, 50, False), ("ann", 2.0, 0, 150, True)],
        "user string, price double, time_ms bigint, mutation_time bigint, is_before boolean",
    )
    tables = {"s": snapshot, "m": mutations}
    entity = group_by(EntitySource("s", "m"))
    assert values(batch_rows(spark, entity, 100, tables)) == [("ann", 0, 2.0)]
    read = history_rows(spark, entity, snapshots_end_ms=100, tables=tables)
    assert read.columns == ["key_0", "time_ms", "input_0", "visible_ms", "is_delete"]
    assert values(read) == sorted(
        [
            ("ann", 0, 2.0, None, False),
            ("ann", 0, 1.0, None, False),
            ("ann", 0, 2.0, None, True),
            ("ann", 0, 1.0, 50, True),
            ("ann", 0, 2.0, 50, False),
            ("ann", 0, 2.0, 150, True),
        ],
        key=repr,
    )
    with pytest.raises(OptionError, match="snapshots_end_ms"):
        history_rows(spark, entity, tables=tables)


def test_a_stream_gives_rows_and_the_changes_of_entities(spark, purchases, tmp_path):
    purchases.write.parquet(str(tmp_path / "purchases"))
    path = str(tmp_path / "purchases")
    streaming = stream_rows(spark, group_by(EventSource(path, stream=path)))
    assert streaming.isStreaming
    assert streaming.columns == ["key_0", "time_ms", "input_0", "visible_ms", "is_delete"]
    changing = (
        spark.readStream.format("rate")
        .load()
        .selectExpr("'ann' AS user", "1.0D AS price", "value AS time_ms", "value AS mutation_time", "true AS is_before")
    )
    entity = group_by(EntitySource("s", "m", mutation_stream="changes"))
    assert stream_rows(spark, entity, {"changes": changing}).isStreaming
    with pytest.raises(OptionError, match=r"'p' has no stream"):
        stream_rows(spark, group_by(EventSource("p")))


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (EventSource("nowhere"), ["'nowhere'", "table"]),
        (EventSource("/nowhere/at/all"), ["'/nowhere/at/all'", "path"]),
        (EventSource("p", wheres=("amount > 0",)), ["'p'", "amount > 0", "price"]),
        (EventSource("p", selects={"price": "sum of all"}), ["'p'", "sum of all"]),
        (EventSource("p", selects={"price": "price"}), ["key 'user'", "price"]),
        (EventSource("p", selects={"user": "user", "price": "'x'"}), ["'price'", "double", "string", "cast"]),
        (EventSource("p", time_column="at"), ["time column 'at'"]),
        (EventSource("p", time_column="user"), ["'user'", "bigint", "unix_millis"]),
    ],
)
def test_a_source_that_does_not_fit_is_refused_by_name(spark, purchases, source, named):
    with pytest.raises(DataError) as refused:
        batch_rows(spark, group_by(source), 100, {"p": purchases})
    assert all(part in str(refused.value) for part in named)


@pytest.mark.parametrize(
    ("declared", "found", "fits"),
    [
        ("decimal(10,2)", "decimal(9,1)", True),
        ("decimal(10,2)", "decimal(10,3)", False),
        ("decimal(12,2)", "int", True),
        ("decimal(10,2)", "int", False),
        ("int", "bigint", False),
        ("float", "double", False),
        ("array<long>", "array<int>", True),
        ("array<long>", "array<string>", False),
        ("map<string,double>", "map<string,float>", True),
        ("map<string,double>", "map<int,float>", False),
        ("timestamp", "timestamp_ntz", False),
        ("date", "date", True),
        ("binary", "binary", True),
    ],
)
def test_only_what_widens_without_loss_is_taken_for_an_input(spark, declared, found, fits):
    wanted = GroupBy(
        "spent",
        keys=(Field("user", "string"),),
        inputs=(Field("price", declared),),
        aggregations=(Aggregation("count"),),
    )
    rows = spark.createDataFrame([], f"user string, time_ms bigint, price {found}")
    if fits:
        assert batch_rows(spark, wanted, 100, {"spent": rows}).count() == 0
    else:
        with pytest.raises(DataError, match="'price'"):
            batch_rows(spark, wanted, 100, {"spent": rows})


def test_an_event_of_a_stream_counts_from_its_own_time_and_not_from_its_arrival(spark, purchases, tmp_path):
    """A batch that ends between the two has the event, so a tile of its arrival would count it again."""
    path = str(tmp_path / "purchases")
    purchases.write.parquet(path)
    source = EventSource(path, stream=path, arrival_time_column="arrived")
    read = stream_rows(spark, group_by(source)).writeStream.format("memory").queryName("read_by_own_time")
    read.trigger(availableNow=True).start().awaitTermination()
    assert {(row.time_ms, row.visible_ms, row.is_delete) for row in spark.table("read_by_own_time").collect()} == {
        (time_ms, None, False) for time_ms in (10, 20, 30, 40)
    }


def test_a_change_without_a_mutation_time_counts_from_the_rows_own_time(spark):
    """As online. The snapshot has it already, so without taking it back the row would stand twice."""
    snapshot = spark.createDataFrame([("ann", 2.0, 0)], "user string, price double, time_ms bigint")
    mutations = spark.createDataFrame(
        [("ann", 2.0, 0, None, False), ("ann", 4.0, 150, None, False), ("ann", 8.0, None, None, False)],
        "user string, price double, time_ms bigint, mutation_time bigint, is_before boolean",
    )
    read = history_rows(
        spark, group_by(EntitySource("s", "m")), snapshots_end_ms=100, tables={"s": snapshot, "m": mutations}
    )
    assert values(read) == sorted(
        [
            ("ann", 0, 2.0, None, False),
            ("ann", 0, 2.0, None, True),
            ("ann", 0, 2.0, 0, False),
            ("ann", 150, 4.0, 150, False),
            ("ann", None, 8.0, None, False),
        ],
        key=repr,
    )


def test_a_change_that_does_not_say_whether_it_is_before_is_the_row_after_it(spark):
    """As online."""
    snapshot = spark.createDataFrame([("ann", 2.0, 0)], "user string, price double, time_ms bigint")
    mutations = spark.createDataFrame(
        [("ann", 2.0, 0, 50, None)],
        "user string, price double, time_ms bigint, mutation_time bigint, is_before boolean",
    )
    tables = {"s": snapshot, "m": mutations}
    read = history_rows(spark, group_by(EntitySource("s", "m")), snapshots_end_ms=100, tables=tables)
    assert values(read) == sorted(
        [("ann", 0, 2.0, None, False), ("ann", 0, 2.0, None, True), ("ann", 0, 2.0, 50, False)], key=repr
    )
