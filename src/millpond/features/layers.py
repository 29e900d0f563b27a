"""Which tiles a plan keeps, and which of them a reader takes.

Each event lies in one tile of the smallest size. Above it come *layers*: a closed hour or day is also
one tile of its own. So a long window late in a long day reads a few large tiles instead of hundreds
of small ones. All sizes divide a day, so tiles of all layers share the midnights.

A reader takes the largest tile that fits: one that is closed, lies between two cuts (starts of windows)
and is not before the batch end. Where a layer is not closed yet, the smaller tiles are read. Each span
of time is read once.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from millpond.features.windows import DAY_MS, HOUR_MS, hop_ms

UNTILED_MS = 1
"""The size of a tile of an untiled GroupBy: all events of one millisecond."""

Span = tuple[int, int, int]
"""Layer number, start and end: the tiles of that layer that start in ``[start, end)``."""


def layers_of(windows_ms: Iterable[int | None], *, tiled: bool) -> tuple[int, ...]:
    """Return the tile sizes of a GroupBy, ascending.

    The first is the smallest hop of its windows, and a day if it has no windows. The hour and the day
    follow where they are larger, and no longer than the longest window.

    >>> layers_of([HOUR_MS, 30 * DAY_MS], tiled=True)
    (300000, 3600000, 86400000)
    >>> layers_of([30 * DAY_MS], tiled=True), layers_of([HOUR_MS], tiled=True), layers_of([None], tiled=False)
    ((86400000,), (300000, 3600000), (1,))
    """
    if not tiled:
        return (UNTILED_MS,)
    windows = list(windows_ms)
    finite = [window_ms for window_ms in windows if window_ms is not None]
    smallest = min(map(hop_ms, finite), default=DAY_MS)
    longest = DAY_MS if None in windows else max(finite, default=0)
    return (smallest, *(size for size in (HOUR_MS, DAY_MS) if smallest < size <= longest))


def spans(layers: Sequence[int], start_ms: int, end_ms: int, closed_ms: int, cuts_ms: Iterable[int] = ()) -> list[Span]:
    """Return the tiles that hold ``[start_ms, end_ms)``, as spans of one layer each, oldest first.

    Args:
        layers: the tile sizes of a plan.
        start_ms: where the reading starts; a whole number of the smallest tiles.
        end_ms: where it ends; the smallest tile that holds it counts whole.
        closed_ms: every tile that ends here or before is closed.
        cuts_ms: where windows start; no tile reaches across one.

    >>> hours, days = 3_600_000, 86_400_000
    >>> spans((hours, days), 0, 36 * hours, closed_ms=36 * hours)
    [(1, 0, 86400000), (0, 86400000, 129600000)]
    >>> spans((hours, days), 0, 36 * hours, closed_ms=36 * hours, cuts_ms=[hours])
    [(0, 0, 129600000)]
    >>> spans((hours, days), 0, 36 * hours, closed_ms=20 * hours)
    [(0, 0, 129600000)]
    """
    smallest = layers[0]
    last_ms = -(-end_ms // smallest) * smallest
    edges = sorted({start_ms, last_ms, *(cut for cut in cuts_ms if start_ms < cut < last_ms)})
    found: list[Span] = []
    for left, right in pairwise(edges):
        _fill(layers, len(layers) - 1, left, right, closed_ms, found)
    return _joined(found)


def _fill(layers: Sequence[int], layer: int, start_ms: int, end_ms: int, closed_ms: int, found: list[Span]) -> None:
    """Add the spans of one piece between two cuts: large tiles in its middle, smaller ones at both ends."""
    if start_ms >= end_ms:
        return
    if layer == 0:
        found.append((0, start_ms, end_ms))
        return
    size = layers[layer]
    first = -(-start_ms // size) * size
    last = min(end_ms, closed_ms) // size * size
    if first >= last:
        _fill(layers, layer - 1, start_ms, end_ms, closed_ms, found)
        return
    _fill(layers, layer - 1, start_ms, first, closed_ms, found)
    found.append((layer, first, last))
    _fill(layers, layer - 1, last, end_ms, closed_ms, found)


def _joined(found: list[Span]) -> list[Span]:
    """Join neighbouring spans of one layer: they are one range in the store."""
    joined: list[Span] = []
    for layer, start_ms, end_ms in found:
        if joined and layer == joined[-1][0] and joined[-1][2] == start_ms:
            joined[-1] = (layer, joined[-1][1], end_ms)
        else:
            joined.append((layer, start_ms, end_ms))
    return joined
