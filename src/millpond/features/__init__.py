"""Features: definitions, windows, operations (IRs), tiles, compiled plans.

The algebra that upload, stream, training set and fetcher share, in pure functions: no IO, no Spark, no
pandas. Declare a `GroupBy`, compile it once with `compile_group_by`, and let the plan do the rest.
"""

from millpond.features.batch import HORIZON_MS, BatchIr
from millpond.features.cells.cell import Ir
from millpond.features.definitions import (
    Aggregation,
    EntitySource,
    EventSource,
    Field,
    GroupBy,
    Join,
    JoinPart,
    JoinSource,
)
from millpond.features.derivations import CompiledDerivations, Derivation
from millpond.features.partial_ir import UNKNOWN, PartialIr
from millpond.features.plan import GroupByPlan, compile_group_by
from millpond.features.stored.rows import (
    CLOSING_KEY,
    MARKER_ADDRESS,
    ClosingTime,
    batch_dataset,
    closing_time,
    decode_marker,
    encode_closing_time,
    encode_marker,
    layer_of,
    stream_dataset,
    tile_address,
    tile_range,
)
from millpond.features.stored.serving_info import SERVING_INFO_DATASET, ServingInfo, serving_info_key
from millpond.features.tiles import Tile
from millpond.features.windows import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    hop_ms,
    in_window,
    parse_window,
    tile_start,
    window_start,
)

__all__ = [
    "CLOSING_KEY",
    "DAY_MS",
    "HORIZON_MS",
    "HOUR_MS",
    "MARKER_ADDRESS",
    "MINUTE_MS",
    "SERVING_INFO_DATASET",
    "UNKNOWN",
    "Aggregation",
    "BatchIr",
    "ClosingTime",
    "CompiledDerivations",
    "Derivation",
    "EntitySource",
    "EventSource",
    "Field",
    "GroupBy",
    "GroupByPlan",
    "Ir",
    "Join",
    "JoinPart",
    "JoinSource",
    "PartialIr",
    "ServingInfo",
    "Tile",
    "batch_dataset",
    "closing_time",
    "compile_group_by",
    "decode_marker",
    "encode_closing_time",
    "encode_marker",
    "hop_ms",
    "in_window",
    "layer_of",
    "parse_window",
    "serving_info_key",
    "stream_dataset",
    "tile_address",
    "tile_range",
    "tile_start",
    "window_start",
]
