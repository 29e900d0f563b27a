"""What becomes of a query when a worker, a host or a lookup fails."""

import os
import signal

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from millpond.lookup import LookupTable, PythonLookup
from millpond.spark import lookup_join, split_dead_letters
from tests.spark.lookup_join.tables import PARTIAL, rows_of

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(("host", "told"), [("inline", "crashed"), ("process", "in the middle of a batch")])
def test_a_worker_or_host_that_dies_changes_no_answer(spark, tmp_path, host, told):
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
    def fail(number):
        raise ZeroDivisionError(f"no row for {number}")

    keys, rows = pa.schema([("number", pa.int64())]), pa.schema([("square", pa.int64())])
    with LookupTable("squares", PythonLookup(fail, keys, rows)) as table:
        joined = lookup_join(spark.range(3).withColumnRenamed("id", "number"), table, on="number")
        with pytest.raises(Exception, match="ZeroDivisionError: no row for"):
            joined.collect()


def test_a_failure_in_a_host_fails_the_batch_and_is_counted_with_the_next_answer(spark, tmp_path):
    mended = tmp_path / "mended"

    def square(number):
        if not mended.exists():
            raise ZeroDivisionError(f"no row for {number}")
        return [(number * number,)]

    keys, rows = pa.schema([("number", pa.int64())]), pa.schema([("square", pa.int64())])
    events = spark.range(0, 3, 1, 1).withColumnRenamed("id", "number")
    with LookupTable("squares", PythonLookup(square, keys, rows), PARTIAL) as table:
        with pytest.raises(Exception, match="ZeroDivisionError: no row for"):
            lookup_join(events, table, on="number").collect()
        mended.touch()
        # Anew, since adaptive execution remembers of a plan that it failed.
        joined = lookup_join(events, table, on="number")
        assert rows_of(joined) == [(0, 0), (1, 1), (2, 4)]
        assert table.stats().num_load_failure > 0
        assert table.stats().num_cached_record == 3


@pytest.mark.parametrize("host", ["process", "inline"])
def test_a_poison_key_leaves_with_its_reason_where_that_was_chosen(spark, host):

    def model(number):
        if number == 3:
            raise ValueError("number 3 is poison")
        return [(f"M{number}",)]

    source = PythonLookup(model, pa.schema([("number", pa.int64())]), pa.schema([("model", pa.string())]))
    events = spark.range(6).selectExpr("id", "string(id) as number")
    with LookupTable("models", source, PARTIAL) as table:
        joined = lookup_join(events, table, on="number", host=host, on_error="dead-letter")
        output, letters = split_dead_letters(joined)
        assert rows_of(output) == [(number, str(number), f"M{number}") for number in (0, 1, 2, 4, 5)]
        (letter,) = letters.collect()
        assert (letter.key.number, letter.rows[0].asDict()) == ("3", {"id": 3, "number": "3"})
        assert letter.error == "ValueError: number 3 is poison"
        with pytest.raises(PySparkException, match="number 3 is poison"):
            lookup_join(events, table, on="number", host=host).collect()
