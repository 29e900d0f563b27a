"""A query that goes on with other code than it began with, on Spark."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from millpond.spark import StateConfig, keyed
from millpond.state.spi import CacheHooks
from tests.spark.streams import FileStream

pytestmark = pytest.mark.spark


class Count(StatefulProcessor):
    """Counts a user's rows, and remembers the last one, under whatever schemas it is given."""

    def __init__(self, schema: str = "n int", *, last: bool = True) -> None:
        self.schema = schema
        self.last = last

    def init(self, handle: Any) -> None:
        self._n = [name.split()[0] for name in self.schema.split(",")].index("n")
        self._width = len(self.schema.split(","))
        self._count = handle.getValueState("count", self.schema)
        if self.last:
            self._last = handle.getValueState("last", "id long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self._count.get() if self._count.exists() else [0] * self._width
        last = self._last.get()[0] if self.last and self._last.exists() else None
        n = before[self._n]
        for row in rows:
            n += 1
            if self.last:
                self._last.update((row.id,))
        after = list(before)
        after[self._n] = n
        self._count.update(tuple(after))
        yield Row(user=key[0], n=float(n), last=last, before=str(tuple(before)))

    def close(self) -> None:
        pass


OUTPUT = "user string, n double, last long, before string"


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> FileStream:
    return FileStream(spark, tmp_path)


def counted(stream: FileStream, processor: StatefulProcessor, host: str = "process") -> DataFrame:
    return keyed(stream.frame(), "user").transformWithState(
        processor, OUTPUT, "Update", "None", state=StateConfig(host=host)
    )


def test_states_and_fields_come_and_go_and_grow_from_restart_to_restart(stream: FileStream) -> None:
    steps = [
        (Count("n int", last=False), [("a", 1.0, None, "(0,)"), ("b", 1.0, None, "(0,)")]),
        # A state and a field more, and another order of fields.
        (Count("note string, n int"), [("a", 2.0, None, "(None, 1)"), ("b", 2.0, None, "(None, 1)")]),
        # Wider; a field and a state less.
        (Count("n long", last=False), [("a", 3.0, None, "(2,)"), ("b", 3.0, None, "(2,)")]),
        # What was declared no more is kept as it was.
        (Count("n long"), [("a", 4.0, 1, "(3,)"), ("b", 4.0, 1, "(3,)")]),
    ]
    for number, (processor, expected) in enumerate(steps):
        stream.add([("a", number, 0.0), ("b", number, 0.0)])
        (batch,) = stream.run(counted(stream, processor, host=("process", "inline")[number % 2]))
        assert sorted(tuple(row) for row in batch) == expected


def test_a_change_that_would_lose_something_is_refused_with_both_and_harms_nothing(stream: FileStream) -> None:
    stream.add([("a", 1, 0.0)])
    stream.run(counted(stream, Count()))
    stream.add([("a", 2, 0.0)])
    with pytest.raises(StreamingQueryException) as caught:
        stream.run(counted(stream, Count("n short")))
    assert all(words in str(caught.value) for words in ["state 'count'", "n: int32", "n: int16", "without loss"])
    (batch,) = stream.run(counted(stream, Count()))
    assert [row.n for row in batch] == [2.0]


CONFIGS = [
    StateConfig(max_entries=3),
    StateConfig(cache="write-back", max_size=2, hooks=CacheHooks(on_get=lambda _key, value: value)),
    StateConfig(backend="rocksdb", cache="two-layer", max_size=1, max_size_l2=2),
    StateConfig(host="inline", cache="none"),
]


def test_a_query_goes_on_with_another_cache_size_and_backend(stream: FileStream) -> None:
    users = [f"user {number}" for number in range(12)]
    for number, config in enumerate(CONFIGS):
        for file in range(2):
            stream.add([(user, 2 * number + file, 0.0) for user in users])
        batches = stream.run(
            keyed(stream.frame(), "user").transformWithState(Count(), OUTPUT, "Update", "None", state=config)
        )
        for file, batch in enumerate(batches):
            last = 2 * number + file
            expected = [(user, last + 1.0, last - 1 if last else None) for user in sorted(users)]
            assert sorted((row.user, row.n, row.last) for row in batch) == expected


def test_another_key_is_refused_with_both(stream: FileStream) -> None:
    stream.add([("a", 1, 0.0)])
    stream.run(counted(stream, Count()))
    stream.add([("a", 2, 0.0)])
    by_id = keyed(stream.frame(), F.col("id").alias("user")).transformWithState(Count(), OUTPUT, "Update", "None")
    with pytest.raises(StreamingQueryException, match=r"shard \d of operator Count in query .*user: string.*: int64"):
        stream.run(by_id)


@pytest.mark.parametrize("theirs_first", [True, False])
def test_a_checkpoint_goes_from_pysparks_own_operator_to_ours_and_back_only_by_its_refusal(
    stream: FileStream, *, theirs_first: bool
) -> None:
    theirs = stream.frame().groupBy("user").transformWithState(Count(), OUTPUT, "Update", "None")
    ours = counted(stream, Count())
    first, second = (theirs, ours) if theirs_first else (ours, theirs)
    stream.add([("a", 1, 0.0)])
    stream.run(first)
    stream.add([("a", 2, 0.0)])
    with pytest.raises(StreamingQueryException) as caught:
        stream.run(second)
    assert "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE" in str(caught.value)
    assert "millpond_shard" in str(caught.value)
    assert "user" in str(caught.value)
