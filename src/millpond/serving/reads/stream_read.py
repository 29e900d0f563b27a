"""The tiles of a full read: which tiles to get, and which of them are closed.

Place on the data path: one half of `key_read`; the other half is the batch row. If the key's closed tiles are cached,
it gets the tiles after them and the amendment marker. Otherwise it gets all tiles from the start of the first window
on. Tiles that it finds closed go into the cache.
"""

from collections.abc import Sequence

from millpond.errors import CorruptionError
from millpond.features import MARKER_ADDRESS, Tile, decode_marker, tile_range
from millpond.features.answering import Layout
from millpond.kv import Get, TimedValue
from millpond.serving.caches.batch_rows import BatchRow
from millpond.serving.caches.closed_tiles import NO_MARKER, ClosedTiles, close, closed_end
from millpond.serving.counters import Tally
from millpond.serving.group_status import Served
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.landed_batch import LandedBatch
from millpond.serving.reads.tile_spans import are_placed, ranges_behind

END_OF_STREAM = MARKER_ADDRESS + 1


class StreamRead:
    """The tiles of one full read: which to get, and which are closed.

    Attributes:
        is_now: whether the read uses the cache of closed tiles: all queries have one view, none lies within the cached
            closed part, and the key is cached or admitted.
        misses: whether it uses that cache and found no entry.
        admits: whether the doorkeeper admits the key, if it was asked.
        closed: the closed part that was found or made; None if there is none.
        tiles: the tiles after it, oldest first.
        after_ms: where these tiles begin.
    """

    def __init__(
        self,
        group: ServedGroup,
        layout: Layout,
        key: bytes,
        queries: Sequence[int],
        served: Served,
        landed: LandedBatch,
        now_ms: int,
        tally: Tally,
        *,
        is_looked_up: bool,
    ) -> None:
        self.group = group
        self.is_looked_up = is_looked_up
        self.layout = layout
        self.key = key
        self.landed = landed
        self.closed_ms = served.closed_ms
        self.served = served
        self.tally = tally
        self.first_ms, self.query_ms = queries[0], queries[-1]
        self.last_ms = -(-self.query_ms // landed.plan.tile_ms) * landed.plan.tile_ms
        self.reads_to_end = self.last_ms >= now_ms
        self.tiles: Sequence[Tile] = ()
        self.stored_tiles = 0
        self.source = "store"
        self.marker = NO_MARKER
        self.with_pieces = not group.form.kinds
        self.closed: ClosedTiles | None = None
        views = [landed.view(layout, query) for query in queries]
        self.view = views[-1]
        self.reads_batch = any(view.reads_batch for view in views)
        self.read_start_ms = min(view.read_start_ms for view in views)
        self.cuts_ms = {start for view in views for start in view.starts if start is not None}
        if len(queries) > 1:
            tile_ms = landed.plan.tile_ms
            self.cuts_ms.update(-(-query // tile_ms) * tile_ms for query in queries)
        self.is_now = self.view.holds(queries[0]) and self.view.is_cacheable and group.tile_cache is not None
        if self.is_now:
            self._look_up()
        self.admits = True
        # A short read that looked the key up also asked the doorkeeper.
        if self.is_now and self.closed is None and not (is_looked_up or group.doorkeeper.admits(key)):
            self.admits = self.is_now = False
        self.misses = self.is_now and self.closed is None
        self.after_ms = self.read_start_ms if self.closed is None else self.closed.end_ms
        self.needless = 0

    def gets(self) -> list[Get]:
        """Return the gets of the tiles; if closed tiles are cached, the first get includes the marker.

        For a query about the past the marker has its own get, so that no tile after the query is read.
        """
        key, dataset, plan = self.key, self.landed.info.streaming_dataset, self.landed.plan
        self.needless = 0
        if not self.is_now:
            wanted = plan.spans(self.read_start_ms, self.query_ms, self.closed_ms, self.cuts_ms)
            found = [Get(dataset, key, *tile_range(*span)) for span in wanted]
        else:
            closed_ms = min(self.closed_ms, self.first_ms // plan.tile_ms * plan.tile_ms)
            tail_ms, ranges = ranges_behind(
                self.group.form,
                self.view,
                self.after_ms,
                self.query_ms,
                closed_ms,
                with_pieces=self.with_pieces,
                cuts_ms=self.cuts_ms,
            )
            if self.reads_to_end:
                found = [Get(dataset, key, tail_ms, END_OF_STREAM)]
            else:
                found = [Get(dataset, key, MARKER_ADDRESS, END_OF_STREAM)]
                if tail_ms < self.last_ms:
                    found.append(Get(dataset, key, tail_ms, self.last_ms))
            found += [Get(dataset, key, *one) for one in ranges]
            if self.closed is not None and not self.group.moves_start:
                needless = plan.spans(self.read_start_ms, self.after_ms, self.closed_ms)
                found += [Get(dataset, key, *tile_range(*span)) for span in needless]
                self.needless = len(needless)
        self.tally.stream_gets += len(found)
        return found

    def take(self, answers: Sequence[Sequence[TimedValue]]) -> bool:
        """Decode the rows of the gets. Return False if a closed tile was amended: then call `gets` again.

        Raises:
            CorruptionError: a row does not decode, or a tile is misplaced.
        """
        rows = [row for part in answers for row in part]
        self.tally.rows += len(rows)
        self.tally.bytes += sum([len(row.value) for row in rows])
        if self.needless:
            # The start of the get was not moved, but cached tiles are not decoded again.
            rows = [row for part in answers[: -self.needless] for row in part]
        if self.is_now:
            last = answers[0]
            marker = NO_MARKER
            if last and last[-1].time_ms == MARKER_ADDRESS:
                marker = last[-1].value
                rows.remove(last[-1])
            if marker != NO_MARKER and (self.closed is None or marker != self.closed.marker):
                decode_marker(self.key, marker)
            if self.closed is not None and marker != self.closed.marker:
                self.tally.dropped_amended += 1
                self._drop()
                return False
            self.marker = marker
        decode, key = self.group.decode_tile, self.key
        tiles = [decode(key, row.value) for row in rows]
        self._check(rows, tiles)
        if len(tiles) > 1:
            tiles.sort(key=_tile_start)
        self.stored_tiles = len(tiles)
        self.tally.tiles += len(tiles)
        self.tiles = tiles
        return True

    def keep(self, row: BatchRow | None) -> None:
        """Merge the closed tiles with the cached part, and cache the result."""
        if not self.is_now:
            return
        group, view, before = self.group, self.view, self.closed
        tile_ms = self.landed.plan.tile_ms
        tiles = self.tiles
        end_ms, count = closed_end(self.after_ms, tiles, self.closed_ms, self.first_ms // tile_ms * tile_ms)
        if before is not None:
            self.tally.tiles_saved += before.tiles
            if end_ms == before.end_ms and before.view is view:
                return
        bases = self.layout.empties if row is None else row.bases(self.layout, view)
        self.closed = close(
            group.form,
            before,
            self.landed,
            view,
            bases,
            tiles[:count],
            end_ms,
            self.served,
            self.marker,
            with_pieces=self.with_pieces,
        )
        self.tiles = tiles[count:]
        self.after_ms = end_ms
        if group.tile_cache is not None:
            group.tile_cache.put(self.key, self.closed)

    def _look_up(self) -> None:
        cache = self.group.tile_cache
        if cache is None:
            return
        # If a short read was tried, its look-up was counted.
        found = cache.peek(self.key) if self.is_looked_up else cache.get(self.key)
        if found is None:
            return
        tile_ms = self.landed.plan.tile_ms
        if not found.holds(self.served):
            self._drop()
        elif found.view.from_ms > self.first_ms or found.end_ms - tile_ms >= self.first_ms:
            # A query about the past covers less than the closed part, so it is answered from the store.
            self.is_now = False
        elif found.end_ms >= self.view.read_start_ms:
            same_view = found.view.holds(self.first_ms) and found.view.holds(self.query_ms)
            if found.pieces is None and not same_view:
                # The key is requested again after its windows moved: pieces pay from here on.
                self.with_pieces = True
                return
            self.with_pieces = found.pieces is not None
            self.closed = found
            self.source = "cache"
            if same_view:
                self.view = found.view

    def _drop(self) -> None:
        if self.group.tile_cache is not None:
            self.group.tile_cache.invalidate(self.key)
        self.closed = None
        self.with_pieces = True
        self.source = "store"
        self.after_ms = self.read_start_ms = self.view.read_start_ms

    def _check(self, rows: Sequence[TimedValue], tiles: Sequence[Tile]) -> None:
        """Raise `CorruptionError` if a tile is stored at a time that is not its own."""
        if not are_placed(self.landed.plan, rows, tiles):
            raise CorruptionError(
                f"GroupBy {self.group.name!r}: the tiles of key {self.key!r} at the times "
                f"{sorted(row.time_ms for row in rows)[:8]} say that they start at "
                f"{[tile.start_ms for tile in tiles][:8]}. Restart the stream from its batch."
            )


def _tile_start(tile: Tile) -> int:
    return tile.start_ms
