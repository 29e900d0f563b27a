"""The typed handles: the protocols of `millpond.state.backend.protocols` with the user's types in them."""

# ruff: noqa: D102 - the protocols that these inherit say what the methods do
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from millpond.state.backend.protocols import ListState, ValueState

T = TypeVar("T")
K = TypeVar("K")


class Value(ValueState, Protocol[T]):
    """One value per key."""

    def get(self) -> T | None: ...
    def update(self, value: T) -> None: ...
    def update_with(self, change: Callable[[T | None], T]) -> T: ...
    def add(self, number: T) -> T: ...


class DefaultedValue(ValueState, Protocol[T]):
    """One value per key, and a default for keys without one. A default is not state: `exists` does not count it."""

    def get(self) -> T:
        """Return the current key's value, or the default."""

    def update(self, value: T) -> None: ...

    def update_with(self, change: Callable[[T], T]) -> T:
        """Set the current key's value to what `change` returns for it, or for the default, and return that.

        `change` may use other states of the key.
        """

    def add(self, number: T) -> T:
        """Add to the current key's number, or to the default. Return the sum. For states of int or float."""


class List(ListState, Protocol[T]):
    """A list of values per key, in the order in which they were added."""

    def get(self) -> Iterator[T]: ...
    def put(self, values: Iterable[T]) -> None: ...
    def append(self, value: T) -> None: ...
    def extend(self, values: Iterable[T]) -> None: ...


class Map(Protocol[K, T]):
    """A map per key. Each entry is read and written alone."""

    def exists(self) -> bool:
        """Return whether the current key has any entry."""

    def get(self, map_key: K) -> T | None:
        """Return the value of one entry, or None."""

    def contains(self, map_key: K) -> bool:
        """Return whether the entry exists."""

    def put(self, map_key: K, value: T) -> None:
        """Set one entry."""

    def remove(self, map_key: K) -> None:
        """Delete one entry."""

    def items(self) -> Iterator[tuple[K, T]]:
        """Iterate over the entries as they are now. Later changes do not reach this iterator."""

    def clear(self) -> None:
        """Delete every entry of the current key."""
