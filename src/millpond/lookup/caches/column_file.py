"""The columns of a table one after the other in a file, each in one piece, written with little memory.

Under a mapped table, which wants every column whole, so that a row is found by its number. A scan gives
rows in pieces. So a table that comes in batches is first spooled, a file a column; then column after
column is made whole, written, and forgotten. The invariant: **at no time is there more in memory than a
batch and one column**, and on disk not more than the table and one column. A table that is in memory
already is taken apart in the same way, if nobody else holds it.

Each column is an Arrow IPC stream of one batch, beginning at a multiple of 64 bytes, so that it can be
read where it is mapped.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, TypeAlias

import pyarrow as pa

Scanned: TypeAlias = pa.Table | pa.RecordBatchReader
Columns: TypeAlias = Generator[tuple[str, pa.Array], None, None]

_ALIGNED = 64


class Sink(Protocol):
    """A file that columns are written to."""

    def write(self, data: bytes, /) -> int:
        """Write bytes."""
        ...

    def tell(self) -> int:
        """How many bytes were written."""
        ...


def columns_of_table(table: pa.Table) -> Columns:
    """The columns of a table in memory; each is let go when the next is asked for."""
    names, columns = table.column_names, table.columns
    del table
    while columns:
        yield names.pop(0), one_chunk(columns.pop(0))


def columns_of_batches(
    reader: pa.RecordBatchReader, prepare: Callable[[pa.Table], pa.Table], schema: pa.Schema, spool: Path
) -> Columns:
    """The columns of a table that comes in batches, by way of files beside `spool`, which are removed.

    `prepare` is applied to every batch, and makes it one of `schema`.
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
    """Write every column in one piece; where each ends in the file, whose next part may begin at once."""
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
    """The table again, without a copy, with the metadata that was written.

    Raises:
        pyarrow.ArrowInvalid: it is not whole.
    """
    starts = [0, *map(aligned, ends[:-1])]
    read = [
        pa.ipc.open_stream(mapped.slice(start, end - start)).read_all() for start, end in zip(starts, ends, strict=True)
    ]
    schema = pa.schema([table.schema.field(0) for table in read], metadata=read[0].schema.metadata)
    return pa.table([table.column(0) for table in read], schema=schema)


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; text beyond 2 GiB gets the type that has room for it."""
    if column.num_chunks == 1:
        return column.chunk(0)
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = whole.chunk(0) if whole.num_chunks == 1 else column.cast(wide or column.type).combine_chunks()
    return whole


def pad(file: Sink) -> None:
    """Fill up to where the next part may begin."""
    end = file.tell()
    file.write(bytes(aligned(end) - end))


def aligned(end: int) -> int:
    """Where a part may begin after one that ends there."""
    return -(-end // _ALIGNED) * _ALIGNED
