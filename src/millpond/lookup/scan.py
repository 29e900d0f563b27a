"""What a full cache is loaded from: one scan of the whole table.

The invariant: a scan gives a whole, immutable Arrow table or raises; half a table is never taken
for the table.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.errors import DataError, UnavailableError
from millpond.lookup.function import check_key_types


@runtime_checkable
class LookupScan(Protocol):
    """A source that can be read whole."""

    key_schema: pa.Schema
    row_schema: pa.Schema

    def scan(self) -> pa.Table:
        """Every row, with the columns of `row_schema` and `key_schema`."""


class TableScan:
    """An Arrow table, or a function that makes one at every load.

    Args:
        table: the table, or a function without arguments that returns it.
        keys: the key columns.
        columns: the columns of a row; every column that is not a key by default.

    >>> airports = TableScan(pa.table({"code": ["JFK"], "city": ["New York"]}), keys=["code"])
    >>> airports.key_schema.names, airports.row_schema.names
    (['code'], ['city'])
    """

    def __init__(
        self, table: pa.Table | Callable[[], pa.Table], keys: Sequence[str], columns: Sequence[str] | None = None
    ) -> None:
        self._read: Callable[[], pa.Table] = table if callable(table) else lambda: table
        schema = self._read().schema
        self.key_schema, self.row_schema = _split("the scanned table", schema, keys, columns)

    def scan(self) -> pa.Table:
        """The declared columns of the table as it is now."""
        return declared_columns("the scanned table", self._read(), self.key_schema, self.row_schema)


class ParquetScan:
    """A Parquet file, or a folder of them, read anew at every load.

    Args:
        path: the file or folder.
        keys: the key columns.
        columns: the columns of a row; every column that is not a key by default.
    """

    def __init__(self, path: str | Path, keys: Sequence[str], columns: Sequence[str] | None = None) -> None:
        self._path = Path(path)
        self.key_schema, self.row_schema = _split(str(path), self._read(None).schema, keys, columns)

    def scan(self) -> pa.Table:
        """The declared columns of the files as they are now."""
        names = dict.fromkeys([*self.key_schema.names, *self.row_schema.names])
        return declared_columns(str(self._path), self._read(list(names)), self.key_schema, self.row_schema)

    def _read(self, columns: list[str] | None) -> pa.Table:
        try:
            return pq.read_table(self._path, columns=columns)
        except OSError as error:
            raise UnavailableError(f"lookup table {self._path}: cannot be read ({error}); check the path") from error


def declared_columns(where: str, table: pa.Table, key_schema: pa.Schema, row_schema: pa.Schema) -> pa.Table:
    """The columns that were declared, each once and of the declared type, of a table just read."""
    fields = {field.name: field for field in (*key_schema, *row_schema)}
    missing = [name for name in fields if name not in table.column_names]
    if missing:
        raise DataError(
            f"{where}: the declared columns {missing} are not there, only {table.column_names}; "
            "the source has changed, or the declaration names the wrong columns"
        )
    try:
        return table.select(list(fields)).cast(pa.schema(list(fields.values())))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise DataError(f"{where}: the rows no longer have the declared types: {error}") from error


def _split(
    where: str, schema: pa.Schema, keys: Sequence[str], columns: Sequence[str] | None
) -> tuple[pa.Schema, pa.Schema]:
    names = [name for name in schema.names if name not in keys] if columns is None else list(columns)
    for name in (*keys, *names):
        if name not in schema.names:
            raise DataError(f"{where}: column {name!r} is not there; it has {', '.join(schema.names)}")
    key_schema = pa.schema([schema.field(name) for name in keys])
    check_key_types(where, key_schema)
    return key_schema, pa.schema([schema.field(name) for name in names])
