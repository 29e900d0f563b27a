"""What an operator remembers per key. Pure Python, no Spark."""

from typing import TYPE_CHECKING, Any

from millpond.state.backend.plain import PlainBackend, PlainSnapshot
from millpond.state.backend.protocols import (
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
from millpond.state.checkpoint import Checkpointer, FileStorage, Savepoint, write_savepoint
from millpond.state.checkpoint.reader import StateReader
from millpond.state.heap.backend import HeapBackend
from millpond.state.operator.folding import Aggregate, AggregatingState, ReducingState
from millpond.state.operator.operator import Context, KeyedOperator, KeyTimers, TimeDomain, TimedOperator, Timer
from millpond.state.operator.states import States
from millpond.state.options.opening import open_backend
from millpond.state.options.operator import StateOptions
from millpond.state.options.registry import BackendFactory, register_backend
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.rocksdb.options import RocksDbSettings
from millpond.state.spillable import SpillableSettings
from millpond.state.testing.checkpoints import BegunCheckpoint, Restoration
from millpond.state.testing.harness import Harness
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.rows import RowCodec
from millpond.state.types.serializer import Serializer, msgspec_serializer, pickle_serializer, user_serializer
from millpond.state.types.ttl import Ttl
from millpond.state.wrappers.cached_values import CachedValues
from millpond.state.wrappers.choice import CacheHooks, Lru, TwoLayer, WriteBack
from millpond.state.wrappers.forwarding import ForwardingBackend
from millpond.state.wrappers.king.state_access import Watch
from millpond.state.wrappers.king.two_layer import TwoLayerCache
from millpond.state.wrappers.king.write_back import WriteBackCache
from millpond.state.wrappers.lru.backend import LruStateCache, LruStats
from millpond.state.wrappers.lru.hit_ratio import HitRatio

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
    "ForwardingBackend",
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
    "PlainBackend",
    "PlainSnapshot",
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
