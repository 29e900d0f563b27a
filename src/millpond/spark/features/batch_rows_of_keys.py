"""What an upload writes of each key: sorted rows of a partition in, rows for the KV store out.

Place on the data path: inside the tasks of the batch upload, after rows met by key.

Three kinds of GroupBys, three kinds of rows:

- temporal: the cells of the batch's timeline;
- snapshot: the finished values as of the batch end;
- without aggregations: the inputs of the latest row before the batch end. Of rows of one time the one
  with the least bytes counts, so that their order does not matter.

Rows are collected some hundred thousand at a time, by key and segment, in array operations. A key whose
rows go on in the next lot is finished there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.features import GroupByPlan, Ir
from millpond.features.columnar import collect_table, group_rows
from millpond.features.types import parse_type
from millpond.spark.features.arrow_lots import lots
from millpond.spark.features.columns import TIME, input_names, key_names
from millpond.spark.features.tile_combine import input_values


@dataclass
class RowCounts:
    """What of a partition's rows belonged nowhere."""

    events: int = 0
    without_key: int = 0
    without_time: int = 0


@dataclass
class _OpenKey:
    """The key at the end of a lot: its next rows may come."""

    key: bytes | None = None
    irs: dict[int, Ir] = field(default_factory=dict)


def batch_rows_of_keys(
    plan: GroupByPlan, batch_end_ms: int, batches: Iterable[pa.RecordBatch], counts: RowCounts
) -> Iterator[tuple[bytes, bytes]]:
    """Give key and value of each row of a batch.

    Args:
        plan: of the GroupBy.
        batch_end_ms: no row is at or after it.
        batches: the columns of `plan_columns`, sorted by key.
        counts: where rows without key or time are counted.

    Raises:
        DataError: a value cannot be aggregated, or a key is not as declared.
    """
    if not plan.group_by.aggregations:
        yield from _latest_rows(plan, batch_end_ms, batches, counts)
        return
    encoded = encoder(plan, batch_end_ms)
    for key, irs in irs_of_keys(plan, lambda times: _segments(plan, batch_end_ms, times), batches, counts):
        if irs:
            yield key, encoded(key, irs)


def irs_of_keys(
    plan: GroupByPlan,
    parts_of: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]],
    batches: Iterable[pa.RecordBatch],
    counts: RowCounts,
) -> Iterator[tuple[bytes, dict[int, Ir]]]:
    """Give the IRs of each key by part of time, such as segment or hop.

    Args:
        plan: of the GroupBy.
        parts_of: gives the part of each time; below 0 is none, and the row is left out.
        batches: the columns of `plan_columns`, sorted by key.
        counts: where rows without key or time are counted.
    """
    open_key = _OpenKey()
    for table in lots(batches):
        kept = kept_rows(plan, table, counts)
        if not len(kept):
            continue
        parts = parts_of(times_of(kept))
        if (parts < 0).any():
            kept, parts = kept.filter(pa.array(parts >= 0)), parts[parts >= 0]
        for key, part, ir in collected(plan, kept, parts):
            if key != open_key.key:
                if open_key.key is not None:
                    yield open_key.key, open_key.irs
                open_key = _OpenKey(key)
            former = open_key.irs.get(part)
            open_key.irs[part] = ir if former is None else plan.merge(former, ir)
    if open_key.key is not None:
        yield open_key.key, open_key.irs


def collected(plan: GroupByPlan, table: pa.Table, parts: npt.NDArray[np.int64]) -> Iterator[tuple[bytes, int, Ir]]:
    """Give (key, part, IR) of each group of a lot, the groups of a key together and in the order of the rows."""
    if not len(table):
        return
    keys = table.select(key_names(plan.group_by))
    groups = group_rows(keys, parts)
    inputs = table.select(input_names(plan.group_by)).rename_columns([field.name for field in plan.group_by.inputs])
    irs = collect_table(plan.cells, groups, table[TIME].combine_chunks(), inputs).irs()
    # In the order of the rows, so that the last key of a lot is the one that may go on.
    order = np.argsort(groups.first_rows, kind="stable")
    firsts = groups.first_rows[order]
    names = list(zip(*(column.to_pylist() for column in keys.take(pa.array(firsts)).columns), strict=True))
    encoded: dict[tuple[Any, ...], bytes] = {}
    for number, row, name in zip(order.tolist(), firsts.tolist(), names, strict=True):
        key = encoded.get(name)
        if key is None:
            encoded[name] = key = _encoded(plan, name)
        yield key, int(parts[row]), irs[number]


def _encoded(plan: GroupByPlan, name: tuple[Any, ...]) -> bytes:
    key = plan.encode_key(name)
    assert key is not None  # noqa: S101 - rows with a null part were left out
    return key


def encoder(plan: GroupByPlan, batch_end_ms: int) -> Callable[[bytes, Mapping[int, Ir]], bytes]:
    """Give the function that makes a key's row of a batch from the IRs of its segments."""
    if plan.group_by.accuracy == "temporal":
        return lambda key, irs: plan.encode_batch(key, plan.batch_of_segments(irs, batch_end_ms))

    def snapshot(key: bytes, irs: Mapping[int, Ir]) -> bytes:
        batch = plan.batch_of_segments(irs, batch_end_ms)
        values = plan.finish(batch_end_ms, batch_end_ms, batch, [])
        return plan.encode_values(key, [values[name] for name in plan.feature_names], batch_end_ms)

    return snapshot


def _segments(plan: GroupByPlan, batch_end_ms: int, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Give the segment of each time, -1 where no window can hold it."""
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
        keys = zip(*(column.to_pylist() for column in kept.columns[:width]), strict=True)
        inputs = [input_values(column, type_) for column, type_ in zip(kept.columns[width + 1 :], types, strict=True)]
        for name, time_ms, values in zip(keys, kept[TIME].to_pylist(), zip(*inputs, strict=True), strict=True):
            key = _encoded(plan, name)
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
"""The seal before a stored value's bytes: version and checksum."""


def kept_rows(plan: GroupByPlan, table: pa.Table, counts: RowCounts) -> pa.Table:
    """Give the rows that have a key and a time, and count the others."""
    import pyarrow.compute as pc

    timed = table[TIME].is_valid()
    kept = timed
    for name in key_names(plan.group_by):
        kept = pc.and_(kept, table[name].is_valid())
    with_time, with_both = int(pc.sum(timed).as_py() or 0), int(pc.sum(kept).as_py() or 0)
    counts.events += len(table)
    counts.without_time += len(table) - with_time
    counts.without_key += with_time - with_both
    return table if with_both == len(table) else table.filter(kept)


def times_of(table: pa.Table) -> npt.NDArray[np.int64]:
    """Give the time of each row, none of them null."""
    times: npt.NDArray[np.int64] = table[TIME].to_numpy()
    return times
