"""Tiles: what the stream keeps of one key in one span of time.

A tile holds the IR of the events in ``[start_ms, start_ms + size_ms)``. The stream writes it again
whenever it changes. It writes it once more, marked complete, when the watermark has passed its end. After that
only a late event changes it, under a higher version. A key has no tile where it had no event.

Tiles are immutable, so one may be in a cache while others read it. Neighbouring tiles may be merged
into a larger one. Its IR is then right only for windows that hold all of it.
"""

from collections.abc import Iterable
from itertools import pairwise
from operator import attrgetter

import msgspec

from millpond.errors import DataError
from millpond.features.cells.cell import Ir

_BY_START = attrgetter("start_ms")


class Tile(msgspec.Struct, frozen=True):
    """The IR of a key's events in one span of time.

    Args:
        start_ms: where the span begins, included.
        size_ms: its length; one of the plan's layers, or a whole number of its smallest tiles.
        complete: whether the watermark has passed the end; from then on only a late event changes the tile.
        version: how often a late event has amended it since it was complete.
        ir: the IR, made by the plan of the GroupBy.

    >>> Tile(start_ms=0, size_ms=300_000, complete=True, version=0, ir=(1,)).end_ms
    300000
    """

    start_ms: int
    size_ms: int
    complete: bool = False
    version: int = 0
    ir: Ir = ()

    @property
    def end_ms(self) -> int:
        """Where the span ends, not included."""
        return self.start_ms + self.size_ms


def tiles_between(tiles: Iterable[Tile], start_ms: int, end_ms: int) -> list[Tile]:
    """Return the tiles that start in ``[start_ms, end_ms)``, oldest first.

    Raises:
        DataError: two tiles overlap, so that events would count twice.

    >>> tiles = [Tile(start, size_ms=300_000) for start in (600_000, 0, 300_000)]
    >>> [tile.start_ms for tile in tiles_between(tiles, 300_000, 900_000)]
    [300000, 600000]
    """
    chosen = sorted((tile for tile in tiles if start_ms <= tile.start_ms < end_ms), key=_BY_START)
    for left, right in pairwise(chosen):
        if left.start_ms + left.size_ms > right.start_ms:
            raise DataError(
                f"the tile of {left.size_ms} ms at {left.start_ms} overlaps the one at {right.start_ms}, "
                "so events would count twice; give each span of time once"
            )
    return chosen
