"""Rows to write as Arrow columns, for callers that have columns.

Place on the data path: between the stream of tiles and a store. `LmdbStore` encodes the columns as they are. Every
other store iterates over them and gets a `Put` for each row.

Trade-off: this module imports no pyarrow, so that the package stays light. Who makes columns has imported it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millpond.errors import DataError
from millpond.kv.store import Put

if TYPE_CHECKING:
    import pyarrow as pa

_TYPES = {"keys": "binary", "values": "binary", "times_ms": "int64", "keep_until_ms": "int64"}


class ArrowPuts:
    """An iterable of `Put`, made of one Arrow array for each of its fields; a store takes it in place of a list.

    Args:
        keys: the key of each row, of type binary.
        values: the value of each row, of type binary.
        times_ms: the time of each row, of type int64.
        keep_until_ms: the moment before which each row must not expire, of type int64; 0 is no such moment.

    Raises:
        DataError: an array has another type, a null, or another length than the keys.

    >>> import pyarrow as pa
    >>> times_ms, kept = pa.array([1_000]), pa.array([0])
    >>> list(ArrowPuts(pa.array([b"EWR|UA"]), pa.array([b"42"]), times_ms, kept))
    [Put(key=b'EWR|UA', value=b'42', time_ms=1000, keep_until_ms=0)]
    """

    __slots__ = ("keep_until_ms", "keys", "times_ms", "values")

    def __init__(
        self,
        keys: "pa.BinaryArray",
        values: "pa.BinaryArray",
        times_ms: "pa.Int64Array",
        keep_until_ms: "pa.Int64Array",
    ) -> None:
        self.keys, self.values, self.times_ms, self.keep_until_ms = keys, values, times_ms, keep_until_ms
        for name, type_ in _TYPES.items():
            column = getattr(self, name)
            if str(column.type) != type_ or column.null_count or len(column) != len(keys):
                raise DataError(
                    f"{name} of rows to write is an array of {len(column)} {column.type} with {column.null_count} "
                    f"nulls; expected {len(keys)} {type_} without nulls, as many as keys. Cast or filter the columns."
                )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    def __iter__(self) -> Iterator[Put]:
        """Return each row as a `Put`."""
        columns = (self.keys, self.values, self.times_ms, self.keep_until_ms)
        return map(Put, *(column.to_pylist() for column in columns))
