"""Tiles in keyed state: what the operator keeps of each key, and when it says what.

Place on the data path: second step of the stream of tiles, after events were combined, before tiles are
written. It runs in the Arrow form: one call for all keys of a shard and batch.

The life of a tile: it *opens* with its first event and is emitted, whole, in each batch that changes
it. A timer at its end *closes* it: it is emitted once more, complete. A late event *amends* it: it is
emitted complete again, under the next version, and the key's amendment marker goes up. A tile that first
appears after its end was complete and empty until then, so it begins at version 1 and counts as amended.
When a tile is so old that no query can reach it (``retention_ms`` after its end), it is *forgotten*; an
event for it after that is left out and counted, because a tile made of it alone would overwrite the
whole one. State drops the tiles of an hour, and the hours of a day, together: one timer for all of them.

Layers: when a tile closes, its IR is merged into the tile of the next layer that holds it. That one
is emitted when it closes in turn, at its own end. So the operator touches a large tile once for each
small one, and not once for each event. A late event amends every closed tile that holds it and joins the
first open one.

The closing time: a heartbeat in each batch, and a timer at each end of a tile, has the operator emit the
watermark, rounded down to a whole tile. All tiles that end by then are emitted in the same batch or were
before, for timers of one watermark fire in one batch, and a tile that is closed by another within a batch
is closed at once.

State: of each key the newest open tile as a value, which is read and written for many keys at once; all
others, and the marker, in a map by their addresses.

Delivery: at least once, and idempotent: equal events make equal bytes in any order, so a batch that
Spark runs again writes the same rows over themselves. Freshness: one micro-batch. Recovery: restart from
the checkpoint.
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import TimerValues

from millpond.errors import OptionError
from millpond.features import CLOSING_KEY, HORIZON_MS, GroupBy, compile_group_by
from millpond.spark.features.touched_tiles import FORGOTTEN, LATE, TileStates, TouchedTiles
from millpond.spark.forms.arrow_handles import ArrowProcessorHandle
from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor

DEFAULT_RETENTION_MS = HORIZON_MS + HORIZON_MS // 2
"""How long after its end a tile can still be amended: two days for queries, and one for late events."""


class TileProcessor(ArrowStatefulProcessor):
    """Keeps the tiles of a GroupBy's keys and emits those that changed; for the time mode ``EventTime``.

    Args:
        group_by: whose tiles.
        retention_ms: how long after its end a tile can still be amended; whole tiles.

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
        """Open the states: the newest tile of each key, and all others by their addresses."""
        self._states = TileStates(
            handle,
            handle.getValueState("newest", "start_ms bigint, tile binary"),
            handle.getMapState("others", "address bigint", "value binary"),
        )

    def handleInputTable(  # noqa: N802
        self,
        keys: pa.Table,
        rows: pa.Table,
        key_index: pa.Array,
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pa.Table]:
        """Merge a batch's partial IRs into the tiles of all keys; emit each tile that they changed, once."""
        watermark_ms = timerValues.getCurrentWatermarkInMs()
        tiles = self._tiles_of(keys, watermark_ms)
        names = keys.column("key").to_pylist()
        if CLOSING_KEY in names:
            tiles.tell_closing_time()
        parts, events = _by_tile(names, rows, key_index)
        oldest_ms = watermark_ms - self._retention_ms - self._tile_ms
        # By time, and within it in the order of the keys, which come by key groups.
        kept = sorted((place for place in parts if place[1] > oldest_ms), key=itemgetter(1))
        tiles.load_late([place for place in kept if place[1] + self._tile_ms <= watermark_ms])
        tiles.load_open(place for place in kept if place[1] + self._tile_ms > watermark_ms)
        late = 0
        for key, start_ms in kept:
            if tiles.merge(key, start_ms, parts[key, start_ms]):
                late += events[key, start_ms]
        tiles.close_due()
        tiles.count(LATE, late)
        tiles.count(FORGOTTEN, sum(events.values()) - sum(events[place] for place in kept))
        yield tiles.written()

    def handleExpiredTimers(self, keys: pa.Table, expiry_ms: pa.Array, timerValues: TimerValues) -> Iterator[pa.Table]:  # noqa: N802, N803
        """Close the tiles that end here, and forget those that ended a retention ago."""
        due = list(zip(keys.column("key").to_pylist(), expiry_ms.to_pylist(), strict=True))
        distinct = pa.table({"key": pa.array(list(dict.fromkeys(key for key, _ in due)), pa.binary())})
        tiles = self._tiles_of(distinct, timerValues.getCurrentWatermarkInMs())
        if any(key == CLOSING_KEY for key, _ in due):
            tiles.tell_closing_time()
        tiles.load_due((key, time_ms) for key, time_ms in due if key != CLOSING_KEY)
        tiles.close_due()
        yield tiles.written()

    def _tiles_of(self, keys: pa.Table, watermark_ms: int) -> TouchedTiles:
        return TouchedTiles(self._plan, self._retention_ms, self._states, keys, watermark_ms)


def _by_tile(
    names: Sequence[bytes], rows: pa.Table, key_index: pa.Array
) -> tuple[dict[tuple[bytes, int], list[bytes]], dict[tuple[bytes, int], int]]:
    """Give the partial IRs of each key and tile, and how many events they are of."""
    parts: dict[tuple[bytes, int], list[bytes]] = {}
    events: dict[tuple[bytes, int], int] = {}
    columns = (key_index, rows["start_ms"], rows["ir"], rows["events"])
    for number, start_ms, ir, count in zip(*(column.to_pylist() for column in columns), strict=True):
        if ir is not None:
            place = (names[number], start_ms)
            parts.setdefault(place, []).append(ir)
            events[place] = events.get(place, 0) + count
    return parts, events
