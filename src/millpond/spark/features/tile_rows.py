"""The rows that the operator of a stream of tiles emits, and how they travel: packed, some ten thousand to one.

Place on the data path: between the operator and whoever writes tiles. Spark turns each row that passes from one
Python worker to the next into a row of its own and back; of a packed row it copies the bytes.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

TILE_SCHEMA = "key binary, address bigint, value binary, change int, amount bigint"
"""A row for the KV store and what it is, or a closing time, or a count of events."""

OPENED, CLOSED, AMENDED, MARKED, CLOSING, LATE, FORGOTTEN = range(7)
"""What a row is: an open, closed or amended tile; a marker; and in ``amount`` a closing time or a count of events."""

PACKED_SCHEMA = "rows binary"
"""How they travel: each row is an Arrow stream of them."""

_TILES = pa.schema(
    [
        ("key", pa.binary()),
        ("address", pa.int64()),
        ("value", pa.binary()),
        ("change", pa.int32()),
        ("amount", pa.int64()),
    ]
)
_PACKED = pa.schema([("rows", pa.binary())])

_ROWS_AT_ONCE = 50_000


class TileRows:
    """The rows that a call of the operator emits."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._addresses: list[int] = []
        self._values: list[bytes | None] = []
        self._changes: list[int] = []
        self._amounts: list[int] = []

    def add(self, key: bytes, address: int, value: bytes | None, change: int, amount: int) -> None:
        """Add a row."""
        self._keys.append(key)
        self._addresses.append(address)
        self._values.append(value)
        self._changes.append(change)
        self._amounts.append(amount)

    def add_tiles(self, keys: list[bytes], address: int, values: list[bytes], changes: list[int]) -> None:
        """Add the tiles of some keys at one address."""
        self._keys += keys
        self._addresses += [address] * len(keys)
        self._values += values
        self._changes += changes
        self._amounts += [0] * len(keys)

    def table(self) -> pa.Table:
        """Give the rows, in the columns of `TILE_SCHEMA`."""
        columns = (self._keys, self._addresses, self._values, self._changes, self._amounts)
        arrays = [pa.array(column, type_) for column, type_ in zip(columns, _TILES.types, strict=True)]
        return pa.table(arrays, schema=_TILES)


def pack(rows: pa.Table) -> Iterator[pa.Table]:
    """Give rows of tiles in packed rows, each a table of its own.

    >>> rows = TileRows()
    >>> rows.add(b"EWR", 0, b"tile", OPENED, 0)
    >>> [batch.num_rows for table in pack(rows.table()) for batch in unpack(table.to_batches())]
    [1]
    """
    for batch in rows.combine_chunks().to_batches(max_chunksize=_ROWS_AT_ONCE):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _TILES) as writer:
            writer.write_batch(batch)
        yield pa.table([pa.array([sink.getvalue().to_pybytes()], pa.binary())], schema=_PACKED)


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the rows of tiles that packed rows hold."""
    for batch in batches:
        for packed in batch.column("rows"):
            with pa.ipc.open_stream(packed.as_buffer()) as reader:
                yield from reader
