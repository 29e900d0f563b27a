"""Segments: the bytes in which changed cells or whole key groups are kept.

A segment holds cells of one state as one Arrow IPC stream behind a short header:

    magic "MPSG" | format version, 1 byte | 3 zero bytes | xxh64 of the body, 8 bytes | body length, 8 bytes | body

Its columns are `key_group`, `deleted`, then `key.*`, `map_key.*` and `value.*` as the state's schemas name them (a list
state has one column `value`, a list of structs). So anything that reads Arrow can read an exported segment. If lists
only grew since the version before, there is a column `added`: where it is true, `value` holds the elements that were
added to the list's end. Such a segment has format version 2, every other one version 1. A *raw* segment (magic "MPSR")
has bytes in place of the columns, see `millpond.state.checkpoint.format.raw`.

Invariant: a segment is whole or rejected. Nothing is taken from one whose magic, version, length or checksum is not as
written.
"""

import itertools
import operator
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from millpond.errors import CorruptionError, DataError, MillpondError
from millpond.state.backend.protocols import ABSENT, Appended, Cells
from millpond.state.checkpoint.format.decoded_size import check_decoded_bytes
from millpond.state.checkpoint.format.raw import is_raw, raw_cells
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.rows import RowCodec

FORMAT_VERSION = 2
"""The newest format version. Segments that do not need it are written as version 1, which older releases read."""
MAX_SEGMENT_BYTES = 1 << 20
MAX_CELL_BYTES = 1 << 30
"""Limit of one value with its key, or of one list: what Spark's state store surely accepts. Its own limit is 2 GiB."""

DECODE_ERRORS = (
    msgspec.MsgspecError,
    pa.ArrowException,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    RecursionError,
    MemoryError,
    struct.error,
)
"""Errors of decoding a body with a valid checksum that Millpond did not write. Arrow raises OSErrors about memory."""

_MAGIC = b"MPSG"
_RAW_MAGIC = b"MPSR"
_HEADER = struct.Struct("<4sB3sQQ")
_RESERVED = bytes(3)
_ADDED = "added"
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class CellCodec:
    """Converts cells of one state to Arrow and back. Created once per state and shard."""

    def __init__(self, descriptor: StateDescriptor, key_schema: pa.Schema) -> None:
        self._descriptor = descriptor
        self._state = descriptor.name
        self._kind = descriptor.kind
        self._keys = RowCodec(key_schema, f"key of state {descriptor.name!r}")
        self._values = descriptor.codec(f"state {descriptor.name!r}")
        map_keys = descriptor.map_key_schema
        self._map_keys = None if map_keys is None else RowCodec(map_keys, f"key of map state {descriptor.name!r}")
        self._value_names = tuple(f"value.{name}" for name in self._values.schema.names)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the state's tables."""
        return self.table(Cells(map_keys=None if self._map_keys is None else [])).schema

    def table(self, cells: Cells) -> pa.Table:
        """Return the cells as columns. A deleted cell has null values. A DataError names the first unwritable cell."""
        deleted = list(map(operator.is_, cells.values, itertools.repeat(ABSENT)))
        arrays = {
            "key_group": pa.array(cells.key_groups, type=pa.int32()),
            "deleted": pa.array(deleted, type=pa.bool_()),
        }
        arrays |= _prefixed("key", self._keys, self._keys.columns(cells.keys))
        if self._map_keys is not None:
            arrays |= _prefixed("map_key", self._map_keys, self._map_keys.columns(cells.map_keys or []))
        try:
            arrays |= self._value_arrays(cells, deleted)
        except Exception as error:
            self._refuse_unwritable(cells, deleted)
            raise DataError(f"state {self._state!r}: its values cannot be written: {error}") from error
        added = [type(value) is Appended for value in cells.values] if self._kind is StateKind.LIST else ()
        if any(added):
            arrays[_ADDED] = pa.array(added, type=pa.bool_())
        table = pa.table(arrays)
        if table.nbytes > MAX_CELL_BYTES:
            self._refuse_too_large(cells, table)
        return table

    def _refuse_too_large(self, cells: Cells, table: pa.Table) -> None:
        for at in range(table.num_rows):
            size = table.slice(at, 1).nbytes
            if size > MAX_CELL_BYTES:
                raise DataError(
                    f"{self._called(cells, at)}: the value has {size} bytes, and a checkpoint takes {MAX_CELL_BYTES} "
                    "at most. Nothing of it was written. Keep it in several keys, or as entries of a map state."
                )

    def _called(self, cells: Cells, at: int) -> str:
        """Return the name of a cell for errors."""
        entry = "" if cells.map_keys is None else f", map key {cells.map_keys[at]!r}"
        return f"state {self._state!r} of key {cells.keys[at]!r}{entry}"

    def _refuse_unwritable(self, cells: Cells, deleted: list[bool]) -> None:
        """Try the cells one by one, and raise an error that names the first one that fails."""
        for at in range(len(cells)):
            try:
                self._value_arrays(cells.part(at, 1), deleted[at : at + 1])
            except Exception as error:
                raise DataError(
                    f"{self._called(cells, at)}: the value cannot be written: "
                    f"{type(error).__name__}: {error}. Let its serializer write every value that it takes."
                ) from error

    def _value_arrays(self, cells: Cells, deleted: list[bool]) -> dict[str, pa.Array]:
        if self._kind is StateKind.LIST:
            lists = [() if value is ABSENT else value for value in cells.values]
            offsets = list(itertools.accumulate(map(len, lists), initial=0))
            columns = self._values.columns([row for values in lists for row in values])
            items = pa.StructArray.from_arrays(columns, fields=list(self._values.schema))
            return {"value": pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), items)}
        if not any(deleted):
            return dict(zip(self._value_names, self._values.columns(cells.values), strict=True))
        # Every deleted cell is null, whatever the codec's values are; the other values are moved to their rows.
        count = itertools.count()
        places = pa.array([None if gone else next(count) for gone in deleted], type=pa.int64())
        columns = self._values.columns([value for value in cells.values if value is not ABSENT])
        return dict(zip(self._value_names, (column.take(places) for column in columns), strict=True))

    def plain(self, table: pa.Table) -> pa.Table:
        """Return the table of a segment with columns, even if it is raw."""
        return self.table(raw_cells(self._descriptor, table)) if is_raw(table) else table

    def cells(self, table: pa.Table) -> Cells:
        """Convert a table back to cells: the inverse of `table`. Raw tables are decoded.

        Raises:
            CorruptionError: the table has other columns, or bytes that are not values of the state.
        """
        try:
            return self._cells(table)
        except MillpondError:
            raise
        except DECODE_ERRORS as error:
            raise CorruptionError(
                f"state {self._state!r}: the cells of a segment do not decode: {type(error).__name__}: {error}. "
                "Restore an earlier version."
            ) from error

    def _cells(self, table: pa.Table) -> Cells:
        if is_raw(table):
            return raw_cells(self._descriptor, table)
        cells = Cells(
            key_groups=table["key_group"].to_pylist(),
            keys=list(self._keys.rows(_columns("key", self._keys, table))),
            map_keys=None if self._map_keys is None else list(self._rows_of_map_keys(table)),
            values=self._value_rows(table),
        )
        if pc.any(table["deleted"]).as_py():
            deleted = table["deleted"].to_pylist()
            cells.values = [ABSENT if gone else row for row, gone in zip(cells.values, deleted, strict=True)]
        if _ADDED in table.column_names:
            added = table[_ADDED].to_pylist()
            cells.values = [Appended(row) if grew else row for row, grew in zip(cells.values, added, strict=True)]
        return cells

    def cell_keys(self, table: pa.Table) -> Iterator[tuple[object, ...]]:
        """Yield what identifies each row's cell within the state: its key, and its map key."""
        keys = self._keys.rows(_columns("key", self._keys, table))
        return (
            zip(keys, self._rows_of_map_keys(table), strict=True)
            if self._map_keys is not None
            else zip(keys, strict=True)
        )

    def _rows_of_map_keys(self, table: pa.Table) -> Iterator[tuple[object, ...]]:
        if self._map_keys is not None:
            yield from self._map_keys.rows(_columns("map_key", self._map_keys, table))

    def _value_rows(self, table: pa.Table) -> list[object]:
        if self._kind is not StateKind.LIST:
            return list(self._values.rows([table[name] for name in self._value_names]))
        lists = table["value"].combine_chunks()
        items = lists.values
        rows = list(self._values.rows([items.field(position) for position in range(len(self._value_names))]))
        offsets = lists.offsets.to_pylist()
        return [rows[first:end] for first, end in pairwise(offsets)]


def of_key_groups(table: pa.Table, key_groups: range) -> pa.Table:
    """Return the rows of a run of key groups."""
    group = table["key_group"]
    return table.filter(pc.and_(pc.greater_equal(group, key_groups.start), pc.less(group, key_groups.stop)))


def together(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables of one state, some of which may have the column `added`."""
    return pa.concat_tables(tables, promote_options="default")


def whole_lists(table: pa.Table) -> pa.Table:
    """Join the rows of each list into one, the last, with the whole list. Rows come in the order of their versions.

    Rows of one cell have the same number in the column `cell`, which is dropped.
    """
    lists = table["value"].combine_chunks()
    added = pc.fill_null(table[_ADDED], fill_value=False).to_pylist()
    rows: dict[int, list[int]] = {}
    for row, (cell, grew) in enumerate(zip(table["cell"].to_pylist(), added, strict=True)):
        if grew and cell in rows:
            rows[cell].append(row)
        else:
            rows[cell] = [row]
    parts = lists.take(pa.array(list(itertools.chain.from_iterable(rows.values())), type=pa.int64()))
    part_ends = np.cumsum([0, *pc.fill_null(pc.list_value_length(parts), 0).to_pylist()], dtype=np.int64)
    ends = part_ends[np.cumsum([0, *map(len, rows.values())], dtype=np.int64)]
    whole = pa.ListArray.from_arrays(pa.array(ends, type=pa.int32()), parts.flatten()).cast(lists.type)
    left = table.take(pa.array([of_cell[-1] for of_cell in rows.values()], type=pa.int64()))
    return left.set_column(left.column_names.index("value"), "value", whole).drop_columns(["cell", _ADDED])


def grew(table: pa.Table) -> bool:
    """Return whether rows of a table are additions to lists."""
    return _ADDED in table.column_names


def encode_segments(table: pa.Table) -> Iterator[tuple[pa.Table, bytes]]:
    """Cut the table into segments of at most about `MAX_SEGMENT_BYTES`. Yield each with the rows it holds.

    Only a single row may be larger.
    """
    for part in _cut(table):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema, options=_WRITE_OPTIONS) as writer:
            writer.write_table(part)
        version = FORMAT_VERSION if _ADDED in part.column_names else 1
        yield part, with_checksum(_RAW_MAGIC if is_raw(part) else _MAGIC, sink.getvalue().to_pybytes(), version)


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """Cut into even parts by the rows' mean size. A part in which large rows come together is cut again."""
    parts = -(-table.nbytes // MAX_SEGMENT_BYTES)
    if parts <= 1 or table.num_rows <= 1:
        if table.num_rows:
            yield table
        return
    rows_each = -(-table.num_rows // parts)
    for first in range(0, table.num_rows, rows_each):
        part = table.slice(first, rows_each)
        # A part may stay a little over the limit, because rows differ in size.
        yield from [part] if part.nbytes <= 2 * MAX_SEGMENT_BYTES else _cut(part)


def decode_segment(data: bytes | memoryview, name: str) -> pa.Table:
    """Decode the table in a segment. If the segment is not whole, the CorruptionError names it."""
    body = pa.py_buffer(checked_body(_magic(data), data, name))
    try:
        check_decoded_bytes(body)
        with pa.ipc.open_stream(body) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except DECODE_ERRORS as error:
        raise CorruptionError(f"{name} does not decode: {error}. Restore an earlier version.") from error
    return table


def verify_segment(data: bytes | memoryview, name: str) -> None:
    """Verify a segment without decoding it. If it is not whole, the CorruptionError names it."""
    checked_body(_magic(data), data, name)


def _magic(data: bytes | memoryview) -> bytes:
    return _RAW_MAGIC if bytes(data[: len(_RAW_MAGIC)]) == _RAW_MAGIC else _MAGIC


def with_checksum(magic: bytes, body: bytes, version: int = 1) -> bytes:
    """Return a body behind its header, which has the checksum."""
    return _HEADER.pack(magic, version, _RESERVED, xxhash.xxh64_intdigest(body), len(body)) + body


def checksum_of(data: bytes | memoryview) -> int:
    """Return the checksum in the header that `with_checksum` wrote."""
    checksum: int = _HEADER.unpack_from(data)[3]
    return checksum


def checked_body(magic: bytes, data: bytes | memoryview, name: str) -> memoryview:
    """Return the body behind a header of `with_checksum`, after checking every part of the header."""
    mend = "Nothing was taken from it. Restore an earlier version of the checkpoint or start from a savepoint."
    if len(data) < _HEADER.size:
        raise CorruptionError(f"{name} has {len(data)} bytes, fewer than its header of {_HEADER.size}. {mend}")
    found, version, reserved, checksum, length = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if found != magic:
        raise CorruptionError(f"{name} begins with {found!r}, expected {magic!r}. {mend}")
    if not 1 <= version <= FORMAT_VERSION:
        raise CorruptionError(
            f"{name} has format version {version}; this Millpond reads versions up to {FORMAT_VERSION}. "
            "Use the release that wrote it, or a later one."
        )
    if reserved != _RESERVED:
        raise CorruptionError(f"{name} has {reserved!r} in its header where zeros are expected. {mend}")
    if len(body) != length:
        raise CorruptionError(f"{name} has a body of {len(body)} bytes, expected {length}. {mend}")
    if xxhash.xxh64_intdigest(body) != checksum:
        raise CorruptionError(f"{name} does not match its checksum. {mend}")
    return body


def _prefixed(prefix: str, codec: RowCodec, columns: list[pa.Array]) -> dict[str, pa.Array]:
    return {f"{prefix}.{name}": column for name, column in zip(codec.names, columns, strict=True)}


def _columns(prefix: str, codec: RowCodec, table: pa.Table) -> list[pa.Array]:
    return [table[f"{prefix}.{name}"] for name in codec.names]
