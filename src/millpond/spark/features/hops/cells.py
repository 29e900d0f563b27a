"""Stored cells of many hops: decoded, merged and encoded by column.

Place on the data path: inside the tasks of a hop table, between its files and the rows of the batch.

A stored cell is the MessagePack of what its operation encodes. An Arrow buffer has the cells of a column one after the
other. With the header of a MessagePack list before them they are one document, so one call decodes all of them.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.features.cells.cell import Cell, CellOperation
from millpond.features.cells.counts_and_sums import encode_fixed_point
from millpond.features.columnar.fixed_point_arrays import WordSums, added_fixed_points
from millpond.features.plan import suffixes
from millpond.features.stored.packed_columns import PackedColumn, list_header, packed_ints, suffix_sums
from millpond.features.stored.value_header import DECODE_ERRORS, unreadable

_LIST_OF_32_BITS = b"\xdd"
"""The first byte of a MessagePack list whose length takes four bytes (array 32)."""

_BYTES_OF_16_BITS = 0xC5
"""The first byte of MessagePack bytes whose length takes two bytes (bin 16)."""

_MOST_OF_ONE_BYTE = 0x7F
"""The largest whole number that MessagePack writes as one byte."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Any]).decode


def encode_cells(operation: CellOperation, cells: Sequence[Cell]) -> pa.Array:
    r"""Return the stored form of cells.

    >>> from millpond.features.cells.counts_and_sums import count_cells
    >>> encode_cells(count_cells(None), [1, 300]).to_pylist()
    [b'\x01', b'\xcd\x01,']
    """
    return packed_each(cells if operation.plain else map(operation.encode, cells))


def packed_each(stored: Iterable[Any]) -> pa.Array:
    """Return the MessagePack of each value; the values are what cell operations encode."""
    return pa.array(list(map(_encode, stored)), pa.binary())


def decode_cells(operation: CellOperation, stored: pa.Array) -> list[Cell]:
    """Return the cells of a stored column.

    Raises:
        CorruptionError: the bytes are not cells of this operation.

    >>> from millpond.features.cells.counts_and_sums import count_cells
    >>> count = count_cells(None)
    >>> decode_cells(count, encode_cells(count, [1, 300, 5]).slice(1))
    [300, 5]
    """
    if not len(stored):
        return []
    _, offsets, data = stored.buffers()
    bounds = np.frombuffer(offsets, np.int32)
    begin, end = int(bounds[stored.offset]), int(bounds[stored.offset + len(stored)])
    try:
        found = _decode(_LIST_OF_32_BITS + len(stored).to_bytes(4, "big") + memoryview(data)[begin:end])
        return found if operation.plain else list(map(operation.decode, found))
    except DECODE_ERRORS as cause:
        raise unreadable(f"cell {operation.id!r} of a hop table", str(cause)) from cause


def merged_column(operation: CellOperation, stored: pa.Array, order: npt.NDArray[np.int64], starts: Any) -> list[Cell]:
    """Decode and merge the stored cells of each group; arguments and result are those of `merged_cells`.

    Exact sums of fractions are added from their bytes.
    """
    sums = None if len(starts) == len(order) else _added(operation, stored, order, starts)
    return merged_cells(operation, decode_cells(operation, stored), order, starts) if sums is None else sums.sums()


def packed_suffixes(
    operation: CellOperation, stored: pa.Array, order: npt.NDArray[np.int64], starts: Any, bounds: Any
) -> list[bytes]:
    """Merge the stored cells of each group, and return each key's column of a batch row, as MessagePack.

    Args:
        operation: the operation of the cells.
        stored: the stored cell of each row.
        order: the row numbers, with those of a group together.
        starts: the position in ``order`` where each group begins.
        bounds: the first group of each key, followed by the number of groups.
    """
    if (packed := _packed(operation, stored, order, starts, bounds)) is not None:
        return packed.runs(bounds)
    cells = merged_column(operation, stored, order, starts)
    encode, merge, is_suffix = operation.encode, operation.merge, operation.suffix
    columns: list[Sequence[Cell]] = [cells[start:end] for start, end in pairwise(bounds.tolist())]
    if is_suffix:
        columns = [suffixes(merge, column) for column in columns]
    return [_encode(list(map(encode, column)))[len(list_header(len(column))) :] for column in columns]


def _packed(
    operation: CellOperation, stored: pa.Array, order: npt.NDArray[np.int64], starts: Any, bounds: Any = None
) -> PackedColumn | None:
    """Merge the stored cells of each group by array operations; None for cells that have no such operation.

    Args:
        operation: the operation of the cells.
        stored: the stored cell of each row.
        order: the row numbers, with those of a group together.
        starts: the position in ``order`` where each group begins.
        bounds: the bounds of runs of groups in which each cell becomes its suffix; None to keep the cells.
    """
    if operation.kind == "count":
        counts = np.add.reduceat(_counts(operation, stored)[order], starts)
        return packed_ints(counts if bounds is None else suffix_sums(counts, bounds))
    sums = _added(operation, stored, order, starts)
    if sums is None:
        return None
    if bounds is not None:
        sums.add_following(bounds)
    return sums.packed()


def _counts(operation: CellOperation, stored: pa.Array) -> npt.NDArray[np.int64]:
    """Return stored counts as numbers. A count up to 127 is its own MessagePack."""
    _, offsets, data = stored.buffers()
    bounds = np.frombuffer(offsets, np.int32)
    begin, end = int(bounds[stored.offset]), int(bounds[stored.offset + len(stored)])
    octets = np.frombuffer(data, np.uint8)[begin:end] if data is not None else np.zeros(0, np.uint8)
    if len(octets) == len(stored) and (octets <= _MOST_OF_ONE_BYTE).all():
        return octets.astype(np.int64)
    return np.asarray(decode_cells(operation, stored), np.int64)


def _added(operation: CellOperation, stored: pa.Array, order: npt.NDArray[np.int64], starts: Any) -> WordSums | None:
    """Add the stored fixed-point numbers of each group; None for other cells, and for numbers over 255 bytes."""
    if operation.encode is not encode_fixed_point:
        return None
    index = np.empty(len(stored), np.int64)
    index[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    if len(order) < len(stored):
        stored, index = stored.take(pa.array(np.sort(order))), index[np.sort(order)]
    _, offsets, data = stored.buffers()
    bounds = np.frombuffer(offsets, np.int32)[stored.offset : stored.offset + len(stored) + 1].astype(np.int64)
    octets = np.frombuffer(data, np.uint8)
    if (octets[bounds[:-1]] == _BYTES_OF_16_BITS).any():
        return None
    try:
        return added_fixed_points(octets, bounds, index, len(starts))
    except ValueError as cause:
        raise unreadable(f"cell {operation.id!r} of a hop table", str(cause)) from cause


def merged_cells(operation: CellOperation, cells: list[Cell], order: npt.NDArray[np.int64], starts: Any) -> list[Cell]:
    """Merge the cells of each group.

    Args:
        operation: the operation of the cells.
        cells: the cell of each row.
        order: the row numbers, with those of a group together.
        starts: the position in ``order`` where each group begins.

    >>> from millpond.features.cells.counts_and_sums import count_cells
    >>> merged_cells(count_cells(None), [1, 10, 100], np.array([2, 0, 1]), np.array([0, 2]))
    [101, 10]
    """
    if not len(order):
        return []
    if operation.kind == "count":
        counts: list[Cell] = np.add.reduceat(np.asarray(cells, np.int64)[order], starts).tolist()
        return counts
    ordered = [cells[row] for row in order.tolist()]
    if len(starts) == len(ordered):
        return ordered
    merge_all = operation.merge_all
    return [
        ordered[start] if end == start + 1 else merge_all(ordered[start:end])
        for start, end in pairwise([*starts.tolist(), len(ordered)])
    ]


def merged_stored(operation: CellOperation, stored: pa.Array, order: npt.NDArray[np.int64], starts: Any) -> pa.Array:
    r"""Merge the stored cells of each group. The cell of a group of one row is copied as it is.

    >>> from millpond.features.cells.counts_and_sums import count_cells
    >>> count = count_cells(None)
    >>> merged_stored(count, encode_cells(count, [1, 2, 3]), np.array([2, 0, 1]), np.array([0, 2])).to_pylist()
    [b'\x04', b'\x02']
    """
    sizes = np.diff(starts, append=len(order))
    taken = stored.take(pa.array(order[starts]))
    several = sizes > 1
    if not several.any():
        return taken
    of_several = order[np.repeat(several, sizes)]
    bounds = np.cumsum(sizes[several]) - sizes[several]
    stored, rows = stored.take(pa.array(of_several)), np.arange(len(of_several))
    packed = _packed(operation, stored, rows, bounds)
    if packed is None:
        merged = encode_cells(operation, merged_column(operation, stored, rows, bounds))
    else:
        offsets = packed.bounds.astype(np.int32)
        merged = pa.Array.from_buffers(
            pa.binary(), len(bounds), [None, pa.py_buffer(offsets), pa.py_buffer(packed.data)]
        )
    return pc.replace_with_mask(taken, pa.array(several), merged)
