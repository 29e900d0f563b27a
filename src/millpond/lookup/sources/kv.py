"""A table in Millpond's own KV store as a lookup source.

`write_kv_table` writes one row of the store per key. Its key is the table key's values in MessagePack, and its value
has the rows of that key and the names of their columns. With LMDB, another process finds them in microseconds and
without a server.

The invariant: the column names are stored with the rows. If a source declares a column that was not written, that is
an error; values never appear under the wrong name.

A value has a format version (1 byte), a CRC-32 (4 bytes) and a body. The checksum covers the dataset, the key and the
body. So it finds altered values, and values under the wrong key. Values of format 1 have no version or checksum. They
can still be read, and are recognized by their first byte, which begins a MessagePack list.
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from decimal import InvalidOperation
from typing import Any

import msgspec
import pyarrow as pa

from millpond.errors import CorruptionError, DataError, OptionError
from millpond.kv import Get, KVStore, Put, WalkableStore
from millpond.lookup.functions.function import Key, LookupFunction, Rows
from millpond.lookup.functions.keys import PlainKeys, check_key_types
from millpond.lookup.sources.declared import batch_of_rows, declared_columns, declared_schema, split_schema
from millpond.lookup.sources.values import readers

_BATCH = 1_000
_FORMAT_VERSION = 2
_LIST_OF_TWO = 0x92
_HEADER = struct.Struct(">BI")
_DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Stored(msgspec.Struct, array_like=True):
    columns: list[str]
    rows: list[list[Any]]


class KvLookup(LookupFunction):
    """Rows of a dataset that `write_kv_table` wrote; also a scan, for a full cache.

    - Delivery: one read of the store per batch of keys.
    - Freshness: the latest write.
    - Recovery: that of the store.

    Args:
        store: the store with the dataset. It stays open when the lookup closes.
        dataset: the dataset's name.
        key_schema: the names and types of the key columns.
        row_schema: the names and types of the columns of a row.

    Raises:
        UnavailableError: the store does not answer.
        DataError: the dataset has other columns, or was not written by `write_kv_table`.
        CorruptionError: a value is torn, altered, or belongs to another key.

    >>> from millpond.kv import MemoryStore
    >>> store = MemoryStore()
    >>> planes = pa.table({"tailnum": ["N1", "N2"], "year": [1999, None]})
    >>> write_kv_table(store, "planes", planes, keys=["tailnum"])
    >>> lookup = KvLookup(store, "planes", pa.schema([("tailnum", pa.string())]), pa.schema([("year", pa.int64())]))
    >>> lookup.lookup_many([("N1",), ("N2",), ("N3",)])
    {('N1',): [(1999,)], ('N2',): [(None,)], ('N3',): []}
    """

    def __init__(self, store: KVStore, dataset: str, key_schema: pa.Schema, row_schema: pa.Schema) -> None:
        self._store = store
        self._dataset = dataset
        self._where = f"KV dataset {dataset!r}"
        check_key_types(self._where, key_schema)
        self.key_schema = key_schema
        self.row_schema = row_schema
        self._read = readers(self._where, row_schema)
        self._plain = PlainKeys(key_schema)

    def lookup(self, keys: Key) -> Rows:
        """Return the rows of one key."""
        return self.lookup_many([keys])[keys]

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key, by one read."""
        encoded = {key: stored_key for key in keys if (stored_key := self._stored_key(key)) is not None}
        values = self._store.get_many([Get(self._dataset, stored_key) for stored_key in encoded.values()])
        found: dict[Key, Rows] = {key: [] for key in keys}
        for (key, stored_key), of_key in zip(encoded.items(), values, strict=True):
            if of_key:
                found[key] = self._rows(stored_key, of_key[-1].value)
        return found

    def scan(self) -> pa.Table:
        """Return the whole dataset. Rows that are written during the scan may be included or not.

        Raises:
            OptionError: the store cannot list its keys.
        """
        return self.scan_batches().read_all()

    def scan_batches(self) -> pa.RecordBatchReader:
        """Return what `scan` does, in batches of keys."""
        if not isinstance(self._store, WalkableStore):
            raise OptionError(
                f"{self._where}: a {type(self._store).__name__} cannot be walked over (it has no next_keys), "
                "which lookup.cache = FULL needs; use PARTIAL"
            )
        schema = declared_schema(self.key_schema, self.row_schema)
        return pa.RecordBatchReader.from_batches(schema, self._batches(self._store))

    def _batches(self, store: WalkableStore) -> Iterator[pa.RecordBatch]:
        read = readers(self._where, self.key_schema)
        after: bytes | None = None
        while page := store.next_keys(self._dataset, after, _BATCH):
            found = {self._key(read, key): self._rows(key, values[-1].value) for key, values in page}
            yield batch_of_rows(self._where, found, self.key_schema, self.row_schema)
            after = page[-1][0]

    def _stored_key(self, key: Key) -> bytes | None:
        """Return the store's key; None if `write_kv_table` could not have written it."""
        try:
            return _encoded(self._plain(key))
        except (OverflowError, UnicodeEncodeError, InvalidOperation):
            return None

    def _key(self, read: Sequence[Callable[[Any], Any]], encoded: bytes) -> Key:
        try:
            values = msgspec.msgpack.decode(encoded, type=list[Any])
        except _DECODE_ERRORS as error:
            raise DataError(f"{self._where}: a key was not written by write_kv_table ({error})") from error
        if len(values) != len(read):
            raise DataError(
                f"{self._where}: expected keys of {', '.join(self.key_schema.names)}, got {values!r}; declare the key "
                "columns that were written"
            )
        return tuple(one(value) for one, value in zip(read, values, strict=True))

    def _rows(self, key: bytes, value: bytes) -> Rows:
        body = value if value[:1] == bytes((_LIST_OF_TWO,)) else self._checked_body(key, value)
        try:
            stored = msgspec.msgpack.decode(body, type=_Stored)
        except _DECODE_ERRORS as error:
            raise DataError(f"{self._where}: a value was not written by write_kv_table ({error})") from error
        if any(len(row) != len(stored.columns) for row in stored.rows):
            raise DataError(f"{self._where}: a value has rows of other lengths than its columns; write the table anew")
        missing = [name for name in self.row_schema.names if name not in stored.columns]
        if missing:
            raise DataError(
                f"{self._where}: the declared columns {missing} were not written, only {stored.columns}; write the "
                "table anew, or declare others"
            )
        places = [stored.columns.index(name) for name in self.row_schema.names]
        return [tuple(read(row[place]) for read, place in zip(self._read, places, strict=True)) for row in stored.rows]

    def _checked_body(self, key: bytes, value: bytes) -> bytes:
        if len(value) < _HEADER.size:
            raise DataError(f"{self._where}: a value of {len(value)} bytes was not written by write_kv_table")
        version, checksum = _HEADER.unpack_from(value)
        if version != _FORMAT_VERSION:
            raise DataError(
                f"{self._where}: a value has format version {version}, this Millpond reads 1 and {_FORMAT_VERSION}; "
                "write the table anew, or read it with the release that wrote it"
            )
        body = value[_HEADER.size :]
        if _checksum(self._dataset, key, body) != checksum:
            raise CorruptionError(
                f"{self._where}: a value does not fit its checksum (its bytes are torn or altered, or of another key); "
                "write the table anew"
            )
        return body

    def __repr__(self) -> str:
        return f"KvLookup({self._dataset!r})"


def write_kv_table(
    store: KVStore, dataset: str, table: pa.Table, keys: Sequence[str], columns: Sequence[str] | None = None
) -> None:
    """Write a table for `KvLookup`. Existing keys get the new rows; other keys of the dataset stay.

    Args:
        store: the store to write to.
        dataset: the dataset's name.
        table: the rows. Those with a null in a key column are left out, because no lookup could find them.
        keys: the key columns.
        columns: the columns of a row; by default every column that is not a key.

    Raises:
        DataError: a column does not exist, or a value is too large for the store.
    """
    where = f"KV dataset {dataset!r}"
    key_schema, row_schema = split_schema(where, table.schema, keys, columns)
    readers(where, row_schema)  # raises for types that could not be read back
    declared = declared_columns(where, table, key_schema, row_schema)
    rows_by_key: dict[Key, list[list[Any]]] = {}
    key_columns = [declared.column(name).to_pylist() for name in key_schema.names]
    row_columns = [declared.column(name).to_pylist() for name in row_schema.names]
    rows = zip(*row_columns, strict=True) if row_columns else iter([()] * declared.num_rows)
    for key, row in zip(zip(*key_columns, strict=True), rows, strict=True):
        if None not in key:
            rows_by_key.setdefault(key, []).append(list(row))
    puts = [
        Put(encoded, _with_header(dataset, encoded, msgspec.msgpack.encode(_Stored(row_schema.names, found))))
        for encoded, found in ((_encoded(key), found) for key, found in rows_by_key.items())
    ]
    for first in range(0, len(puts), _BATCH):
        store.put_many(dataset, puts[first : first + _BATCH])


def _encoded(key: Key) -> bytes:
    """Encode a key, with times in UTC, decimals and dates as text. Equal keys of one type give equal bytes."""
    return msgspec.msgpack.encode(key)


def _with_header(dataset: str, key: bytes, body: bytes) -> bytes:
    return _HEADER.pack(_FORMAT_VERSION, _checksum(dataset, key, body)) + body


def _checksum(dataset: str, key: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(key, zlib.crc32(dataset.encode())))
