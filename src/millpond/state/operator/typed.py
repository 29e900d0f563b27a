"""What typed handles promise: the protocols of `millpond.state.backend.protocols` with the user's types in them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")
K = TypeVar("K")


class Value(Protocol[T]):
    """One value per key."""

    def exists(self) -> bool:
        """Whether the current key has a value."""
        ...

    def get(self) -> T | None:
        """The current key's value, or None."""
        ...

    def update(self, value: T) -> None:
        """Set the current key's value. A DataError names state and key when it cannot be stored."""
        ...

    def update_with(self, change: Callable[[T | None], T]) -> T:
        """Set the current key's value to what `change` makes of it (of None where there is none), and return that.

        `change` may use other states of the key.
        """
        ...

    def add(self, number: T) -> T:
        """Add to the current key's number, which is 0 where there is none; the sum. For states of int or float."""
        ...

    def clear(self) -> None:
        """Forget the current key's value."""
        ...


class DefaultedValue(Protocol[T]):
    """One value per key, and a default where there is none."""

    def exists(self) -> bool:
        """Whether the current key has a value; a default is none."""
        ...

    def get(self) -> T:
        """The current key's value, or the default."""
        ...

    def update(self, value: T) -> None:
        """Set the current key's value. A DataError names state and key when it cannot be stored."""
        ...

    def update_with(self, change: Callable[[T], T]) -> T:
        """Set the current key's value to what `change` makes of it, or of the default, and return that.

        `change` may use other states of the key.
        """
        ...

    def add(self, number: T) -> T:
        """Add to the current key's number, or to the default; the sum. For states of int or float."""
        ...

    def clear(self) -> None:
        """Forget the current key's value."""
        ...


class List(Protocol[T]):
    """A list of values per key, in the order they were added."""

    def exists(self) -> bool:
        """Whether the current key has a list."""
        ...

    def get(self) -> Iterator[T]:
        """The elements as they are now; later changes do not reach this iterator."""
        ...

    def put(self, values: Iterable[T]) -> None:
        """Replace the whole list."""
        ...

    def append(self, value: T) -> None:
        """Add one element at the end."""
        ...

    def extend(self, values: Iterable[T]) -> None:
        """Add several elements at the end."""
        ...

    def clear(self) -> None:
        """Forget the current key's list."""
        ...


class Map(Protocol[K, T]):
    """A map per key; each entry is read and written alone."""

    def exists(self) -> bool:
        """Whether the current key has any entry."""
        ...

    def get(self, map_key: K) -> T | None:
        """The value of one entry, or None."""
        ...

    def contains(self, map_key: K) -> bool:
        """Whether there is such an entry."""
        ...

    def put(self, map_key: K, value: T) -> None:
        """Set one entry."""
        ...

    def remove(self, map_key: K) -> None:
        """Forget one entry."""
        ...

    def items(self) -> Iterator[tuple[K, T]]:
        """The entries as they are now; later changes do not reach this iterator."""
        ...

    def clear(self) -> None:
        """Forget every entry of the current key."""
        ...
