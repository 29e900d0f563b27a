"""Join a partition's record batches into larger ones: large enough for array operations, small enough for memory.

Spark sends 10,000 rows at a time.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

ROWS_AT_ONCE = 200_000
ROWS_OF_A_BATCH = 100_000
BYTES_OF_A_BATCH = 64 << 20


def lots(
    batches: Iterable[pa.RecordBatch], rows_at_once: int | None = None, bytes_at_once: int | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a partition, in order, as tables of many rows.

    Args:
        batches: the rows of the partition.
        rows_at_once: a table ends with the batch that brings it to so many rows. None: `ROWS_AT_ONCE`.
        bytes_at_once: a table also ends with the batch that brings it to so many bytes of Arrow. None: no limit.

    >>> batch = pa.record_batch([pa.array([1, 2])], names=["x"])
    >>> [table.num_rows for table in lots([batch, batch])]
    [4]
    >>> [table.num_rows for table in lots([batch, batch, batch], 3)]
    [4, 2]
    >>> [table.num_rows for table in lots([batch, batch], bytes_at_once=16)]
    [2, 2]
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    enough = rows_at_once or ROWS_AT_ONCE
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        # Not `nbytes`, which crashes on nested columns as Spark 4.1 writes them if they are empty.
        size += batch.get_total_buffer_size()
        if rows >= enough or (bytes_at_once is not None and size >= bytes_at_once):
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(waiting)


def large_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, in order, in batches that end at 100,000 rows or 64 MiB.

    >>> batch = pa.record_batch([pa.array([1, 2])], names=["x"])
    >>> [len(batch) for batch in large_batches([batch, batch])]
    [4]
    """
    for table in lots(batches, ROWS_OF_A_BATCH, BYTES_OF_A_BATCH):
        yield from table.combine_chunks().to_batches()


def one_table(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables. Rows that user code combined may have other types in each task; they get the wider types.

    >>> one_table([pa.table({"x": [1]}), pa.table({"x": [0.5]})]).column("x").to_pylist()
    [1.0, 0.5]
    """
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return pa.concat_tables(tables)  # Unlike promotion, this allows a column name twice.
    return pa.concat_tables(tables, promote_options="permissive")
