"""What ends at a time: the tiles that close then, and those that state forgets then. They are the same for all keys.

Place on the data path: beside the tiles of the operator (`touched_tiles`). It knows the plan's layers and the
retention, and nothing of keys.

State drops the tiles of an hour, and the hours of a day, together, with one timer.
"""

from collections.abc import Sequence
from typing import NamedTuple

from millpond.features import tile_address, tile_start


class Ends(NamedTuple):
    """What ends at a time.

    Args:
        closed: layer and start of the tiles that end then, the smallest first.
        above: the address of the next larger tile, which these are merged into; None if they are of the largest layer.
        forgotten: the addresses of the tiles that state drops then.
    """

    closed: tuple[tuple[int, int], ...]
    above: int | None
    forgotten: tuple[int, ...]


class TileEnds:
    """Tells what ends at a time.

    Args:
        layers: the tile sizes of a plan.
        retention_ms: how long after its end a tile can still be amended.

    >>> hour, day = 3_600_000, 86_400_000
    >>> ends = TileEnds((hour, day), retention_ms=3 * day)
    >>> ends.at(4 * day + hour).closed, len(ends.at(4 * day).closed), len(ends.at(4 * day).forgotten)
    (((0, 345600000),), 2, 25)
    >>> ends.forgotten_at(0, hour) == ends.forgotten_at(0, 23 * hour) == 4 * day
    True
    """

    def __init__(self, layers: Sequence[int], retention_ms: int) -> None:
        self._layers = layers
        self._retention_ms = retention_ms
        self._ends: dict[int, Ends] = {}

    def at(self, time_ms: int) -> Ends:
        """Return what ends at a time."""
        if time_ms not in self._ends:
            forgotten_ms = time_ms - self._retention_ms
            closed = [(layer, time_ms - size) for layer, size in enumerate(self._layers) if time_ms % size == 0]
            # The layers divide each other, so these are the first ones. The tile above the last takes it in.
            above = None
            if 0 < len(closed) < len(self._layers):
                above = tile_address(len(closed), tile_start(time_ms - 1, self._layers[len(closed)]))
            forgotten = [one for layer in range(len(self._layers)) for one in self._forgotten(layer, forgotten_ms)]
            self._ends[time_ms] = Ends(tuple(closed), above, tuple(forgotten))
        return self._ends[time_ms]

    def forgotten_at(self, layer: int, start_ms: int) -> int:
        """Return when the tile of a layer that starts at a time is forgotten, together with all others of its span."""
        span = self._span(layer)
        return tile_start(start_ms, span) + span + self._retention_ms

    def _forgotten(self, layer: int, time_ms: int) -> list[int]:
        """Return the addresses of a layer's tiles that are forgotten together when the last of them ends at a time."""
        size, span = self._layers[layer], self._span(layer)
        if time_ms % span:
            return []
        return [tile_address(layer, start_ms) for start_ms in range(time_ms - span, time_ms, size)]

    def _span(self, layer: int) -> int:
        return self._layers[min(layer + 1, len(self._layers) - 1)]
