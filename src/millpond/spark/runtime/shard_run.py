"""Run the user's processor over one batch of one shard.

The initial state comes first, in the first batch. Then come the rows, key group by key group, and then the
timers that are due. `millpond.spark.forms` passes them in the form that the operator's spec asks for. The
output waits as Arrow in a spool until the caller has committed.

Delivery: exactly once, with Spark's state store. Freshness: the batch's own rows. Recovery: the
caller rolls the shard back, and Spark runs the batch again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from heapq import nlargest
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import TimerValues
from pyspark.sql.types import StructType

from millpond.errors import OptionError
from millpond.spark.forms.choice import form_of, users_handle
from millpond.spark.forms.form import ShardBatch
from millpond.spark.forms.handles import ProcessorHandle
from millpond.spark.shuffle.arrow_lots import one_table
from millpond.spark.shuffle.pack import KEY_GROUP, is_initial
from millpond.spark.shuffle.spool import Spool
from millpond.spark.spec.batch_done import BatchDone
from millpond.spark.spec.lease import Lease
from millpond.spark.spec.metrics import BatchMetrics, ShardDetail
from millpond.spark.spec.operator import BatchTime, OperatorSpec
from millpond.state.checkpoint import Shard

OUTPUT_BLOB_ROWS = 100_000
OUTPUT_BLOB_BYTES = 64 << 20
HOT_GROUPS = 5
"""How many of the key groups with the most rows a shard's batch reports."""


class ShardRun:
    """Drives one processor over one shard for one batch."""

    def __init__(self, spec: OperatorSpec, shard: Shard, time: BatchTime, lease: Lease) -> None:
        self._spec = spec
        self._shard = shard
        self._time = time
        self._lease = lease

    def run(self, tables: Iterable[pa.Table], output: Spool) -> BatchDone:
        """Process initial state, rows and due timers. What user code yields goes to `output` as Arrow IPC."""
        spec, time = self._spec, self._time
        # TTL is counted in this time.
        self._shard.backend.context.now_ms = time.processing_ms
        handle = ProcessorHandle(self._shard, spec.time_mode, self._parse, spec.deleted)
        given = users_handle(spec.form, handle, self._shard)
        spec.processor.init(given)
        handle.end_of_init()
        timers = None if spec.time_mode == "none" else self._shard.timers
        times = TimerValues(time.processing_ms, time.watermark_ms)
        batch = ShardBatch(spec, self._shard, times, self._lease)
        form = form_of(batch, given)
        late_rows, in_time, initial = 0, [], []
        for table in tables:
            if is_initial(table):
                initial.append(table)
                continue
            kept = self._in_time(table)
            late_rows += table.num_rows - kept.num_rows
            if kept.num_rows:
                in_time.append(kept)
        if spec.initial is not None and initial:
            looks = replace(spec, key_positions=spec.initial.key_positions, row_names=spec.initial.row_names)
            form_of(ShardBatch(looks, self._shard, times, self._lease), given).initial(_key_groups(initial))
        rows_of: dict[int, int] = {}
        oldest = self._put(form.rows(_counted(_key_groups(in_time), rows_of)), output)
        next_timer_ms = None
        if timers is not None:
            limit_ms = time.watermark_ms if spec.time_mode == "eventtime" else time.processing_ms
            oldest += self._put(form.timers(timers.due(limit_ms)), output)
            next_timer_ms = timers.next_expiry_ms()
        spec.processor.close()
        metrics = BatchMetrics(
            shard=self._shard.manifest.shard,
            rows=sum(table.num_rows for table in in_time),
            late_rows=late_rows,
            dead_letters=batch.tally.dead_letters,
            detail=ShardDetail(tuple(nlargest(HOT_GROUPS, rows_of.items(), key=itemgetter(1)))),
        )
        return BatchDone(metrics, -1 if next_timer_ms is None else max(0, next_timer_ms), tuple(oldest))

    def _put(self, tables: Iterable[pa.Table], output: Spool) -> list[datetime | None]:
        """Put tables into the output as blobs. Return each blob's earliest event time, if the output has event time."""
        oldest = []
        position = self._spec.output_event_time
        for whole in _joined(tables):
            output.add(_blob(whole))
            if position is not None:
                oldest.append(pc.min(whole.column(position)).as_py())
        return oldest

    def _in_time(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are not late. Spark's rule: an event time after the watermark of the previous batch."""
        if self._spec.event_time is None or self._spec.keep_late:
            return rows
        limit = pa.scalar(self._shard.manifest.watermark_ms * 1000, type=pa.timestamp("us", tz="UTC"))
        event_times = rows.column(self._spec.event_time)
        if pa.types.is_struct(event_times.type):
            event_times = pc.struct_field(event_times, "end")  # a window is late when its end is
        event_times = event_times.cast(limit.type)
        # A row without an event time is never late, as in Spark.
        in_time = pc.fill_null(pc.greater(event_times, limit), fill_value=True)
        return rows if pc.all(in_time).as_py() else rows.filter(in_time)

    def _parse(self, ddl: str) -> StructType:
        if ddl not in self._spec.ddl:
            raise OptionError(
                f"the state schema {ddl!r} was not declared when the query was planned. init() must declare the same "
                "states every time."
            )
        return self._spec.ddl[ddl]


def _counted(groups: Iterable[tuple[int, pa.Table]], rows_of: dict[int, int]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the same groups, and count the rows of each in `rows_of`."""
    for key_group, rows in groups:
        rows_of[key_group] = rows.num_rows
        yield key_group, rows


def _key_groups(tables: Iterable[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each key group in the order they came. Each table must be sorted by key group."""
    parts: dict[int, list[pa.Table]] = {}
    for table in tables:
        key_groups = table.column(KEY_GROUP).to_numpy()
        starts = np.flatnonzero(np.diff(key_groups, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(key_groups)], strict=True):
            parts.setdefault(int(key_groups[start]), []).append(table.slice(start, end - start))
    for key_group in sorted(parts):
        yield key_group, one_table(parts[key_group])


def _joined(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables, with small ones concatenated."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= OUTPUT_BLOB_ROWS or size >= OUTPUT_BLOB_BYTES:
            yield pa.concat_tables(waiting)
            waiting, rows, size = [], 0, 0
    if any(each.num_rows for each in waiting):
        yield pa.concat_tables(waiting)


def _blob(table: pa.Table) -> memoryview:
    """Encode a table as Arrow IPC."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return memoryview(sink.getvalue())
