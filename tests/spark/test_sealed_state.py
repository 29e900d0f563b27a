"""A query whose state is sealed with a key: it goes on with the key, and nobody reads or replaces its state without."""

import traceback
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from millpond import CorruptionError, OptionError
from millpond.spark import StateConfig, keyed, read_state, savepoint
from tests.spark.streams import FileStream
from tests.spark.test_lost_state import OUTPUT, USERS, Count, run

pytestmark = pytest.mark.spark

KEY, OTHER = b"hunter2-Zq7x9_secret-of-a-seal", bytes(range(32))


def test_a_sealed_query_goes_on_and_is_read_only_with_its_key(spark: SparkSession, tmp_path: Path) -> None:
    stream, told = FileStream(spark, tmp_path), []
    checkpoint = str(tmp_path / "checkpoint")
    assert run(stream, seal=KEY) == dict.fromkeys(USERS, 1)
    # In the worker, which restores from what is stored.
    assert run(stream, seal=KEY, host="inline") == dict.fromkeys(USERS, 2)
    for wrong, said in ({"seal": OTHER}, "is sealed with the key"), ({}, "is sealed with a key"):
        with pytest.raises(
            StreamingQueryException, match=rf"the manifest of shard . of operator Count .*{said}"
        ) as error:
            run(stream, **wrong)
        told += traceback.format_exception(error.value)
        with pytest.raises(OptionError, match=rf"the manifest of shard .*{said}") as refused:
            read_state(spark, checkpoint, "count", **wrong)
        told += traceback.format_exception(refused.value)
    counts = read_state(spark, checkpoint, "count", seal=KEY)
    assert {row.user: row.n for row in counts.select("key.user", "value.n").collect()} == dict.fromkeys(USERS, 2)
    config = StateConfig(seal=KEY)
    output = keyed(stream.frame(), "user").transformWithState(Count(), OUTPUT, "Update", "None", state=config)
    told += [repr(config), counts._jdf.queryExecution().toString(), output._jdf.queryExecution().toString()]
    assert not any("Zq7x9" in each or KEY.hex() in each for each in told)
    for path in (tmp_path / "checkpoint").rglob("*"):
        assert not path.is_file() or KEY not in path.read_bytes()
    # A new query with another key, from a savepoint that has it.
    savepoint(spark, checkpoint, str(tmp_path / "savepoint"), seal=KEY, savepoint_seal=OTHER)
    (tmp_path / "other").mkdir()
    other = FileStream(spark, tmp_path / "other")
    other.add([(user, 1, 0.0) for user in USERS])

    def begun(**config: object) -> dict[str, int]:
        frame = keyed(other.frame(), "user").transformWithState(
            Count(), OUTPUT, "Update", "None", state=StateConfig(**config), savepoint=str(tmp_path / "savepoint")
        )
        return {row.user: row.n for batch in other.run(frame) for row in batch}

    with pytest.raises(OptionError, match="MANIFEST is sealed with the key"):
        begun(seal=KEY)
    assert begun(seal=OTHER) == dict.fromkeys(USERS, 3)


def test_a_query_that_asks_for_a_seal_takes_nothing_that_has_none(spark: SparkSession, tmp_path: Path) -> None:
    stream = FileStream(spark, tmp_path)
    assert run(stream) == dict.fromkeys(USERS, 1)
    with pytest.raises(StreamingQueryException, match=r"the manifest of shard . .* is not sealed"):
        run(stream, seal=KEY)
    with pytest.raises(CorruptionError, match="is not sealed"):
        read_state(spark, str(tmp_path / "checkpoint"), "count", seal=KEY)
