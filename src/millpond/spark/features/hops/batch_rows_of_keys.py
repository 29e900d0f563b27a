"""What an upload writes for each key: takes the sorted rows of a partition, and yields rows for the KV store.

Place on the data path: inside the tasks of the batch upload, after the shuffle by key.

There are three kinds of rows, for three kinds of GroupBys:

- temporal: the cells of the batch's timeline;
- snapshot: the finished values as of the batch end;
- without aggregations: the inputs of the latest row before the batch end. Of several rows with that time, the one
  whose bytes sort first counts, so their order does not matter.

Rows are collected some hundred thousand at a time, by key and segment, in array operations. A key whose rows continue
in the next lot is finished there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.features import GroupByPlan, Ir
from millpond.features.cells.cell import Cell
from millpond.features.columnar.array_inputs import check_years
from millpond.features.inputs import check_time_range
from millpond.features.types import parse_type
from millpond.spark.features.columns import TIME, key_names
from millpond.spark.features.hops.key_groups import KeyGroups, encoded_key, groups_of_events
from millpond.spark.features.tiles.combine import input_values, key_values
from millpond.spark.shuffle.arrow_lots import lots

RowEncoder = Callable[[bytes, Sequence[int], Sequence[Sequence[Cell]]], bytes]
"""Returns a key's row of a batch, from the key, its segments (ascending) and their cells, by cell of the plan."""


@dataclass
class RowCounts:
    """The number of a partition's rows, of those that belong to no key or have no time, and the latest time."""

    events: int = 0
    without_key: int = 0
    without_time: int = 0
    latest_ms: int | None = None


def batch_rows_of_keys(
    plan: GroupByPlan, batch_end_ms: int, batches: Iterable[pa.RecordBatch], counts: RowCounts
) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and value of each row of a batch.

    Args:
        plan: the plan of the GroupBy.
        batch_end_ms: the batch end; every row is before it.
        batches: the columns of `plan_columns`, sorted by key.
        counts: counts the rows, and those without key or time; gets the latest time.

    Raises:
        DataError: a value cannot be aggregated, or a key is not as declared.
    """
    if not plan.group_by.aggregations:
        return _latest_rows(plan, batch_end_ms, batches, counts)
    return _rows_of_groups(plan, batch_end_ms, _lots_of_groups(plan, batch_end_ms, batches, counts))


def _lots_of_groups(
    plan: GroupByPlan, batch_end_ms: int, batches: Iterable[pa.RecordBatch], counts: RowCounts
) -> Iterator[KeyGroups]:
    """Collect a partition's rows by key and segment, lot by lot. Rows that no window can hold are left out."""
    for table in lots(batches):
        kept = kept_rows(plan, table, counts)
        segments = segments_of(plan, batch_end_ms, times_of(kept))
        if (segments < 0).any():
            kept, segments = kept.filter(pa.array(segments >= 0)), segments[segments >= 0]
        if len(kept):
            yield groups_of_events(plan, kept, segments)


def _rows_of_groups(
    plan: GroupByPlan, batch_end_ms: int, lots_of_groups: Iterable[KeyGroups]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of consecutive lots; a lot may end within a key and the next lot continues it."""
    encode = row_encoder(plan, batch_end_ms)
    open_key: bytes | None = None
    open_irs: dict[int, Ir] = {}
    for groups in lots_of_groups:
        last = len(groups.keys) - 1
        for number, (key, segments, columns) in enumerate(groups.by_key()):
            if open_key is not None and key != open_key:
                yield open_key, encode(open_key, *_ordered(open_irs))
                open_key, open_irs = None, {}
            if open_key is None and number != last:
                yield key, encode(key, segments, columns)
                continue
            open_key = key
            for segment, ir in zip(segments, zip(*columns, strict=True), strict=True):
                former = open_irs.get(segment)
                open_irs[segment] = ir if former is None else plan.merge(former, ir)
    if open_key is not None:
        yield open_key, encode(open_key, *_ordered(open_irs))


def _ordered(irs: Mapping[int, Ir]) -> tuple[list[int], list[Sequence[Cell]]]:
    segments = sorted(irs)
    return segments, list(zip(*(irs[segment] for segment in segments), strict=True))


def row_encoder(plan: GroupByPlan, batch_end_ms: int) -> RowEncoder:
    """Return the function that makes a key's row of a batch from the cells of its segments."""
    if plan.group_by.accuracy == "temporal":
        return lambda key, segments, columns: plan.encode_batch(
            key, plan.batch_of_columns(segments, columns, batch_end_ms)
        )

    def snapshot(key: bytes, segments: Sequence[int], columns: Sequence[Sequence[Cell]]) -> bytes:
        batch = plan.batch_of_columns(segments, columns, batch_end_ms)
        values = plan.finish(batch_end_ms, batch_end_ms, batch, [])
        return plan.encode_values(key, [values[name] for name in plan.feature_names], batch_end_ms)

    return snapshot


def segments_of(plan: GroupByPlan, batch_end_ms: int, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the segment of each time; -1 if no window can hold it."""
    cuts = np.asarray(plan.timeline(batch_end_ms).cuts_ms, np.int64)
    segments: npt.NDArray[np.int64] = np.searchsorted(cuts, times - batch_end_ms, side="right").astype(np.int64)
    if plan.segment_of(batch_end_ms - (1 << 60), batch_end_ms) is None:
        segments[segments == 0] = -1
    return segments


def _latest_rows(
    plan: GroupByPlan, batch_end_ms: int, batches: Iterable[pa.RecordBatch], counts: RowCounts
) -> Iterator[tuple[bytes, bytes]]:
    types = [parse_type(field.type) for field in plan.group_by.inputs]
    width = len(plan.group_by.keys)
    last: tuple[bytes, int, bytes] | None = None
    for table in lots(batches):
        kept = kept_rows(plan, table, counts)
        for field, column in zip(plan.group_by.inputs, kept.columns[width + 1 :], strict=True):
            check_years(f"GroupBy {plan.name!r}", field, column)
        keys = zip(*key_values(plan, kept.columns[:width]), strict=True)
        inputs = [input_values(column, type_) for column, type_ in zip(kept.columns[width + 1 :], types, strict=True)]
        for name, time_ms, values in zip(keys, kept[TIME].to_pylist(), zip(*inputs, strict=True), strict=True):
            key = encoded_key(plan, name)
            if last is not None and (last[0] != key or time_ms >= last[1]):
                value = plan.encode_values(key, values, batch_end_ms)
                if last[0] != key:
                    yield last[0], last[2]
                elif time_ms == last[1] and value[_HEADER_BYTES:] >= last[2][_HEADER_BYTES:]:
                    continue
                last = (key, time_ms, value)
            elif last is None:
                last = (key, time_ms, plan.encode_values(key, values, batch_end_ms))
    if last is not None:
        yield last[0], last[2]


_HEADER_BYTES = 5
"""The size of a stored value's header: version and checksum."""


def kept_rows(plan: GroupByPlan, table: pa.Table, counts: RowCounts) -> pa.Table:
    """Return the rows that have a key and a time, count the others, and note the latest time.

    Raises:
        DataError: a time is too large for milliseconds.
    """
    import pyarrow.compute as pc

    timed = table[TIME].is_valid()
    kept = timed
    for name in key_names(plan.group_by):
        kept = pc.and_(kept, table[name].is_valid())
    with_time, with_both = int(pc.sum(timed).as_py() or 0), int(pc.sum(kept).as_py() or 0)
    counts.events += len(table)
    counts.without_time += len(table) - with_time
    counts.without_key += with_time - with_both
    table = table if with_both == len(table) else table.filter(kept)
    if len(table):
        times = times_of(table)
        latest_ms = int(times.max())
        check_time_range(plan.name, int(times.min()), latest_ms)
        counts.latest_ms = latest_ms if counts.latest_ms is None else max(counts.latest_ms, latest_ms)
    return table


def times_of(table: pa.Table) -> npt.NDArray[np.int64]:
    """Return the time of each row, none of them null."""
    times: npt.NDArray[np.int64] = table[TIME].to_numpy()
    return times
