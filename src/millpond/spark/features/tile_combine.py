"""Before the shuffle: the events of a micro-batch become one partial IR for each key and tile.

Place on the data path: first step of the stream of tiles. What crosses the shuffle is then as many rows
as there are keys and tiles in a partition, and not as many as there are events. A partial IR is the
bytes of a tile that holds only these events; the operator merges it into the tile that it keeps.

A change of an entity lies in the tile of its mutation time; its cells are collected by the row's own time. A
row that is taken away is subtracted by the cells that can delete; the others ignore it.

Left out, and counted: events before the stream's start, which the upload has; rows with a null in their
key, which belong to no key; rows without a time, which belong to no tile.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.features import CLOSING_KEY, GroupByPlan, Ir, Tile
from millpond.features.columnar import Groups, collect_table, group_rows
from millpond.features.types import DataType
from millpond.spark.environment.worker_garbage import leave_modules_out
from millpond.spark.features.arrow_lots import lots

COMBINED_SCHEMA = "key binary, start_ms bigint, ir binary, events bigint, event_time timestamp"
"""One row for each key and tile: the partial IR of its events, their number, and the latest of their times."""

EVENT_TIME = "event_time"
"""The column that the watermark looks at."""

OWN_TIME = "own_ms"
"""The column of the time that windows look at, where rows come and go."""

_COMBINED = pa.schema(
    [
        ("key", pa.binary()),
        ("start_ms", pa.int64()),
        ("ir", pa.binary()),
        ("events", pa.int64()),
        ("event_time", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True)
class EventCounts:
    """Accumulators of Spark's for what the events of a stream were; None where there are none (Spark Connect)."""

    events: Any = None
    before_start: Any = None
    without_key: Any = None
    without_time: Any = None

    def add(self, name: str, amount: int) -> None:
        """Add to one of them."""
        accumulator = getattr(self, name)
        if accumulator is not None and amount:
            accumulator.add(amount)


def combiner(
    plan: GroupByPlan, start_ms: int, counts: EventCounts
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Give the function of one task: events in, in the order of `plan_columns`, partial IRs out.

    Args:
        plan: of the GroupBy.
        start_ms: events before it are left out.
        counts: where the events are counted.
    """
    key_width = len(plan.group_by.keys)

    def combine(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        leave_modules_out()
        for table in lots(batches):
            events = _kept(table, key_width, start_ms, counts)
            if len(events):
                yield _combined(plan, events, key_width)
        yield _heartbeat()

    return combine


def _kept(table: pa.Table, key_width: int, start_ms: int, counts: EventCounts) -> pa.Table:
    """Give the rows that belong to a key and a tile of the stream, and count the others."""
    counts.add("events", len(table))
    time = table.column(key_width)
    timed = time.is_valid()
    keyed = timed
    for column in table.columns[:key_width]:
        keyed = pc.and_(keyed, column.is_valid())
    later = pc.greater_equal(time, start_ms)
    kept = pc.fill_null(pc.and_(keyed, later), fill_value=False)
    without_time, with_key = len(table) - _sum(timed), _sum(keyed)
    counts.add("without_time", without_time)
    counts.add("without_key", len(table) - without_time - with_key)
    counts.add("before_start", with_key - _sum(kept))
    return table.filter(kept)


def _sum(mask: Any) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _combined(plan: GroupByPlan, events: pa.Table, key_width: int) -> pa.RecordBatch:
    tile_ms = plan.tile_ms
    starts = _numbers(events.column(key_width)) // tile_ms * tile_ms
    key_columns = events.select(range(key_width))
    by_key = group_rows(key_columns)
    groups = group_rows(pa.table({"key": by_key.numbers}), starts)
    firsts = key_columns.take(pa.array(by_key.first_rows))
    keys = [plan.encode_key(key) for key in zip(*(_values(column) for column in firsts.columns), strict=True)]
    group_keys = [keys[number] for number in by_key.numbers[groups.first_rows].tolist()]
    group_starts = starts[groups.first_rows]
    irs = collected_irs(plan, events, key_width, groups)
    encoded = []
    for key, start_ms, ir in zip(group_keys, group_starts.tolist(), irs, strict=True):
        assert key is not None  # noqa: S101 - rows with a null part were left out
        encoded.append(plan.encode_tile(key, Tile(start_ms, tile_ms, ir=ir)))
    sizes = np.bincount(groups.numbers)
    return pa.record_batch(
        [
            pa.array(group_keys, pa.binary()),
            pa.array(group_starts),
            pa.array(encoded, pa.binary()),
            pa.array(sizes),
            _latest(events.column("event_time"), groups, sizes),
        ],
        schema=_COMBINED,
    )


def collected_irs(plan: GroupByPlan, events: pa.Table, key_width: int, groups: Groups) -> list[Ir]:
    """Give the IR of each group of events; rows that are taken away are subtracted by the cells that can delete.

    Args:
        plan: of the GroupBy.
        events: the columns of `plan_columns`, and ``is_delete`` and ``own_ms`` where rows come and go: there the
            time is when the row came or went.
        key_width: how many columns the key has.
        groups: the group of each row.
    """
    fields = plan.group_by.inputs
    inputs = events.select(range(key_width + 1, key_width + 1 + len(fields)))
    inputs = inputs.rename_columns([field.name for field in fields])
    times = events.column(OWN_TIME if OWN_TIME in events.column_names else key_width).combine_chunks()

    def collected(of: Groups) -> list[Ir]:
        return collect_table(plan.tile_cells, of, times, inputs).irs()

    if "is_delete" not in events.column_names:
        return collected(groups)
    gone = events.column("is_delete").fill_null(fill_value=False).to_numpy().astype(np.bool_)
    if not gone.any():
        return collected(groups)
    irs = collected(Groups(np.where(gone, -1, groups.numbers), groups.first_rows))
    taken = collected(Groups(np.where(gone, groups.numbers, -1), groups.first_rows))
    for number in np.unique(groups.numbers[gone]).tolist():
        irs[number] = plan.delete(irs[number], taken[number])
    return irs


def input_values(column: pa.ChunkedArray, type_: DataType) -> list[Any]:
    """Give a column of inputs as the values that a plan collects: a map is a dict, and not a list of pairs."""
    values = _values(column)
    if type_.key is None:
        return values
    return [None if value is None else dict(value) for value in values]


def _values(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = column.to_numpy()
    return numbers


def _latest(event_times: pa.ChunkedArray, groups: Groups, sizes: npt.NDArray[np.int64]) -> pa.Array:
    """Give the latest time of each group."""
    microseconds = event_times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    order = np.argsort(groups.numbers, kind="stable")
    begins = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    return pa.array(np.maximum.reduceat(microseconds[order], begins)).cast(pa.timestamp("us", tz="UTC"))


def _heartbeat() -> pa.RecordBatch:
    """A row that belongs to no key: it has the operator say up to when tiles are closed."""
    return pa.RecordBatch.from_pylist([{"key": CLOSING_KEY, "start_ms": 0, "events": 0}], schema=_COMBINED)
