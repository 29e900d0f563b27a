"""A partition's rows, many at a time: enough for array operations to pay, few enough for memory."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

ROWS_AT_ONCE = 200_000


def lots(batches: Iterable[pa.RecordBatch], rows_at_once: int | None = None) -> Iterator[pa.Table]:
    """Give the rows of a partition as tables of so many rows at least, but for the last one, in their order.

    >>> batch = pa.record_batch([pa.array([1, 2])], names=["x"])
    >>> [table.num_rows for table in lots([batch, batch])]
    [4]
    >>> [table.num_rows for table in lots([batch, batch, batch], 3)]
    [4, 2]
    """
    waiting: list[pa.RecordBatch] = []
    rows, enough = 0, rows_at_once or ROWS_AT_ONCE
    for batch in batches:
        waiting.append(batch)
        rows += len(batch)
        if rows >= enough:
            yield pa.Table.from_batches(waiting)
            waiting, rows = [], 0
    if rows:
        yield pa.Table.from_batches(waiting)
