"""A query whose durable state is not as it was written, and one on the other kinds of Spark's store."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from millpond import CorruptionError
from millpond.spark import StateConfig, keyed, read_state, savepoint
from millpond.spark.environment.session import _warned
from millpond.spark.operator.shard_processor import ShardProcessor
from millpond.state.checkpoint import Manifest
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark

USERS = [f"user {number}" for number in range(8)]


class Count(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n = (self._count.get()[0] if self._count.exists() else 0) + len(list(rows))
        self._count.update((n,))
        yield Row(user=key[0], n=n)

    def close(self) -> None:
        pass


class Tampering(ShardProcessor):
    """Does harm to the store of each shard instead of running its batch."""

    harm = ""

    def _run(self, routing_key: int, rows: Iterator[bytes], timer_values: Any) -> Iterator[Row]:
        manifest = Manifest.decode(bytes(self._stored_manifest.get()[0]), "the manifest")
        first = (manifest.segments[0].id,)
        if self.harm == "manifest missing":
            self._stored_manifest.clear()
        elif self.harm == "segment missing":
            self._stored_segments.removeKey(first)
        else:
            data = bytearray(self._stored_segments.getValue(first)[0])
            data[-1] ^= 1
            self._stored_segments.updateValue(first, (bytes(data),))
        return iter(())


class ManifestMissing(Tampering):
    harm = "manifest missing"


class SegmentMissing(Tampering):
    harm = "segment missing"


class SegmentAltered(Tampering):
    harm = "segment altered"


def run(stream: FileStream, **config: Any) -> dict[str, int]:
    """The last count of each user that came out."""
    stream.add([(user, 1, 0.0) for user in USERS])
    state = StateConfig(**config)
    batches = stream.run(
        keyed(stream.frame(), "user").transformWithState(Count(), OUTPUT, "Update", "None", state=state)
    )
    return {row.user: row.n for batch in batches for row in batch}


OUTPUT = "user string, n long"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (ManifestMissing, "its manifest is missing"),
        (SegmentMissing, "segment 0, written by version 1, state 'count' is missing"),
        # Checksums without Spark: tests/state/checkpoint/test_files.py.
        pytest.param(
            SegmentAltered,
            "segment 0 of shard . version 1, state 'count' does not match its checksum",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_lost_or_altered_state_stops_the_query_by_name_until_it_is_reset_on_purpose(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: type[Tampering], said: str
) -> None:
    stream = FileStream(spark, tmp_path)
    # In the worker, so that no state host has the state in memory afterwards.
    assert run(stream, host="inline") == dict.fromkeys(USERS, 1)
    with monkeypatch.context() as patch:
        patch.setattr(import_module("millpond.spark.operator.keyed"), "ShardProcessor", harm)
        assert run(stream) == {}
    with pytest.raises(StreamingQueryException) as caught:
        run(stream)
    words = str(caught.value)
    for part in (*said.split(" . "), "of operator Count in query", "StateConfig(on_lost_state='reset')"):
        assert part in words
    if harm is not ManifestMissing:
        assert "The last version that does not need it is 0." in words
        with pytest.raises(CorruptionError, match=r"segment 0"):
            savepoint(spark, str(tmp_path / "checkpoint"), str(tmp_path / "savepoint"))
    else:
        with pytest.raises(CorruptionError, match="manifests were found of the shards"):
            read_state(spark, str(tmp_path / "checkpoint"), "count")
    # The failed batch runs again, and the file that was added with it.
    assert run(stream, on_lost_state="reset") == dict.fromkeys(USERS, 2)


@pytest.mark.parametrize(("checkpoint_format", "changelog"), [("1", "true"), ("2", "false")])
def test_state_goes_on_with_both_checkpoint_formats_and_without_changelogs(
    spark: SparkSession, tmp_path: Path, checkpoint_format: str, changelog: str
) -> None:
    stream = FileStream(spark, tmp_path)
    settings = {
        "spark.sql.streaming.stateStore.checkpointFormatVersion": (checkpoint_format, "2"),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": (changelog, "true"),
    }
    for name, (value, _) in settings.items():
        spark.conf.set(name, value)
    try:
        # The session is told once, and all tests share it.
        _warned.discard(spark)
        with pytest.warns(UserWarning, match="less safely than it could"):
            counts = run(stream)
        assert counts == dict.fromkeys(USERS, 1)
        spark.conf.set("spark.sql.shuffle.partitions", "3")
        counts = run(stream, max_entries=5)
        assert counts == dict.fromkeys(USERS, 2)
        counts = read_state(spark, str(tmp_path / "checkpoint"), "count")
        assert {row.user: row.n for row in counts.select("key.user", "value.n").collect()} == dict.fromkeys(USERS, 2)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        for name, (_, usual) in settings.items():
            spark.conf.set(name, usual)
