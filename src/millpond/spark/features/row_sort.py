"""Sorts the rows of a partition by key and time in Python: whole columns at once, if needed by buckets on disk.

Place on the data path: between the shuffle and `features.point_in_time`. Spark would compare row by row. NumPy sorts
columns of numbers: the key's 64-bit hash, the time, and whether the row is a query.

Rows that fit are sorted in memory. If they do not fit, the rows read so far give the bounds of some buckets of hash and
time. Every row goes to the file of its bucket, and the buckets are sorted one after the other, by the same rule. So
memory does not depend on how many rows a key has. Only rows of one key and one millisecond are never split.

If different keys have the same hash, rows are sorted by the key itself too. Bounds fall between hashes where they can;
a bound within a hash means that one key fills a bucket.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.spark.environment.folders import user_folder
from millpond.spark.shuffle.spool import Spool

MEMORY_BYTES = 256 << 20
"""The most bytes of rows that are sorted at once."""

_BUCKETS = 16
_BATCH_ROWS = 1 << 16


class RowSort:
    """Sorts rows whose columns are: the hash of the key, the keys, the time (null first), is_query (queries first), ….

    Args:
        key_width: the number of key columns.
        memory_bytes: the most bytes of rows sorted at once; sorting takes about three times as much memory.
    """

    def __init__(self, key_width: int, memory_bytes: int = MEMORY_BYTES) -> None:
        self._keys = range(1, 1 + key_width)
        self._order = 1 + key_width
        self._memory_bytes = memory_bytes

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, without their hash."""
        rest = iter(batches)
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in rest:
            held.append(batch)
            # Not `nbytes`, which crashes on nested columns as Spark 4.1 writes them if they are empty.
            size += batch.get_total_buffer_size()
            if size > self._memory_bytes:
                yield from self._by_buckets(held, rest)
                return
        if held:
            yield from self._in_memory(held)

    def _in_memory(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        ordered: list[pa.RecordBatch] = self._sorted(pa.Table.from_batches(batches)).to_batches(_BATCH_ROWS)
        return ordered

    def _sorted(self, table: pa.Table) -> pa.Table:
        table = table.combine_chunks()
        hashes, times = self._hashes(table), self._times(table)
        is_query = table.column(self._order + 1).to_numpy()
        order = _order(hashes, times, is_query)
        ordered = table.take(pa.array(order))
        if self._has_collision(ordered, hashes[order]):
            keys = [_codes(table.column(place)) for place in self._keys]
            ordered = table.take(pa.array(np.lexsort((~is_query, times, *keys, hashes))))
        return ordered.select(ordered.column_names[1:])

    def _has_collision(self, ordered: pa.Table, hashes: npt.NDArray[np.int64]) -> bool:
        """Return whether rows of one hash have different keys."""
        same_hash = hashes[1:] == hashes[:-1]
        for place in self._keys:
            key = ordered.column(place).combine_chunks()
            left, right = key[:-1], key[1:]
            differs = pc.fill_null(pc.not_equal(left, right), fill_value=False)
            differs = pc.or_(differs, pc.xor(left.is_null(), right.is_null()))
            if (np.asarray(differs) & same_hash).any():
                return True
        return False

    def _by_buckets(self, held: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(held).combine_chunks()
        held.clear()
        bounds = self._bounds(table)
        alone = None
        if not len(bounds[0]):  # one key and time fills memory: it cannot be split, but others can
            hash_, time = self._hashes(table)[0], self._times(table)[0]
            bounds, alone = (np.array([hash_, hash_]), np.array([time, time + 1])), 1
        with ExitStack() as opened:
            buckets = [opened.enter_context(Spool(user_folder, memory_bytes=0)) for _ in range(len(bounds[0]) + 1)]
            for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
                self._distribute(batch, bounds, buckets)
            schema = table.schema
            del table, batch
            for batch in rest:
                self._distribute(batch, bounds, buckets)
            for number, bucket in enumerate(buckets):
                batches = (pa.ipc.read_record_batch(pa.py_buffer(blob), schema) for blob in bucket)
                yield from self._in_memory(list(batches)) if number == alone else self(batches)
                bucket.close()

    def _distribute(self, batch: pa.RecordBatch, bounds: Any, buckets: list[Spool]) -> None:
        """Write each row of a batch to the file of its bucket."""
        numbers = self._buckets(batch, bounds)
        for number in np.unique(numbers):
            rows = batch.filter(pa.array(numbers == number))
            buckets[number].add(memoryview(rows.serialize()))

    def _bounds(self, table: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the hash and time at which each bucket but the first begins, ascending."""
        hashes, times = self._hashes(table), self._times(table)
        order = np.lexsort((times, hashes))
        first = order[0]
        found: list[tuple[int, int]] = []
        for place in np.linspace(0, len(order), _BUCKETS + 1)[1:-1].astype(np.int64):
            row = order[place]
            bound = (int(hashes[row]), int(times[row]))
            # A bucket begins with the whole key, unless the bucket before begins with that key already.
            whole = (bound[0], int(np.iinfo(np.int64).min))
            start = found[-1] if found else (int(hashes[first]), int(np.iinfo(np.int64).min))
            bound = whole if whole > start else bound
            if bound > start and bound > (int(hashes[first]), int(times[first])):
                found.append(bound)
        pairs = np.array(found, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def _buckets(self, batch: pa.RecordBatch, bounds: Any) -> npt.NDArray[np.int64]:
        """Return the bucket of each row: the number of bounds at or before it."""
        hashes, times = self._hashes(batch), self._times(batch)
        buckets = np.zeros(batch.num_rows, np.int64)
        for hash_, time in zip(*bounds, strict=True):
            buckets += (hashes > hash_) | ((hashes == hash_) & (times >= time))
        return buckets

    def _hashes(self, rows: Any) -> npt.NDArray[np.int64]:
        return np.asarray(rows.column(0))

    def _times(self, rows: Any) -> npt.NDArray[np.int64]:
        """Return the times; null comes before all others."""
        times = pc.fill_null(rows.column(self._order), int(np.iinfo(np.int64).min))
        return np.asarray(times)


def _order(
    hashes: npt.NDArray[np.int64], times: npt.NDArray[np.int64], is_query: npt.NDArray[np.bool_]
) -> npt.NDArray[np.intp]:
    """Return the order of rows by hash, then time, with queries first.

    If 63 bits can hold the three, they become one number: one sort of numbers is faster than three.
    """
    if not len(times):
        return np.arange(0)
    least_ms = int(times.min())
    span = 2 * (int(times.max()) - least_ms + 1)
    encoded = pa.array(hashes).dictionary_encode()
    distinct = encoded.dictionary.to_numpy()
    if len(distinct) * span > np.iinfo(np.int64).max:
        return np.lexsort((~is_query, times, hashes))
    begins = np.empty(len(distinct), np.int64)
    begins[np.argsort(distinct)] = np.arange(len(distinct)) * span
    return np.argsort(begins[encoded.indices.to_numpy()] + 2 * (times - least_ms) + ~is_query)


def _codes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return equal numbers for equal values; null has a number of its own."""
    encoded = column.combine_chunks().dictionary_encode()
    return np.asarray(pc.fill_null(encoded.indices, -1)).astype(np.int64)
