"""The tasks of a hop table: they turn events into hops, and hops into files of the table and rows of the batch.

Place on the data path: inside the tasks of backfill and upload, after the shuffle by key.

A row is a hop of a key (`millpond.features.hops`): the key and its hash, the start of the hop, and a stored cell for
each cell of the plan. Keys are divided into buckets by their hash, and one task has a whole bucket. New events come to
it by a shuffle; all other hops are in the bucket's files. Both are sorted by the hash, because Spark can compute the
hash but not a key's bytes. The task writes the files of the spans that change, and makes the rows of the batch from all
hops. In place of the files of several days it reads a rollup (`rollups`).
"""

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.features import GroupByPlan
from millpond.features.hops import BEFORE_MS, Hops
from millpond.features.stored.packed_columns import packed_ints, packed_lists
from millpond.features.windows import DAY_MS
from millpond.spark.features.hops.batch_rows_of_keys import (
    RowCounts,
    kept_rows,
    row_encoder,
    segments_of,
    times_of,
)
from millpond.spark.features.hops.cells import merged_column, merged_stored, packed_each, packed_suffixes
from millpond.spark.features.hops.files import KEY_HASH, HopFiles, Span, bucket_of, lots_of_keys, read_files
from millpond.spark.features.hops.key_groups import groups_of_events
from millpond.spark.features.hops.rollups import Rollup
from millpond.spark.shuffle.arrow_lots import lots
from millpond.spark.shuffle.partitioner import partition_of

ROUTING_KEY = "routing_key"
"""The column that Spark partitions rows by: the routing key of their bucket."""


def hop_schema(plan: GroupByPlan) -> pa.Schema:
    """Return the columns of a hop."""
    cells = [(name, pa.binary()) for name in _cell_names(plan)]
    return pa.schema([(KEY_HASH, pa.int64()), ("key", pa.binary()), ("start_ms", pa.int64()), *cells])


def _cell_names(plan: GroupByPlan) -> list[str]:
    return [f"cell_{number}" for number in range(len(plan.cells.cells))]


def hops_of(plan: GroupByPlan, end_ms: int) -> Hops:
    """Return the hops of a plan for a history that ends at a time."""
    return Hops((window.window_ms for window in plan.windows if window.window_ms is not None), end_ms)


def keeps_all(plan: GroupByPlan) -> bool:
    """Return whether a window holds all time, so that the time before the days is kept."""
    return any(window.window_ms is None for window in plan.windows)


class HopTask(NamedTuple):
    """The work of the tasks of one run.

    Args:
        plan: the plan of the GroupBy.
        end_ms: the new end of the history.
        folder: the folder of the table.
        version: the version that the files are written for.
        buckets: the number of buckets.
        moved: the files whose hops are merged into larger ones and written again.
        unchanged: the other files whose hops the rows of the batch need.
        rollups: the rollups to write, in the order of time. Only `HopAttempt.batch_rows` reads all their hops.
    """

    plan: GroupByPlan
    end_ms: int
    folder: Path
    version: int
    buckets: int
    moved: tuple[str, ...]
    unchanged: tuple[str, ...]
    rollups: tuple[Rollup, ...] = ()

    def attempt(self) -> "HopAttempt":
        """Return a new attempt of a task."""
        return HopAttempt(self)


class HopAttempt:
    """One attempt of a task. It writes files that no other attempt writes.

    Attributes:
        files: the names of the files, once all is written.
    """

    def __init__(self, task: HopTask) -> None:
        self._task = task
        self._plan = task.plan
        self._hops = hops_of(task.plan, task.end_ms)
        self._schema = hop_schema(task.plan)
        self.files: tuple[str, ...] = ()

    def write_files(self, batches: Iterable[pa.RecordBatch], counts: RowCounts) -> None:
        """Write the files of the spans that change; arguments and errors are those of `batch_rows`."""
        for _ in self._lots(batches, counts, unchanged=False):
            pass

    def batch_rows(self, batches: Iterable[pa.RecordBatch], counts: RowCounts) -> Iterator[tuple[bytes, bytes]]:
        """Write the files of the spans that change, and yield key and value of each row of the batch.

        Args:
            batches: new events, sorted by the hash of their key: the columns of `plan_columns` after `ROUTING_KEY`
                and `KEY_HASH`. A row without a hash only names the bucket.
            counts: counts the rows without key or time.

        Raises:
            DataError: a value cannot be aggregated, or a key is not as declared.
            CorruptionError: a file of the table cannot be read.
        """
        is_temporal = self._plan.group_by.accuracy == "temporal"
        for lot in self._lots(batches, counts, unchanged=True):
            groups = self._by_segment(lot)
            if groups is not None:
                yield from self._temporal_rows(lot, groups) if is_temporal else self._snapshot_rows(lot, groups)

    def _lots(self, batches: Iterable[pa.RecordBatch], counts: RowCounts, *, unchanged: bool) -> Iterator["_Lot"]:
        """Yield the hops of all keys, some keys at a time, and write those that are new or moved."""
        task = self._task
        rest = (batch for batch in batches if len(batch))
        first = next(rest, None)
        if first is None:
            return
        bucket = partition_of(first[ROUTING_KEY][0].as_py(), task.buckets)
        files = HopFiles(task.folder, task.version, bucket, self._schema)
        moved = [name for name in task.moved if bucket_of(name) == bucket]
        others = [name for name in task.unchanged if bucket_of(name) == bucket] if unchanged else []
        sources = [
            self._new_hops(chain([first], rest), counts),
            *read_files(task.folder, [*moved, *others], self._schema.names),
        ]
        try:
            for pieces in lots_of_keys(sources):
                written = sum(len(rows) for number, rows in pieces if number <= len(moved))
                lot = _Lot(pa.concat_tables([rows for _, rows in pieces]).combine_chunks())
                if written:
                    self._write(lot, written, files)
                if unchanged and task.rollups:
                    self._write_rollups(lot, files)
                yield lot
        finally:
            files.close()
        self.files = tuple(files.names)

    def _new_hops(self, batches: Iterable[pa.RecordBatch], counts: RowCounts) -> Iterator[pa.Table]:
        """Yield the hops of new events, some events at a time."""
        for rows in lots(batches):
            events = kept_rows(self._plan, rows.filter(rows[KEY_HASH].is_valid()), counts)
            if len(events):
                yield self._hops_of(events)

    def _hops_of(self, events: pa.Table) -> pa.Table:
        groups = groups_of_events(self._plan, events, self._hops.starts(times_of(events)), stored=True)
        sizes = np.diff(groups.bounds)
        of_groups = pa.array(np.repeat(np.arange(len(sizes)), sizes))
        cells = list(map(packed_each, groups.columns))
        return pa.Table.from_arrays(
            [
                events[KEY_HASH].take(pa.array(groups.first_rows)).take(of_groups),
                pa.array(groups.keys, pa.binary()).take(of_groups),
                pa.array(groups.parts, pa.int64()),
                *cells,
            ],
            schema=self._schema,
        )

    def _write(self, lot: "_Lot", count: int, files: HopFiles) -> None:
        """Merge the first hops of a lot into hops of the new end, and write them to the files of their spans."""
        starts = self._hops.starts(lot.starts[:count])
        rows = np.arange(count) if keeps_all(self._plan) else np.flatnonzero(starts != BEFORE_MS)
        starts = starts[rows]
        spans = np.where(starts == BEFORE_MS, BEFORE_MS, starts // DAY_MS * DAY_MS)
        self._write_merged(lot, rows, starts, spans, files)

    def _write_rollups(self, lot: "_Lot", files: HopFiles) -> None:
        """Merge the hops of each rollup that the task writes, and write them to the rollup's file."""
        begins = np.asarray([rollup.start_ms for rollup in self._task.rollups], np.int64)
        ends = np.asarray([rollup.end_ms for rollup in self._task.rollups], np.int64)
        numbers = np.searchsorted(begins, lot.starts, side="right") - 1
        rows = np.flatnonzero((numbers >= 0) & (lot.starts < ends[numbers]))
        starts = begins[numbers[rows]]
        self._write_merged(lot, rows, starts, starts, files, of_rollups=True)

    def _write_merged(
        self, lot: "_Lot", of_lot: Any, starts: Any, spans: Any, files: HopFiles, *, of_rollups: bool = False
    ) -> None:
        """Merge hops of a lot, and write them to the files of their spans.

        Args:
            lot: the hops of some keys.
            of_lot: the positions in the lot of the hops to merge.
            starts: the start of each of these as it is written; those of a key with the same start are merged.
            spans: the start of each one's span.
            files: writes the files.
            of_rollups: whether the spans are rollups.
        """
        if not len(of_lot):
            return
        codes = lot.codes[of_lot]
        order = np.lexsort((starts, codes, spans))
        firsts = _firsts(codes[order], starts[order])
        rows = order[firsts]
        cells = [
            merged_stored(operation, lot.table[name].chunk(0), of_lot[order], firsts)
            for operation, name in zip(self._plan.cells.cells, _cell_names(self._plan), strict=True)
        ]
        keys = lot.table.select([KEY_HASH, "key"]).take(pa.array(of_lot[rows]))
        hops = pa.Table.from_arrays([*keys.columns, pa.array(starts[rows]), *cells], schema=self._schema)
        bounds = np.flatnonzero(np.diff(spans[rows], prepend=spans[rows[0]] - 1))
        for begin, end in zip(bounds, [*bounds[1:], len(rows)], strict=True):
            files.add(Span(int(spans[rows[begin]]), of_rollups), hops.slice(begin, end - begin))

    def _by_segment(self, lot: "_Lot") -> "_Groups | None":
        """Group the hops of a lot by the batch's segments; None if no window reaches any of them."""
        segments = segments_of(self._plan, self._task.end_ms, lot.starts)
        # Each file's hops are in this order already. A stable sort of one number makes use of that.
        order = np.argsort(lot.codes * (1 + int(segments.max())) + segments, kind="stable")
        if (segments < 0).any():
            order = order[segments[order] >= 0]
        if not len(order):
            return None
        codes = lot.codes[order]
        firsts = _firsts(codes, segments[order])
        of_keys = codes[firsts]
        bounds = np.append(np.flatnonzero(np.diff(of_keys, prepend=-1)), len(firsts))
        keys = lot.keys.take(pa.array(of_keys[bounds[:-1]])).to_pylist()
        return _Groups(keys, bounds, segments[order[firsts]], order, firsts)

    def _temporal_rows(self, lot: "_Lot", groups: "_Groups") -> Iterator[tuple[bytes, bytes]]:
        columns = [
            packed_ints(groups.segments).runs(groups.bounds),
            *(
                packed_suffixes(operation, lot.table[name].chunk(0), groups.order, groups.firsts, groups.bounds)
                for operation, name in zip(self._plan.cells.cells, _cell_names(self._plan), strict=True)
            ),
        ]
        packed = packed_lists(np.diff(groups.bounds).tolist(), columns)
        rows = self._plan.encode_packed_batches(groups.keys, self._task.end_ms, packed)
        return zip(groups.keys, rows, strict=True)

    def _snapshot_rows(self, lot: "_Lot", groups: "_Groups") -> Iterator[tuple[bytes, bytes]]:
        encode = row_encoder(self._plan, self._task.end_ms)
        segments = groups.segments.tolist()
        columns = [
            merged_column(operation, lot.table[name].chunk(0), groups.order, groups.firsts)
            for operation, name in zip(self._plan.cells.cells, _cell_names(self._plan), strict=True)
        ]
        for key, (start, end) in zip(groups.keys, pairwise(groups.bounds.tolist()), strict=True):
            yield key, encode(key, segments[start:end], [column[start:end] for column in columns])


class _Groups(NamedTuple):
    """The hops of some keys, by segment of the batch.

    Args:
        keys: the keys, each once.
        bounds: the first group of each key, followed by the number of groups.
        segments: the segment of each group; ascending within a key.
        order: the positions of the hops, with those of a group together.
        firsts: the position in ``order`` where each group begins.
    """

    keys: list[bytes]
    bounds: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    firsts: npt.NDArray[np.int64]


class _Lot:
    """The hops of some keys.

    Attributes:
        table: the columns of `hop_schema`.
        starts: the start of each hop.
        keys: the distinct keys; their hashes ascend.
        codes: the position in ``keys`` of each hop's key.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.starts: npt.NDArray[np.int64] = table["start_ms"].to_numpy()
        encoded = table["key"].chunk(0).dictionary_encode()
        codes = encoded.indices.to_numpy()
        hashes = np.empty(len(encoded.dictionary), np.int64)
        hashes[codes] = table[KEY_HASH].to_numpy()
        ascending = np.argsort(hashes, kind="stable")
        places = np.empty(len(ascending), np.int64)
        places[ascending] = np.arange(len(ascending))
        self.keys: pa.Array = encoded.dictionary.take(pa.array(ascending))
        self.codes: npt.NDArray[np.int64] = places[codes]


def _firsts(codes: npt.NDArray[np.int64], parts: npt.NDArray[np.int64]) -> Any:
    """Return the positions of the first row of each key and part, in rows that are sorted by both."""
    begins = np.ones(len(codes), np.bool_)
    begins[1:] = (codes[1:] != codes[:-1]) | (parts[1:] != parts[:-1])
    return np.flatnonzero(begins)
