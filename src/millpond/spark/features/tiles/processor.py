"""Tiles in keyed state: which tiles the operator keeps for each key, and when it emits them.

Place on the data path: second step of the stream of tiles, after events were combined, before tiles are written. Its
keys are hash slots (`slots`). It runs in the Arrow form: one call for all slots of a shard and batch.

The life of a tile:

- It *opens* with its first event. Each batch that changes it emits it whole.
- A timer at its end *closes* it: it is emitted once more, as complete.
- A late event *amends* it: it is emitted again, complete and under the next version, and the key's amendment marker
  goes up. A tile that first appears after its end was complete and empty until then. So it begins at version 1 and
  counts as amended.
- It is *forgotten* when no query can reach it, ``retention_ms`` after its end. A later event for it is left out and
  counted, because a tile of that event alone would overwrite the whole one. State drops the tiles of an hour, and the
  hours of a day, together, with one timer.

Layers: a larger tile is made when it closes, of the tiles of the layer below it. State has these until a late event
can no longer change them. So the operator writes a large tile once, not once for each small one. It is emitted only
then. A late event amends every closed tile that holds it. An open one takes it in when it closes.

The closing time: a heartbeat in each batch, and a timer at each end of a tile, make the operator emit the watermark,
rounded down to a whole tile. All tiles that end by then were emitted before, or are emitted in the same batch: the
timers of one watermark fire in one batch, and a tile that another one closes within a batch is closed at once.

State: a block of tiles for each slot and address, and the markers of the slot's keys. Large ones are divided into
leaves (`leaves`). State is read and written for many keys at once, and one timer serves all keys of a slot. The
heartbeat's slot has the name of their dataset: a checkpoint goes on only with a GroupBy of the same name and
generation. Another dataset would lack the tiles that the checkpoint already has.

Delivery: at least once, and idempotent: equal events make equal bytes in any order, so a batch that Spark runs again
overwrites rows with equal ones. Freshness: one micro-batch. Recovery: restart from the checkpoint.
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import TimerValues

from millpond.errors import OptionError
from millpond.features import HORIZON_MS, MARKER_ADDRESS, GroupBy, GroupByPlan, compile_group_by, stream_dataset
from millpond.spark.features.tiles.leaves import TileStates
from millpond.spark.features.tiles.rows import FORGOTTEN, LATE
from millpond.spark.features.tiles.slots import CLOSING_SLOT, CombinedTiles, TileCells, add_tiles, decode_combined
from millpond.spark.features.tiles.touched_tiles import TouchedTiles
from millpond.spark.forms.arrow_handles import ArrowProcessorHandle
from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor

DATASET_ADDRESS = MARKER_ADDRESS
"""Where the heartbeat's slot has the name of the dataset; it has no markers."""

DEFAULT_RETENTION_MS = HORIZON_MS + HORIZON_MS // 2
"""How long after its end a tile can still be amended: two days for queries, and one for late events."""


class TileProcessor(ArrowStatefulProcessor):
    """Keeps the tiles of a GroupBy's keys and emits those that changed; for the time mode ``EventTime``.

    Args:
        group_by: the GroupBy of the tiles.
        retention_ms: how long after its end a tile can still be amended; a multiple of the smallest tile.

    Raises:
        OptionError: the retention is shorter than two days, or not a whole number of tiles.
    """

    def __init__(self, group_by: GroupBy, retention_ms: int = DEFAULT_RETENTION_MS) -> None:
        self._plan = compile_group_by(group_by)
        self._tile_ms = self._plan.tile_ms
        if type(retention_ms) is not int or retention_ms < HORIZON_MS or retention_ms % self._tile_ms:
            raise OptionError(
                f"retention_ms {retention_ms!r} must be at least {HORIZON_MS} (two days, as far as queries reach) and "
                f"a multiple of {self._tile_ms}"
            )
        self._retention_ms = retention_ms

    def init(self, handle: ArrowProcessorHandle) -> None:
        """Open the state: blocks of tiles, and markers, by slot and address."""
        self._states = TileStates.of(handle)

    def handleInputTable(  # noqa: N802
        self,
        keys: pa.Table,
        rows: pa.Table,
        key_index: pa.Array,  # noqa: ARG002 - the rows have their slot
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pa.Table]:
        """Merge a batch's combined tiles into those of all keys, and emit each changed tile once."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        tiles = self._tiles(watermark_ms)
        if CLOSING_SLOT in keys.column("slot").to_pylist():
            self._check_dataset()
            tiles.tell_closing_time()
        parts = _by_block(rows)
        oldest_ms = watermark_ms - self._retention_ms - self._tile_ms
        # By time. Slots of one time keep their order, which is by key group.
        kept = sorted((place for place in parts if place[1] > oldest_ms), key=itemgetter(1))
        merged = {place: _merged(self._plan, parts[place]) for place in kept}
        tiles.load_open({place: one for place, one in merged.items() if place[1] + self._tile_ms > watermark_ms})
        tiles.load_late({place: one for place, one in merged.items() if place[1] + self._tile_ms <= watermark_ms})
        late = 0
        for (slot, start_ms), one in merged.items():
            closed = tiles.merge(slot, start_ms, one)
            late += _events(parts[slot, start_ms], set(closed)) if closed else 0
        tiles.close_due()
        tiles.count(LATE, late)
        forgotten = [part for place, part in parts.items() if place[1] <= oldest_ms]
        tiles.count(FORGOTTEN, sum(sum(one.events) for part in forgotten for one in part))
        yield from tiles.written()

    def handleExpiredTimers(self, keys: pa.Table, expiry_ms: pa.Array, timerValues: TimerValues) -> Iterator[pa.Table]:  # noqa: N802, N803
        """Close the tiles that end at these timers, and forget those whose retention is over."""
        due = list(zip(keys.column("slot").to_pylist(), expiry_ms.to_pylist(), strict=True))
        tiles = self._tiles(timerValues.getCurrentWatermarkInMs())
        if any(slot == CLOSING_SLOT for slot, _ in due):
            self._check_dataset()
            tiles.tell_closing_time()
        tiles.load_due((slot, time_ms) for slot, time_ms in due if slot != CLOSING_SLOT)
        tiles.close_due()
        yield from tiles.written()

    def _check_dataset(self) -> None:
        """Raise an error if the tiles in state belong to another dataset; write its name if there is none yet."""
        slots = pa.table({"slot": pa.array([CLOSING_SLOT], pa.int32())})
        addresses = pa.table({"address": pa.array([DATASET_ADDRESS], pa.int64())})
        dataset = stream_dataset(self._plan.name, self._plan.generation)
        stored = self._states.blocks.get_many(slots, addresses).column("value")[0].as_py()
        if stored is None:
            value = pa.array([dataset.encode()], pa.binary())
            self._states.blocks.update_many(slots, addresses, pa.table({"value": value}))
        elif stored != dataset.encode():
            raise OptionError(
                f"GroupBy {self._plan.name!r}: its stream writes tiles to {dataset!r}, and the checkpoint has those of "
                f"{stored.decode(errors='replace')!r}: the GroupBy has another name, other keys, tile sizes or "
                "conditions now, its keys or times come from other expressions, this build stores tiles in another "
                "format, or the checkpoint is another stream's. Name the right checkpoint; or upload the GroupBy, and "
                "start its stream from that upload's batch end with an empty checkpoint folder"
            )

    def _tiles(self, watermark_ms: int) -> TouchedTiles:
        return TouchedTiles(self._plan, self._retention_ms, self._states, watermark_ms)


def _by_block(rows: pa.Table) -> dict[tuple[int, int], list[CombinedTiles]]:
    """Return the combined tiles by slot and start."""
    parts: dict[tuple[int, int], list[CombinedTiles]] = {}
    for slot, data in zip(rows["slot"].to_pylist(), rows["tiles"].to_pylist(), strict=True):
        if data is not None:
            for start_ms, tiles in decode_combined(data).items():
                parts.setdefault((slot, start_ms), []).append(tiles)
    return parts


def _merged(plan: GroupByPlan, parts: Sequence[CombinedTiles]) -> TileCells:
    merged = TileCells()
    for part in parts:
        add_tiles(plan, merged, TileCells(dict(zip(part.keys, part.cells, strict=True))))
    return merged


def _events(parts: Sequence[CombinedTiles], keys: set[bytes]) -> int:
    """Return the number of events of some keys."""
    return sum(events for part in parts for key, events in zip(part.keys, part.events, strict=True) if key in keys)
