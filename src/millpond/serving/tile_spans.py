"""Which tiles are read of a key, and whether what came back lies where it belongs.

Place on the data path: used by every read of tiles, the short ones and the long one.
"""

from collections.abc import Sequence
from itertools import pairwise

from millpond.features import GroupByPlan, Tile, tile_address
from millpond.features.layers import Span, spans
from millpond.kv import TimedValue
from millpond.serving.closed_tiles import ClosedForm
from millpond.serving.landed_batch import View


def are_placed(plan: GroupByPlan, rows: Sequence[TimedValue], tiles: Sequence[Tile]) -> bool:
    """Tell whether each tile lies at the time of its own start and layer."""
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
    """Give the tiles to read where closed ones are kept: no larger than the pieces that short windows need.

    Args:
        form: which pieces there are.
        view: where the short windows start.
        start_ms: where the reading starts.
        end_ms: the query.
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
