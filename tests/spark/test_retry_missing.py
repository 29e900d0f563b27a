"""A stream whose dimension rows come later than its events: `lookup_join(retry_missing=)` on Spark."""

import sqlite3

import pytest
from pyspark.errors import StreamingQueryException

from millpond.errors import OptionError
from millpond.lookup import LookupTable, SqlLookup
from tests.spark.streams import FileStream

PARTIAL = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 100}
RETRY = {"fixed-delay": "1 ms", "max-attempts": 2}

pytestmark = pytest.mark.spark


@pytest.fixture
def people(tmp_path):
    """A table of people and their cities, and what adds some."""
    path = tmp_path / "people.db"

    def add(*names):
        with sqlite3.connect(path) as connection:
            connection.execute("create table if not exists people (name varchar(10) primary key, city text)")
            connection.executemany("insert into people values (?, ?)", [(name, name.upper()) for name in names])
        connection.close()

    add("ann")
    return SqlLookup(f"sqlite:///{path}", "people", ["name"], ["city"]), add


def rows_of(rows):
    return sorted(((row.user, row.id, row.city) for row in rows), key=repr)


def run(stream, table, on_batch, batches, host="process"):
    """Join until the events of the first batch have used up their retries."""
    from millpond.spark import lookup_join

    with table:
        joined = lookup_join(stream.frame(), table, on={"user": "name"}, retry_missing=RETRY, host=host)
        writer = joined.writeStream.foreachBatch(lambda batch, number: on_batch(number, rows_of(batch.collect())))
        query = writer.option("checkpointLocation", str(stream.folder / "checkpoint")).start()
        try:
            while len(batches) < 3 and not query.awaitTermination(0.2):
                pass
        finally:
            query.stop()
        return table.stats()


def test_each_event_leaves_once_though_its_row_comes_late_or_never_and_the_query_fails_between(spark, people, tmp_path):
    source, add = people
    stream, batches = FileStream(spark, tmp_path), {}
    stream.add([("ann", 1, 0), ("bob", 2, 0), ("cid", 3, 0), (None, 4, 0), ("bob", 5, 0), ("dan", 6, 0)])

    def fails(number, rows):
        if number == 1:
            # Its state is stored, and the batch is not: it will run again.
            raise RuntimeError("the sink is away")
        batches[number] = rows
        add("bob")

    with pytest.raises(StreamingQueryException, match="the sink is away"):
        run(stream, LookupTable("people", source, PARTIAL), fails, batches)
    assert batches == {0: [("ann", 1, "ANN"), (None, 4, None)]}
    stats = run(stream, LookupTable("people", source, PARTIAL), batches.__setitem__, batches, host="inline")
    assert batches[1] == [("bob", 2, "BOB"), ("bob", 5, "BOB")]
    assert batches[2] == [("cid", 3, None), ("dan", 6, None)]
    # Four events after the first batch, and two after the next.
    assert (stats.missing_retry_count, stats.missing_found_count, stats.missing_given_up_count) == (6, 2, 2)


def test_what_cannot_wait_is_refused_by_name(spark, people, tmp_path):
    from millpond.spark import lookup_join

    table = LookupTable("people", people[0], PARTIAL)
    stream = FileStream(spark, tmp_path).frame()
    wrong = [
        (stream, {"retry_missing": {"fixed-delay": "1 s"}}, "retry_missing:\n- 'max-attempts' is missing"),
        (
            stream,
            {"retry_missing": RETRY, "share_cache": True},
            "share_cache: has no effect beside retry_missing",
        ),
        (stream.selectExpr("*", "id as id"), {"retry_missing": RETRY}, "two columns of one name"),
        (spark.createDataFrame([("ann",)], "user string"), {"retry_missing": RETRY}, "expected a stream, got a batch"),
    ]
    for df, options, complaint in wrong:
        with pytest.raises(OptionError, match=rf"^lookup_join with 'people', .*{complaint}"):
            lookup_join(df, table, on={"user": "name"}, **options)


def test_no_column_of_the_output_bears_a_watermark_that_would_never_advance(spark, people, tmp_path):
    from millpond.spark import lookup_join

    stream = FileStream(spark, tmp_path).frame().withWatermark("at", "1 minute")
    with LookupTable("people", people[0], PARTIAL) as table:
        joined = lookup_join(stream, table, on={"user": "name"}, retry_missing=RETRY)
        assert joined.columns == ["user", "id", "at", "city"]
        assert [field.metadata for field in joined.schema] == [{}] * 4
