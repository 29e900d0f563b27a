"""Chooses which tiles of a key to read, and checks that the returned tiles are stored where they belong.

Place on the data path: used by every read of tiles, short or full.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Generic, TypeVar

from millpond.features import GroupByPlan, Tile, tile_address, tile_range
from millpond.features.layers import Span, spans
from millpond.kv import TimedValue
from millpond.serving.caches.closed_tiles import ClosedForm
from millpond.serving.landed_batch import View

R = TypeVar("R")


class LatestRanges(Generic[R]):
    """Remembers the ranges to read for the latest query; they are the same for all queries that end in one tile.

    Args:
        tile_ms: the size of the smallest tiles.
        make: returns the ranges for a view, the end of the last tile to read, and the closing time.

    >>> ranges = LatestRanges(300, lambda view, last_ms, closed_ms: [(0, last_ms)])
    >>> ranges.of(None, 450, 300) is ranges.of(None, 600, 300), ranges.of(None, 601, 300)
    (True, [(0, 900)])
    """

    __slots__ = ("_known", "_make", "_tile_ms")

    def __init__(self, tile_ms: int, make: Callable[[View, int, int], R]) -> None:
        self._tile_ms = tile_ms
        self._make = make
        self._known: tuple[View, int, int, R] | None = None

    def of(self, view: View, query_ms: int, closed_ms: int) -> R:
        """Return the ranges to read for a query, given the closing time."""
        last_ms = -(-query_ms // self._tile_ms) * self._tile_ms
        known = self._known
        if known is None or known[0] is not view or known[1] != last_ms or known[2] != closed_ms:
            known = self._known = (view, last_ms, closed_ms, self._make(view, last_ms, closed_ms))
        return known[3]


def are_placed(plan: GroupByPlan, rows: Sequence[TimedValue], tiles: Sequence[Tile]) -> bool:
    """Return whether each tile is stored at the time that its start and layer demand."""
    layers = plan.layers
    smallest = layers[0]
    for row, tile in zip(rows, tiles, strict=True):
        expected = tile.start_ms
        if tile.size_ms != smallest and tile.size_ms in layers:
            expected = tile_address(layers.index(tile.size_ms), expected)
        if row.time_ms != expected:
            return False
    return True


def cacheable_spans(form: ClosedForm, view: View, start_ms: int, end_ms: int, closed_ms: int) -> list[Span]:
    """Return the spans of tiles to read if pieces are cached: no tile is larger than the pieces of short windows.

    Args:
        form: which kinds of pieces there are.
        view: where the short windows start.
        start_ms: where the reading starts.
        end_ms: the query time.
        closed_ms: the closing time.
    """
    layers = form.layout.plan.layers
    smallest = layers[0]
    last_ms = max(start_ms, -(-end_ms // smallest) * smallest)
    if len(layers) == 1 or last_ms - start_ms < layers[1]:
        return [(0, start_ms, last_ms)]
    edges = sorted({start_ms, last_ms, *(kept for kept in view.kept_from if start_ms < kept < last_ms)})
    found: list[Span] = []
    for left, right in pairwise(edges):
        largest = min(
            (kind.hop_ms for kind, kept in zip(form.kinds, view.kept_from, strict=True) if kept <= left),
            default=layers[-1],
        )
        allowed = [size for size in layers if size <= largest]
        for layer, first, last in spans(allowed, left, right, closed_ms):
            joins = found and found[-1][0] == layer and found[-1][2] == first
            found.append((layer, found.pop()[1] if joins else first, last))
    return found


def ranges_behind(
    form: ClosedForm,
    view: View,
    after_ms: int,
    query_ms: int,
    closed_ms: int,
    *,
    with_pieces: bool,
    cuts_ms: Iterable[int],
) -> tuple[int, list[tuple[int, int]]]:
    """Return where the open-ended read of the smallest tiles begins, and the ranges to read before it.

    Args:
        form: which kinds of pieces there are.
        view: where the windows start.
        after_ms: where the reading starts.
        query_ms: the latest query.
        closed_ms: the closing time, no later than the earliest query.
        with_pieces: whether the tiles must be small enough for pieces.
        cuts_ms: where windows start; without pieces, no tile may contain one of these times in its interior.
    """
    if with_pieces:
        wanted = cacheable_spans(form, view, after_ms, query_ms, closed_ms)
    else:
        plan = form.layout.plan
        last_ms = max(after_ms, -(-query_ms // plan.tile_ms) * plan.tile_ms)
        wanted = plan.spans(after_ms, last_ms, closed_ms, cuts_ms) or [(0, last_ms, last_ms)]
    tail_ms = wanted.pop()[1] if wanted[-1][0] == 0 else wanted[-1][2]
    return tail_ms, [tile_range(*span) for span in wanted]
