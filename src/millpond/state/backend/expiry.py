"""Which values of a state with a TTL are alive, and a sweep that removes expired ones a few cells at a time.

Invariant: whether a value has expired depends on its cell and the time alone, and reading changes nothing. So
expired values may stay in the state for a while. There are three ways to remove them: a snapshot leaves them out,
what a base left out is removed, and the sweep below. Each may run early, late or never, and a reader of living
values sees no difference.
"""

from collections.abc import Iterator
from dataclasses import replace
from operator import is_not
from typing import Any

from millpond.state.backend.protocols import ABSENT, Cells, KeyedStateBackend
from millpond.state.types.descriptor import StateKind
from millpond.state.types.rows import Row
from millpond.state.types.ttl import Ttl

CELLS_PER_ACCESS = 5
"""Number of cells that each access to a state checks under incremental clean-up. Flink's number."""


def alive(cells: Cells, ttl: Ttl, now_ms: int) -> Cells:
    """Return the cells of a state with a TTL that have not expired by `now_ms`: what a full snapshot keeps.

    List elements expire one by one; a list without living elements is left out. Deleted cells stay deleted cells.
    """
    born_before = now_ms - ttl.duration_ms  # born then or earlier: expired
    values = [_alive(value, born_before) for value in cells.values]
    kept = [value is not None for value in values]
    living = replace(cells, values=values)
    return living if all(kept) else living.where(kept)


def removals(cells: Cells, ttl: Ttl, now_ms: int) -> Cells:
    """Return the writes that remove what has expired of these cells by `now_ms`. Cells that live whole are left out.

    >>> removals(Cells([0, 0], [("ann",), ("bob",)], None, [("old", 90), ("young", 91)]), Ttl(10), now_ms=100)
    Cells(key_groups=[0], keys=[('ann',)], map_keys=None, values=[ABSENT])
    """
    born_before = now_ms - ttl.duration_ms
    values = [_alive(value, born_before) for value in cells.values]
    left = replace(cells, values=[ABSENT if living is None else living for living in values])
    return left.where(map(is_not, values, cells.values))


def _alive(value: Any, born_before: int) -> Any:
    if value is ABSENT:
        return value
    if type(value) is list:
        living = [stamped for stamped in value if stamped[1] > born_before]
        return value if len(living) == len(value) > 0 else living or None
    return value if value[1] > born_before else None


def without_times(cells: Cells, kind: StateKind) -> Cells:
    """Return cells of a state with a TTL as users know them: values without the time at which their life began."""
    if kind is StateKind.LIST:
        values = [[value for value, _ in elements] for elements in cells.values]
    else:
        values = [value for value, _ in cells.values]
    return replace(cells, values=values)


class Sweep:
    """Removes a state's expired values a few cells at a time, with every access to the state.

    A cursor goes round the keys of the state. All cells of one key are checked together. If they are more than were
    due, the next accesses check nothing, so the work per access is bounded on average. There is one round per
    time: until `now_ms` advances, nothing more expires.

    The sweep bypasses the handle. So the current key stays, and a cache neither counts these reads nor makes room
    for them.
    """

    def __init__(self, backend: KeyedStateBackend, name: str, ttl: Ttl) -> None:
        self._backend = backend
        self._name = name
        self._ttl = ttl
        self._raw = backend.raw(name)
        self._round: Iterator[tuple[int, Row]] | None = None
        self._round_ms: int | None = None
        self._due = 0

    def __call__(self) -> None:
        """Check the cells that are due."""
        now_ms = self._backend.context.now_ms
        if self._round is None:
            if self._round_ms == now_ms:
                return
            self._round, self._round_ms = self._backend.keys(self._name), now_ms
        self._due += CELLS_PER_ACCESS
        if self._due > 0:
            self._go_on(self._round, now_ms)

    def _go_on(self, keys: Iterator[tuple[int, Row]], now_ms: int) -> None:
        for key_group, key in keys:
            cells = self._raw.of_key(key_group, key)
            gone = removals(cells, self._ttl, now_ms)
            if len(gone):
                self._backend.write(self._name, gone)
            self._due -= max(1, sum(len(value) if type(value) is list else 1 for value in cells.values))
            if self._due <= 0:
                return
        self._round, self._due = None, 0
