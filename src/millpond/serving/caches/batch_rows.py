"""The batch row of one key, decoded: the entries of the batch cache.

Place on the data path: the batch cache holds these rows (Chronon's CHIP-1, steps 1 and 2). A hit saves the get and
the decoding. An absent row is cached like a present one, because new users have keys without history.

Invariant: an entry answers only for the landed batch it was made from.

Idea: the cells of each window are computed once for each `View`. Collections are stored per segment, so computing
them merges segments.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millpond.errors import CorruptionError
from millpond.features.answering import Layout, StoredBatch
from millpond.features.answering.layout import Projection
from millpond.kv import Get, TimedValue
from millpond.serving.landed_batch import LandedBatch, View

if TYPE_CHECKING:
    from millpond.serving.groups.served_group import ServedGroup


class BatchRow:
    """The batch row of one key; immutable except for the cells that it caches.

    Attributes:
        landed: the batch that the row belongs to.
        batch: the decoded row of a temporal GroupBy; None if there is no row.
        values: the finished values of a snapshot GroupBy; None if there is no row.
        row_bytes: the length of the stored row.
        folded: the latest view and its cells for each window, cached. Not part of the value.
    """

    __slots__ = ("batch", "folded", "landed", "row_bytes", "values")

    def __init__(
        self, landed: LandedBatch, batch: StoredBatch | None, values: Sequence[Any] | None = None, row_bytes: int = 0
    ) -> None:
        self.landed = landed
        self.batch = batch
        self.values = values
        self.row_bytes = row_bytes
        self.folded: tuple[View, tuple[Projection, ...]] | None = None

    def bases(self, layout: Layout, view: View) -> tuple[Projection, ...]:
        """Return for each window the cells that the batch adds to it."""
        folded = self.folded
        if folded is None or folded[0] is not view:
            folded = self.folded = (view, batch_bases(layout, view, self.batch))
        return folded[1]


def batch_bases(layout: Layout, view: View, batch: StoredBatch | None) -> tuple[Projection, ...]:
    """Return for each window of a layout the cells of the batch from the window's start on.

    Raises:
        CorruptionError: a cell does not decode.
    """
    if batch is None or not batch.segments:
        return layout.empties
    segments = batch.segments
    end = len(segments)
    bases: list[Projection] = []
    try:
        for place, segment in enumerate(view.segments):
            at = end if segment is None else bisect_left(segments, segment)
            bases.append(layout.empties[place] if at == end else _cells_from(layout, place, batch, at))
    except (TypeError, ValueError) as cause:
        raise CorruptionError(
            f"GroupBy {layout.plan.name!r}: a stored batch row has a cell that does not decode: {cause}; upload the "
            "batch again"
        ) from cause
    return tuple(bases)


def _cells_from(layout: Layout, place: int, batch: StoredBatch, at: int) -> Projection:
    """Return the cells of one window, merged from index `at` of the batch's columns on."""
    cells = []
    for position, suffix, decode, merge_all in zip(
        layout.windows[place].positions,
        layout.suffixes[place],
        layout.decoders[place],
        layout.merge_alls[place],
        strict=True,
    ):
        column = batch.columns[position]
        if batch.is_decoded or decode is None:
            cells.append(column[at] if suffix else merge_all(column[at:]))
        else:
            cells.append(decode(column[at]) if suffix else merge_all(list(map(decode, column[at:]))))
    return tuple(cells)


def cached_row(group: "ServedGroup", key: bytes, landed: LandedBatch) -> BatchRow | None:
    """Return the row of a key in a batch if it is cached."""
    if group.batch_cache is None:
        return None
    row = group.batch_cache.get(key)
    return row if row is not None and row.landed is landed else None


def decoded_row(group: "ServedGroup", landed: LandedBatch, key: bytes, rows: Sequence[TimedValue]) -> BatchRow:
    """Decode the rows that the store returned for a key of a batch; without rows, return an empty `BatchRow`.

    Raises:
        CorruptionError: the row does not decode, or belongs to another batch.
    """
    if not rows:
        return BatchRow(landed, None)
    plan, stored = landed.plan, rows[-1].value
    if plan.group_by.accuracy == "snapshot":
        batch_end_ms, values = plan.decode_values(key, stored)
        _check_end(landed, key, batch_end_ms)
        return BatchRow(landed, None, values, len(stored))
    batch = group.decode_batch(key, stored)
    _check_end(landed, key, batch.batch_end_ms)
    return BatchRow(landed, batch, None, len(stored))


def _check_end(landed: LandedBatch, key: bytes, batch_end_ms: int) -> None:
    if batch_end_ms != landed.batch_end_ms:
        raise CorruptionError(
            f"dataset {landed.info.batch_dataset!r}: the row of key {key!r} ends at {batch_end_ms}, the batch at "
            f"{landed.batch_end_ms}. Upload the batch again."
        )


def batch_get(landed: LandedBatch, key: bytes) -> Get:
    """Return the get that reads the batch row of a key."""
    return Get(landed.info.batch_dataset, key, landed.batch_end_ms, landed.batch_end_ms + 1)
