"""What an operator remembers per key. Pure Python, no Spark."""

from millpond.state.backend import ABSENT, Cells, KeyContext, KeyedStateBackend, ListState, MapState, ValueState
from millpond.state.descriptor import StateDescriptor, StateKind
from millpond.state.heap import HeapBackend
from millpond.state.rows import RowCodec

__all__ = [
    "ABSENT",
    "Cells",
    "HeapBackend",
    "KeyContext",
    "KeyedStateBackend",
    "ListState",
    "MapState",
    "RowCodec",
    "StateDescriptor",
    "StateKind",
    "ValueState",
]
