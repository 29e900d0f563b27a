"""The three forms through Spark: one state under all of them, and pandas as PySpark's own operator gives it."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from millpond import OptionError
from millpond.spark import ArrowStatefulProcessor, StateConfig, keyed

pytestmark = pytest.mark.spark

OUTPUT = "user string, events long, total double"
STATE = "events long, total double"


class Rows(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.spending = handle.getValueState("spending", STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        events, total = self.spending.get() or (0, 0.0)
        for row in rows:
            events, total = events + 1, total + row.amount
        self.spending.update((events, total))
        yield Row(user=key[0], events=events, total=total)

    def close(self) -> None:
        pass


class Pandas(Rows):
    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        events, total = self.spending.get() or (0, 0.0)
        for frame in rows:
            events, total = events + len(frame), total + float(frame["amount"].sum())
        self.spending.update((events, total))
        yield pd.DataFrame({"user": [key[0]], "events": [events], "total": [total]})


class Arrow(ArrowStatefulProcessor):
    def init(self, handle: Any) -> None:
        self.spending = handle.getValueState("spending", STATE)

    def handleInputTable(self, keys: pa.Table, rows: pa.Table, key_index: Any, timerValues: Any) -> Iterator[pa.Table]:
        before = self.spending.get_many(keys)
        count = np.bincount(key_index, minlength=len(keys))
        amount = np.bincount(key_index, weights=rows["amount"], minlength=len(keys))
        after = {
            "events": pc.add(pc.fill_null(before["events"], 0), pa.array(count)),
            "total": pc.add(pc.fill_null(before["total"], 0.0), pa.array(amount)),
        }
        self.spending.update_many(keys, after)
        yield pa.table({"user": keys["user"], **after})


class Combined(Arrow):
    def combine(self, keys: pa.Table, rows: pa.Table, key_index: Any) -> pa.Table:
        count = np.bincount(key_index, minlength=len(keys))
        amount = np.bincount(key_index, weights=rows["amount"], minlength=len(keys))
        return pa.table({"events": count, "user": keys["user"], "amount": amount})

    def handleInputTable(self, keys: pa.Table, rows: pa.Table, key_index: Any, timerValues: Any) -> Iterator[pa.Table]:
        for table in super().handleInputTable(keys, rows, key_index, timerValues):
            count = np.bincount(key_index, weights=rows["events"], minlength=len(keys)).astype(int)
            more = pc.subtract(pa.array(count), pa.array(np.bincount(key_index, minlength=len(keys))))
            after = {"events": pc.add(table["events"], more), "total": table["total"]}
            self.spending.update_many(keys, after)
            yield pa.table({"user": keys["user"], **after})


def _in_form(form: str, events: DataFrame, **options: Any) -> DataFrame:
    by_user = keyed(events, "user")
    if form == "rows":
        return by_user.transformWithState(Rows(), OUTPUT, "Update", "None", **options)
    if form == "pandas":
        return by_user.transformWithStateInPandas(Pandas(), OUTPUT, "Update", "None", **options)
    processor = Combined() if form == "arrow, combined" else Arrow()
    return by_user.transformWithStateInArrow(processor, OUTPUT, "Update", "None", **options)


FORMS_AND_HOSTS = [
    ("rows", "process"),
    ("arrow", "process"),
    ("pandas", "inline"),
    ("arrow, combined", "process"),
    ("arrow", "inline"),
    ("rows", "inline"),
]


def test_a_query_may_go_on_in_another_form_and_host_from_the_state_it_has(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    plain: dict[Any, tuple[int, float]] = {}
    random = np.random.default_rng(5)
    for batch, (form, host) in enumerate(FORMS_AND_HOSTS):
        users = [None if user == 7 else f"user-{user}" for user in random.integers(0, 30, size=50)]
        amounts = random.integers(-9, 9, size=50).astype(float)
        file = tmp_path / "events" / f"{batch}.parquet"
        pq.write_table(pa.table({"user": pa.array(users, pa.string()), "amount": amounts}), file)
        os.utime(file, (1_700_000_000 + batch,) * 2)
        for user, amount in zip(users, amounts, strict=True):
            events, total = plain.get(user, (0, 0.0))
            plain[user] = events + 1, total + float(amount)
        found: list[Row] = []
        stream = spark.readStream.schema("user string, amount double").parquet(str(tmp_path / "events"))
        writer = _in_form(form, stream, state=StateConfig(host=host)).writeStream.outputMode("update")
        writer = writer.foreachBatch(lambda frame, _, found=found: found.extend(frame.collect()))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
        assert Counter(map(tuple, found)) == Counter((user, *plain[user]) for user in set(users))


class Telling(StatefulProcessor):
    """Tells the types and values that reached it."""

    def init(self, handle: Any) -> None:
        self.calls = handle.getValueState("calls", "n int")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        frames = list(rows)
        whole = pd.concat(frames, ignore_index=True)
        self.calls.update(((self.calls.get() or (0,))[0] + 1,))
        whole = whole.sort_values("id", ignore_index=True)
        yield pd.DataFrame(
            {
                "said": [f"{key!r} {[type(part).__name__ for part in key]} {dict(frames[0].dtypes.astype(str))}"],
                "seen": [repr([[str(value) for value in row] for row in whole.itertuples(index=False)])],
                "at": [frames[0]["at"].max()],
                "calls": [self.calls.get()[0]],
            }
        )

    def close(self) -> None:
        pass


TOLD = "said string, seen string, at timestamp, calls int"


def test_pandas_frames_keys_and_output_are_those_of_pysparks_own_operator(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        events = spark.range(40).select(
            F.col("id"),
            (F.col("id") % 3).cast("int").alias("part"),
            F.timestamp_seconds(F.col("id") % 2).alias("hour"),
            F.timestamp_seconds(F.col("id") * 90_000).alias("at"),
            F.to_date(F.timestamp_seconds(F.col("id") * 90_000)).alias("day"),
            (F.col("id") / 4).cast("float").alias("small"),
            (F.col("id") % 2 == 0).alias("even"),
            F.col("id").cast("decimal(9,2)").alias("price"),
            F.array(F.col("id")).alias("ids"),
            F.col("id").cast("string").alias("odd name"),
        )
        theirs = events.groupBy("part", "hour").transformWithStateInPandas(Telling(), TOLD, "Update", "None")
        ours = keyed(events, "part", "hour").transformWithStateInPandas(Telling(), TOLD, "Update", "None")
        assert Counter(ours.collect()) == Counter(theirs.collect())
    finally:
        spark.conf.unset("spark.sql.session.timeZone")


class Wrong(Arrow):
    def handleInputTable(self, keys: pa.Table, rows: pa.Table, key_index: Any, timerValues: Any) -> Iterator[pa.Table]:
        yield keys.append_column("events", pa.array([["one"]] * len(keys))).append_column(
            "total", pa.array([0.0] * len(keys))
        )


def test_a_wrong_table_is_named_on_the_driver(spark: SparkSession) -> None:
    events = spark.createDataFrame([("ann", 1.0)], "user string, amount double")
    output = keyed(events, "user").transformWithStateInArrow(Wrong(), OUTPUT, "Update", "None")
    with pytest.raises(Exception, match=r"column 'events' is int64, got list<.*string>"):
        output.collect()


def test_a_processor_of_another_form_is_refused_when_the_query_is_planned(spark: SparkSession) -> None:
    events = spark.createDataFrame([("ann", 1.0)], "user string, amount double")
    with pytest.raises(OptionError, match="transformWithStateInArrow takes an ArrowStatefulProcessor"):
        keyed(events, "user").transformWithStateInArrow(Rows(), OUTPUT, "Update", "None")
    with pytest.raises(OptionError, match=r"takes a StatefulProcessor.*got Arrow"):
        keyed(events, "user").transformWithStateInPandas(Arrow(), OUTPUT, "Update", "None")


def test_a_class_in_place_of_a_processor_is_refused_with_the_line_to_write(spark: SparkSession) -> None:
    events = spark.createDataFrame([("ann", 1.0)], "user string, amount double")
    with pytest.raises(OptionError, match=r"got the class Rows and not an instance of it. Write Rows\(\)"):
        keyed(events, "user").transformWithState(Rows, OUTPUT, "Update", "None")
    with pytest.raises(OptionError, match=r"got dict, which has no init and no handleInputRows and no close"):
        keyed(events, "user").transformWithState({}, OUTPUT, "Update", "None")
