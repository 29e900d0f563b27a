"""A partition's rows, some hundred thousand at a time: enough for array operations to pay, few enough for memory."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

_ROWS_AT_ONCE = 200_000


def lots(
    batches: Iterable[pa.RecordBatch], rows_at_once: int | None = None, bytes_at_once: int | None = None
) -> Iterator[pa.Table]:
    """Give the rows of a partition as tables of many rows, in their order.

    Args:
        batches: rows, some at a time.
        rows_at_once: a table ends with the batch that brings it to so many rows; 200,000 if None.
        bytes_at_once: or to so many bytes of Arrow; None for no such limit.

    >>> batch = pa.record_batch([pa.array([1, 2])], names=["x"])
    >>> [table.num_rows for table in lots([batch, batch])]
    [4]
    >>> [table.num_rows for table in lots([batch, batch], bytes_at_once=16)]
    [2, 2]
    """
    most_rows = _ROWS_AT_ONCE if rows_at_once is None else rows_at_once
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        size += batch.nbytes
        if rows >= most_rows or (bytes_at_once is not None and size >= bytes_at_once):
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(waiting)
