"""The batches of shards in Spark's Python worker.

For each shard, Spark's state store holds a *manifest* and *segments*, in a schema that never depends on the user's. A
batch takes four steps:

1. read the manifest,
2. run the batch where the live state is: in a state host, or in this worker,
3. put the changes and the new manifest into the store,
4. only then yield the output.

Spark commits, aborts, versions and cleans up all of it with the task.

Delivery: exactly once into the state, like Spark's own stateful operators. Freshness: the batch's rows. Recovery: from
manifest and segments, by Spark's retry or restart.
"""

import gc
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import zip_longest
from time import monotonic, perf_counter
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import MapState, ValueState

from millpond.errors import CorruptionError, OptionError
from millpond.spark.environment.folders import user_folder
from millpond.spark.environment.remote_breakpoint import breakpoints_over_a_socket
from millpond.spark.environment.task_environment import TaskEnvironment, add_to_accumulators
from millpond.spark.host.client import HostAddress, committed, output_blobs, restore_wanted
from millpond.spark.host.wire import Blob, End, Open, Segment
from millpond.spark.runtime.held_shard import HeldShard, reverting, standing_at
from millpond.spark.runtime.opened_shard import described
from millpond.spark.runtime.slots import Slot
from millpond.spark.runtime.state_store import ShardStore
from millpond.spark.shuffle.pack import Layout, read_blob
from millpond.spark.shuffle.partitioner import partition_of
from millpond.spark.shuffle.spool import Spool
from millpond.spark.spec.batch_done import BatchDone
from millpond.spark.spec.lease import Attempt, Lease
from millpond.spark.spec.metrics import BatchMetrics, KeyedMetrics
from millpond.spark.spec.observed_metrics import METRICS, METRICS_TYPE, metrics_row
from millpond.spark.spec.operator import BatchTime, OperatorSpec
from millpond.state.checkpoint import Commit, Manifest, new_manifest
from millpond.state.checkpoint.format.seal import Seal
from millpond.state.checkpoint.restoring import in_order

OLDEST = "oldest"
"""The output column with a blob's earliest event time. By it Spark refuses rows older than the watermark."""


def packed_output_schema(*, timed: bool, observed: bool) -> str:
    """Return the schema of the operator's output: blobs, and if asked for, their oldest event time and metrics."""
    return "blob binary" + f", {OLDEST} timestamp" * timed + f", {METRICS} {METRICS_TYPE}" * observed


_RESET_HINT = (
    "Restore the state part of the checkpoint, or begin a new query with a savepoint of an earlier batch "
    "(millpond.spark.savepoint). To go on without what this shard held, on purpose, set "
    "StateConfig(on_lost_state='reset')."
)


class ShardBatches:
    """Runs the batches of one task's shards.

    Args:
        spec: the operator, without its processor.
        pickled: the whole operator, for the process that runs it.
        stored_manifest: the manifest of the current shard in Spark's store.
        stored_segments: its segments there.
        set_timer: sets the current shard's Spark timer, given the time of the batch and of the user's next timer, or
            -1. Called once a batch, before its output.
    """

    def __init__(
        self,
        spec: OperatorSpec,
        pickled: bytes,
        stored_manifest: ValueState,
        stored_segments: MapState,
        set_timer: Callable[[BatchTime, int], None],
    ) -> None:
        self._spec = spec
        self._pickled = pickled
        self._stored_manifest = stored_manifest
        self._stored_segments = stored_segments
        self._set_timer = set_timer

    def run(self, routing_key: int, rows: Iterator[bytes], time: BatchTime) -> Iterator[Row]:
        """Run one batch of the current shard and yield its output as packed blobs."""
        blobs = _Blobs(rows)
        task, layout = _Task(self._spec.application), Layout.of_task()
        shard = partition_of(routing_key, layout.shards)
        name = f"shard {shard} of operator {self._spec.name} in query {task.query}"
        durable = ShardStore(self._stored_manifest, self._stored_segments, name, Seal.of(self._spec.config.seal))
        try:
            yield from self._batch(task, self._manifest(shard, layout, durable), durable, blobs, time)
        except CorruptionError as error:
            if blobs.begun or durable.is_whole():
                raise
            if self._spec.config.on_lost_state != "reset":
                raise CorruptionError(f"{name}: {error} {_RESET_HINT}") from error
            # To the executor's log.
            print(f"millpond: {name} goes on without its state: {error}", file=sys.stderr, flush=True)  # noqa: T201
            durable.clear()
            yield from self._batch(task, self._manifest(shard, layout, durable), durable, blobs, time)

    def _batch(
        self, task: "_Task", manifest: Manifest, durable: ShardStore, blobs: Iterator[bytes], time: BatchTime
    ) -> Iterator[Row]:
        run = _run_in_host if self._spec.config.host == "process" else _run_inline
        with run(self._spec, self._pickled, task, manifest, durable, blobs, time) as (done, output):
            if self._spec.metrics is not None:
                self._spec.metrics.add(KeyedMetrics.of(done.metrics, task.stage, task.query_id))
            self._set_timer(time, done.next_timer_ms)
            for blob, oldest in zip_longest(output, done.oldest):
                yield self._output_row(blob, oldest)
            if self._spec.observed:
                yield self._metrics_row(done.metrics, time)

    def _output_row(self, blob: bytes, oldest: datetime | None) -> Row:
        row: dict[str, Any] = {"blob": blob}
        if self._spec.output_event_time is not None:
            row[OLDEST] = oldest
        if self._spec.observed:
            row[METRICS] = None
        return Row(**row)

    def _metrics_row(self, metrics: BatchMetrics, time: BatchTime) -> Row:
        # Spark refuses rows that are older than the watermark.
        timed = self._spec.output_event_time is not None
        oldest = {OLDEST: datetime.fromtimestamp(time.watermark_ms / 1000 + 1, UTC)} if timed else {}
        return Row(blob=None, **oldest, **{METRICS: metrics_row(metrics)})

    def _manifest(self, shard: int, layout: Layout, durable: ShardStore) -> Manifest:
        name, manifest = durable.name, durable.manifest()
        if manifest is None:
            # Spark itself refuses a version whose files are gone. So a shard without manifest and segments is new.
            if not durable.is_whole():
                raise CorruptionError("its manifest is missing, and its segments are there.")
            spec = self._spec
            return new_manifest(secrets.token_hex(8), shard, layout.shards, layout.max_parallelism, spec.key_schema)
        if (manifest.shard, manifest.shards, manifest.max_parallelism) != (
            shard,
            layout.shards,
            layout.max_parallelism,
        ):
            raise CorruptionError(
                f"{name}: its state was written as shard {manifest.shard} of {manifest.shards} with maximum "
                f"parallelism {manifest.max_parallelism}, and is read as shard {shard} of "
                f"{layout.shards} with maximum parallelism {layout.max_parallelism}. "
                "A query keeps the number of partitions of its first start; this checkpoint belongs to another one."
            )
        found = pa.ipc.read_schema(pa.py_buffer(manifest.key_schema))
        if not found.equals(self._spec.key_schema):
            raise OptionError(
                f"{name}: its state is keyed by [{described(found)}] and the query now keys by "
                f"[{described(self._spec.key_schema)}]. Keep the key, or start with a new checkpoint folder."
            )
        return manifest


class _Blobs:
    """An iterator of blobs that records whether reading has begun."""

    def __init__(self, blobs: Iterator[bytes]) -> None:
        self._blobs = blobs
        self.begun = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.begun = True
        return next(self._blobs)


class _Task:
    """The ids of the running task, and the token of the version that it will commit."""

    def __init__(self, application: str) -> None:
        task = TaskContext.get()
        self.stage = task.stageId() if task else 0
        self.attempt = Attempt(application, task.taskAttemptId() if task else 0)
        self.query_id = (task and task.getLocalProperty("sql.streaming.queryId")) or ""
        self.query = self.query_id or "a batch job"
        self.token = f"{secrets.token_hex(8)}-{self.attempt.order}"


_Ran = tuple[BatchDone, Iterator[bytes]]
"""The record of a batch whose version is in Spark's store, and its output, still to be yielded."""


@contextmanager
def _run_in_host(
    spec: OperatorSpec,
    pickled_spec: bytes,
    task: _Task,
    manifest: Manifest,
    durable: ShardStore,
    blobs: Iterator[bytes],
    time: BatchTime,
) -> Iterator[_Ran]:
    address = HostAddress.of_shard(manifest.shard, spec.hosts, spec.application, task.attempt.order)
    with address.connect(spec.config.host_timeout) as connection:
        opened = Open(
            manifest=manifest.encode(),
            application=task.attempt.application,
            task_attempt=task.attempt.order,
            parent=os.getppid(),
            token=task.token,
            processing_ms=time.processing_ms,
            watermark_ms=time.watermark_ms,
            task_environment=TaskEnvironment.of_worker().encode(),
            comes_again=spec.streaming,
        )
        connection.send(opened, pickled_spec)
        if restore_wanted(connection):
            # The host loads segments as they come, so they are sent one by one in its loading order.
            for ref in in_order(manifest):
                connection.send(Segment(ref.id), durable.segment(ref))
            connection.send(End())
            restore_wanted(connection)
        began = perf_counter()
        for blob in blobs:
            connection.send(Blob(), blob)
        connection.send(End())
        received = perf_counter() - began
        done, commit = committed(connection, manifest)
        add_to_accumulators(done.additions)
        yield _stored(durable, done, commit, received), output_blobs(connection)


_INLINE: Slot[HeldShard] = Slot(monotonic)
"""The shard held by this worker. The worker's next batch may be of another shard, which is then restored."""


@contextmanager
def _run_inline(
    spec: OperatorSpec,
    pickled_spec: bytes,
    task: _Task,
    manifest: Manifest,
    durable: ShardStore,
    blobs: Iterator[bytes],
    time: BatchTime,
) -> Iterator[_Ran]:
    # Unpickle the processor, so that each batch has a new one, as in PySpark.
    spec = cloudpickle.loads(pickled_spec)
    held = standing_at(_INLINE, spec, manifest, time, lambda: durable.segments_of(manifest))
    layout = Layout(manifest.shards, manifest.max_parallelism)
    with (
        _no_garbage_collection(),
        breakpoints_over_a_socket(),
        Spool(user_folder) as received,
        Spool(user_folder) as output,
    ):
        began = perf_counter()
        for blob in blobs:
            received.add(blob)
        shuffle_seconds = perf_counter() - began
        tables = (read_blob(blob, layout) for blob in received)
        with reverting(_INLINE):
            done, commit = held.run(spec, time, Lease(task.attempt), tables, output, task.token)
        yield _stored(durable, done, commit, shuffle_seconds), map(bytes, output)


def _stored(durable: ShardStore, done: BatchDone, commit: Commit, shuffle_seconds: float) -> BatchDone:
    """Put a batch's version into Spark's store, and add the worker's own times to the metrics."""
    began = perf_counter()
    durable.put(commit)
    seconds = perf_counter() - began
    metrics = msgspec.structs.replace(done.metrics, shuffle_seconds=shuffle_seconds, store_seconds=seconds)
    return msgspec.structs.replace(done, metrics=metrics)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Turn the cycle collector off. A batch makes many objects and no cycles; a search would cost more than they do."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
