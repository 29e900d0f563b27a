"""The tasks of a hop table: events become hops of their keys, and hops become rows of the table and of the batch.

Place on the data path: inside the tasks of backfill and upload, before and after rows meet by key.

A row of the table holds the hops of one key (`millpond.features.hops`): their numbers, and for each cell of the plan a
column of stored cells, one for each hop. Number 0 is all time before the others; the others count the smallest hops
from the first one's start. To go on to a later end, hops that need not be told apart any more are merged, days that are
collected anew are left out, and the hops of new events are added. Most hops go on as they are, so their stored cells
are written back without being encoded again.
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
from millpond.features.cells.cell import Cell, CellOperation
from millpond.features.hops import BEFORE_MS, Hops
from millpond.features.sealing import seal, unreadable, unseal
from millpond.features.windows import DAY_MS
from millpond.spark.environment.worker_garbage import leave_modules_out
from millpond.spark.features.arrow_lots import lots
from millpond.spark.features.batch_rows_of_keys import RowCounts, collected, encoder, kept_rows, times_of

HOP_ROWS = "key binary, start_ms bigint, value binary"
"""What meets by key: a row of the table, which comes first, or a hop of new events."""

TABLE_ROW = -(1 << 63)
"""The start of a row of the table."""

_PROBLEM, _COUNTS = 0, 1
_SCHEMA = pa.schema([("key", pa.binary()), ("start_ms", pa.int64()), ("value", pa.binary())])
_TABLE_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])
_WRITTEN_AT_ONCE = 10_000

FORMAT_VERSION = 1
"""Of a row of the table."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[Any]]).decode


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
        moves = _Moves(self)
        encoded = encoder(self.plan, self.end_ms)
        with _TableFile(table_file) as table:
            for key, rows in groupby(_rows(batches), key=itemgetter(0)):
                if key == CLOSING_KEY:
                    _count(rows, counts)
                    continue
                hops = _KeyHops(self.plan, moves, key, rows)
                if hops.positions:
                    table.add(key, hops.encode())
                    segments = hops.segments()
                    if segments:
                        yield key, encoded(key, segments)


class _Moves:
    """Where hops go, each looked up once for all keys."""

    def __init__(self, merge: HopMerge) -> None:
        self._merge = merge
        self._former = hops_of(merge.plan, merge.former_ms)
        self._hops = hops_of(merge.plan, merge.end_ms)
        self._targets: dict[int, int | None] = {}
        self._segments: dict[int, int | None] = {}

    def target(self, number: int) -> int | None:
        """Give the number that a hop of the table goes on under; None if its day is collected anew."""
        if number not in self._targets:
            target: int | None = 0
            if number:
                start_ms = self._former.first_ms + (number - 1) * self._former.smallest_ms
                anew = start_ms // DAY_MS * DAY_MS in self._merge.days
                target = None if anew else self.number(self._hops.start(start_ms))
            self._targets[number] = target
        return self._targets[number]

    def number(self, start_ms: int) -> int:
        """Give the number of a hop in the table."""
        return 0 if start_ms == BEFORE_MS else 1 + (start_ms - self._hops.first_ms) // self._hops.smallest_ms

    def segment(self, number: int) -> int | None:
        """Give the batch's segment that a hop is part of; None if no window reaches it."""
        if number not in self._segments:
            start_ms = self._hops.first_ms + (number - 1) * self._hops.smallest_ms if number else BEFORE_MS
            self._segments[number] = self._merge.plan.segment_of(start_ms, self._merge.end_ms)
        return self._segments[number]


class _KeyHops:
    """The hops of one key. A hop that nothing was merged into keeps its stored cells as they are.

    Attributes:
        positions: of each hop's number, where its cells lie in the columns.
    """

    __slots__ = ("_columns", "_key", "_moves", "_operations", "_stored", "positions")

    def __init__(self, plan: GroupByPlan, moves: _Moves, key: bytes, rows: Iterable[tuple[bytes, int, bytes]]) -> None:
        self._key = key
        self._moves = moves
        self._operations = plan.cells.cells
        self._stored: list[list[Any]] = [[] for _ in self._operations]
        self._columns: list[list[Cell]] = [[] for _ in self._operations]
        self.positions: dict[int, list[int]] = {}
        count = 0
        for _, start_ms, value in rows:
            if start_ms == TABLE_ROW:
                numbers, self._stored = decode_hops(key, value, len(self._operations))
                self._columns = [
                    list(map(operation.decode, column))
                    for operation, column in zip(self._operations, self._stored, strict=True)
                ]
                for count, number in enumerate(numbers, 1):
                    target = moves.target(number)
                    if target is not None:
                        self.positions.setdefault(target, []).append(count - 1)
                continue
            for column, cell in zip(self._columns, plan.decode_tile(key, value).ir, strict=True):
                column.append(cell)
            self.positions.setdefault(moves.number(start_ms), []).append(count)
            count += 1

    def encode(self) -> bytes:
        """Give the key's row of the table."""
        numbers = sorted(self.positions)
        places = [self.positions[number] for number in numbers]
        columns = []
        for operation, column, stored in zip(self._operations, self._columns, self._stored, strict=True):
            before = len(stored)
            columns.append(
                [
                    stored[of_hop[0]]
                    if len(of_hop) == 1 and of_hop[0] < before
                    else operation.encode(_merged(operation, column, of_hop))
                    for of_hop in places
                ]
            )
        return encode_hops(self._key, numbers, columns)

    def segments(self) -> dict[int, Ir]:
        """Give the IR of each of the batch's segments."""
        places: dict[int, list[int]] = {}
        for number, of_hop in self.positions.items():
            segment = self._moves.segment(number)
            if segment is not None:
                places.setdefault(segment, []).extend(of_hop)
        columns = list(zip(self._operations, self._columns, strict=True))
        return {
            segment: tuple([_merged(operation, column, of_segment) for operation, column in columns])
            for segment, of_segment in places.items()
        }


def _merged(operation: CellOperation, column: list[Cell], places: list[int]) -> Cell:
    return column[places[0]] if len(places) == 1 else operation.merge_all([column[place] for place in places])


def encode_hops(key: bytes, numbers: list[int], columns: list[list[Any]]) -> bytes:
    """Give the bytes of a key's row: the numbers of its hops, and for each cell of the plan its stored cells."""
    return seal(FORMAT_VERSION, _encode([numbers, *columns]), b"hops" + key)


def decode_hops(key: bytes, data: bytes, cells: int) -> tuple[list[int], list[list[Any]]]:
    """Give the numbers of a key's hops and its columns of stored cells.

    Raises:
        CorruptionError: the bytes are torn or altered, of another key or of another number of cells.

    >>> decode_hops(b"EWR", encode_hops(b"EWR", [0, 7], [[5, 2]]), cells=1)
    ([0, 7], [[5, 2]])
    """
    what = "row of a hop table"
    try:
        numbers, *columns = _decode(unseal(FORMAT_VERSION, data, what, b"hops" + key))
    except msgspec.MsgspecError as cause:
        raise unreadable(what, str(cause)) from cause
    if len(columns) != cells or any(len(column) != len(numbers) for column in columns):
        raise unreadable(what, f"it has {len(columns)} cells of {len(numbers)} hops, expected {cells} cells")
    return numbers, columns


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
