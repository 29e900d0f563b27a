"""The base class of every wrapper around a backend: each member forwards to the inner backend.

A wrapper inherits from it and overrides what it changes. So a member that the interface gains later is forwarded by
every wrapper, and none can forget one.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from millpond.metrics import Recorder
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.protocols import (
    Cells,
    KeyedStateBackend,
    ListState,
    MapState,
    RawCells,
    Snapshot,
    ValueState,
)
from millpond.state.backend.timer_queue import TimersByTime
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.rows import Row


class ForwardingBackend:
    """A `KeyedStateBackend` that forwards to another one.

    Args:
        inner: holds the state. Nothing else may use it from now on. It is closed with this one.

    >>> from millpond.state.spi import HeapBackend
    >>> class Counting(ForwardingBackend):
    ...     commits = 0
    ...
    ...     def commit(self):
    ...         self.commits += 1
    ...         return super().commit()
    >>> backend = Counting(HeapBackend(range(8)))
    >>> backend.commit().release()
    >>> backend.commits
    1
    """

    def __init__(self, inner: KeyedStateBackend) -> None:
        self._inner = inner

    @property
    def context(self) -> KeyContext:
        """The current key, and the time."""
        return self._inner.context

    @property
    def shares_objects(self) -> bool:
        """Whether it keeps the very objects it is given."""
        return self._inner.shares_objects

    def enter(self, key_group: int) -> None:
        """Enter a key group."""
        self._inner.enter(key_group)

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """Return the handle of a value state."""
        return self._inner.value_state(descriptor)

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """Return the handle of a list state."""
        return self._inner.list_state(descriptor)

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """Return the handle of a map state."""
        return self._inner.map_state(descriptor)

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Yield key group and key of every key that has this state now, each once."""
        return self._inner.keys(name)

    def cells(self, name: str, key_group: int) -> Cells:
        """Return every cell of a state in one key group as it is now."""
        return self._inner.cells(name, key_group)

    def write(self, name: str, cells: Cells) -> None:
        """Put or delete cells in the open version."""
        self._inner.write(name, cells)

    def raw(self, name: str) -> RawCells:
        """Return direct access to the cells of a declared state."""
        return self._inner.raw(name)

    def timers_by_time(self, name: str, key_groups: range) -> TimersByTime:
        """Return the timers that a state holds, in the order of time."""
        return self._inner.timers_by_time(name, key_groups)

    def commit(self) -> Snapshot:
        """End the version."""
        return self._inner.commit()

    def rollback(self) -> bool:
        """Drop every change since the last commit. Return whether there was any."""
        return self._inner.rollback()

    def undo_commit(self) -> None:
        """Revert the last commit, and what came after it."""
        self._inner.undo_commit()

    def acknowledge(self) -> None:
        """Take note that the last commit will not be reverted."""
        self._inner.acknowledge()

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells as part of a restore."""
        self._inner.load(descriptor, cells)

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Return every cell of a state in one key group as bytes; None if there are no bytes. Between two versions."""
        return self._inner.raw_cells(name, key_group)

    def load_raw(self, descriptor: StateDescriptor, key_group: int, pairs: Iterable[Pair]) -> None:
        """Put cells as part of a restore, given as bytes."""
        self._inner.load_raw(descriptor, key_group, pairs)

    def report_to(self, recorder: Recorder) -> None:
        """Report what the backend counts to a recorder."""
        self._inner.report_to(recorder)

    def temperatures(self) -> pa.Table | None:
        """Return the map of key groups by temperature, if the backend has one."""
        return self._inner.temperatures()

    def close(self) -> None:
        """Free everything, the inner backend included. Idempotent."""
        self._inner.close()
