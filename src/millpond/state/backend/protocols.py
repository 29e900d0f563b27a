"""The interface that every state backend, and every wrapper around one, implements.

A backend holds the state of one shard's key groups. It works in *versions*: a version is everything between two
commits. A commit gives a `Snapshot` of the version, and the last commit can be reverted. That is all an operator
needs, on Spark or without it:

- what a version changed becomes a delta;
- a snapshot is read and written while the next records flow;
- a batch that Spark did not accept is undone without reading anything again.

Invariant: between `commit` and the next change, the live state is exactly the committed version. A snapshot never
changes, whatever happens after its commit.

The value that a handle's `get` returns belongs to the caller until the key's call ends. A change to it (an element
added to a list, say) becomes state with the next `update`, and only then. Without an `update` the change is lost when
the version ends, if not sooner. It never reaches a snapshot of an earlier version. A value given to `update` may
become the state itself, so do not change it without another `update`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final, Protocol

import pyarrow as pa

from millpond.metrics import Recorder
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.timer_queue import TimersByTime
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.rows import Row


class _Absent:
    """The type of ABSENT, which marks a deleted cell: neither None nor any value a user can store."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __reduce__(self) -> str:
        """Stay the one object when copied or pickled."""
        return "ABSENT"


ABSENT: Final = _Absent()


class Appended(list[Any]):
    """Elements that were added to the end of a list. The elements before them stay."""

    __slots__ = ()


@dataclass
class Cells:
    """Many cells of one state, as parallel lists: what deltas and bases are made of.

    Attributes:
        key_groups: of each cell.
        keys: of each cell, a tuple.
        map_keys: of each cell of a map state, a tuple; None for the other kinds.
        values: a value that the state's codec checked, a list of such values for a list state, or ABSENT for a
            deleted cell. In the changes of a version, and so in a restore, a list that only grew may be `Appended`.
    """

    key_groups: list[int] = field(default_factory=list)
    keys: list[Row] = field(default_factory=list)
    map_keys: list[Row] | None = None
    values: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, first: int, count: int) -> "Cells":
        """Return `count` cells from `first` on, fewer at the end."""
        chosen = slice(first, first + count)
        return Cells(
            self.key_groups[chosen],
            self.keys[chosen],
            None if self.map_keys is None else self.map_keys[chosen],
            self.values[chosen],
        )

    def where(self, kept: Iterable[bool]) -> "Cells":
        """Return the cells for which `kept` is true.

        >>> Cells([7, 3], [("ann",), ("bob",)], None, [1, 2]).where([False, True])
        Cells(key_groups=[3], keys=[('bob',)], map_keys=None, values=[2])
        """
        kept = list(kept)
        return Cells(
            list(compress(self.key_groups, kept)),
            list(compress(self.keys, kept)),
            None if self.map_keys is None else list(compress(self.map_keys, kept)),
            list(compress(self.values, kept)),
        )


def cells_at(places: Sequence[tuple[int, Any]], values: Sequence[Any], *, is_map: bool) -> Cells:
    """Return cells from their key groups and names (see `RawCells`). A value of None means the cell is deleted.

    >>> cells_at([(7, ("ann",)), (3, ("bob",))], [1, None], is_map=False)
    Cells(key_groups=[7, 3], keys=[('ann',), ('bob',)], map_keys=None, values=[1, ABSENT])
    """
    cells = [cell for _, cell in places]
    return Cells(
        [key_group for key_group, _ in places],
        [cell[0] for cell in cells] if is_map else cells,
        [cell[1] for cell in cells] if is_map else None,
        [ABSENT if value is None else value for value in values],
    )


class ValueState(Protocol):
    """One value per key: a tuple under a schema, or an object of the declared type."""

    def exists(self) -> bool:
        """Return whether the current key has a value."""

    def get(self) -> Any:
        """Return the current key's value, or None."""

    def update(self, value: Any) -> None:
        """Set the current key's value. If it does not fit, the DataError names state and key."""

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        """Set the current key's value to what `change` returns for it (for None if none is set), and return that.

        `change` may use other states of the key, but must not make another key current. If it raises, or if its
        result does not fit, nothing changes.
        """

    def add(self, number: Any) -> Any:
        """Add to the current key's number, which is 0 if none is set. Return the sum.

        Raises:
            DataError: the number, or the sum, does not fit.
            OptionError: values of this state are neither int nor float.
        """

    def clear(self) -> None:
        """Delete the current key's value."""


class ListState(Protocol):
    """A list of values per key, in the order in which they were added."""

    def exists(self) -> bool:
        """Return whether the current key has a list."""

    def get(self) -> Iterator[Any]:
        """Iterate over the elements as they are now. Later changes do not reach this iterator."""

    def put(self, values: Iterable[Any]) -> None:
        """Replace the whole list."""

    def append(self, value: Any) -> None:
        """Add one element at the end."""

    def extend(self, values: Iterable[Any]) -> None:
        """Add several elements at the end. Adding none changes nothing: a key without a list still has none."""

    def clear(self) -> None:
        """Delete the current key's list."""


class MapState(Protocol):
    """A map from tuples to values per key. Each entry is read and written alone."""

    def exists(self) -> bool:
        """Return whether the current key has any entry."""

    def get(self, map_key: Row) -> Any:
        """Return the value of one entry, or None."""

    def contains(self, map_key: Row) -> bool:
        """Return whether the entry exists."""

    def put(self, map_key: Row, value: Any) -> None:
        """Set one entry."""

    def remove(self, map_key: Row) -> None:
        """Delete one entry."""

    def items(self) -> Iterator[tuple[Row, Any]]:
        """Iterate over the entries as they are now. Later changes do not reach this iterator."""

    def clear(self) -> None:
        """Delete every entry of the current key."""


class RawCells(Protocol):
    """Direct access to the cells of one state, past its handle: for a cache that keeps values, or for clean-up.

    A *cell* is named by its key, or by `(key, map_key)` for an entry of a map. No current key is needed, and the
    current key does not change. The values are the state's own objects: never change one, and never hand one to user
    code. Do not change a value after giving it.
    """

    def place(self, key_group: int, cell: Any, /) -> Any:
        """Return a cell's place in the backend's own terms: a true value, which `read` and `put_all` take."""

    def read(self, place: Any) -> Any:
        """Return a cell's value as it is now, or None."""

    def read_all(self, places: list[Any]) -> list[Any]:
        """Return the values of many cells as they are now, or None for each that is absent."""

    def put_all(self, places: list[Any], values: list[Any]) -> None:
        """Put (or, for None, delete) cells in the open version, all of them or none. The values are checked already."""

    def of_key(self, key_group: int, key: Row) -> Cells:
        """Return every cell of one key as it is now."""


class Snapshot(Protocol):
    """One committed version, readable from any thread while later versions are made.

    Taking a snapshot costs at most a few references per key group. `release` frees what it holds.
    """

    def states(self) -> Collection[str]:
        """Return the names of the states declared by then, empty ones included."""

    def changes(self) -> Iterator[tuple[str, Cells]]:
        """Yield what the version changed, by state. Each cell occurs once; a state comes in any number of pieces."""

    def changed_cells(self) -> Mapping[str, int] | None:
        """Return how many cells of each state the version changed; None if that takes reading their values.

        It is also None if lists only grew, for then the cells are more than what changed.
        """

    def cells(self, name: str, key_group: int) -> Cells:
        """Return every cell of a state in one key group as of this version."""

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Return the same as bytes, in the order of places; None if there are no bytes. See `RawCopies`."""

    def release(self) -> None:
        """Free what only this snapshot needed. Idempotent. The snapshot cannot be read afterwards."""


class ValueCache(Protocol):
    """A cache in front of one value state (`WriteBackCache`, `TwoLayerCache`), as `CachedValues` carries it."""

    def update_all_states(self) -> None:
        """Write every dirty entry to the state, and keep it in the cache."""

    def flush(self) -> None:
        """Do the same at the beginning of `commit`, and keep no value that a caller may still change."""

    def forget(self) -> None:
        """Drop every entry, dirty or not, because the state was undone or restored."""


class StateAccess(Protocol):
    """The state of one shard as it is now, through handles of the current key and past them."""

    @property
    def context(self) -> KeyContext:
        """The current key, and the time."""

    @property
    def shares_objects(self) -> bool:
        """Whether it keeps the very objects it is given. Then a writer that goes on using one must give a copy."""

    def enter(self, key_group: int) -> None:
        """Make a key group of this shard the current one. `context.key` must then be a key of that group."""

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """Return the handle of a value state."""

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """Return the handle of a list state."""

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """Return the handle of a map state."""

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Yield key group and key of every key that has this state now, each once.

        State may be changed during the iteration, above all that of the key yielded last. Whether keys that appear
        during the iteration are yielded is undefined.
        """

    def cells(self, name: str, key_group: int) -> Cells:
        """Return every cell of a state in one key group as it is now, with the changes of the open version."""

    def write(self, name: str, cells: Cells) -> None:
        """Put (or, for ABSENT, delete) cells in the open version, for any key. The values are checked already."""

    def raw(self, name: str) -> RawCells:
        """Return direct access to the cells of a declared state."""

    def timers_by_time(self, name: str, key_groups: range) -> TimersByTime:
        """Return the timers that a declared state holds now, in the order of time, with those of the open version.

        `name` is one of `TIMER_STATES`. A backend without an order of its own returns a queue filled from the state's
        cells.
        """


class Versions(Protocol):
    """The versions of a shard's state, from its restore to its end."""

    def commit(self) -> Snapshot:
        """End the version. It can be reverted until `acknowledge`. Afterwards no key is current."""

    def rollback(self) -> bool:
        """Drop every change since the last commit. Return whether there was any."""

    def undo_commit(self) -> None:
        """Revert the last commit. Only once, and only before `acknowledge` and before the next commit."""

    def acknowledge(self) -> None:
        """Take note that the last commit is durable: it will not be reverted."""

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put (or, for ABSENT, delete) cells as part of a restore, outside any version."""

    def close(self) -> None:
        """Free everything. Idempotent."""


class RawCopies(Protocol):
    """State as bytes, which checkpoints copy: for backends that keep bytes. Others inherit from `PlainBackend`."""

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Return every cell of a state in one key group as bytes, in the order of places; None if there are no bytes.

        Only between two versions.
        """

    def load_raw(self, descriptor: StateDescriptor, key_group: int, pairs: Iterable[Pair]) -> None:
        """Put cells as part of a restore, as bytes that any backend's `raw_cells` returned."""


class Reports(Protocol):
    """What a backend reports about itself."""

    def report_to(self, recorder: Recorder) -> None:
        """Report what the backend counts to a recorder."""

    def temperatures(self) -> pa.Table | None:
        """Return the map of key groups by temperature; None if the backend moves none."""


class KeyedStateBackend(StateAccess, Versions, RawCopies, Reports, Protocol):
    """The state of one shard.

    A custom backend inherits from `PlainBackend`, a wrapper around a backend from `ForwardingBackend`. Opening a
    backend that lacks a member raises an OptionError.
    """
