"""Writes the columns of a table to a file, one after the other, each in one piece, with little memory.

Mapped tables use it. They need every column in one piece, so that a row is found by its number, but a scan gives rows
in batches. So batches are first spooled to one file per column. Then each column is read as one piece, written, and
released. The invariant: **memory never holds more than a batch and one column**, and the disk never more than the table
and one column. A table that is already in memory is released column by column too, if the caller holds no reference
to it.

Each column is an Arrow IPC stream of one batch, at a multiple of 64 bytes, so that it can be read from the mapped file
without a copy.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa

Scanned: TypeAlias = pa.Table | pa.RecordBatchReader
Columns: TypeAlias = Generator[tuple[str, pa.Array], None, None]

_ALIGNED = 64
_MOST_BYTES = (1 << 31) - 1
"""The most bytes of a column of text or bytes, unless it has a large type."""


class Sink(Protocol):
    """A file to which columns are written."""

    def write(self, data: bytes, /) -> int:
        """Write bytes and return their number."""
        ...

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        ...


def columns_of_table(table: pa.Table) -> Columns:
    """Yield the columns of a table in memory. Each is released when the next is requested."""
    names, columns = table.column_names, table.columns
    del table
    while columns:
        yield names.pop(0), one_chunk(columns.pop(0))


def columns_of_batches(
    reader: pa.RecordBatchReader, prepare: Callable[[pa.Table], pa.Table], schema: pa.Schema, spool: Path
) -> Columns:
    """Yield the columns of a table that comes in batches. They are spooled to files beside `spool`, which are removed.

    `prepare` is applied to every batch and must return one of `schema`.
    """
    paths = [spool.with_name(f"{spool.name}.{place}.column") for place in range(len(schema))]
    schemas = [pa.schema([field]) for field in schema]
    try:
        with ExitStack() as opened:
            sinks = [opened.enter_context(pa.OSFile(str(path), "wb")) for path in paths]
            writers = [
                opened.enter_context(pa.ipc.new_stream(sink, of)) for sink, of in zip(sinks, schemas, strict=True)
            ]
            for batch in reader:
                prepared = prepare(pa.Table.from_batches([batch]))
                for writer, column, of in zip(writers, prepared.columns, schemas, strict=True):
                    writer.write_table(pa.table([column], schema=of))
        for path, name in zip(paths, schema.names, strict=True):
            yield name, _spooled(path)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _spooled(path: Path) -> pa.Array:
    with pa.memory_map(str(path)) as source:
        path.unlink()
        return one_chunk(pa.ipc.open_stream(source).read_all().column(0))


def write_columns(columns: Columns, metadata: Mapping[str, str], file: Sink) -> list[int]:
    """Write every column in one piece and pad after each. Return where each column ends in the file."""
    ends = []
    for name, whole in columns:
        schema = pa.schema([pa.field(name, whole.type)], metadata=dict(metadata))
        with pa.ipc.new_stream(file, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays([whole], schema=schema))
        del whole
        pa.default_memory_pool().release_unused()
        ends.append(file.tell())
        pad(file)
    return ends


def read_columns(mapped: pa.Buffer, ends: Sequence[int]) -> pa.Table:
    """Read the table back without a copy, with the metadata that was written.

    Raises:
        pyarrow.ArrowInvalid: a column is damaged or incomplete.
    """
    starts = [0, *map(aligned, ends[:-1])]
    read = [
        pa.ipc.open_stream(mapped.slice(start, end - start)).read_all() for start, end in zip(starts, ends, strict=True)
    ]
    schema = pa.schema([table.schema.field(0) for table in read], metadata=read[0].schema.metadata)
    return pa.table([table.column(0) for table in read], schema=schema)


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array. Text beyond 2 GiB becomes a large type."""
    if column.num_chunks == 1:
        return column.chunk(0)
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    if wide is not None and column.nbytes > _MOST_BYTES:
        column = column.cast(wide)
    return column.combine_chunks()


def pad(file: Sink) -> None:
    """Fill with zeros up to the next aligned position."""
    end = file.tell()
    file.write(bytes(aligned(end) - end))


def aligned(end: int) -> int:
    """Return the next aligned position from `end` on."""
    return -(-end // _ALIGNED) * _ALIGNED
