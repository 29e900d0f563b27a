"""The one interface that every state backend, and every wrapper around one, implements.

A backend holds the state of the key groups of one shard. It works in *versions*: everything between
two commits is one version, a commit names what changed, and one committed version can be taken
back. That is all an operator on Spark needs: the changed cells become the batch's delta, and a
batch that Spark did not accept is undone without reading anything again.

Invariant: between `commit` and the next change, the live state is exactly the committed version.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from millpond.state.descriptor import StateDescriptor
from millpond.state.rows import Row


class _Absent:
    """The sign of a cell that is not there: neither None nor any value a user can store."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()


@dataclass
class Cells:
    """Many cells of one state, as parallel lists: what deltas and bases are made of.

    Attributes:
        key_groups: of each cell.
        keys: of each cell, a tuple.
        map_keys: of each cell of a map state, a tuple; None for the other kinds.
        values: a tuple, for a list state a list of tuples, or ABSENT where the cell was deleted.
    """

    key_groups: list[int] = field(default_factory=list)
    keys: list[Row] = field(default_factory=list)
    map_keys: list[Row] | None = None
    values: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)


class KeyContext:
    """Whose state the handles speak of.

    The backend's `enter` sets `key_group`; the operator assigns `key` before it calls user code.
    """

    __slots__ = ("key", "key_group")

    def __init__(self) -> None:
        self.key: Row = ()
        self.key_group = -1


class ValueState(Protocol):
    """One tuple per key."""

    def exists(self) -> bool:
        """Whether the current key has a value."""
        ...

    def get(self) -> Row | None:
        """The current key's value, or None."""
        ...

    def update(self, value: Row) -> None:
        """Set the current key's value. Refused with a DataError when it does not fit the schema."""
        ...

    def clear(self) -> None:
        """Forget the current key's value."""
        ...


class ListState(Protocol):
    """A list of tuples per key, in the order they were added."""

    def exists(self) -> bool:
        """Whether the current key has a list."""
        ...

    def get(self) -> Iterator[Row]:
        """The elements as they are now; later changes do not reach this iterator."""
        ...

    def put(self, values: Iterable[Row]) -> None:
        """Replace the whole list."""
        ...

    def append(self, value: Row) -> None:
        """Add one element at the end."""
        ...

    def extend(self, values: Iterable[Row]) -> None:
        """Add several elements at the end."""
        ...

    def clear(self) -> None:
        """Forget the current key's list."""
        ...


class MapState(Protocol):
    """A map from tuples to tuples per key; each entry is read and written alone."""

    def exists(self) -> bool:
        """Whether the current key has any entry."""
        ...

    def get(self, map_key: Row) -> Row | None:
        """The value of one entry, or None."""
        ...

    def contains(self, map_key: Row) -> bool:
        """Whether there is such an entry."""
        ...

    def put(self, map_key: Row, value: Row) -> None:
        """Set one entry."""
        ...

    def remove(self, map_key: Row) -> None:
        """Forget one entry."""
        ...

    def items(self) -> Iterator[tuple[Row, Row]]:
        """The entries as they are now; later changes do not reach this iterator."""
        ...

    def clear(self) -> None:
        """Forget every entry of the current key."""
        ...


class KeyedStateBackend(Protocol):
    """The state of one shard."""

    @property
    def context(self) -> KeyContext:
        """Whose state the handles speak of."""
        ...

    def enter(self, key_group: int) -> None:
        """Turn to a key group of this shard; `context.key` must then be a key of that group."""
        ...

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """The handle of a value state."""
        ...

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """The handle of a list state."""
        ...

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """The handle of a map state."""
        ...

    def commit(self) -> Mapping[str, Cells]:
        """End the version: what changed in it, by state. It can be taken back until `settle`."""
        ...

    def rollback(self) -> bool:
        """Drop every change since the last commit; whether there was any."""
        ...

    def undo_commit(self) -> None:
        """Take the last commit back. Only once, and only before `settle`."""
        ...

    def settle(self) -> None:
        """The last commit is durable: it will not be taken back."""
        ...

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group, for a base. Only between versions."""
        ...

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put (or, for ABSENT, delete) cells as part of a restore, outside any version."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...
