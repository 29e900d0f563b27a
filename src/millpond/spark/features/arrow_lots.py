"""A partition's rows, some hundred thousand at a time: enough for array operations to pay, few enough for memory."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

_ROWS_AT_ONCE = 200_000


def lots(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Give the rows of a partition as tables of many rows, in their order.

    >>> batch = pa.record_batch([pa.array([1, 2])], names=["x"])
    >>> [table.num_rows for table in lots([batch, batch])]
    [4]
    """
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting)
