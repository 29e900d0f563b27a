"""The packed shuffle: a million rows cross Spark's shuffle as a few blobs.

Before the shuffle, `pack` joins Arrow batches into large ones, splits these by shard and encodes each part as one blob.
Spark shuffles and sorts the blobs. After the operator, `unpack` turns the blobs of its output into rows.
Inside a blob the rows are sorted by key group, and within a key group they are in the order they came.

Invariant: in every batch with data each shard gets at least one blob, if need be an empty one. So the
manifest of every shard gets every version and watermark.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from millpond.errors import CorruptionError
from millpond.spark.shuffle.arrow_lots import large_batches
from millpond.spark.shuffle.partitioner import routing_keys
from millpond.state.types.key_groups import key_groups_of, key_hash, max_parallelism

KEY_GROUP = "__millpond_key_group"
SHARD = "millpond_shard"
"""The column that Spark groups by. Its name appears in Spark's error about a checkpoint of another operator."""
PACKED_SCHEMA = f"{SHARD} int, blob binary"

_INITIAL = "initial"
_PACKED = pa.schema([(SHARD, pa.int32()), ("blob", pa.binary())])
_STREAMING_PARTITIONS = "spark.sql.streaming.internal.stateStore.partitions"
_BATCH_PARTITIONS = "spark.sql.shuffle.partitions"
# Spark's default. A task only sees settings that were set explicitly; a stream's number of partitions always is.
_SPARKS_DEFAULT_PARTITIONS = 200


@dataclass(frozen=True)
class Layout:
    """How an operator's keys are spread over shards. It is read from the task, never from the driver's settings.

    A restarted query keeps the number of partitions of its first start, whatever the session says.
    """

    shards: int
    max_parallelism: int

    @staticmethod
    def of_task() -> "Layout":
        """Return the layout of the query that the running task belongs to."""
        task = TaskContext.get()
        found = task and (task.getLocalProperty(_STREAMING_PARTITIONS) or task.getLocalProperty(_BATCH_PARTITIONS))
        shards = int(found) if found else _SPARKS_DEFAULT_PARTITIONS
        return Layout(shards, max_parallelism(shards))


def with_key_hashes(batches: Iterable[pa.RecordBatch], key_positions: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Append the hash of the key to rows made in Python, as `pack` expects it. It is computed row by row.

    >>> batch = pa.record_batch([pa.array(["abc"])], names=["word"])
    >>> [hashed.column(1).to_pylist() for hashed in with_key_hashes([batch], [0])]
    [[1423657621850124518]]
    """
    for batch in batches:
        keys = [batch.column(position) for position in key_positions]
        kinds = [column.type for column in keys]
        hashes = [key_hash(key, kinds) for key in zip(*(column.to_pylist() for column in keys), strict=True)]
        yield batch.append_column("hash", pa.array(np.array(hashes, np.uint64).view(np.int64)))


def pack(
    batches: Iterable[pa.RecordBatch], data_schema: pa.Schema, *, initial: bool = False
) -> Iterator[pa.RecordBatch]:
    """Pack Arrow batches into blobs by shard. The last column of each batch must be the 64-bit hash of the key.

    The other columns get the names of `data_schema`. In the batches they have other names, since Spark wants each
    name once. `initial` marks the rows as initial state.
    """
    layout = Layout.of_task()
    unseen = set(range(layout.shards))
    for batch in large_batches(batches):
        packed = _pack_batch(batch, data_schema.names, layout, initial=initial)
        unseen -= packed.keys()
        yield _record_batch(packed, layout)
    task = TaskContext.get()
    if task is not None and task.partitionId() == 0 and unseen and not initial:
        empty = _blob(data_schema.append(pa.field(KEY_GROUP, pa.int16())).empty_table(), layout)
        yield _record_batch(dict.fromkeys(sorted(unseen), empty), layout)


def _pack_batch(batch: pa.RecordBatch, names: list[str], layout: Layout, *, initial: bool) -> dict[int, bytes]:
    hashes = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
    key_groups = (hashes % layout.max_parallelism).astype(np.int16)
    order = np.argsort(key_groups, kind="stable")
    data = pa.table(batch.columns[:-1], names=names)
    data = data.append_column(KEY_GROUP, pa.array(key_groups)).take(pa.array(order))
    sorted_groups = key_groups[order]
    blobs = {}
    for shard in range(layout.shards):
        groups = key_groups_of(shard, layout.shards, layout.max_parallelism)
        first, end = np.searchsorted(sorted_groups, [groups.start, groups.stop])
        if end > first:
            blobs[shard] = _blob(data.slice(first, end - first), layout, initial=initial)
    return blobs


def _blob(table: pa.Table, layout: Layout, *, initial: bool = False) -> bytes:
    layout_of_blob = {"shards": str(layout.shards), "max_parallelism": str(layout.max_parallelism)}
    layout_of_blob |= {_INITIAL: "1"} if initial else {}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema.with_metadata(layout_of_blob)) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _record_batch(blobs: dict[int, bytes], layout: Layout) -> pa.RecordBatch:
    routing_key_of = routing_keys(layout.shards)
    return pa.record_batch([[routing_key_of[shard] for shard in blobs], list(blobs.values())], schema=_PACKED)


def read_blob(blob: bytes | memoryview, layout: Layout) -> pa.Table:
    """Return the rows of a blob.

    Raises:
        CorruptionError: the blob was packed for another layout, or cannot be read.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(blob)) as reader:
            packed_for = {name.decode(): int(value) for name, value in (reader.schema.metadata or {}).items()}
            packed_for.pop(_INITIAL, None)
            if packed_for != {"shards": layout.shards, "max_parallelism": layout.max_parallelism}:
                raise CorruptionError(
                    f"rows were packed for {packed_for}, but this operator runs with {layout}. The query's number of "
                    "partitions must not change between its stages: leave spark.sql.shuffle.partitions alone."
                )
            return reader.read_all()
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise CorruptionError(
            f"packed rows of {len(blob)} bytes cannot be read: {error}. Run the batch again."
        ) from error


def is_initial(rows: pa.Table) -> bool:
    """Whether these rows, read from a blob, are initial state."""
    return _INITIAL.encode() in (rows.schema.metadata or {})


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the blobs of the first column. Rows with a null there carry metrics and are dropped."""
    for batch in batches:
        for blob in batch.column(0).drop_null():
            with pa.ipc.open_stream(blob.as_buffer()) as reader:
                yield from reader
