"""Fast answers for a fetcher: what a plan's `finish` does, compiled for a set of features.

`layout` says which windows and cells a set of features reads. `finisher` compiles one function for them, in which every
merge and every position is written out. `tile_decoder` and `batch_decoder` decode stored values with no more work than
an answer needs. `tile_columns` decodes the tiles of many keys at once. The plan's own `finish`, `decode_tile` and
`decode_batch` are the plain forms, and tests compare the two.
"""

from millpond.features.answering.batch_decoder import BatchDecoder, StoredBatch
from millpond.features.answering.finisher import ColumnFinisher, Finisher, Finishers
from millpond.features.answering.layout import Layout, LayoutWindow
from millpond.features.answering.pair_merger import pair_merger
from millpond.features.answering.tile_columns import Column, TileColumnDecoder
from millpond.features.answering.tile_decoder import TileDecoder

__all__ = [
    "BatchDecoder",
    "Column",
    "ColumnFinisher",
    "Finisher",
    "Finishers",
    "Layout",
    "LayoutWindow",
    "StoredBatch",
    "TileColumnDecoder",
    "TileDecoder",
    "pair_merger",
]
