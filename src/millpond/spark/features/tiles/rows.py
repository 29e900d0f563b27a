"""The rows that the operator of a stream of tiles emits.

Place on the data path: between the operator (`processor`) and the writer (`writer`).
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

TILE_SCHEMA = "key binary, address bigint, value binary, change int, amount bigint"
"""Each row is a row for the KV store with its kind, or a closing time, or a count of events."""

OPENED, CLOSED, AMENDED, MARKED, CLOSING, LATE, FORGOTTEN = range(7)
"""The kinds of rows: an open, closed or amended tile; a marker; a closing time; late and forgotten events.

``amount`` has the closing time or the number of events.
"""

_TILES = pa.schema(
    [
        ("key", pa.binary()),
        ("address", pa.int64()),
        ("value", pa.binary()),
        ("change", pa.int32()),
        ("amount", pa.int64()),
    ]
)

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

    def tables(self) -> Iterator[pa.Table]:
        """Return the rows in the columns of `TILE_SCHEMA`, in tables of at most 50,000 rows.

        >>> rows = TileRows()
        >>> rows.add(b"EWR", 0, b"tile", OPENED, 0)
        >>> [table.num_rows for table in rows.tables()]
        [1]
        """
        columns: tuple[list[Any], ...] = (self._keys, self._addresses, self._values, self._changes, self._amounts)
        for start in range(0, len(self._keys), _ROWS_AT_ONCE):
            some = slice(start, start + _ROWS_AT_ONCE)
            arrays = [pa.array(column[some], type_) for column, type_ in zip(columns, _TILES.types, strict=True)]
            yield pa.table(arrays, schema=_TILES)
