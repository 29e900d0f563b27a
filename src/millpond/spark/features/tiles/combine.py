"""Before the shuffle: combines the events of a micro-batch into one partial IR for each key and tile.

Place on the data path: first step of the stream of tiles. Only one row for each hash slot crosses the shuffle, with the
partial IRs of its keys, instead of one row for each event. A partial IR is the packed cells of a tile that holds only
these events. The operator merges it into the tile that it keeps. The worker that combines also packs the rows for the
shuffle (`keyed_map`), so they do not pass through the JVM in between.

A change of an entity goes into the tile of its mutation time. Its cells are collected by the row's own time. A removed
row is subtracted from the cells that can delete; the others ignore it.

Three kinds of rows are left out and counted: events before the stream's start, which the upload has; rows with a null
in their key, which belong to no key; rows without a usable time, which belong to no tile.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.features import Field, GroupByPlan
from millpond.features.cells.cell import Cell
from millpond.features.columnar.array_inputs import in_utc, outside_years
from millpond.features.columnar.collect_table import Groups, collect_table, group_rows, store_table
from millpond.features.query_times import SEVENTIES_END_MS
from millpond.features.stored.key_codec import unfit_key
from millpond.features.types import DataType, parse_type
from millpond.spark.features.tiles.slots import CLOSING_SLOT, CombinedTiles, encode_combined, slots_of
from millpond.spark.shuffle.arrow_lots import lots

COMBINED_SCHEMA = "slot int, tiles binary, event_time timestamp"
"""One row for each slot: the combined tiles of its keys, and the latest event time, for the watermark."""

EVENT_TIME = "event_time"
"""The column that the watermark looks at."""

OWN_TIME = "own_ms"
"""The column of a row's own time, which windows look at. Only sources whose rows come and go have it."""

_ROWS_AT_ONCE = 1_000_000
_BYTES_AT_ONCE = 64 << 20
"""The most rows and bytes of a lot. Events of one key and tile in two lots cross the shuffle twice, so a lot is as
large as memory allows.
"""

_COMBINED = pa.schema([("slot", pa.int32()), ("tiles", pa.binary()), ("event_time", pa.timestamp("us", tz="UTC"))])


@dataclass(frozen=True)
class EventCounts:
    """Spark accumulators that count the events of a stream; None where Spark has none (Spark Connect).

    `of_seventies` counts those of `before_start` that are before 1980, as times in seconds are.
    """

    events: Any = None
    before_start: Any = None
    without_key: Any = None
    without_time: Any = None
    of_seventies: Any = None

    def add(self, name: str, amount: int) -> None:
        """Add to one of the counts."""
        accumulator = getattr(self, name)
        if accumulator is not None and amount:
            accumulator.add(amount)


def combiner(
    plan: GroupByPlan, start_ms: int, counts: EventCounts
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of one task: it takes events in the order of `plan_columns` and yields combined tiles.

    Args:
        plan: the plan of the GroupBy.
        start_ms: events before this time are left out.
        counts: counts the events.
    """
    key_width = len(plan.group_by.keys)

    def combine(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in lots(batches, _ROWS_AT_ONCE, _BYTES_AT_ONCE):
            events = _kept(table, key_width, start_ms, counts)
            if len(events):
                yield _combined(plan, events, key_width)
        yield _heartbeat()

    return combine


def _kept(table: pa.Table, key_width: int, start_ms: int, counts: EventCounts) -> pa.Table:
    """Return the rows that belong to a key and a tile of the stream, and count the others."""
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
    early = with_key - _sum(kept)
    counts.add("before_start", early)
    if early and start_ms >= SEVENTIES_END_MS:
        counts.add("of_seventies", _sum(pc.and_(keyed, pc.less(time, SEVENTIES_END_MS))))
    return table.filter(kept)


def _sum(mask: Any) -> int:
    return int(pc.sum(mask).as_py() or 0)


def _combined(plan: GroupByPlan, events: pa.Table, key_width: int) -> pa.RecordBatch:
    starts = _numbers(events.column(key_width)) // plan.tile_ms * plan.tile_ms
    key_columns = events.select(range(key_width))
    by_key = group_rows(key_columns)
    groups = group_rows(pa.table({"key": by_key.numbers}), starts)
    keys = _encoded_keys(plan, key_columns.take(pa.array(by_key.first_rows)))
    of_groups = by_key.numbers[groups.first_rows]
    slots, group_starts = slots_of(keys)[of_groups], starts[groups.first_rows]
    # In the order of the blocks, so that a block is a slice.
    order = np.lexsort((group_starts, slots))
    keys = _taken(keys, of_groups[order])
    packed = _taken(packed_cells(plan, events, key_width, groups), order)
    sizes = np.bincount(groups.numbers)[order].tolist()
    by_slot: dict[int, dict[int, CombinedTiles]] = {}
    for slot, start_ms, first, end in _blocks(slots[order], group_starts[order]):
        by_slot.setdefault(slot, {})[start_ms] = CombinedTiles(keys[first:end], packed[first:end], sizes[first:end])
    latest = pc.max(events.column(EVENT_TIME)).cast(_COMBINED.field(EVENT_TIME).type)
    return pa.record_batch(
        [
            pa.array(list(by_slot), pa.int32()),
            pa.array(list(map(encode_combined, by_slot.values())), pa.binary()),
            pa.repeat(latest, len(by_slot)),
        ],
        schema=_COMBINED,
    )


def _encoded_keys(plan: GroupByPlan, rows: pa.Table) -> list[bytes]:
    """Return the bytes of keys without null parts."""
    return [key for key in plan.encode_keys(key_values(plan, rows.columns)) if key is not None]


def key_values(plan: GroupByPlan, columns: Sequence[pa.ChunkedArray]) -> list[list[Any]]:
    """Return the columns of keys as the values that a plan encodes.

    Raises:
        DataError: a date or timestamp is of a year that Python does not have.
    """
    return [_key_part(plan, field, column) for field, column in zip(plan.group_by.keys, columns, strict=True)]


def _key_part(plan: GroupByPlan, field: Field, column: pa.ChunkedArray) -> list[Any]:
    type_ = parse_type(field.type)
    unfit = outside_years(type_, column)
    if unfit is not None:
        raise unfit_key(plan.name, field, unfit)
    return _values(in_utc(column, type_))


def _taken(values: list[bytes], places: npt.NDArray[np.int64]) -> list[bytes]:
    taken: list[bytes] = np.array(values, object)[places].tolist()
    return taken


def _blocks(slots: npt.NDArray[np.int32], starts: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, int, int]]:
    """Yield slot and start of each block, and where its groups begin and end; the groups are in this order."""
    begins = np.flatnonzero((np.diff(slots, prepend=-1) != 0) | (np.diff(starts, prepend=starts[0]) != 0))
    for first, end in pairwise([*begins.tolist(), len(slots)]):
        yield int(slots[first]), int(starts[first]), first, end


def packed_cells(plan: GroupByPlan, events: pa.Table, key_width: int, groups: Groups) -> list[bytes]:
    """Return the packed cells of each group of events. Removed rows are subtracted where cells can delete.

    Args:
        plan: the plan of the GroupBy.
        events: the columns of `plan_columns`. Where rows come and go, also ``is_delete`` and ``own_ms``, and the
            time is when the row came or went.
        key_width: the number of key columns.
        groups: the group of each row.
    """
    fields = plan.group_by.inputs
    inputs = events.select(range(key_width + 1, key_width + 1 + len(fields)))
    inputs = inputs.rename_columns([field.name for field in fields])
    times = events.column(OWN_TIME if OWN_TIME in events.column_names else key_width).combine_chunks()
    codec, count = plan.tile_codec.packed, len(groups.first_rows)
    if "is_delete" in events.column_names:
        gone = events.column("is_delete").fill_null(fill_value=False).to_numpy().astype(np.bool_)
        if gone.any():
            added, taken = (
                collect_table(plan.tile_cells, Groups(numbers, groups.first_rows), times, inputs).columns
                for numbers in (np.where(gone, -1, groups.numbers), np.where(gone, groups.numbers, -1))
            )
            return codec.pack_columns(_without(plan, added, taken), count)
    return codec.pack_stored(store_table(plan.tile_cells, groups, times, inputs), count)


def _without(
    plan: GroupByPlan, added: Sequence[Sequence[Cell]], taken: Sequence[Sequence[Cell]]
) -> Sequence[Sequence[Cell]]:
    return [
        column if operation.delete is None else list(map(operation.delete, column, others))
        for operation, column, others in zip(plan.tile_cells.cells, added, taken, strict=True)
    ]


def input_values(column: pa.ChunkedArray, type_: DataType) -> list[Any]:
    """Return a column of inputs as the values that a plan collects; a map becomes a dict, not a list of pairs."""
    values = _values(in_utc(column, type_))
    if type_.key is None:
        return values
    return [None if value is None else dict(value) for value in values]


def _values(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = column.to_numpy()
    return numbers


def _heartbeat() -> pa.RecordBatch:
    """Return a row that belongs to no key. It makes the operator emit the closing time."""
    return pa.RecordBatch.from_pylist([{"slot": CLOSING_SLOT}], schema=_COMBINED)
