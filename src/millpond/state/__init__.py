"""Keyed state: what an operator keeps per key. Pure Python, no Spark.

These are the names for writing an operator. Those for writing or using a backend, a cache or a serializer are in
`millpond.state.spi`.
"""

from typing import TYPE_CHECKING, Any

from millpond.state.backend.protocols import ListState, MapState, ValueState
from millpond.state.checkpoint import FileStorage, Savepoint, write_savepoint
from millpond.state.checkpoint.reader import StateReader
from millpond.state.operator.folding import Aggregate, AggregatingState, ReducingState
from millpond.state.operator.operator import Context, KeyedOperator, KeyTimers, TimeDomain, TimedOperator, Timer
from millpond.state.operator.states import States
from millpond.state.options.operator import StateOptions
from millpond.state.rocksdb.options import RocksDbSettings
from millpond.state.spillable import SpillableSettings
from millpond.state.testing.checkpoints import BegunCheckpoint, Restoration
from millpond.state.testing.harness import Harness
from millpond.state.types.serializer import Serializer, msgspec_serializer, pickle_serializer, user_serializer
from millpond.state.wrappers.choice import Lru, TwoLayer, WriteBack
from millpond.state.wrappers.lru.backend import LruStats
from millpond.state.wrappers.lru.hit_ratio import HitRatio

if TYPE_CHECKING:
    from millpond.state.spillable import SpillStats

__all__ = [
    "Aggregate",
    "AggregatingState",
    "BegunCheckpoint",
    "Context",
    "FileStorage",
    "Harness",
    "HitRatio",
    "KeyTimers",
    "KeyedOperator",
    "ListState",
    "Lru",
    "LruStats",
    "MapState",
    "ReducingState",
    "Restoration",
    "RocksDbSettings",
    "Savepoint",
    "Serializer",
    "SpillStats",
    "SpillableSettings",
    "StateOptions",
    "StateReader",
    "States",
    "TimeDomain",
    "TimedOperator",
    "Timer",
    "TwoLayer",
    "ValueState",
    "WriteBack",
    "msgspec_serializer",
    "pickle_serializer",
    "user_serializer",
    "write_savepoint",
]


def __getattr__(name: str) -> Any:
    """Import the heap that spills at its first use: most operators have another backend."""
    if name != "SpillStats":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millpond.state.spillable import SpillStats

    return SpillStats
