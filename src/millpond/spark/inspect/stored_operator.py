"""A keyed operator's state in a query's checkpoint, read through Spark's own state data source.

The driver reads the manifests, one small record for each shard. Spark's tasks read the segments, one shard each,
and check every segment against its manifest before they use a row of it. The query may be running and writing to the
checkpoint: only one committed batch is read.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millpond.errors import CorruptionError, OptionError
from millpond.masking import masked
from millpond.spark.environment.folders import user_folder
from millpond.spark.inspect.query_operators import QueryOperator, described, query_operators
from millpond.spark.shuffle.spool import Spool
from millpond.state.checkpoint import Manifest
from millpond.state.checkpoint.format import seal as seals
from millpond.state.checkpoint.restoring import Version, last_good, segment_name
from millpond.state.types.descriptor import StateDescriptor

_GONE = "Restore the state part of the checkpoint, or ask for an earlier version."

_SPOOLED_IN_MEMORY = 8 << 20
"""Bytes of a shard's segments that wait in memory until all segments have come; the rest waits in a file."""

ShardReader = Callable[[Version], Iterable[pa.RecordBatch]]
"""A function that a task applies to one shard."""


@dataclass(frozen=True)
class StoredOperator:
    """One keyed operator at one committed batch of its query.

    Attributes:
        spark: the session that reads.
        location: the query's checkpoint.
        operator: its id in the query.
        version: the batch.
        manifests: the shards' manifests, by the number of Spark's partition, which is the shard's.
        states: its states, timers included, as they were declared then.
        seal: the seal of manifests and segments, if they have one.
    """

    spark: SparkSession
    location: str
    operator: int
    version: int
    manifests: Mapping[int, Manifest]
    states: tuple[StateDescriptor, ...]
    seal: seals.Seal | None = None

    @staticmethod
    def open(
        spark: SparkSession,
        location: str,
        operator: int | None,
        version: int | None,
        seal: seals.Seal | bytes | None = None,
    ) -> "StoredOperator":
        """Read the manifests.

        Raises:
            OptionError: there is no such checkpoint, operator or version; or the seal's key is missing or wrong.
            CorruptionError: a manifest is missing or altered.
        """
        seal = seals.Seal.of(seal)
        found = _found(spark, location, operator)
        operator, version = found.id, found.version(version, location)
        stored = _source(spark, location, operator, version, "head")
        manifests = {}
        for row in stored.select("partition_id", "value.head").collect():
            shard = f"shard {row.partition_id} of operator {operator}"
            name = f"the manifest of {shard} in {masked(location)}, version {version}"
            encoded = seals.opened(seal, bytes(row.head), seals.MANIFEST, name)
            manifests[int(row.partition_id)] = Manifest.decode(encoded, name)
        shards = {manifest.shards for manifest in manifests.values()} or {0}
        if manifests.keys() != set(range(max(shards))) or not manifests:
            raise CorruptionError(
                f"{masked(location)}, operator {operator}, version {version}: manifests were found of the shards "
                f"{sorted(manifests)} of {max(shards)}. {_GONE}"
            )
        states = tuple(StateDescriptor.decode(plain) for plain in manifests[0].states)
        return StoredOperator(spark, location, operator, version, manifests, states, seal)

    def key_schema(self) -> pa.Schema:
        """Return the schema of the key columns."""
        return pa.ipc.read_schema(pa.py_buffer(self.manifests[0].key_schema))

    def read(self, states: Iterable[str], read_shard: ShardReader, schema: Any) -> DataFrame:
        """Apply `read_shard` to the segments of these states, in one task for each shard."""
        stored = _source(self.spark, self.location, self.operator, self.version, "segments")
        wanted = frozenset(states)
        ids = sorted(
            {ref.id for manifest in self.manifests.values() for ref in manifest.segments if ref.state in wanted}
        )
        segments = stored.select(
            "partition_id", F.col("user_map_key.id").alias("id"), F.col("user_map_value.data").alias("data")
        ).where(F.col("id").isin(ids))
        manifests = {shard: manifest.encode() for shard, manifest in self.manifests.items()}
        name = f"{self.location}, operator {self.operator}, version {self.version}"
        return segments.mapInArrow(partial(_read_shards, name, manifests, wanted, self.seal, read_shard), schema)


def _read_shards(
    name: str,
    manifests: Mapping[int, bytes],
    states: frozenset[str],
    seal: seals.Seal | None,
    read_shard: ShardReader,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: collect the shard's segments in a spool, check that none is missing, and read them."""
    task = TaskContext.get()
    shard = task.partitionId() if task else 0
    with Spool(user_folder, memory_bytes=_SPOOLED_IN_MEMORY) as waiting:
        ids: list[int] = []
        for batch in batches:
            ids += batch.column("id").to_pylist()
            for segment_id, data in zip(batch.column("id").to_pylist(), batch.column("data"), strict=True):
                what = f"segment {segment_id} of shard {shard} in {name}"
                waiting.add(seals.opened(seal, data.as_py(), seals.segment(segment_id), what))
        manifest = Manifest.decode(manifests[shard], name)
        segments = dict(zip(ids, waiting, strict=True))
        for ref in manifest.segments:
            if ref.state in states and ref.id not in segments:
                raise CorruptionError(f"{name}: {segment_name(manifest, ref)} is missing. {last_good(ref)} {_GONE}")
        try:
            yield from read_shard(Version(manifest, segments))
        except CorruptionError as error:
            raise CorruptionError(f"{name}: {error}") from error


def _source(spark: SparkSession, location: str, operator: int, version: int, state: str) -> DataFrame:
    reader = spark.read.format("statestore").option("operatorId", operator).option("batchId", version)
    return reader.option("stateVarName", state).load(location)


def _found(spark: SparkSession, location: str, operator: int | None) -> QueryOperator:
    """Return the keyed operator with this id, or the only one."""
    operators = query_operators(spark, location)
    ours = {each.id: each for each in operators if each.is_keyed}
    others = [each for each in operators if not each.is_keyed]
    if not ours:
        raise OptionError(
            f"{masked(location)} has no operator that keyed() made; its stateful operators are: "
            f"{described(others)}. The state "
            'of Spark\'s own operators is read with spark.read.format("statestore"), and that of '
            "transformWithState and applyInPandasWithState is imported with millpond.spark.import_state()."
        )
    if operator is None and len(ours) == 1:
        return next(iter(ours.values()))
    if operator is None or operator not in ours:
        asked = "several keyed operators" if operator is None else f"no keyed operator {operator}"
        raise OptionError(
            f"{masked(location)} has {asked}; say which with operator=, or --operator of the command, "
            f"one of {sorted(ours)}"
            f"{f' (Spark has others of its own: {described(others)})' if others else ''}."
        )
    return ours[operator]
