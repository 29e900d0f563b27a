"""Reducing and aggregating states: value states into which values are added.

A backend knows neither. The value kept is the result so far (for an aggregate its accumulator). So both are
cached, checkpointed and expired like the value state they are.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from millpond.state.backend.protocols import ValueState

T = TypeVar("T")
In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class Aggregate(Protocol[In_contra, Acc, Out_co]):
    """How values become one result. `add` may change the accumulator it is given, and returns it or another one."""

    def create(self) -> Acc:
        """Return the accumulator of no values."""

    def add(self, accumulator: Acc, value: In_contra) -> Acc:
        """Return the accumulator with one more value."""

    def result(self, accumulator: Acc) -> Out_co:
        """Return the result of the accumulator, without changing it."""


class ReducingState(Generic[T]):
    """One value per key, into which every added value is reduced."""

    __slots__ = ("_reduce", "_update_with", "clear", "exists", "get")

    def __init__(self, state: ValueState, reduce: Callable[[T, T], T]) -> None:
        self._update_with = state.update_with
        self._reduce = reduce
        self.exists = state.exists
        self.get: Callable[[], T | None] = state.get
        self.clear = state.clear

    def add(self, value: T) -> None:
        """Reduce a value into the current key's: `reduce(so_far, value)`, or the value itself if there is none."""
        reduce = self._reduce
        self._update_with(lambda so_far: value if so_far is None else reduce(so_far, value))


class AggregatingState(Generic[In, Out]):
    """One accumulator per key, to which values are added and from which a result is read."""

    __slots__ = ("_aggregate", "_state", "clear", "exists")

    def __init__(self, state: ValueState, aggregate: Aggregate[In, Any, Out]) -> None:
        self._state = state
        self._aggregate = aggregate
        self.exists = state.exists
        self.clear = state.clear

    def get(self) -> Out | None:
        """Return the result for the current key, or None if nothing was added."""
        accumulator = self._state.get()
        return None if accumulator is None else self._aggregate.result(accumulator)

    def add(self, value: In) -> None:
        """Add one value for the current key."""
        aggregate = self._aggregate
        self._state.update_with(lambda so_far: aggregate.add(aggregate.create() if so_far is None else so_far, value))
