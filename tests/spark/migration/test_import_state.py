"""What a savepoint of a PySpark query holds: all that Spark's state reader shows, key by key."""

import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from millpond import OptionError
from millpond.spark import import_state, keyed
from millpond.spark.environment.versions import SPARK
from millpond.state.checkpoint import Savepoint
from millpond.state.types.key_groups import key_group_of
from tests.spark.migration import jobs
from tests.spark.migration.conftest import spark_states, watermarked

pytestmark = pytest.mark.spark

KEY = "name string, day date, seen timestamp, local timestamp_ntz, price decimal(20,2), small byte, flag boolean"
KEY += ", part float, x double, raw binary"
NAIVE = datetime(2026, 1, 2, 3)  # noqa: DTZ001 - a time without a zone is a type of its own
KEYS = [
    (
        *("ann", date(2026, 1, 2), datetime(2026, 1, 2, 3, tzinfo=UTC), NAIVE, Decimal("7.25"), 1, True),
        *(0.5, 0.0, b"\x00\xff"),
    ),
    (
        *("", date(1969, 1, 2), datetime(1969, 1, 2, tzinfo=UTC), NAIVE, Decimal("-1.00"), -1, False),
        *(-0.0, -0.0, b""),
    ),
    (None,) * 10,
    ("nan", None, None, None, None, None, None, math.nan, math.nan, None),
]


class Rows(StatefulProcessor):
    """Counts the rows of a key."""

    def init(self, handle):
        self.state = handle.getValueState("state", "n long")

    def handleInputRows(self, key, rows, timerValues):
        self.state.update((sum(1 for _ in rows),))
        yield Row(n=1)

    def close(self):
        pass


class Nested(StatefulProcessor):
    """A state of nested values."""

    def init(self, handle):
        self.state = handle.getValueState(
            "state", "tags array<string>, at timestamp, inner struct<a: int, b: array<date>>, by map<string, double>"
        )

    def handleInputRows(self, key, rows, timerValues):
        at = datetime(2026, 1, 1, tzinfo=UTC)
        self.state.update((["x", None], at, Row(a=1, b=[date(2026, 1, 1)]), {"k": 0.5}))
        yield Row(n=sum(1 for _ in rows))

    def close(self):
        pass


class Other(StatefulProcessor):
    """Declares a state of `Ledger`'s with a type that the stored one does not fit."""

    def init(self, handle):
        self.total = handle.getValueState("total", "n string, last timestamp")

    def handleInputRows(self, key, rows, timerValues):
        yield from ()

    def close(self):
        pass


def rows_of(saved, state):
    return {
        tuple(value for name, value in row.items() if name.startswith("key.")): row
        for row in saved.table(state).to_pylist()
    }


def test_every_state_and_timer_of_each_key_is_there_and_an_empty_state_too(saved_ledger):
    saved = saved_ledger
    assert {state.describe() for state in saved.states()} == {
        "value total (n: int64, last: timestamp[us, tz=UTC])",
        "list ids (id: int64)",
        "map entries (name: string) -> (n: int64)",
        "value unused (n: int64)",
        "map $timers (expiry_ms: int64) -> (set: bool)",
    }
    assert {key: (row["value.n"], row["value.last"]) for key, row in rows_of(saved, "total").items()} == {
        ("ann",): (2, jobs.at(110)),
        ("bob",): (1, jobs.at(100)),
        (None,): (1, jobs.at(100)),
    }
    assert rows_of(saved, "ids")["ann",]["value"] == [{"id": 1}, {"id": 2}]
    assert {(row["key.user"], row["map_key.name"], row["value.n"]) for row in saved.table("entries").to_pylist()} == {
        ("ann", "entry-1", 1),
        ("ann", "entry-2", 2),
        ("bob", "entry-3", 3),
        (None, "entry-4", 4),
    }
    assert saved.table("unused").num_rows == 0
    assert {(row["key.user"], row["map_key.expiry_ms"]) for row in saved.table("$timers").to_pylist()} == {
        ("ann", 1_110_000),
        ("bob", 1_100_000),
        (None, 1_100_000),
    }
    assert saved.contents.watermark_ms == 110_000


def test_an_earlier_version_is_of_its_own_watermark(spark, tmp_path, old_ledger):
    saved = import_state(spark, old_ledger, str(tmp_path / "saved"), version=0)
    assert saved.contents.watermark_ms == 0
    with pytest.raises(OptionError, match="has no version 7: Spark keeps those of the batches 0 to 1"):
        import_state(spark, old_ledger, str(tmp_path / "other"), version=7)


def test_keys_of_every_type_have_the_key_groups_that_keyed_gives_them(spark, tmp_path):
    spark.createDataFrame(KEYS, KEY).write.parquet(str(tmp_path / "events"))
    events = spark.readStream.schema(KEY).parquet(str(tmp_path / "events"))
    names = events.columns
    checkpoint = _run(events.groupBy(*names).transformWithState(Rows(), "n int", "Update", "None"), tmp_path)

    saved = import_state(spark, checkpoint, str(tmp_path / "saved"))
    found = rows_of(saved, "state")
    # Bits, as Python has NaN differ from itself, and the two zeros equal: keyed() knows only the one without a sign.
    exact = {tuple(map(_exact, key)) for key in found}
    assert exact == {tuple(_exact(abs(part) if part == 0 else part) for part in key) for key in KEYS}
    kinds = [field.type for field in saved.table("state").schema if field.name.startswith("key.")]
    for key, row in found.items():
        assert row["key_group"] == key_group_of(key, kinds, saved.contents.max_parallelism)
        assert row["value.n"] == 1
    # The schema of the keys is the one that keyed() has.
    keyed(events, *names).transformWithState(Rows(), "n int", "Update", "None", savepoint=str(tmp_path / "saved"))


@pytest.mark.skipif(SPARK < (4, 2), reason="PySpark 4.1's operator fails to write dates in nested values")
def test_nested_values_are_as_keyed_declares_them(spark, tmp_path):
    spark.range(1).write.parquet(str(tmp_path / "events"))
    events = spark.readStream.schema("id long").parquet(str(tmp_path / "events"))
    checkpoint = _run(events.groupBy("id").transformWithState(Nested(), "n int", "Update", "None"), tmp_path)
    (row,) = import_state(spark, checkpoint, str(tmp_path / "saved")).table("state").to_pylist()
    assert row["value.tags"] == ["x", None]
    assert row["value.at"] == datetime(2026, 1, 1, tzinfo=UTC)
    assert row["value.inner"] == {"a": 1, "b": [date(2026, 1, 1)]}
    assert dict(row["value.by"]) == {"k": 0.5}
    keyed(events, "id").transformWithState(Nested(), "n int", "Update", "None", savepoint=str(tmp_path / "saved"))


def _run(output, folder):
    """Work off what there is; the checkpoint."""
    query = output.writeStream.outputMode("update").trigger(availableNow=True).format("noop")
    query.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    return str(folder / "checkpoint")


def _exact(part):
    return ("bits", struct.pack("<d", part)) if isinstance(part, float) else part


def test_lives_end_when_spark_would_end_them(spark, old_recent, saved_recent):
    saved = saved_recent
    theirs = spark_states(spark, old_recent, "total")
    ours = {key[0]: row["value.$alive_since_ms"] + jobs.HOUR_MS for key, row in rows_of(saved, "total").items()}
    assert ours == {row.key.user: row.value.ttlExpirationMs for row in theirs}
    elements = rows_of(saved, "ids")["ann",]["value"]
    assert [(element["id"], element["$alive_since_ms"] + jobs.HOUR_MS) for element in elements] == [
        (1, ours["ann"]),
        (2, ours["ann"]),
    ]
    assert {row["value.$alive_since_ms"] + jobs.HOUR_MS for row in saved.table("entries").to_pylist()} <= {
        *ours.values()
    }
    assert saved.contents.processing_ms >= max(ours.values()) - jobs.HOUR_MS


@pytest.mark.parametrize(
    ("ttl_ms", "says"),
    [
        ({}, r"\['entries', 'ids', 'total'\] of .* have a time to live.*ttl_ms=\{'entries': 3_600_000"),
        ({"totals": 1}, r"'totals', which does not exist .*did you mean 'total'"),
        ({"total": 60_000, "ids": 60_000, "entries": 60_000}, r"expire up to \d+ ms after the last batch"),
    ],
)
def test_a_time_to_live_that_is_missing_or_wrong_is_refused(spark, tmp_path, old_recent, ttl_ms, says):
    with pytest.raises(OptionError, match=says):
        import_state(spark, old_recent, str(tmp_path / "saved"), ttl_ms=ttl_ms)
    assert not (tmp_path / "saved" / "MANIFEST").exists()


def test_the_state_of_apply_in_pandas_with_state_gets_a_name_and_its_timeouts_become_timers(
    spark, tmp_path, old_counted
):
    saved = import_state(spark, old_counted, str(tmp_path / "saved"), group_state="visits", time_mode="ProcessingTime")
    assert {key[0]: row["value.n"] for key, row in rows_of(saved, "visits").items()} == {"ann": 2, "bob": 1, None: 1}
    timers = saved.table("$processing_timers").to_pylist()
    assert {(row["key.user"], row["map_key.expiry_ms"]) for row in timers} == {
        ("ann", 1_110_001),
        ("bob", 1_100_001),
        (None, 1_100_001),
    }


def test_timeouts_need_the_time_that_they_are_of(spark, tmp_path, old_counted):
    for time_mode in (None, "None"):
        with pytest.raises(OptionError, match="has timeouts, and its checkpoint does not tell of which time"):
            import_state(spark, old_counted, str(tmp_path / "saved"), time_mode=time_mode)


@pytest.mark.parametrize("option", [{"group_state": "n"}, {"time_mode": "EventTime"}])
def test_options_of_the_other_operator_are_refused(spark, tmp_path, old_ledger, option):
    with pytest.raises(OptionError, match=r"is for the state of applyInPandasWithState.*Leave it out"):
        import_state(spark, old_ledger, str(tmp_path / "saved"), **option)


def test_a_time_to_live_of_a_state_that_has_none_is_refused(spark, tmp_path, old_ledger, old_counted):
    with pytest.raises(OptionError, match="'total', which has no time to live"):
        import_state(spark, old_ledger, str(tmp_path / "saved"), ttl_ms={"total": 1})
    with pytest.raises(OptionError, match="applyInPandasWithState has no time to live"):
        import_state(spark, old_counted, str(tmp_path / "saved"), ttl_ms={"state": 1})


def test_a_folder_that_holds_anything_is_refused(spark, tmp_path, old_ledger):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(OptionError, match="is not empty"):
        import_state(spark, old_ledger, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_keyed_refuses_a_savepoint_of_another_schema_or_key(stream_of, saved_ledger):
    saved = saved_ledger.location
    events = watermarked(stream_of([("ann", 1, 1)]))
    with pytest.raises(OptionError, match="'n' was int64 and cannot become string"):
        keyed(events, "user").transformWithState(Other(), "n long", "Update", "EventTime", savepoint=saved)
    with pytest.raises(OptionError, match=r"keyed by \[user: string\] and the query keys by \[id: int64\]"):
        keyed(events, "id").transformWithState(jobs.Ledger(), jobs.LEDGER, "Update", "EventTime", savepoint=saved)
    with pytest.raises(OptionError, match="timers that were set in EventTime"):
        keyed(events, "user").transformWithState(
            jobs.Ledger(), jobs.LEDGER, "Update", "ProcessingTime", savepoint=saved
        )


def test_a_savepoint_opens_again(saved_ledger):
    assert Savepoint.open(saved_ledger.location).contents == saved_ledger.contents
