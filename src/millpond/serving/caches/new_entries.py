"""The entries that are made of a key that was read whole: its closed tiles, merged, and its batch row.

Place on the data path: between the read of a key and the caches. The read answers from its tiles and the cells of the
batch, like a read that caches nothing. Merging the closed tiles, weighing the entries and evicting others are not
needed for the answer. So all of that is done in `put`, which a full cache calls after a later fetch
(`waiting_entries`).

Invariant: an entry is put only if it equals what reading the key anew would give. So nothing is put if meanwhile
another batch landed, the stream restarted, or the closed part is no longer known to be closed. A marker that was
raised meanwhile is found by the next read of the key, which compares it with that of the entry.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millpond.cache import Cache
from millpond.features import Tile
from millpond.features.answering.layout import Projection
from millpond.serving.caches.batch_rows import BatchRow
from millpond.serving.caches.closed_tiles import close, closed_end
from millpond.serving.group_status import Served
from millpond.serving.landed_batch import LandedBatch, View

if TYPE_CHECKING:
    from millpond.serving.groups.served_group import ServedGroup


class NewEntries:
    """What was read of one key, from which its entries are made; immutable.

    Args:
        group: the GroupBy.
        key: the encoded key.
        query_ms: the query time of the read.
        served: what was served before the read.
        landed: the batch that answered.
        view: where the windows start.
        bases: for each window, the cells of the batch.
        tiles: all tiles from the view's first one on, oldest first.
        marker: the amendment marker that was read with the tiles, or before them.
        row: the batch row if it is to be cached; None if it was cached already, or no window reaches into the batch.
    """

    __slots__ = ("_bases", "_group", "_key", "_landed", "_marker", "_query_ms", "_row", "_served", "_tiles", "_view")

    def __init__(
        self,
        group: "ServedGroup",
        key: bytes,
        query_ms: int,
        served: Served,
        landed: LandedBatch,
        view: View,
        bases: Sequence[Projection],
        tiles: Sequence[Tile],
        marker: bytes,
        row: BatchRow | None,
    ) -> None:
        self._group = group
        self._key = key
        self._query_ms = query_ms
        self._served = served
        self._landed = landed
        self._view = view
        self._bases = bases
        self._tiles = tiles
        self._marker = marker
        self._row = row

    def put(self) -> None:
        """Make the entries, and put those that still hold and that no other fetch has put meanwhile."""
        group, key, row = self._group, self._key, self._row
        if group.served.landed is not self._landed:
            return
        if group.tile_cache is not None and self._is_missing(group.tile_cache):
            self._put_closed(group.tile_cache)
        if row is not None and group.batch_cache is not None and self._is_missing(group.batch_cache):
            group.batch_cache.put(key, row)

    def _is_missing(self, cache: Cache[bytes, Any]) -> bool:
        found = cache.peek(self._key)
        return found is None or found.landed is not self._landed

    def _put_closed(self, cache: Cache[bytes, Any]) -> None:
        group, view, served, tiles = self._group, self._view, self._served, self._tiles
        limit_ms = self._query_ms // group.tile_ms * group.tile_ms
        end_ms, count = closed_end(view.read_start_ms, tiles, served.closed_ms, limit_ms)
        closed = close(
            group.form,
            None,
            self._landed,
            view,
            self._bases,
            tiles[:count],
            end_ms,
            served,
            self._marker,
            with_pieces=not group.form.kinds,
        )
        if closed.holds(group.served):
            cache.put(self._key, closed)
