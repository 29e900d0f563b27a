"""The names for writing a backend, a state cache or a serializer, or for using one without an operator.

An operator needs none of them: `millpond.state` has the names that its author uses. See "How to keep state without
Spark" for a custom backend.
"""

from typing import TYPE_CHECKING, Any

from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.plain import PlainBackend, PlainSnapshot
from millpond.state.backend.protocols import ABSENT, Appended, Cells, KeyedStateBackend, RawCells, Snapshot, ValueCache
from millpond.state.checkpoint import Checkpointer
from millpond.state.heap.backend import HeapBackend
from millpond.state.options.opening import open_backend
from millpond.state.options.registry import BackendFactory, register_backend
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.rows import RowCodec
from millpond.state.types.ttl import Ttl
from millpond.state.wrappers.cached_values import CachedValues
from millpond.state.wrappers.choice import CacheHooks
from millpond.state.wrappers.forwarding import ForwardingBackend
from millpond.state.wrappers.king.state_access import Watch
from millpond.state.wrappers.king.two_layer import TwoLayerCache
from millpond.state.wrappers.king.write_back import WriteBackCache
from millpond.state.wrappers.lru.backend import LruStateCache

if TYPE_CHECKING:
    from millpond.state.spillable import SpillableBackend

__all__ = [
    "ABSENT",
    "Appended",
    "BackendFactory",
    "CacheHooks",
    "CachedValues",
    "Cells",
    "Checkpointer",
    "ForwardingBackend",
    "HeapBackend",
    "KeyContext",
    "KeyedStateBackend",
    "LruStateCache",
    "PlainBackend",
    "PlainSnapshot",
    "RawCells",
    "RocksDbBackend",
    "RowCodec",
    "Snapshot",
    "SpillableBackend",
    "StateDescriptor",
    "StateKind",
    "Ttl",
    "TwoLayerCache",
    "ValueCache",
    "Watch",
    "WriteBackCache",
    "open_backend",
    "register_backend",
]


def __getattr__(name: str) -> Any:
    """Import the heap that spills at its first use: it needs packages that others do not."""
    if name != "SpillableBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from millpond.state.spillable import SpillableBackend

    return SpillableBackend
