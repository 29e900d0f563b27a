"""What an operator remembers per key. Pure Python, no Spark."""

from typing import TYPE_CHECKING, Any

from millpond.state.backend import (
    ABSENT,
    Cells,
    KeyContext,
    KeyedStateBackend,
    ListState,
    MapState,
    RawCells,
    Snapshot,
    ValueCache,
    ValueState,
)
from millpond.state.cached.cached_values import CachedValues
from millpond.state.cached.choice import CacheHooks, Lru, TwoLayer, WriteBack
from millpond.state.cached.hit_ratio import HitRatio
from millpond.state.cached.lru import LruStateCache, LruStats
from millpond.state.cached.two_layer import TwoLayerCache
from millpond.state.cached.watched import Watch
from millpond.state.cached.write_back import WriteBackCache
from millpond.state.checkpoint import Checkpointer, FileStorage, Savepoint, write_savepoint
from millpond.state.descriptor import StateDescriptor, StateKind
from millpond.state.folding import Aggregate, AggregatingState, ReducingState
from millpond.state.handles import States
from millpond.state.harness import Harness
from millpond.state.heap import HeapBackend
from millpond.state.operator import Context, KeyedOperator, KeyTimers, TimeDomain, TimedOperator, Timer
from millpond.state.operator_checkpoints import BegunCheckpoint, Restoration
from millpond.state.options import StateOptions
from millpond.state.reader import StateReader
from millpond.state.registry import BackendFactory, open_backend, register_backend
from millpond.state.rocksdb import RocksDbBackend
from millpond.state.rocksdb_options import RocksDbSettings
from millpond.state.rows import RowCodec
from millpond.state.serializer import Serializer, msgspec_serializer, pickle_serializer, user_serializer
from millpond.state.spillable import SpillableSettings
from millpond.state.ttl import Ttl

if TYPE_CHECKING:
    from millpond.state.spillable import SpillableBackend, SpillStats

__all__ = [
    "ABSENT",
    "Aggregate",
    "AggregatingState",
    "BackendFactory",
    "BegunCheckpoint",
    "CacheHooks",
    "CachedValues",
    "Cells",
    "Checkpointer",
    "Context",
    "FileStorage",
    "Harness",
    "HeapBackend",
    "HitRatio",
    "KeyContext",
    "KeyTimers",
    "KeyedOperator",
    "KeyedStateBackend",
    "ListState",
    "Lru",
    "LruStateCache",
    "LruStats",
    "MapState",
    "RawCells",
    "ReducingState",
    "Restoration",
    "RocksDbBackend",
    "RocksDbSettings",
    "RowCodec",
    "Savepoint",
    "Serializer",
    "Snapshot",
    "SpillStats",
    "SpillableBackend",
    "SpillableSettings",
    "StateDescriptor",
    "StateKind",
    "StateOptions",
    "StateReader",
    "States",
    "TimeDomain",
    "TimedOperator",
    "Timer",
    "Ttl",
    "TwoLayer",
    "TwoLayerCache",
    "ValueCache",
    "ValueState",
    "Watch",
    "WriteBack",
    "WriteBackCache",
    "msgspec_serializer",
    "open_backend",
    "pickle_serializer",
    "register_backend",
    "user_serializer",
    "write_savepoint",
]


def __getattr__(name: str) -> Any:
    """Import the heap that spills at its first use: most operators have another backend."""
    if name not in ("SpillStats", "SpillableBackend"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millpond.state import spillable

    return getattr(spillable, name)
