"""Which operators of a checkpoint can be imported, and what is said of those that cannot."""

import shutil

import pytest

from millpond import CorruptionError, DataError, OptionError
from millpond.spark import import_state
from millpond.spark.inspect.query_operators import QueryOperator
from millpond.spark.migration import pyspark_operator
from millpond.spark.migration.pyspark_operator import PySparkOperator
from tests.spark.migration import jobs
from tests.spark.migration.conftest import checkpoint_of, watermarked

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def two_operators(stream_of):
    """Spark's deduplication and behind it an operator of PySpark's."""
    stream = stream_of([("ann", 1, 100), ("ann", 1, 100), ("ann", 2, 100)])
    unique = watermarked(stream).dropDuplicates(["user", "id", "at"])
    stream.run(unique.groupBy("user").transformWithState(jobs.Ledger(), jobs.LEDGER, "Update", "EventTime"))
    return checkpoint_of(stream)


def test_a_folder_that_is_no_checkpoint_is_refused(spark, tmp_path):
    for location in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(OptionError, match=r"is not the checkpoint of a stateful query.*checkpointLocation"):
            import_state(spark, str(location), str(tmp_path / "saved"))


def test_the_operator_is_found_among_others(spark, tmp_path, two_operators):
    saved = import_state(spark, two_operators, str(tmp_path / "saved"))
    assert [row["value.n"] for row in saved.table("total").to_pylist()] == [2]


def test_another_operator_is_refused_with_those_that_there_are(spark, tmp_path, two_operators):
    with pytest.raises(OptionError, match=r"no such operator 7; .*transformWithState.*also has .*dedupe.*cannot be"):
        import_state(spark, two_operators, str(tmp_path / "saved"), operator=7)


def test_an_operator_that_cannot_be_imported_is_refused_by_name(spark, tmp_path, monkeypatch):
    found(monkeypatch, QueryOperator(3, "stateStoreSave", 2, 0, 1, {}))
    with pytest.raises(OptionError, match=r"no operator whose state can be imported.*3 \(stateStoreSave\)"):
        import_state(spark, "checkpoint", str(tmp_path / "saved"))


def test_of_several_operators_one_must_be_named(spark, tmp_path, monkeypatch):
    found(monkeypatch, *(QueryOperator(at, "applyInPandasWithState", 2, 0, 1, {}) for at in (0, 1)))
    with pytest.raises(
        OptionError,
        match=r"several operators .*operator=, or --operator of the command, one of 0 \(applyInPandasWithState\), 1",
    ):
        import_state(spark, "checkpoint", str(tmp_path / "saved"))


@pytest.mark.parametrize("operator", [None, 1])
def test_an_operator_of_millponds_is_sent_to_savepoint(spark, tmp_path, monkeypatch, operator):
    states = [{"stateName": "head"}, {"stateName": "segments"}]
    found(monkeypatch, QueryOperator(1, "transformWithStateInPySparkExec", 2, 0, 1, {"stateVariables": states}))
    with pytest.raises(OptionError, match=r"operator 1: its state is Millpond's already.*millpond\.spark\.savepoint"):
        import_state(spark, "checkpoint", str(tmp_path / "saved"), operator=operator)


def test_a_key_that_keyed_does_not_take_is_refused_by_name(spark):
    operator = PySparkOperator(spark, "checkpoint", QueryOperator(0, "", 2, 0, 1, {}), 1, 0, 0)
    rows = spark.sql("SELECT named_struct('user', 'ann', 'place', named_struct('a', 1)) AS key")
    with pytest.raises(DataError, match="key column 'place' is struct<a:int>"):
        operator.key_schema(rows)


def test_an_operator_without_states_has_nothing_to_import(spark):
    operator = PySparkOperator(spark, "checkpoint", QueryOperator(0, "", 2, 0, 1, {"timeMode": "None"}), 1, 0, 0)
    with pytest.raises(OptionError, match="operator 0 of checkpoint declares no states"):
        operator.states({})


def found(monkeypatch, *operators):
    """What the metadata of every checkpoint says."""
    monkeypatch.setattr(pyspark_operator, "query_operators", lambda *_: list(operators))


@pytest.mark.parametrize(("log", "says"), [("commits", "for the last batch"), ("offsets", "the times of batch 1")])
def test_a_checkpoint_that_lost_the_record_of_its_batch_is_refused(spark, tmp_path, old_ledger, log, says):
    copy = tmp_path / "copy"
    shutil.copytree(old_ledger, copy)
    (copy / log / "1").write_text("v1")
    (copy / log / ".1.crc").unlink()
    with pytest.raises(CorruptionError, match=rf"{log}/1, .*{says}.* cannot be read"):
        import_state(spark, str(copy), str(tmp_path / "saved"))
