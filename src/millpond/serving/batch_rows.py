"""What the batch has of one key, as the fetcher keeps it.

Place on the data path: what the batch cache holds (CHIP-1, steps 1 and 2). A hit saves the get and the
decoding. An absent row is kept like a present one: asking for keys without history is what new users do.

An entry answers only for the landed batch it was made from. The cells of each window are read out of it
once for each `View`: collections are stored per segment, so for them this is where they are folded.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from millpond.errors import CorruptionError
from millpond.features.answering import Layout, StoredBatch
from millpond.features.answering.layout import Projection
from millpond.serving.landed_batch import LandedBatch, View


class BatchRow:
    """The batch of one key; immutable but for what it remembers to have computed.

    Attributes:
        landed: the batch that it is of.
        batch: the row of a temporal GroupBy, taken apart; None if there is no row.
        values: the finished values of a snapshot; None if there is no row.
        row_bytes: the length of the stored row.
        folded: the latest cells that were read out of it, and for which view. No part of the value.
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
        """Give for each window the cells that the batch adds to it."""
        folded = self.folded
        if folded is None or folded[0] is not view:
            folded = self.folded = (view, batch_bases(layout, view, self.batch))
        return folded[1]


def batch_bases(layout: Layout, view: View, batch: StoredBatch | None) -> tuple[Projection, ...]:
    """Give for each window of a layout the cells of the batch from its start on.

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
    """Give the cells of one window from an entry of the columns on."""
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
