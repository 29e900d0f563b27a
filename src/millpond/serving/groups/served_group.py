"""One GroupBy as a fetcher serves it: its plan, its caches, and the batch that is served.

Place on the data path: every fetch of the GroupBy shares it. What was last read about the batch and the stream is
replaced as one value, `served`. A fetch reads `served` once, and so works on a consistent state.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from millpond.cache import Cache
from millpond.features import GroupByPlan, stream_dataset
from millpond.features.answering import BatchDecoder, Layout, TileColumnDecoder, TileDecoder
from millpond.serving.caches.batch_rows import BatchRow
from millpond.serving.caches.closed_tiles import ClosedForm, ClosedTiles
from millpond.serving.caches.doorkeeper import Doorkeeper
from millpond.serving.caches.waiting_entries import WaitingEntries
from millpond.serving.group_status import Served
from millpond.serving.groups.flight import Flight

if TYPE_CHECKING:
    from millpond.serving.reads.short_read import ShortReader

STEPS = ("batch_ir", "batch_get", "tile_ir", "stream_get")
"""The steps of CHIP-1, each of which can be switched off. A cached batch row saves the decoding (`batch_ir`) and the
get (`batch_get`). Cached closed tiles save the decoding (`tile_ir`) and move the start of the get (`stream_get`)."""


class ServedGroup:
    """A GroupBy, and what its fetches share.

    Args:
        plan: its plan.
        batch_cache: the cache of batch rows; None for none.
        tile_cache: the cache of closed tiles; None for none. It is not used for untiled and snapshot GroupBys, nor
            where tiles keep own times, because such a tile can lie partly in a window.
        steps: which of `STEPS` are on.
        tail_freshness_ms: how long a tail may be reused after it was read; 0 for never.
        waiting: the entries that wait to be put into full caches, of all GroupBys of a fetcher; None for its own.
    """

    def __init__(
        self,
        plan: GroupByPlan,
        batch_cache: Cache[bytes, BatchRow] | None = None,
        tile_cache: Cache[bytes, ClosedTiles] | None = None,
        steps: Collection[str] = STEPS,
        tail_freshness_ms: int = 0,
        waiting: WaitingEntries | None = None,
    ) -> None:
        group_by = plan.group_by
        self.plan = plan
        self.name = plan.name
        self.has_stream = group_by.accuracy == "temporal"
        self.is_tiled = self.has_stream and group_by.tiled
        self.batch_cache = batch_cache if "batch_ir" in steps else None
        keeps_tiles = self.is_tiled and not plan.keeps_own_times
        self.tile_cache = tile_cache if keeps_tiles and "tile_ir" in steps else None
        self.skips_batch_get = "batch_get" in steps
        self.moves_start = "stream_get" in steps
        if self.tile_cache is None:
            self.doorkeeper = Doorkeeper(self.batch_cache)
        else:
            self.doorkeeper = Doorkeeper(self.tile_cache, self.batch_cache)
        self.waiting = WaitingEntries() if waiting is None else waiting
        self.tail_freshness_ms = tail_freshness_ms
        self.is_cached = self.batch_cache is not None or self.tile_cache is not None
        self.tile_ms = plan.tile_ms
        self.longest_tail_ms = plan.layers[1] if len(plan.layers) > 1 else 1 << 62
        self.layout = Layout(plan)
        self.form = ClosedForm(self.layout)
        self.decode_tile = TileDecoder(plan).decode
        self.tile_columns = TileColumnDecoder(plan)
        self.decode_batch = BatchDecoder(plan).decode
        self.stream_dataset = stream_dataset(plan.name, plan.generation)
        self.short_reader: ShortReader | None = None
        """Begins short reads of cached keys; set by the owner of the group. None if there is none."""
        self.flights: dict[bytes, Flight] = {}
        self.served = Served()

    def __repr__(self) -> str:
        return f"ServedGroup({self.name!r})"
