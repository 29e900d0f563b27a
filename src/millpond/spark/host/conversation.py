"""The host's side of one batch of one shard, from `Open` to the last `End`.

Used by the host process over a socket. The order is fixed: take the shard, stand at the head (or
restore), take all rows, run, commit in memory, hand over head and segments, then the output. An
error on the way rolls the shard back and goes to the worker with the user's own traceback.
"""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from pyspark import cloudpickle

from millpond.errors import CorruptionError, UnavailableError
from millpond.spark.folders import user_folder
from millpond.spark.host.slots import Attempt, Slot, Slots
from millpond.spark.host.wire import (
    Blob,
    Committed,
    Connection,
    End,
    Failed,
    Open,
    Ready,
    Restore,
    Segment,
)
from millpond.spark.opened_shard import opened_shard
from millpond.spark.operator_spec import BatchTime, OperatorSpec
from millpond.spark.pack import Layout, read_blob
from millpond.spark.shard_run import RunResult, ShardRun
from millpond.spark.spool import Spool
from millpond.state.checkpoint import Commit, Head, Shard

M = TypeVar("M", bound=Segment | Blob)


def converse(connection: Connection, slots: Slots) -> None:
    """Serve one batch, then prepare bases while the shard is idle."""
    message, payload = connection.receive()
    if not isinstance(message, Open):
        raise _unexpected(message, Open)
    head = Head.decode(message.head, "the head sent by the worker")
    slot = slots.of(head.lineage)
    attempt = Attempt(message.application, message.task_attempt)
    try:
        _serve(connection, slot, attempt, message, head, payload)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises belongs to the worker
        connection.send(Failed("".join(traceback.format_exception(error))), _pickled(error))
        return
    while _prepare_bases(slot, attempt):
        continue


def _serve(connection: Connection, slot: Slot, attempt: Attempt, opened: Open, head: Head, pickled_spec: bytes) -> None:
    sys.path.extend(path for path in opened.sys_path if path not in sys.path)
    spec: OperatorSpec = cloudpickle.loads(pickled_spec)
    with Spool(user_folder) as received, Spool(user_folder) as output:
        with slot.held(attempt, connection.stop_receiving) as claim:
            time = BatchTime(opened.processing_ms, opened.watermark_ms)
            shard = _standing_at(head, slot, connection, spec, time)
            # All of them first: a worker that is still sending would not hear what is wrong with one.
            for _, blob in _frames(connection, Blob):
                received.add(blob)
            layout = Layout(head.shards, head.max_parallelism)
            try:
                run = ShardRun(spec, shard, time, claim)
                result = run.run((read_blob(blob, layout) for blob in received), output)
                commit = shard.commit(opened.token, opened.watermark_ms)
            except BaseException as error:
                _take_back(slot, shard, error)
                raise
        _hand_over(connection, commit, result, output)


def _standing_at(head: Head, slot: Slot, connection: Connection, spec: OperatorSpec, time: BatchTime) -> Shard:
    # A query that was restarted with other options or declarations gets the backend that it asks for.
    options = spec.config.opened_with
    shard = slot.shard
    if shard is None or slot.options != options or not _stands_at(shard, head) or not shard.holds(spec.states):
        slot.drop()
        connection.send(Restore())
        segments = {segment.id: payload for segment, payload in _frames(connection, Segment)}
        shard = slot.shard = opened_shard(spec, head, segments, time)
        slot.options = options
    connection.send(Ready())
    return shard


def _stands_at(shard: Shard, head: Head) -> bool:
    """`stand_at`, where a backend that fails to go back is one that has to be restored."""
    try:
        return shard.stand_at(head)
    except (CorruptionError, UnavailableError):
        return False


def _take_back(slot: Slot, shard: Shard, error: BaseException) -> None:
    """Undo what a failed batch changed. A backend that is damaged, or cannot, is given up: the next batch restores."""
    if not isinstance(error, CorruptionError):
        with contextlib.suppress(CorruptionError, UnavailableError):
            shard.rollback()
            return
    slot.drop()


def _hand_over(connection: Connection, commit: Commit, result: RunResult, output: Spool) -> None:
    connection.send(Committed(commit.dropped, result.late_rows, result.next_timer_ms), commit.head.encode())
    for segment_id, data in commit.segments.items():
        connection.send(Segment(segment_id), data)
    connection.send(End())
    for blob in output:
        connection.send(Blob(), blob)
    connection.send(End())


def _prepare_bases(slot: Slot, attempt: Attempt) -> bool:
    with slot.idle(attempt) as shard:
        return shard is not None and shard.prepare_bases()


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


def _pickled(error: BaseException) -> bytes:
    """The exception itself where it can travel, else nothing: its traceback goes along as text."""
    try:
        data: bytes = cloudpickle.dumps(error)
        cloudpickle.loads(data)
    except Exception:  # noqa: BLE001 - user exceptions may fail to pickle in any way they like
        return b""
    return data
