"""Features: definitions, windows, operations (IRs), tiles, compiled plans.

The algebra that upload, stream and fetcher share, in pure functions: no IO, no Spark, no pandas.
Declare a `GroupBy`, compile it once with `compile_group_by`, and let the plan do the rest.
"""

from millpond.features.batch import HORIZON_MS, BatchIr
from millpond.features.definitions import Aggregation, Field, GroupBy
from millpond.features.derivations import CompiledDerivations, Derivation
from millpond.features.operations import Ir
from millpond.features.plan import GroupByPlan, compile_group_by
from millpond.features.serving_info import (
    SERVING_INFO_DATASET,
    ServingInfo,
    batch_dataset,
    serving_info_key,
    stream_dataset,
)
from millpond.features.tiles import Tile
from millpond.features.windows import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    TILE_MS,
    hop_ms,
    in_window,
    parse_window,
    tile_start,
    window_start,
)

__all__ = [
    "DAY_MS",
    "HORIZON_MS",
    "HOUR_MS",
    "MINUTE_MS",
    "SERVING_INFO_DATASET",
    "TILE_MS",
    "Aggregation",
    "BatchIr",
    "CompiledDerivations",
    "Derivation",
    "Field",
    "GroupBy",
    "GroupByPlan",
    "Ir",
    "ServingInfo",
    "Tile",
    "batch_dataset",
    "compile_group_by",
    "hop_ms",
    "in_window",
    "parse_window",
    "serving_info_key",
    "stream_dataset",
    "tile_start",
    "window_start",
]
