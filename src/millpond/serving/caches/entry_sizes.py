"""The weighers of the two kinds of entries that a fetcher caches: which objects count as an entry's own memory.

Place on the data path: given to the caches when they are made. Objects that entries share (the landed batch, its
views, the empty cells of a plan) are not counted.
"""

from typing import Any

from millpond.serving.caches.batch_rows import BatchRow
from millpond.serving.caches.closed_tiles import ClosedTiles
from millpond.serving.caches.entry_size import EntrySize


def batch_row_size() -> EntrySize:
    """Make the weigher of a cache of batch rows."""
    return EntrySize(units=_batch_units, parts=_batch_parts)


def closed_tiles_size() -> EntrySize:
    """Make the weigher of a cache of closed tiles."""
    return EntrySize(units=_closed_units, parts=_closed_parts, owns_key=False)


def _batch_units(row: BatchRow) -> int:
    return row.row_bytes


def _batch_parts(row: BatchRow) -> tuple[Any, ...]:
    return (row.batch, row.values, row.folded)


def _closed_units(closed: ClosedTiles) -> int:
    cells = 1 if closed.total is None else 1 + len(closed.total)
    return cells + sum(len(kept) for kept in closed.pieces or ())


def _closed_parts(closed: ClosedTiles) -> tuple[Any, ...]:
    # Without tiles the bases belong to the batch row.
    return (closed.total, closed.pieces, closed.bases if closed.tiles else ())
