"""The tasks of a hop table: events become hops of their keys, and hops become rows of the table and of the batch.

Place on the data path: inside the tasks of backfill and upload, before and after rows meet by key.

A row of the table holds the hops of one key (`millpond.features.hops`): for each the IR of its events. It lies in the
form of a batch row whose segments are the hops' numbers and whose columns are never suffixes. To go on to a later end,
hops that need not be told apart any more are merged, days that are collected anew are left out, and the hops of new
events are added.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millpond.errors import DataError
from millpond.features import CLOSING_KEY, GroupByPlan, Ir, Tile
from millpond.features.batch import BatchIr
from millpond.features.hops import BEFORE_MS, Hops
from millpond.features.windows import DAY_MS
from millpond.spark.features.batch_rows_of_keys import RowCounts, collected, encoder, kept_rows, lots, times_of
from millpond.spark.worker_garbage import leave_modules_out

HOP_ROWS = "key binary, start_ms bigint, value binary"
"""What meets by key: a row of the table, which comes first, or a hop of new events."""

TABLE_ROW = -(1 << 63)
"""The start of a row of the table."""

_PROBLEM, _COUNTS = 0, 1
_SCHEMA = pa.schema([("key", pa.binary()), ("start_ms", pa.int64()), ("value", pa.binary())])
_TABLE_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_WRITTEN_AT_ONCE = 10_000


def hops_of(plan: GroupByPlan, end_ms: int) -> Hops:
    """Give the hops of a plan for a history that ends at some time."""
    return Hops((window.window_ms for window in plan.windows if window.window_ms is not None), end_ms)


def combined_hops(plan: GroupByPlan, end_ms: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the hops of a partition's events, in any order; then what of the events belonged nowhere.

    A value that cannot be aggregated is an answer, not a failed task: trying it again would not mend it.
    """
    leave_modules_out()
    hops = hops_of(plan, end_ms)
    counts = RowCounts()
    try:
        for lot in lots(batches):
            kept = kept_rows(plan, lot, counts)
            rows = [
                (key, start_ms, plan.encode_tile(key, Tile(start_ms, hops.smallest_ms, ir=ir)))
                for key, start_ms, ir in collected(plan, kept, hops.starts(times_of(kept)))
            ]
            yield _batch(rows)
    except DataError as error:
        yield _batch([(CLOSING_KEY, _PROBLEM, str(error).encode())])
    yield _batch([(CLOSING_KEY, _COUNTS, msgspec.msgpack.encode(asdict(counts)))])


class HopMerge(NamedTuple):
    """How rows of a table go on to a later end.

    Args:
        plan: of the GroupBy.
        former_ms: where the history of the table's rows ends.
        end_ms: where it is to end.
        days: the starts of the days whose hops are collected anew.
    """

    plan: GroupByPlan
    former_ms: int
    end_ms: int
    days: frozenset[int]

    def rows(
        self, batches: Iterable[pa.RecordBatch], counts: RowCounts, table_file: Path
    ) -> Iterator[tuple[bytes, bytes]]:
        """Give key and value of each row of the batch, and write the rows of the table to a file.

        Args:
            batches: the columns of ``HOP_ROWS``, sorted by key and start.
            counts: where the events of the first step are counted.
            table_file: a file that no other attempt writes.

        Raises:
            DataError: an event could not be aggregated.
        """
        former, hops = hops_of(self.plan, self.former_ms), hops_of(self.plan, self.end_ms)
        moved = _Moved(self, former, hops)
        encoded = encoder(self.plan, self.end_ms)
        with _TableFile(table_file) as table:
            for key, rows in groupby(_rows(batches), key=itemgetter(0)):
                if key == CLOSING_KEY:
                    _count(rows, counts)
                    continue
                irs = self._merged(key, rows, moved)
                if not irs:
                    continue
                starts = sorted(irs)
                numbers = tuple(map(moved.number, starts))
                columns = tuple(zip(*(irs[start] for start in starts), strict=True))
                table.add(key, self.plan.encode_batch(key, BatchIr(self.end_ms, numbers, columns)))
                segments = self._segments(irs, starts, moved)
                if segments:
                    yield key, encoded(key, segments)

    def _merged(self, key: bytes, rows: Iterable[tuple[bytes, int, bytes]], moved: "_Moved") -> dict[int, Ir]:
        irs: dict[int, Ir] = {}
        for _, start_ms, value in rows:
            if start_ms != TABLE_ROW:
                self._add(irs, start_ms, self.plan.decode_tile(key, value).ir)
                continue
            batch = self.plan.decode_batch(key, value)
            for number, ir in zip(batch.segments, zip(*batch.columns, strict=True), strict=True):
                start = moved.start(number)
                if start is not None:
                    self._add(irs, start, ir)
        return irs

    def _add(self, irs: dict[int, Ir], start: int, ir: Ir) -> None:
        found = irs.get(start)
        irs[start] = ir if found is None else self.plan.merge(found, ir)

    def _segments(self, irs: dict[int, Ir], starts: list[int], moved: "_Moved") -> dict[int, Ir]:
        found: dict[int, Ir] = {}
        for start in starts:
            segment = moved.segment(start)
            if segment is not None:
                self._add(found, segment, irs[start])
        return found


class _Moved:
    """Where hops go, each looked up once for all keys."""

    def __init__(self, merge: HopMerge, former: Hops, hops: Hops) -> None:
        self._merge = merge
        self._former = former
        self._hops = hops
        self._starts: dict[int, int | None] = {}
        self._segments: dict[int, int | None] = {}

    def start(self, number: int) -> int | None:
        """Give the hop that a hop of the table is part of now; None if its day is collected anew."""
        if number not in self._starts:
            start: int | None = BEFORE_MS
            if number:
                former = self._former.first_ms + (number - 1) * self._former.smallest_ms
                start = None if former // DAY_MS * DAY_MS in self._merge.days else self._hops.start(former)
            self._starts[number] = start
        return self._starts[number]

    def number(self, start_ms: int) -> int:
        """Give the number of a hop in the table."""
        return 0 if start_ms == BEFORE_MS else 1 + (start_ms - self._hops.first_ms) // self._hops.smallest_ms

    def segment(self, start_ms: int) -> int | None:
        """Give the batch's segment that a hop is part of; None if no window reaches it."""
        if start_ms not in self._segments:
            self._segments[start_ms] = self._merge.plan.segment_of(start_ms, self._merge.end_ms)
        return self._segments[start_ms]


class _TableFile:
    """The rows of one task, in a Parquet file; a context manager."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, _TABLE_SCHEMA, compression="zstd")
        self._keys: list[bytes] = []
        self._values: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
        self._writer.close()

    def add(self, key: bytes, value: bytes) -> None:
        self._keys.append(key)
        self._values.append(value)
        if len(self._keys) == _WRITTEN_AT_ONCE:
            self._write()

    def _write(self) -> None:
        columns = [pa.array(self._keys, pa.binary()), pa.array(self._values, pa.binary())]
        self._writer.write_batch(pa.record_batch(columns, schema=_TABLE_SCHEMA))
        self._keys, self._values = [], []


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[bytes, int, bytes]]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _batch(rows: list[tuple[bytes, int, bytes]]) -> pa.RecordBatch:
    columns: list[list[Any]] = [[row[place] for row in rows] for place in range(len(_SCHEMA))]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=_SCHEMA)


def _count(rows: Iterable[tuple[bytes, int, bytes]], counts: RowCounts) -> None:
    for _, what, value in rows:
        if what == _PROBLEM:
            raise DataError(value.decode())
        for name, amount in msgspec.msgpack.decode(value).items():
            setattr(counts, name, getattr(counts, name) + amount)
