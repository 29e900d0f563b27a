"""The state host's side of a partition's lookups. In a host, a partial cache outlives the workers.

A worker sends the distinct keys of each batch and gets the columns of their rows: one round trip per batch. An
executor has one host for a table, whose cache all its workers share. With `share_cache`, the hosts of all executors
also answer each other (`shared`). The invariant: concurrent workers of an executor load a key only once.

The counters of a failed lookup would be lost with its task. So they are kept, and sent with the next answer.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from millpond.errors import UnavailableError
from millpond.lookup import LookupStats, LookupTable
from millpond.spark.environment.task_environment import TaskEnvironment
from millpond.spark.host.wire import Connection, End, Found, Keys, OpenLookups
from millpond.spark.lookup.counts import Counted
from millpond.spark.lookup.rows import FullRows, Matches, PartialRows, RowsWanted, one_batch, opened
from millpond.spark.lookup.shared.rows import SharedRows, Sharing, opened_shared

HOST_IDLE_MS = 1_800_000
"""How long an idle host lives."""

_failures: dict[str, LookupStats] = {}
_failures_lock = threading.Lock()


def serve_lookups(connection: Connection, message: OpenLookups, payload: bytes) -> None:
    """Answer batches of keys until the worker sends `End`."""
    task_environment: TaskEnvironment = cloudpickle.loads(message.task_environment)
    with task_environment.entered() as arrival:
        wanted: RowsWanted
        table: LookupTable
        sharing: Sharing | None
        wanted, table, sharing = arrival.load(payload)
        rows: PartialRows | SharedRows
        if sharing is None:
            rows = opened(wanted, table, HOST_IDLE_MS, message.invalidated)
        else:
            rows = opened_shared(wanted, table, sharing, message.executor, HOST_IDLE_MS, message.invalidated)
        while True:
            asked, keys = connection.receive()
            if isinstance(asked, End):
                return
            if not isinstance(asked, Keys):
                raise UnavailableError(f"the worker sent {type(asked).__name__} where Keys was expected.")
            matches = matched(wanted, rows, pa.ipc.open_stream(keys).read_next_batch().columns)
            connection.send(*encoded(wanted, matches))


def matched(wanted: RowsWanted, rows: PartialRows | FullRows | SharedRows, keys: Sequence[pa.Array]) -> Matches:
    """Return the rows of distinct keys. Their counters include those of earlier failures in this process."""
    try:
        matches = rows.match(keys)
    except BaseException:
        with _failures_lock:
            _failures[wanted.table_id] = _failures.get(wanted.table_id, LookupStats()) + rows.failed
        raise
    with _failures_lock:
        before = _failures.pop(wanted.table_id, LookupStats())
    return replace(matches, counted=Counted(before) + matches.counted)


def encoded(wanted: RowsWanted, matches: Matches) -> tuple[Found, pa.Buffer]:
    """Encode an answer for the socket."""
    batch = pa.RecordBatch.from_arrays(matches.rows, schema=pa.schema(wanted.row_fields))
    starts, counts = (array.astype(np.int64).tobytes() for array in (matches.starts, matches.counts))
    return Found(starts, counts, cloudpickle.dumps((matches.counted, matches.failures))), one_batch(batch)


def decoded(message: Found, payload: bytes) -> Matches:
    """Decode an answer."""
    starts, counts = (np.frombuffer(array, np.int64) for array in (message.starts, message.counts))
    rows = pa.ipc.open_stream(payload).read_next_batch()
    counted, failures = cloudpickle.loads(message.counted)
    return Matches(starts, counts, rows.columns, counted, failures=failures)
