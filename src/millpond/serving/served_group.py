"""One GroupBy as a fetcher serves it: its plan, its caches, and the batch that is served now.

Place on the data path: what every fetch of the GroupBy shares. Only `served` changes, as one value: what
was last learnt about the batch and the stream. So a fetch takes it once and works on what belongs
together.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from millpond.cache import Cache
from millpond.features import GroupByPlan, stream_dataset
from millpond.features.answering import BatchDecoder, Layout, TileColumnDecoder, TileDecoder
from millpond.serving.batch_rows import BatchRow
from millpond.serving.closed_tiles import ClosedForm, ClosedTiles
from millpond.serving.doorkeeper import Doorkeeper
from millpond.serving.flight import Flight
from millpond.serving.group_status import Served

if TYPE_CHECKING:
    from millpond.serving.short_read import ShortReader

STEPS = ("batch_ir", "batch_get", "tile_ir", "stream_get")
"""The steps of CHIP-1, each of which can be switched off: cached batch rows save the decoding, and the
get; cached closed tiles save the decoding, and move the start of the get."""


class ServedGroup:
    """A GroupBy with what its fetches share.

    Args:
        plan: its plan.
        batch_cache: of batch rows; None for no caching.
        tile_cache: of closed tiles; None for no caching. Untiled and snapshot GroupBys have none, nor have those
            whose tiles are kept by own times: no tile is whole in or out of a window.
        steps: which of `STEPS` are on.
        tail_freshness_ms: how long ago a tail may have been read.
    """

    def __init__(
        self,
        plan: GroupByPlan,
        batch_cache: Cache[bytes, BatchRow] | None = None,
        tile_cache: Cache[bytes, ClosedTiles] | None = None,
        steps: Collection[str] = STEPS,
        tail_freshness_ms: int = 0,
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
        """The short way to a cached key, which whoever owns the group sets; None if there is none."""
        self.flights: dict[bytes, Flight] = {}
        self.served = Served()

    def __repr__(self) -> str:
        return f"ServedGroup({self.name!r})"
