"""The closed tiles of one key, merged: the entries of the tile cache.

Place on the data path: the tile cache holds these entries (Chronon's CHIP-1, steps 3 and 4). With an entry, a fetch
reads only the tiles after `end_ms`, and then needs one merge for each window.

Invariant: an entry equals what reading the key's tiles from the batch end to `end_ms` would give. This holds while
its landed batch and its amendment marker are current and the stream is not restarted without its state. The value
of an entry never changes; a later entry replaces it.

A tile is *closed* if it is complete, or if it is absent and ends at or before the stream's closing time. The closed
part begins at the batch end and stops at the first gap: an open tile, or an absent one after the closing time.

    batch end                          end_ms          query
        │  closed tiles, no gap           │  open tiles  │
        ├────────────── total ────────────┤── the tail ──┤
        │                 ├─ 6h ──────────┤              │
        │                 pieces of 5 min │              │

A window that starts at or before the batch end covers the whole closed part, the *total*. A window that starts
after the batch end covers only the last stretch of it, and its start moves. So the entry also keeps *pieces* from
that start on: tiles merged to the hop of the window, with only the cells that such windows read. Total, pieces and
batch give the *bases*: for each window, the cells of everything closed. Bases are valid for one `View`. They are
computed again when a window moves or the closed part grows, so once per tile and not once per request.
"""

from bisect import bisect_left
from collections.abc import Sequence

from millpond.features import UNKNOWN, Ir, PartialIr, Tile
from millpond.features.answering import Layout
from millpond.features.answering.layout import Projection
from millpond.serving.group_status import Served
from millpond.serving.landed_batch import LandedBatch, View, is_short, short_hops

Piece = tuple[int, Projection]
"""The start of a hop, and the cells of its tiles."""

RecentTail = tuple[int, int, int, Sequence[Ir]]
"""When a tail was read, the start of its newest tile, the latest query it answers, and its IR for each window."""

NO_MARKER = b""
"""The amendment marker of a key that has none."""


class PieceKind:
    """The form of the pieces of one hop: the cells that short windows of that hop read."""

    __slots__ = ("hop_ms", "merges", "places", "positions")

    def __init__(self, layout: Layout, hop_ms: int) -> None:
        windows = {
            place: window
            for place, window in enumerate(layout.windows)
            if window.hop_ms == hop_ms and is_short(window.window_ms)
        }
        read = dict.fromkeys(position for window in windows.values() for position in window.positions)
        self.hop_ms = hop_ms
        self.positions = tuple(read)
        self.places = {
            place: tuple(self.positions.index(position) for position in window.positions)
            for place, window in windows.items()
        }
        """For each window of this hop, the indexes of its cells in a piece."""
        self.merges = tuple(layout.plan.cells.cells[position].merge for position in self.positions)

    def extended(self, pieces: tuple[Piece, ...], tiles: Sequence[Tile], kept_from_ms: int) -> tuple[Piece, ...]:
        """Return the pieces with some later tiles added and those before `kept_from_ms` dropped."""
        kept = list(pieces[bisect_left(pieces, kept_from_ms, key=_start) :])
        for tile in tiles:
            if tile.start_ms < kept_from_ms:
                continue
            start = tile.start_ms // self.hop_ms * self.hop_ms
            cells = tuple([tile.ir[position] for position in self.positions])
            if kept and kept[-1][0] == start:
                cells = tuple(
                    [
                        UNKNOWN if one is UNKNOWN or other is UNKNOWN else merge(one, other)
                        for merge, one, other in zip(self.merges, kept[-1][1], cells, strict=True)
                    ]
                )
                kept[-1] = (start, cells)
            else:
                kept.append((start, cells))
        return tuple(kept)


class ClosedForm:
    """The form of closed parts for one layout: the kinds of pieces they keep. Made once for each plan."""

    __slots__ = ("kind_of", "kinds", "layout")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.kinds = tuple(PieceKind(layout, hop) for hop in short_hops(layout))
        self.kind_of = {place: number for number, kind in enumerate(self.kinds) for place in kind.places}


class ClosedTiles:
    """The closed part of one key; immutable except for `recent_tail`.

    Attributes:
        landed: the batch at whose end the closed part begins.
        end_ms: where the closed part ends and the tail begins.
        served: what was known of the GroupBy when the tiles were read.
        marker: the key's amendment marker, as stored.
        total: the IR of the whole closed part; None if it has no tiles, or the entry keeps no pieces.
        pieces: for each hop of a short window, the pieces from which its start can move; None for an entry that
            answers one view only. The first read of a key makes an entry without pieces, because it can then read
            larger tiles. A key that is requested again after its windows moved gets pieces.
        view: the window starts for which the bases are valid.
        bases: for each window, the cells of everything closed, including the batch.
        is_partial: whether a base has an unknown cell.
        tiles: how many stored tiles it was made from.
        newest_ms: the end of the newest of these tiles; None if there are none.
    """

    __slots__ = (
        "bases",
        "end_ms",
        "is_partial",
        "landed",
        "marker",
        "newest_ms",
        "pieces",
        "recent_tail",
        "served",
        "tiles",
        "total",
        "view",
    )

    def __init__(
        self,
        landed: LandedBatch,
        end_ms: int,
        served: Served,
        marker: bytes,
        total: Ir | None,
        pieces: tuple[tuple[Piece, ...], ...] | None,
        view: View,
        bases: tuple[Projection, ...],
        tiles: int,
        newest_ms: int | None,
    ) -> None:
        self.landed = landed
        self.end_ms = end_ms
        self.served = served
        self.marker = marker
        self.total = total
        self.pieces = pieces
        self.view = view
        self.bases = bases
        self.is_partial = any(cell is UNKNOWN for base in bases for cell in base)
        self.tiles = tiles
        self.newest_ms = newest_ms
        self.recent_tail: RecentTail | None = None
        """The last tail that was read, reused within `tail_freshness_ms`. Not part of the value."""

    def holds(self, served: Served) -> bool:
        """Return whether the part is still closed, given what is known of the GroupBy.

        A part that ends after the closing time relies on its tiles, which say that they are complete. That is trusted
        only until the serving info is read again. In between, the stream may have restarted without its state, and its
        closing time may have come back to the same value unseen.
        """
        known = self.served
        return known is served or (
            self.landed is served.landed and known.restarts == served.restarts and self.end_ms <= served.closed_ms
        )


def closed_end(start_ms: int, tiles: Sequence[Tile], closed_ms: int, limit_ms: int) -> tuple[int, int]:
    """Return where the closed tiles that begin at `start_ms` end, and how many of the given tiles are closed.

    Args:
        start_ms: where they begin.
        tiles: the tiles that exist from `start_ms` on, oldest first.
        closed_ms: the closing time, a multiple of the tile size.
        limit_ms: the latest possible end; tiles that begin after the query were not read.

    >>> hour = 3_600_000
    >>> closed_end(0, [Tile(0, hour, True), Tile(hour, hour, True)], closed_ms=0, limit_ms=9 * hour)
    (7200000, 2)
    >>> closed_end(0, [Tile(hour, hour, complete=True)], closed_ms=0, limit_ms=9 * hour)
    (0, 0)
    """
    end = start_ms
    for number, tile in enumerate(tiles):
        if tile.start_ms > end:
            if tile.start_ms > closed_ms:
                return max(end, min(closed_ms, limit_ms)), number
            end = tile.start_ms
        if not tile.complete or tile.end_ms > limit_ms:
            return end, number
        end = tile.end_ms
    return max(end, min(closed_ms, limit_ms)), len(tiles)


def close(
    form: ClosedForm,
    before: ClosedTiles | None,
    landed: LandedBatch,
    view: View,
    batch_bases: Sequence[Projection],
    tiles: Sequence[Tile],
    end_ms: int,
    served: Served,
    marker: bytes,
    *,
    with_pieces: bool,
) -> ClosedTiles:
    """Make the closed part of a key from the previous closed part and further closed tiles.

    Args:
        form: the form of the plan's closed parts.
        before: the previous closed part; None if there is none.
        landed: the batch that is served.
        view: where the windows start.
        batch_bases: for each window, the cells of the batch.
        tiles: the closed tiles after the previous part, oldest first.
        end_ms: where the new closed part ends.
        served: what is known of the GroupBy.
        marker: the amendment marker that was read with the tiles, or before them.
        with_pieces: whether to keep pieces; the tiles must be small enough. Without pieces, the previous part, if any,
            must have the same view.
    """
    plan = landed.plan
    newest = tiles[-1].end_ms if tiles else None if before is None else before.newest_ms
    count = len(tiles) + (0 if before is None else before.tiles)
    if not with_pieces:
        layout = form.layout
        after_ms = landed.batch_end_ms if before is None else before.end_ms
        tails = tail_irs(layout, view, tiles, after_ms, plan.new_ir())
        bases = tuple(
            [
                layout.merge(place, base, layout.project(place, tail))
                for place, (base, tail) in enumerate(
                    zip(batch_bases if before is None else before.bases, tails, strict=True)
                )
            ]
            if tiles
            else (batch_bases if before is None else before.bases)
        )
        return ClosedTiles(landed, end_ms, served, marker, None, None, view, bases, count, newest)
    irs = [tile.ir for tile in tiles]
    if before is not None and before.total is not None:
        irs.insert(0, before.total)
    total = plan.merge_all(irs) if irs else None
    pieces = tuple(
        kind.extended(before.pieces[number] if before is not None and before.pieces else (), tiles, kept_from)
        for number, (kind, kept_from) in enumerate(zip(form.kinds, view.kept_from, strict=True))
    )
    bases = _bases(form, landed, view, batch_bases, total, pieces)
    return ClosedTiles(landed, end_ms, served, marker, total, pieces, view, bases, count, newest)


def _bases(
    form: ClosedForm,
    landed: LandedBatch,
    view: View,
    batch_bases: Sequence[Projection],
    total: Ir | None,
    pieces: tuple[tuple[Piece, ...], ...],
) -> tuple[Projection, ...]:
    layout = form.layout
    bases: list[Projection] = []
    for place, start in enumerate(view.starts):
        if start is None or start <= landed.batch_end_ms:
            base = batch_bases[place]
            if total is not None:
                base = layout.merge(place, base, layout.project(place, total))
        else:
            number = form.kind_of[place]
            kept = pieces[number]
            at = form.kinds[number].places[place]
            held = kept[bisect_left(kept, start, key=_start) :]
            base = layout.merge_all(place, [tuple([cells[index] for index in at]) for _, cells in held])
        bases.append(base)
    return tuple(bases)


def tail_irs(layout: Layout, view: View, tiles: Sequence[Tile], after_ms: int, empty: Ir) -> Sequence[Ir]:
    """Return for each window the IR of the tail's tiles that the window covers.

    Args:
        layout: the layout with the windows.
        view: where the windows start.
        tiles: the tail, oldest first: every tile that starts before the query.
        after_ms: where the tail begins.
        empty: the IR of no events.
    """
    plan = layout.plan
    if plan.keeps_own_times:
        return plan.irs_since(tiles, view.starts)
    if view.latest_start_ms <= after_ms or len(tiles) == 0:
        return (plan.merge_all([tile.ir for tile in tiles]),) * len(layout.windows) if tiles else layout.no_tails
    starts = [tile.start_ms for tile in tiles]
    newest = len(tiles)
    recent: Ir | None = None
    tails: list[Ir] = []
    for start in view.starts:
        oldest = 0 if start is None else bisect_left(starts, start)
        if oldest < newest:
            irs = [tile.ir for tile in tiles[oldest:newest]]
            recent = plan.merge_all(irs if recent is None else [*irs, recent])
            newest = oldest
        tails.append(empty if recent is None else recent)
    return tails


def has_unknown(irs: Sequence[Ir]) -> bool:
    """Return whether one of the IRs has an unknown cell."""
    return any(type(ir) is PartialIr for ir in irs)


def _start(piece: Piece) -> int:
    return piece[0]
