"""A savepoint as a DataFrame: one row a key, as `initialState` wants it."""

import shutil

import pytest
from pyspark.sql import Row

from millpond import CorruptionError, DataError, OptionError
from millpond.spark import export_state, import_state
from millpond.state import Harness
from tests.spark.migration import jobs

pytestmark = pytest.mark.spark


def test_a_key_has_one_row_with_all_of_its_states(spark, saved_ledger):
    exported = export_state(spark, saved_ledger.location)
    assert exported.columns == ["user", "entries", "ids", "total", "unused", "timers"]
    rows = {row.user: row for row in exported.collect()}
    assert rows.keys() == {"ann", "bob", None}
    ann = rows["ann"]
    assert ann.total.n == 2
    assert ann.ids == [Row(id=1), Row(id=2)]
    assert sorted(ann.entries) == [
        Row(key=Row(name="entry-1"), value=Row(n=1)),
        Row(key=Row(name="entry-2"), value=Row(n=2)),
    ]
    assert (ann.unused, ann.timers) == (None, [1_110_000])


def test_what_has_expired_is_left_out(spark, saved_recent):
    location, values = saved_recent.location, saved_recent.table("total")
    (ended_ms,) = {began_ms + jobs.HOUR_MS for began_ms in values["value.$alive_since_ms"].to_pylist()}
    alive = {row.user: row for row in export_state(spark, location, now_ms=ended_ms - 1).collect()}
    assert (alive["ann"].total.n, len(alive["ann"].ids), len(alive["ann"].entries)) == (2, 2, 2)
    for row in export_state(spark, location, now_ms=ended_ms).collect():
        assert (row.total, row.ids, row.entries, len(row.timers)) == (None, None, None, 1)


def test_names_that_would_be_there_twice_are_refused_and_a_prefix_helps(spark, tmp_path, old_counted):
    location = str(tmp_path / "saved")
    import_state(spark, old_counted, location, group_state="User", time_mode="EventTime")
    with pytest.raises(OptionError, match=r"\['User'\] would be there twice.*prefix='state_'"):
        export_state(spark, location)
    assert export_state(spark, location, prefix="state_").columns == ["user", "state_User", "state_timers"]


def test_a_folder_that_is_no_savepoint_is_refused(spark, tmp_path):
    with pytest.raises(CorruptionError, match="MANIFEST is missing"):
        export_state(spark, str(tmp_path))


class Count:
    """Keeps a Python object."""

    def open(self, states):
        self.seen = states.value("seen", int, default=0)

    def process(self, key, record, context):
        self.seen.update(self.seen.get() + record)
        return []


def test_states_of_python_objects_are_refused(spark, tmp_path):
    with Harness(Count, key=lambda record: record, key_type=int) as harness:
        harness.process(1)
        harness.savepoint(str(tmp_path / "saved"))
    with pytest.raises(DataError, match=r"\['seen'\] hold Python objects"):
        export_state(spark, str(tmp_path / "saved"))


def test_a_file_that_was_altered_is_named(spark, tmp_path, saved_ledger):
    location = tmp_path / "saved"
    shutil.copytree(saved_ledger.location, location)
    file = next(location.glob("state-ids/*.parquet"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    exported = export_state(spark, str(location))
    with pytest.raises(Exception, match=f"{file.name} does not match its checksum"):
        exported.collect()
