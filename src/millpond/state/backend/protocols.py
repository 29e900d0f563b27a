"""The one interface that every state backend, and every wrapper around one, implements.

A backend holds the state of the key groups of one shard. It works in *versions*: everything between
two commits is one version, a commit gives a `Snapshot` of it, and one committed version can be taken
back. That is all an operator needs, on Spark or off it: what a version changed becomes a delta, a
snapshot is read and written while the next records flow, and a batch that Spark did not accept is
undone without reading anything again.

Invariant: between `commit` and the next change, the live state is exactly the committed version; a
snapshot never changes, whatever happens after its commit.

What a handle's `get` returns belongs to the caller until the key's call ends. Changing it (adding to a
list, say) becomes state with the next `update`, and only then: without one the change is gone at the
latest when the version ends. It never reaches a snapshot of an earlier version. What was given to
`update` may be the state itself from then on, so change it no more without another `update`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from millpond.metrics import Recorder
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.timer_queue import TimersByTime
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.rows import Row


class _Absent:
    """The sign of a cell that is not there: neither None nor any value a user can store."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __reduce__(self) -> str:
        """Copied or pickled, it is still the one object."""
        return "ABSENT"


ABSENT: Final = _Absent()


class Appended(list[Any]):
    """Elements that were added to the end of a list state's list. What was in the list before stays."""

    __slots__ = ()


@dataclass
class Cells:
    """Many cells of one state, as parallel lists: what deltas and bases are made of.

    Attributes:
        key_groups: of each cell.
        keys: of each cell, a tuple.
        map_keys: of each cell of a map state, a tuple; None for the other kinds.
        values: what the state's codec checked, for a list state a list of that, or ABSENT where the cell was deleted.
            Among the changes of a version, and so in what a restore loads, a list that only grew may be `Appended`.
    """

    key_groups: list[int] = field(default_factory=list)
    keys: list[Row] = field(default_factory=list)
    map_keys: list[Row] | None = None
    values: list[Any] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def part(self, first: int, count: int) -> "Cells":
        """The `count` cells from the first on, fewer at the end."""
        chosen = slice(first, first + count)
        return Cells(
            self.key_groups[chosen],
            self.keys[chosen],
            None if self.map_keys is None else self.map_keys[chosen],
            self.values[chosen],
        )


def cells_at(places: Sequence[tuple[int, Any]], values: Sequence[Any], *, is_map: bool) -> Cells:
    """Cells of which key group and cell (see `RawCells`) are known; None of a value says that it is deleted.

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


class KeyContext:
    """Whose state the handles speak of, and what time it is.

    The backend's `enter` sets `key_group`; the operator assigns `key` before it calls user code, and
    `now_ms`, the time of the batch or record by which TTL is judged.
    """

    __slots__ = ("key", "key_group", "now_ms")

    def __init__(self) -> None:
        self.key: Row = ()
        self.key_group = -1
        self.now_ms = 0


class ValueState(Protocol):
    """One value per key: a tuple under a schema, or an object of the declared type."""

    def exists(self) -> bool:
        """Whether the current key has a value."""
        ...

    def get(self) -> Any:
        """The current key's value, or None."""
        ...

    def update(self, value: Any) -> None:
        """Set the current key's value. A DataError names state and key when it does not fit."""
        ...

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        """Set the current key's value to what `change` makes of it (of None where there is none), and return that.

        `change` may use other states of the key; it must not make another key current. If it raises, or what it gives
        does not fit, nothing has changed.
        """
        ...

    def add(self, number: Any) -> Any:
        """Add to the current key's number, which is 0 where there is none; the sum.

        Raises:
            DataError: the number, or the sum, does not fit.
            OptionError: values of this state are neither int nor float.
        """
        ...

    def clear(self) -> None:
        """Forget the current key's value."""
        ...


class ListState(Protocol):
    """A list of values per key, in the order they were added."""

    def exists(self) -> bool:
        """Whether the current key has a list."""
        ...

    def get(self) -> Iterator[Any]:
        """The elements as they are now; later changes do not reach this iterator."""
        ...

    def put(self, values: Iterable[Any]) -> None:
        """Replace the whole list."""
        ...

    def append(self, value: Any) -> None:
        """Add one element at the end."""
        ...

    def extend(self, values: Iterable[Any]) -> None:
        """Add several elements at the end. None at all change nothing: a key without a list still has none."""
        ...

    def clear(self) -> None:
        """Forget the current key's list."""
        ...


class MapState(Protocol):
    """A map from tuples to values per key; each entry is read and written alone."""

    def exists(self) -> bool:
        """Whether the current key has any entry."""
        ...

    def get(self, map_key: Row) -> Any:
        """The value of one entry, or None."""
        ...

    def contains(self, map_key: Row) -> bool:
        """Whether there is such an entry."""
        ...

    def put(self, map_key: Row, value: Any) -> None:
        """Set one entry."""
        ...

    def remove(self, map_key: Row) -> None:
        """Forget one entry."""
        ...

    def items(self) -> Iterator[tuple[Row, Any]]:
        """The entries as they are now; later changes do not reach this iterator."""
        ...

    def clear(self) -> None:
        """Forget every entry of the current key."""
        ...


class RawCells(Protocol):
    """The cells of one state past its handle: for a cache, or a clean-up, that keeps or judges values itself.

    A *cell* is named by its key, or for a map's entry by `(key, map_key)`. No key need be current, and none is
    afterwards that was not before. Values are the state's own: whoever reads one neither changes it nor hands it to
    user code, who gives one does not change it any more.
    """

    def place(self, key_group: int, cell: Any, /) -> Any:
        """Where a cell lies, in the backend's own terms: something true, that `read` and `put_all` take."""
        ...

    def read(self, place: Any) -> Any:
        """A cell's value as it is now; None where there is none."""
        ...

    def read_all(self, places: list[Any]) -> list[Any]:
        """The same of many cells."""
        ...

    def put_all(self, places: list[Any], values: list[Any]) -> None:
        """Put (or, for None, delete) cells in the open version, all of them or none. They were checked."""
        ...

    def of_key(self, key_group: int, key: Row) -> Cells:
        """Every cell of one key as it is now."""
        ...


class Snapshot(Protocol):
    """One committed version, readable from any thread while later versions are made.

    Taking it costs no more than a few references a key group; what it holds on to goes with `release`.
    """

    def states(self) -> Collection[str]:
        """The names of the states that were declared by then, the empty ones too."""
        ...

    def changes(self) -> Iterator[tuple[str, Cells]]:
        """What the version changed, by state, a cell once; a state may come in several pieces, or not at all."""
        ...

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group as of this version."""
        ...

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """The same as bytes, in the order of places; None where they are not at hand as such. See `RawCopies`."""
        ...

    def release(self) -> None:
        """Let go of what only this snapshot needed. Idempotent; the snapshot cannot be read afterwards."""
        ...


class ValueCache(Protocol):
    """A cache in front of one value state (`WriteBackCache`, `TwoLayerCache`), as `CachedValues` carries it."""

    def update_all_states(self) -> None:
        """Write every dirty entry to the state, and keep it."""
        ...

    def flush(self) -> None:
        """The same at the beginning of `commit`, and keep nothing that a caller may go on to change."""
        ...

    def forget(self) -> None:
        """Drop every entry, dirty or not: the state was undone or restored."""
        ...


class StateAccess(Protocol):
    """The state of one shard, as it is now: by handles of the current key, and past them."""

    @property
    def context(self) -> KeyContext:
        """Whose state the handles speak of."""
        ...

    @property
    def shares_objects(self) -> bool:
        """Whether it keeps the very objects it was given, so that a writer who goes on using one must give a copy."""
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

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Key group and key of every key that has this state now, each once.

        State may be changed meanwhile, that of the key last given above all; whether keys that appear
        meanwhile are given is open.
        """
        ...

    def cells(self, name: str, key_group: int) -> Cells:
        """Every cell of a state in one key group as it is now, the open version included."""
        ...

    def write(self, name: str, cells: Cells) -> None:
        """Put (or, for ABSENT, delete) cells in the open version, whatever the current key. They were checked."""
        ...

    def raw(self, name: str) -> RawCells:
        """The cells of a declared state past its handle."""
        ...

    def timers_by_time(self, name: str, key_groups: range) -> TimersByTime:
        """The timers that a declared state holds now, the open version's included, in the order of time.

        `name` is one of `TIMER_STATES`. A backend without an order of its own gives a queue that it fills from the
        state's cells.
        """
        ...


class Versions(Protocol):
    """The versions of a shard's state, from its restore to its end."""

    def commit(self) -> Snapshot:
        """End the version. It can be taken back until `acknowledge`. Afterwards no key is current."""
        ...

    def rollback(self) -> bool:
        """Drop every change since the last commit; whether there was any."""
        ...

    def undo_commit(self) -> None:
        """Take the last commit back. Only once, and only before `acknowledge` and before the next commit."""
        ...

    def acknowledge(self) -> None:
        """The last commit is durable: it will not be taken back."""
        ...

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put (or, for ABSENT, delete) cells as part of a restore, outside any version."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...


class RawCopies(Protocol):
    """State as bytes, for checkpoints to copy: of backends that keep bytes. The others inherit `PlainBackend`'s."""

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Every cell of a state in one key group as bytes, in the order of places; None where they are not as such.

        Only between two versions.
        """
        ...

    def load_raw(self, descriptor: StateDescriptor, key_group: int, pairs: Iterable[Pair]) -> None:
        """Put cells that are bytes as part of a restore, as any backend's `raw_cells` gave them."""
        ...


class Reports(Protocol):
    """What a backend tells of itself."""

    def report_to(self, recorder: Recorder) -> None:
        """Have a recorder hear of what the backend counts."""
        ...

    def temperatures(self) -> pa.Table | None:
        """The map of key groups by temperature; None from a backend that moves none."""
        ...


class KeyedStateBackend(StateAccess, Versions, RawCopies, Reports, Protocol):
    """The state of one shard.

    A backend of your own inherits from `PlainBackend`, a wrapper around one from `ForwardingBackend`. A backend that
    lacks a member is refused when it is opened.
    """
