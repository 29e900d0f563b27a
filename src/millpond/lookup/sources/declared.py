"""Checks that a scanned table has the declared columns, and converts it to the declared types.

The invariant: every table that leaves this module has exactly the declared columns and types. A table that
has changed is an error that names the column.
"""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from millpond.errors import DataError
from millpond.lookup.functions.function import Key, Rows
from millpond.lookup.functions.keys import check_key_types


def split_schema(
    where: str, schema: pa.Schema, keys: Sequence[str], columns: Sequence[str] | None
) -> tuple[pa.Schema, pa.Schema]:
    """Return the key columns and the row columns, by default all that are not keys. `DataError` names a missing one."""
    names = [name for name in schema.names if name not in keys] if columns is None else list(columns)
    for name in (*keys, *names):
        if name not in schema.names:
            raise DataError(f"{where}: column {name!r} is not there; it has {', '.join(schema.names)}")
    key_schema, row_schema = (_plain(schema, chosen) for chosen in (keys, names))
    check_key_types(where, key_schema)
    return key_schema, row_schema


def declared_schema(key_schema: pa.Schema, row_schema: pa.Schema) -> pa.Schema:
    """Return a schema with every declared column once, keys first."""
    return pa.schema(list({field.name: field for field in (*key_schema, *row_schema)}.values()))


def declared_names(where: str, there: Sequence[str], key_schema: pa.Schema, row_schema: pa.Schema) -> list[str]:
    """Return the names of the declared columns. A `DataError` names those that are not in `there`."""
    names: list[str] = declared_schema(key_schema, row_schema).names
    missing = [name for name in names if name not in there]
    if missing:
        raise DataError(
            f"{where}: the declared columns {', '.join(missing)} are not there, only {', '.join(there)}; "
            "the source has changed, or the declaration names the wrong columns"
        )
    return names


def declared_columns(where: str, table: pa.Table, key_schema: pa.Schema, row_schema: pa.Schema) -> pa.Table:
    """Return the declared columns of a table, each once and in its declared type."""
    names = declared_names(where, table.column_names, key_schema, row_schema)
    try:
        return table.select(names).cast(declared_schema(key_schema, row_schema))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise DataError(f"{where}: the rows no longer have the declared types: {error}") from error


def batch_of_rows(
    where: str, found: Mapping[Key, Rows], key_schema: pa.Schema, row_schema: pa.Schema
) -> pa.RecordBatch:
    """Return the rows of some keys as a batch of a scan. A column of both key and row gets the key's value."""
    names = [*row_schema.names, *key_schema.names]
    rows = [(*row, *key) for key, rows in found.items() for row in rows]
    columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
    schema = declared_schema(key_schema, row_schema)
    try:
        return pa.RecordBatch.from_arrays(
            [pa.array(columns[field.name], field.type) for field in schema], schema=schema
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise DataError(f"{where}: a value does not fit its declared type: {error}") from error


def _plain(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, _plain_type(schema.field(name).type)) for name in names])


def _plain_type(given: pa.DataType) -> pa.DataType:
    """Return the type without dictionary, view and large encodings, which only concern storage."""
    types = pa.types
    if types.is_dictionary(given):
        return _plain_type(given.value_type)
    if types.is_string_view(given) or types.is_large_string(given):
        return pa.string()
    if types.is_binary_view(given) or types.is_large_binary(given):
        return pa.binary()
    return given
