"""The Arrow of a fetch: its body read into a table of keys, its answer written from a table of features.

Place on the data path: beside `json_bodies`, for callers with many rows. The body is an Arrow IPC stream
with a column for each key and each field of context, and optionally `at` in milliseconds UTC.

Invariant: what a body claims is checked before it is used. Rows are counted from the messages' own
heads, since a column of nulls may claim any number of rows in no bytes. Compressed buffers are refused,
since a few bytes may claim to be gigabytes. Offsets within columns are validated before they are followed.

Source: a message is laid out as in Arrow's `Message.fbs`, a FlatBuffer. pyarrow has verified its offsets
before it returns the message.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from millpond.errors import DataError
from millpond.features.types import parse_type
from millpond.serving.answers.answer_table import as_values, column
from millpond.serving.http.limits import Limits
from millpond.serving.messages import FetchRequest, Target

TIME_COLUMN = "at"
"""The optional column with the time of each row."""

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def read_table(body: bytes, target: Target, limits: Limits) -> pa.Table:
    """Parse a body into a table whose columns have the declared types, in the declared order.

    Raises:
        DataError: the body is not an Arrow stream, has too many rows, is compressed, or a column is missing,
            unknown or of another type.
    """
    buffer = pa.py_buffer(body)
    try:
        _check_messages(buffer, limits)
        table = pa.ipc.open_stream(buffer).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, struct.error, IndexError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the body is no Arrow IPC stream that can be read: {error}") from error
    return _as_declared(table, target)


def requests_of(table: pa.Table, target: Target, features: tuple[str, ...] | None) -> list[FetchRequest]:
    """Return the rows of a table as requests, for an answer in JSON."""
    types = {**target.keys, **target.context}
    columns = {
        name: as_values(parse_type(types[name]), values) if name in types else values
        for name, values in ((name, table.column(name).to_pylist()) for name in table.column_names)
    }
    keys = [
        dict(zip(target.keys, row, strict=True)) for row in zip(*(columns[name] for name in target.keys), strict=True)
    ]
    times = columns.get(TIME_COLUMN, [None] * len(keys))
    given = [name for name in target.context if name in columns]
    contexts = [{name: columns[name][place] for name in given} or None for place in range(len(keys))]
    return [
        FetchRequest(target.name, key, at, context, features)
        for key, at, context in zip(keys, times, contexts, strict=True)
    ]


def table_of(requests: Sequence[FetchRequest], target: Target) -> pa.Table:
    """Return requests as a table, for an answer in Arrow. Columns of context or time without a value are left out.

    Raises:
        DataError: a key or a field of the context does not fit its declared type.
    """
    columns: dict[str, list[Any]] = {name: [request.keys[name] for request in requests] for name in target.keys}
    for name in target.context:
        if any(request.context and name in request.context for request in requests):
            columns[name] = [(request.context or {}).get(name) for request in requests]
    types = {**target.keys, **target.context}
    arrays = {name: column(types[name], values, name) for name, values in columns.items()}
    if any(request.at is not None for request in requests):
        arrays[TIME_COLUMN] = pa.array([request.at for request in requests], pa.int64())
    return pa.table(arrays)


def write_table(table: pa.Table) -> bytes:
    """Write a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _declared(target: Target) -> dict[str, pa.DataType]:
    declared = {name: parse_type(kind).arrow() for name, kind in {**target.keys, **target.context}.items()}
    return {**declared, TIME_COLUMN: declared.get(TIME_COLUMN, pa.int64())}


def _as_declared(table: pa.Table, target: Target) -> pa.Table:
    names = table.column_names
    declared = _declared(target)
    unknown = sorted(set(names) - set(declared))
    missing = [name for name in target.keys if name not in names]
    if unknown or missing or len(set(names)) != len(names):
        raise DataError(
            f"the columns of a fetch of {target.name!r} are the keys {sorted(target.keys)}, and if wanted the context "
            f"{sorted(target.context)} and {TIME_COLUMN!r}, each once; the body has {names}."
        )
    present = [name for name in declared if name in names]
    return pa.table({name: _converted(name, table.column(name), declared[name]) for name in present})


def _converted(name: str, column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Return the column in the declared type; raise `DataError` if the conversion would change a value."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type.equals(wanted):
        return column
    kinds = (pa.types.is_integer, pa.types.is_floating, _is_text, _is_bytes, pa.types.is_decimal, _is_instant)
    if pa.types.is_null(column.type) or any(kind(column.type) and kind(wanted) for kind in kinds):
        try:
            return column.cast(wanted)
        except pa.ArrowException as error:
            raise DataError(f"column {name!r} has a value that is no {wanted}: {error}") from error
    raise DataError(f"column {name!r} is of type {column.type}, expected {wanted}. Convert it before it is sent.")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _check_messages(buffer: pa.Buffer, limits: Limits) -> None:
    rows = 0
    for kind, length, is_compressed in _batches(buffer):
        if is_compressed:
            raise DataError("the body's buffers are compressed. Send the Arrow stream without compression.")
        if kind == _RECORD_BATCH:
            rows += length
        if max(length, rows) > limits.max_requests:
            raise DataError(
                f"the body has over {limits.max_requests} rows, the most that one call may have. Send several calls."
            )


def _batches(buffer: pa.Buffer) -> Iterator[tuple[int, int, bool]]:
    """Yield for each batch in the stream its kind, the rows it claims, and whether its buffers are compressed."""
    for message in pa.ipc.MessageReader.open_stream(buffer):
        data = message.metadata.to_pybytes()
        root = struct.unpack_from("<I", data, 0)[0]
        kind_at, header_at = _field(data, root, 1), _field(data, root, 2)
        if kind_at is None or header_at is None or data[kind_at] not in {_DICTIONARY_BATCH, _RECORD_BATCH}:
            continue
        batch: int | None = _follow(data, header_at)
        if data[kind_at] == _DICTIONARY_BATCH:
            inner = _field(data, _follow(data, header_at), 1)
            batch = None if inner is None else _follow(data, inner)
        if batch is None:
            continue
        length_at = _field(data, batch, 0)
        length = 0 if length_at is None else struct.unpack_from("<q", data, length_at)[0]
        yield data[kind_at], length, _field(data, batch, 3) is not None


def _field(data: bytes, table: int, slot: int) -> int | None:
    """Return where a field of a FlatBuffer's table lies; None if the table does not set it."""
    directory = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * slot
    if place >= struct.unpack_from("<H", data, directory)[0]:
        return None
    offset = struct.unpack_from("<H", data, directory + place)[0]
    return table + offset if offset else None


def _follow(data: bytes, place: int) -> int:
    return int(place + struct.unpack_from("<I", data, place)[0])
