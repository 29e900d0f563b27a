"""on_error="dead-letter": a key's call that fails leaves nothing but its letter."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from millpond import OptionError
from millpond.spark import StateConfig, keyed, split_dead_letters

pytestmark = pytest.mark.spark

HOSTS = pytest.mark.parametrize("host", ["process", "inline"])
EVENTS = "user string, id long, at timestamp, amount decimal(10,2)"


class Till(StatefulProcessor):
    """Adds ids up in three states; fails, after it has written all of them, over an id that ends in 3."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n long")
        self._ids = handle.getListState("ids", "id long")
        self._last = handle.getMapState("last", "parity long", "id long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        failed = None
        for row in rows:
            self._count.update(((self._count.get() or (0,))[0] + 1,))
            self._ids.appendValue((row.id,))
            self._last.updateValue((row.id % 2,), (row.id,))
            yield Row(user=key[0], n=self._count.get()[0], ids=[seen[0] for seen in self._ids.get()])
            failed = row.id if row.id % 10 == 3 else failed
        if failed is not None:
            raise ValueError(f"{failed} is poison")

    def close(self) -> None:
        pass


TILL = "user string not null, n long, ids array<long>"


def _write(folder: Path, batch: int, rows: list[tuple[str, int]]) -> None:
    folder.mkdir(exist_ok=True)
    lines = "".join(
        f'{{"user": "{user}", "id": {at}, "at": "2024-01-01T00:00:{at:02}Z", "amount": 1.{at:02}}}\n'
        for user, at in rows
    )
    hidden = folder / f".{batch}"
    hidden.write_text(lines)
    # Spark takes files in the order of their times.
    os.utime(hidden, (1_700_000_000 + batch,) * 2)
    hidden.rename(folder / f"{batch}.json")


class Job:
    """A stream of files whose results and dead letters are kept by batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.results: list[list[Row]] = []
        self.letters: list[list[Row]] = []

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder / "events"))

    def run(self, operated: DataFrame) -> None:
        def sink(batch: DataFrame, _: int) -> None:
            results, letters = split_dead_letters(batch.persist())
            self.results.append(results.collect())
            self.letters.append(letters.collect())

        writer = operated.writeStream.outputMode("update").trigger(availableNow=True).foreachBatch(sink)
        writer.option("checkpointLocation", str(self.folder / "checkpoint")).start().awaitTermination()


@HOSTS
def test_a_failed_call_is_undone_and_its_rows_go_aside_once(spark: SparkSession, tmp_path: Path, host: str) -> None:
    job = Job(spark, tmp_path)
    _write(tmp_path / "events", 0, [("ann", 1), ("bob", 2), ("cid", 4)])
    _write(tmp_path / "events", 1, [("ann", 5), ("ann", 13), ("bob", 6), ("dan", 23)])
    _write(tmp_path / "events", 2, [("ann", 7), ("dan", 8)])
    grouped = keyed(job.frame(), "user")
    operated = grouped.transformWithState(
        Till(), TILL, "Update", "None", on_error="dead-letter", state=StateConfig(host=host)
    )
    job.run(operated)
    assert [sorted((row.user, row.n, row.ids) for row in batch) for batch in job.results] == [
        [("ann", 1, [1]), ("bob", 1, [2]), ("cid", 1, [4])],
        [("bob", 2, [2, 6])],
        [("ann", 2, [1, 7]), ("dan", 1, [8])],
    ]
    assert [sorted(row.key.user for row in batch) for batch in job.letters] == [[], ["ann", "dan"], []]
    letter = next(row for row in job.letters[1] if row.key.user == "ann")
    assert [row.id for row in letter.rows] == [5, 13]
    assert [str(row.amount) for row in letter.rows] == ["1.05", "1.13"]
    assert letter.error == "ValueError: 13 is poison"
    assert "test_dead_letters.py" in letter.traceback
    assert "of millpond" in letter.traceback  # its frames are one line
    assert "set_aside.py" not in letter.traceback
    assert (letter.batch_id, letter.timer_ms) == (1, None)
    assert grouped.metrics().dead_letters == 2


def test_the_rows_of_a_letter_can_be_fed_in_again_as_they_were(spark: SparkSession) -> None:
    events = spark.range(30).select(
        (F.col("id") % 10).cast("string").alias("user"),
        "id",
        F.timestamp_seconds("id").alias("at"),
        (F.col("id") / 7).cast("decimal(10,2)").alias("amount"),
        F.array(F.struct("id", F.timestamp_seconds("id").alias("seen"))).alias("nested"),
    )
    operated = keyed(events, "user").transformWithState(Till(), TILL, "Update", "None", on_error="dead-letter")
    results, letters = split_dead_letters(operated.persist())
    assert {row.user for row in results.collect()} == set("012456789")
    again = letters.select(F.explode("rows").alias("row")).select("row.*")
    assert again.dtypes == events.dtypes
    assert sorted(again.collect()) == sorted(events.where("user = '3'").collect())


class Wrong(Till):
    """Gives for some keys what cannot be taken."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Any:
        self._count.update((len(list(rows)),))
        if key[0] == "state":
            self._ids.appendValue(("no number",))
        wrong = {"value": "many", "none": None, "state": 1}
        if key[0] == "nothing":
            return None
        if key[0] == "no row":
            return iter([3])
        return iter([Row(user=key[0], n=wrong.get(key[0], 1), ids=[])])


def test_what_does_not_fit_the_output_or_a_state_is_a_letter_too(spark: SparkSession) -> None:
    users = ["good", "value", "none", "state", "nothing", "no row", "better"]
    events = spark.createDataFrame([(user, at) for at, user in enumerate(users)], "user string, id long")
    operated = keyed(events, "user").transformWithState(Wrong(), TILL, "Update", "None", on_error="dead-letter")
    results, letters = split_dead_letters(operated.persist())
    assert sorted(row.user for row in results.collect()) == ["better", "good", "none"]
    reasons = {row.key.user: row.error for row in letters.collect()}
    assert sorted(reasons) == ["no row", "nothing", "state", "value"]
    assert "'many'" in reasons["value"]
    assert "'ids'" in reasons["state"]
    assert "returned None" in reasons["nothing"]


class Alarm(StatefulProcessor):
    """Sets a timer per key; the handler of some keys writes, and then fails."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._fired = handle.getValueState("fired", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self._handle.registerTimer(int(row.at.timestamp() * 1000) + 1)
        yield Row(user=key[0], n=(self._fired.get() or (0,))[0])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        self._fired.update(((self._fired.get() or (0,))[0] + 1,))
        self._handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1_000_000_000)
        if key[0] == "bad":
            raise ArithmeticError("no")
        yield Row(user=key[0], n=100 + self._fired.get()[0])

    def close(self) -> None:
        pass


def test_a_timer_whose_handler_fails_is_used_up_and_told_of(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    _write(tmp_path / "events", 0, [("good", 1), ("bad", 1), ("bad", 2)])
    _write(tmp_path / "events", 1, [("late", 50)])
    _write(tmp_path / "events", 2, [("bad", 59), ("good", 59)])
    operated = keyed(job.frame().withWatermark("at", "1 second"), "user").transformWithState(
        Alarm(), "user string, n long", "Update", "EventTime", on_error="dead-letter"
    )
    job.run(operated)
    given = [(row.user, row.n) for batch in job.results for row in batch]
    assert ("good", 101) in given
    assert ("bad", 0) in given
    assert not [n for user, n in given if user == "bad" and n]
    letters = [row for batch in job.letters for row in batch]
    second = 1_704_067_200_000
    assert sorted((row.key.user, row.timer_ms - second) for row in letters)[:2] == [("bad", 1001), ("bad", 2001)]
    assert {row.error for row in letters} == {"ArithmeticError: no"}
    assert all(row.rows == [] for row in letters)
    assert len({row.timer_ms for row in letters}) == len(letters), "each timer once"


def test_by_default_the_batch_fails_with_the_users_own_traceback(spark: SparkSession, tmp_path: Path) -> None:
    job = Job(spark, tmp_path)
    _write(tmp_path / "events", 0, [("ann", 3)])
    operated = keyed(job.frame(), "user").transformWithState(Till(), TILL, "Update", "None")
    writer = operated.writeStream.outputMode("update").trigger(availableNow=True).format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    assert "3 is poison" in str(caught.value)
    assert "test_dead_letters.py" in str(caught.value)


def test_what_cannot_be_set_aside_is_refused_when_the_query_is_planned(spark: SparkSession) -> None:
    events = spark.createDataFrame([("ann", 1)], "user string, id long")
    with pytest.raises(OptionError, match="'dead_letter', which is where"):
        keyed(events, "user").transformWithState(
            Till(), "user string, Dead_Letter int", "Update", "None", on_error="dead-letter"
        )
    with pytest.raises(OptionError, match="two of one name"):
        keyed(events.selectExpr("user", "id", "id + 1 AS ID"), "user").transformWithState(
            Till(), TILL, "Update", "None", on_error="dead-letter"
        )
    with pytest.raises(OptionError, match="on_error='ignore'"):
        keyed(events, "user").transformWithState(Till(), TILL, "Update", "None", on_error="ignore")
    with pytest.raises(OptionError, match="no column 'dead_letter'"):
        split_dead_letters(events)


class InPandas(Till):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        ids = [int(at) for frame in rows for at in frame["id"]]
        self._count.update((len(ids),))
        if any(at % 10 == 3 for at in ids):
            raise ValueError("poison")
        yield pd.DataFrame({"user": [key[0]], "n": ["many" if 4 in ids else len(ids)], "ids": [ids]})


def test_calls_with_frames_are_set_aside_as_well(spark: SparkSession) -> None:
    events = spark.createDataFrame([("ann", 1), ("bob", 3), ("cid", 4), ("ann", 5)], "user string, id long")
    operated = keyed(events, "user").transformWithStateInPandas(
        InPandas(), TILL, "Update", "None", on_error="dead-letter"
    )
    results, letters = split_dead_letters(operated.persist())
    assert [(row.user, row.n, row.ids) for row in results.collect()] == [("ann", 2, [1, 5])]
    found = {row.key.user: (row.rows, row.error) for row in letters.collect()}
    assert sorted(found) == ["bob", "cid"]
    assert found["bob"] == ([Row(user="bob", id=3)], "ValueError: poison")
    assert "many" in found["cid"][1]
