"""The typed handles: the protocols of `millpond.state.backend.protocols` with the user's types in them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")
K = TypeVar("K")


class Value(Protocol[T]):
    """One value per key."""

    def exists(self) -> bool:
        """Return whether the current key has a value."""

    def get(self) -> T | None:
        """Return the current key's value, or None."""

    def update(self, value: T) -> None:
        """Set the current key's value. If it cannot be stored, the DataError names state and key."""

    def update_with(self, change: Callable[[T | None], T]) -> T:
        """Set the current key's value to what `change` returns for it (for None if none is set), and return that.

        `change` may use other states of the key.
        """

    def add(self, number: T) -> T:
        """Add to the current key's number, which is 0 if none is set. Return the sum. For states of int or float."""

    def clear(self) -> None:
        """Delete the current key's value."""


class DefaultedValue(Protocol[T]):
    """One value per key, and a default for keys without one."""

    def exists(self) -> bool:
        """Return whether the current key has a value. A default does not count."""

    def get(self) -> T:
        """Return the current key's value, or the default."""

    def update(self, value: T) -> None:
        """Set the current key's value. If it cannot be stored, the DataError names state and key."""

    def update_with(self, change: Callable[[T], T]) -> T:
        """Set the current key's value to what `change` returns for it, or for the default, and return that.

        `change` may use other states of the key.
        """

    def add(self, number: T) -> T:
        """Add to the current key's number, or to the default. Return the sum. For states of int or float."""

    def clear(self) -> None:
        """Delete the current key's value."""


class List(Protocol[T]):
    """A list of values per key, in the order in which they were added."""

    def exists(self) -> bool:
        """Return whether the current key has a list."""

    def get(self) -> Iterator[T]:
        """Iterate over the elements as they are now. Later changes do not reach this iterator."""

    def put(self, values: Iterable[T]) -> None:
        """Replace the whole list."""

    def append(self, value: T) -> None:
        """Add one element at the end."""

    def extend(self, values: Iterable[T]) -> None:
        """Add several elements at the end."""

    def clear(self) -> None:
        """Delete the current key's list."""


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
