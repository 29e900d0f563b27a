"""A job of PySpark's moves to Millpond with its state, runs on, and moves back: every count is exact."""

import pytest

from millpond.spark import export_state, import_state, keyed, read_state, savepoint
from tests.spark.migration import jobs
from tests.spark.migration.conftest import checkpoint_of, spark_states, watermarked

pytestmark = pytest.mark.spark

COUNTED = "user string, kind string, n long"


def told(batches):
    return {
        tuple(tuple(value) if isinstance(value, list) else value for value in row) for batch in batches for row in batch
    }


def entries(*ids):
    return tuple(f"entry-{number}" + f"={number}" for number in ids)


def test_the_row_form_with_every_kind_of_state_and_timers(spark, tmp_path, stream_of, saved_ledger):
    there, back = saved_ledger.location, str(tmp_path / "back")

    stream = stream_of([("ann", 5, 200), ("cid", 6, 200)])
    stream.add([("dan", 7, 1_150)])
    output = keyed(watermarked(stream), "user").transformWithState(
        jobs.Ledger(), jobs.LEDGER, "Update", "EventTime", savepoint=there
    )
    assert told(stream.run(output)) == {
        ("ann", "rows", 3, (1, 2, 5), entries(1, 2, 5)),
        ("cid", "rows", 1, (6,), entries(6)),
        ("dan", "rows", 1, (7,), entries(7)),
        ("ann", "timer 1110000", 3, (1, 2, 5), entries(1, 2, 5)),
        ("bob", "timer 1100000", 1, (3,), entries(3)),
        (None, "timer 1100000", 1, (4,), entries(4)),
    }

    savepoint(spark, checkpoint_of(stream), back)
    initial = export_state(spark, back)
    again = stream_of([("ann", 8, 1_160), ("bob", 9, 1_160)])
    again.add([("eve", 10, 1_300)])
    output = (
        watermarked(again)
        .groupBy("user")
        .transformWithState(jobs.Ledger(), jobs.LEDGER, "Update", "EventTime", initial.groupBy("user"))
    )
    assert told(again.run(output)) == {
        ("ann", "rows", 4, (1, 2, 5, 8), entries(1, 2, 5, 8)),
        ("bob", "rows", 2, (3, 9), entries(3, 9)),
        ("eve", "rows", 1, (10,), entries(10)),
        ("ann", "timer 1200000", 4, (1, 2, 5, 8), entries(1, 2, 5, 8)),
        ("cid", "timer 1200000", 1, (6,), entries(6)),
    }


def test_the_pandas_form_with_times_to_live(spark, tmp_path, stream_of, old_recent, saved_recent):
    there, back = saved_recent.location, str(tmp_path / "back")

    stream = stream_of([("ann", 5, 200), ("cid", 6, 200)])
    output = keyed(stream.frame(), "user").transformWithStateInPandas(
        jobs.Recent(), jobs.RECENT, "Update", "ProcessingTime", savepoint=there
    )
    assert told(stream.run_until(output, {("ann", 3), ("cid", 1)})) == {("ann", 3), ("cid", 1)}
    checkpoint = checkpoint_of(stream)
    expiry = {row.key.user: row.value.ttlExpirationMs for row in read_state(spark, checkpoint, "total").collect()}
    theirs = spark_states(spark, old_recent, "total")
    before = {row.key.user: row.value.ttlExpirationMs for row in theirs}
    assert (expiry["bob"], expiry[None]) == (before["bob"], before[None])
    assert expiry["ann"] > before["ann"]

    savepoint(spark, checkpoint, back)
    initial = export_state(spark, back)
    again = stream_of([("ann", 7, 300), ("bob", 8, 300)])
    output = (
        again.frame()
        .groupBy("user")
        .transformWithStateInPandas(jobs.Recent(), jobs.RECENT, "Update", "ProcessingTime", initial.groupBy("user"))
    )
    assert told(again.run_until(output, {("ann", 4), ("bob", 2)})) == {("ann", 4), ("bob", 2)}


def test_apply_in_pandas_with_state_and_its_timeouts(spark, tmp_path, stream_of, old_counted):
    there, back = str(tmp_path / "there"), str(tmp_path / "back")
    import_state(spark, old_counted, there, time_mode="EventTime")

    stream = stream_of([("ann", 5, 200), ("cid", 6, 200)])
    stream.add([("dan", 7, 1_100)])
    output = keyed(watermarked(stream), "user").transformWithState(
        jobs.Counted(), COUNTED, "Update", "EventTime", savepoint=there
    )
    assert told(stream.run(output)) == {("ann", "rows", 3), ("cid", "rows", 1), ("dan", "rows", 1)}, (
        "a timeout at the watermark is not due in Spark either"
    )
    stream.add([("dan", 7, 1_150)])
    assert told(stream.run(output)) == {
        ("dan", "rows", 2),
        ("bob", "timeout", 1),
        (None, "timeout", 1),
    }

    savepoint(spark, checkpoint_of(stream), back)
    again = stream_of([("ann", 8, 1_160), ("bob", 9, 1_160)])
    output = (
        watermarked(again)
        .groupBy("user")
        .transformWithState(jobs.Counted(), COUNTED, "Update", "EventTime", export_state(spark, back).groupBy("user"))
    )
    assert {row for row in told(again.run(output)) if row[1] == "rows"} == {("ann", "rows", 4), ("bob", "rows", 1)}
