"""What the time mode decides: which rows are late, which times the output has, and whether a query ends."""

import pytest
from pyspark.sql import functions as F

from tests.spark.pysparks_behaviours.operators import Both, Counting, Operator, every_run_in, rows_of, seconds
from tests.spark.pysparks_output import OPERATORS

pytestmark = pytest.mark.spark


class Seen(Both):
    """Gives the earliest time of a key's rows."""

    def handleInputRows(self, key, rows, timerValues):
        yield self.told(user=key[0], told=str(min(seconds(row["at"]) for row in self.given(rows))))


@every_run_in("pandas")
def test_late_rows_are_kept_without_event_time(operator, stream):
    for at in (100.0, 40.0, 20.0):
        stream.add([("ann", 1, at)])
    batches = rows_of(stream.run(operator.of(stream.frame().withWatermark("at", "10 seconds"), Seen(), "user")))
    assert [row[1] for batch in batches for row in batch] == ["100", "40", "20"]


@every_run_in("rows")
def test_what_follows_an_operator_goes_by_its_output_times(operator, stream):
    class OnTime(Seen):
        def handleInputRows(self, key, rows, timerValues):
            yield self.told(user=key[0], at=min(row["at"] for row in self.given(rows)))

    for rows in ([("ann", 1, 10.0), ("bob", 2, 15.0)], [("ann", 3, 11.0), ("cat", 4, 25.0)], [("ann", 5, 5.0)]):
        stream.add(rows)
    timed = operator.of(
        stream.frame().withWatermark("at", "5 seconds"),
        OnTime(),
        "user",
        output="user string, at timestamp",
        mode="EventTime",
        output_mode="Append",
        event_time="at",
    )
    counted = timed.groupBy("at").count().select(F.unix_seconds("at"), "count")
    batches = rows_of(stream.run(counted, "append"))
    # 5 comes after the watermark 10 of the batch before, and is dropped.
    assert [row for batch in batches for row in batch] == [(10, 1), (11, 1), (15, 1)]


@pytest.mark.parametrize("by", OPERATORS)
def test_available_now_does_not_end_in_processing_time(stream, by):
    stream.add([("ann", 1, 1.0)])
    output = Operator(by, "rows").of(stream.frame(), Counting(), "user", mode="ProcessingTime")
    writer = output.writeStream.outputMode("update").trigger(availableNow=True).format("noop")
    query = writer.option("checkpointLocation", str(stream.folder / "checkpoint")).start()
    try:
        # Spark makes batches without rows for as long as it runs.
        while query.isActive and len(query.recentProgress) < 4:
            query.awaitTermination(0.2)
        assert query.isActive
        assert [progress.numInputRows for progress in query.recentProgress[:4]] == [1, 0, 0, 0]
    finally:
        query.stop()
