"""One batch of one shard, through the user's processor.

The rows of the batch are worked off key group by key group, so that only one key group's rows are
Python objects at a time, and every key's rows reach the processor in one call. Nothing leaves this
module before the caller has committed: the output waits as Arrow.

Delivery: exactly once, with Spark's state store. Freshness: the batch's own rows. Recovery: the
caller rolls the shard back, and the batch is run again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import StructType

from millpond.errors import DataError, OptionError
from millpond.spark.handles import ProcessorHandle
from millpond.spark.host.slots import Claim
from millpond.spark.operator_spec import BatchTime, OperatorSpec
from millpond.spark.pack import KEY_GROUP
from millpond.spark.rows import OutputColumns, row_maker, rows_of
from millpond.spark.spool import Spool
from millpond.state.checkpoint import Shard
from millpond.state.rows import grouping_values
from millpond.state.timers import Timers

OUTPUT_BLOB_ROWS = 100_000


@dataclass(frozen=True)
class RunResult:
    """What a batch gave.

    Attributes:
        late_rows: how many rows were dropped because the watermark had passed them.
        next_timer_ms: the earliest timer left, or -1.
    """

    late_rows: int
    next_timer_ms: int


class ShardRun:
    """Drives one processor over one shard for one batch.

    The claim is looked at before every key: when another attempt has the shard, this one stops.
    """

    def __init__(self, spec: OperatorSpec, shard: Shard, time: BatchTime, claim: Claim) -> None:
        self._spec = spec
        self._shard = shard
        self._time = time
        self._times = TimerValues(time.processing_ms, time.watermark_ms)
        self._claim = claim
        self._output = OutputColumns(spec.output_schema)
        self._make_row = row_maker(spec.row_names)
        self._width = len(spec.row_names)

    def run(self, tables: Iterable[pa.Table], output: Spool) -> RunResult:
        """Process the rows, then the timers that are due; what user code yields goes to `output` as Arrow IPC."""
        processor, spec = self._spec.processor, self._spec
        processor.init(ProcessorHandle(self._shard, spec.time_mode, self._time, self._parse))
        timers = None if spec.time_mode == "none" else self._shard.timers
        late_rows, in_time = 0, []
        for table in tables:
            kept = self._in_time(table)
            late_rows += table.num_rows - kept.num_rows
            if kept.num_rows:
                in_time.append(kept)
        for blob in _blobs(self._key_group(*part) for part in _key_groups(in_time)):
            output.add(blob)
        next_timer_ms = None
        if timers is not None:
            for blob in _blobs([self._output.table(list(self._due_timers(timers)))]):
                output.add(blob)
            next_timer_ms = timers.next_expiry_ms()
        processor.close()
        return RunResult(late_rows, -1 if next_timer_ms is None else next_timer_ms)

    def _in_time(self, rows: pa.Table) -> pa.Table:
        """The rows that are not late, by Spark's rule: later than the watermark of the batch before this one."""
        if self._spec.event_time is None or self._spec.keep_late:
            return rows
        limit = pa.scalar(self._shard.head.watermark_ms * 1000, type=pa.timestamp("us", tz="UTC"))
        event_times = rows.column(self._spec.event_time).cast(limit.type)
        # A row without an event time is never late, as in Spark.
        in_time = pc.fill_null(pc.greater(event_times, limit), fill_value=True)
        return rows if pc.all(in_time).as_py() else rows.filter(in_time)

    def _due_timers(self, timers: Timers) -> Iterator[Any]:
        event_time = self._spec.time_mode == "eventtime"
        backend = self._shard.backend
        for due in timers.due(self._time.watermark_ms if event_time else self._time.processing_ms):
            if self._claim.superseded_by:
                self._claim.refuse()
            backend.enter(due.key_group)
            backend.context.key = due.key
            info = ExpiredTimerInfo(due.expiry_ms)
            # By keyword, as PySpark calls it: user code may declare the arguments in any order.
            yield from (
                self._spec.processor.handleExpiredTimer(key=due.key, timerValues=self._times, expiredTimerInfo=info)
                or ()
            )
            # As in PySpark: a timer is deleted after its handler ran, so one set again at its own time is lost.
            timers.delete(due.expiry_ms)

    def _parse(self, ddl: str) -> StructType:
        if ddl not in self._spec.ddl:
            raise OptionError(
                f"the state schema {ddl!r} was not declared when the query was planned. init() must declare the same "
                "states every time."
            )
        return self._spec.ddl[ddl]

    def _key_group(self, key_group: int, rows: pa.Table) -> pa.Table:
        backend = self._shard.backend
        backend.enter(key_group)
        context, claim, times = backend.context, self._claim, self._times
        handle = self._spec.processor.handleInputRows
        output: list[Any] = []
        for key, group in self._grouped(rows):
            if claim.superseded_by:
                claim.refuse()
            context.key = key
            result = handle(key, group, times)
            if result is None:
                raise DataError(
                    f"{type(self._spec.processor).__name__}.handleInputRows returned None for key {key!r}; expected an "
                    "iterator of Rows. Write it as a generator, or return iter([])."
                )
            output.extend(result)
        return self._output.table(output)

    def _grouped(self, table: pa.Table) -> Iterator[tuple[tuple[Any, ...], Iterator[Row]]]:
        """Keys with all their rows, in the order in which the keys appear."""
        keys = self._keys(table)
        rows = rows_of(table, self._width, self._make_row)
        if len(set(keys)) == len(keys):
            yield from zip(keys, map(iter, zip(rows, strict=True)), strict=True)
            return
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for key, row in zip(keys, rows, strict=True):
            groups.setdefault(key, []).append(row)
        for key, group in groups.items():
            yield key, iter(group)

    def _keys(self, table: pa.Table) -> list[tuple[Any, ...]]:
        columns = [grouping_values(table.column(at)) for at in self._spec.key_positions]
        return list(zip(*columns, strict=True))


def _key_groups(tables: Iterable[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each key group, in the order they came. Each table is in the order of its key groups."""
    parts: dict[int, list[pa.Table]] = {}
    for table in tables:
        key_groups = table.column(KEY_GROUP).to_numpy()
        starts = np.flatnonzero(np.diff(key_groups, prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(key_groups)], strict=True):
            parts.setdefault(int(key_groups[start]), []).append(table.slice(start, end - start))
    for key_group in sorted(parts):
        yield key_group, pa.concat_tables(parts[key_group])


def _blobs(tables: Iterable[pa.Table]) -> Iterator[bytes]:
    """The tables as Arrow IPC, small ones together."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(each.num_rows for each in waiting) >= OUTPUT_BLOB_ROWS:
            yield _blob(waiting)
            waiting = []
    if any(each.num_rows for each in waiting):
        yield _blob(waiting)


def _blob(tables: list[pa.Table]) -> bytes:
    whole = pa.concat_tables(tables).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    data: bytes = sink.getvalue().to_pybytes()
    return data
