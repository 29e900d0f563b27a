"""The bytes that a plan stores, measured on sample events: `millpond compile` shows them.

A sample event has a value in every input. A tile is measured with one event; a batch row with one in
every segment of its timeline, the largest size of a row of scalars.
"""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec

from millpond.features.cells.cell import Ir
from millpond.features.plan import GroupByPlan
from millpond.features.tiles import Tile
from millpond.features.types import DataType, parse_type
from millpond.features.windows import DAY_MS

_BATCH_END_MS = 20_000 * DAY_MS
_SAMPLES: dict[str, Any] = {
    "boolean": True,
    "int": 123_456,
    "long": 123_456_789,
    "float": 123.5,
    "double": 123.456,
    "string": "sample text",
    "binary": b"sample bytes",
    "date": date(2024, 10, 4),
    "timestamp": datetime(2024, 10, 4, tzinfo=UTC),
}


class StoredSizes(msgspec.Struct, frozen=True):
    """The bytes that a plan stores of one key.

    Attributes:
        tile: a tile of one event.
        batch_row: a batch row with one event.
        full_batch_row: a batch row with one event in each segment.
        segments: the number of segments of the timeline.
    """

    tile: int
    batch_row: int
    full_batch_row: int
    segments: int


def stored_sizes(plan: GroupByPlan) -> StoredSizes:
    """Measure the bytes that a plan stores.

    >>> from millpond.features import Aggregation, Field, GroupBy, compile_group_by
    >>> plan = compile_group_by(GroupBy("g", (Field("k", "string"),), (), (Aggregation("count", windows=("1h",)),)))
    >>> stored_sizes(plan).segments
    13
    """
    key = plan.encode_key([_sample(parse_type(field.type)) for field in plan.group_by.keys]) or b""
    event = tuple(_sample(parse_type(field.type)) for field in plan.group_by.inputs)
    cuts = plan.timeline(_BATCH_END_MS).cuts_ms
    every: dict[int, Ir] = {}
    for segment, offset_ms in enumerate([min(cuts, default=0) - 1, *cuts]):
        every[segment] = plan.collect([_BATCH_END_MS + offset_ms], [event])
    ir = every[0]

    def row(irs: dict[int, Ir]) -> int:
        return len(plan.encode_batch(key, plan.batch_of_segments(irs, _BATCH_END_MS)))

    tile = Tile(_BATCH_END_MS, plan.tile_ms, ir=plan.tile_cells.collect([_BATCH_END_MS], [event]))
    return StoredSizes(len(plan.encode_tile(key, tile)), row({0: ir}), row(every), len(every))


def _sample(type_: DataType) -> Any:
    if type_.kind == "decimal":
        return Decimal(1).scaleb(-type_.scale) if type_.scale else Decimal(1)
    if type_.element is None:
        return _SAMPLES[type_.kind]
    if type_.key is None:
        return [_sample(type_.element)]
    return {_sample(type_.key): _sample(type_.element)}
