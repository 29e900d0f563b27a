"""The host's side of one batch of one shard, from `Open` to the last `End`.

The host process runs this over a socket. The order is fixed:

1. lease the shard,
2. bring it to the worker's manifest, by a restore if need be,
3. receive all rows,
4. run the batch and commit it in memory,
5. send manifest and segments, then the output.

An error on the way rolls the shard back. The worker gets it with the traceback of user code.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import TypeVar

import msgspec
from pyspark import cloudpickle

from millpond.errors import UnavailableError
from millpond.spark.environment.folders import user_folder
from millpond.spark.environment.task_environment import TaskEnvironment
from millpond.spark.host.memory import out_of_memory
from millpond.spark.host.process import Owners
from millpond.spark.host.raised import Raised
from millpond.spark.host.wire import (
    Blob,
    Connection,
    End,
    Failed,
    Open,
    OpenLookups,
    Ready,
    Restore,
    Segment,
)
from millpond.spark.runtime.held_shard import HeldShard, reverting, standing_at
from millpond.spark.runtime.slots import Slot, Slots
from millpond.spark.shuffle.pack import Layout, read_blob
from millpond.spark.shuffle.spool import Spool
from millpond.spark.spec.batch_done import BatchDone
from millpond.spark.spec.lease import Attempt
from millpond.spark.spec.operator import BatchTime, OperatorSpec
from millpond.state.checkpoint import Commit, Manifest

_LOOKUPS = "millpond.spark.lookup.hosted"
"""Imported by name at the first lookup. A plain import would be a cycle: lookup joins use keyed operators."""

M = TypeVar("M", bound=Segment | Blob)


def converse(connection: Connection, slots: Slots[HeldShard], owners: Owners) -> None:
    """Serve one batch, then prepare bases while the shard is idle. Or serve the lookups of one partition."""
    message, payload = connection.receive()
    if isinstance(message, OpenLookups):
        owners.add(message.parent)
        try:
            import_module(_LOOKUPS).serve_lookups(connection, message, payload)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a source raises belongs to the worker
            connection.send(_failure(error))
        return
    if not isinstance(message, Open):
        raise _unexpected(message, Open)
    owners.add(message.parent)
    manifest = Manifest.decode(message.manifest, "the manifest sent by the worker")
    attempt = Attempt(message.application, message.task_attempt)
    with slots.using(manifest.lineage, comes_again=message.comes_again) as slot:
        try:
            _serve(connection, slot, attempt, message, manifest, payload)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises belongs to the worker
            connection.send(_failure(error))
            if isinstance(error, MemoryError):
                slots.drop_unused()
            return
        while message.comes_again and _prepare_bases(slot, attempt):
            continue


def _serve(
    connection: Connection,
    slot: Slot[HeldShard],
    attempt: Attempt,
    opened: Open,
    manifest: Manifest,
    pickled_spec: bytes,
) -> None:
    task_environment: TaskEnvironment = cloudpickle.loads(opened.task_environment)
    with task_environment.entered() as arrival, Spool(user_folder) as received, Spool(user_folder) as output:
        spec: OperatorSpec = arrival.load(pickled_spec)
        with slot.held(attempt, connection.stop_receiving) as lease:
            time = BatchTime(opened.processing_ms, opened.watermark_ms)
            held = _standing_at(connection, slot, spec, manifest, time)
            # Receive all blobs before reading one: a worker that is still sending does not receive an error.
            for _, blob in _frames(connection, Blob):
                received.add(blob)
            layout = Layout(manifest.shards, manifest.max_parallelism)
            tables = (read_blob(blob, layout) for blob in received)
            with reverting(slot):
                done, commit = held.run(spec, time, lease, tables, output, opened.token)
        done = msgspec.structs.replace(done, additions=arrival.additions())
        _hand_over(connection, done, commit, output)


def _standing_at(
    connection: Connection, slot: Slot[HeldShard], spec: OperatorSpec, manifest: Manifest, time: BatchTime
) -> HeldShard:
    arriving: list[_ArrivingSegments] = []

    def asked_for() -> _ArrivingSegments:
        connection.send(Restore())
        arriving.append(_ArrivingSegments(connection))
        return arriving[0]

    try:
        held = standing_at(slot, spec, manifest, time, asked_for)
    finally:
        for segments in arriving:
            # Receive the rest after a failure too: a worker that is still sending does not receive an error.
            segments.pass_over()
    connection.send(Ready())
    return held


class _ArrivingSegments:
    """A manifest's segments as the worker sends them, in loading order. One is in memory at a time."""

    def __init__(self, connection: Connection) -> None:
        self._frames = _frames(connection, Segment)

    def get(self, segment_id: int, /) -> bytes | None:
        """Return the next segment, which must have this id; None after the last."""
        for segment, payload in self._frames:
            if segment.id != segment_id:
                raise UnavailableError(
                    f"the worker sent segment {segment.id} where {segment_id} was expected. Both must run one Millpond."
                )
            return payload
        return None

    def pass_over(self) -> None:
        """Receive and discard the remaining segments."""
        for _ in self._frames:
            continue


def _hand_over(connection: Connection, done: BatchDone, commit: Commit, output: Spool) -> None:
    connection.send(done, commit.manifest.encode())
    for segment_id, data in commit.segments.items():
        connection.send(Segment(segment_id), data)
    connection.send(End())
    for blob in output:
        connection.send(Blob(), blob)
    connection.send(End())


def _prepare_bases(slot: Slot[HeldShard], attempt: Attempt) -> bool:
    with slot.idle(attempt) as held:
        return held is not None and held.shard.prepare_bases()


def _failure(error: BaseException) -> Failed:
    """Return the error for the worker to raise: that of user code, or an explanation of a MemoryError."""
    if isinstance(error, MemoryError):
        shown = out_of_memory(error)
        shown.__cause__ = error
        return Failed(Raised.of(shown))
    return Failed(Raised.of(error))


def _frames(connection: Connection, kind: type[M]) -> Iterator[tuple[M, bytes]]:
    while True:
        message, payload = connection.receive()
        if isinstance(message, End):
            return
        if not isinstance(message, kind):
            raise _unexpected(message, kind)
        yield message, payload


def _unexpected(message: msgspec.Struct, expected: type[msgspec.Struct]) -> UnavailableError:
    return UnavailableError(f"the worker sent {type(message).__name__} where {expected.__name__} was expected.")
