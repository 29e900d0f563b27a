"""What of a state with a time to live is still alive, and finding the rest a few cells at a time.

Expiry is a function of a cell and the time alone: reading changes nothing. So expired values may lie
about for a while, and each way of removing them (leaving them out of a snapshot, removing what a base
left out, the sweep below) is free to come early or late, or not at all, without anybody who sees only
living values noticing.
"""

from collections.abc import Iterator
from itertools import compress
from typing import Any

from millpond.state.backend.protocols import ABSENT, Cells, KeyedStateBackend
from millpond.state.types.descriptor import StateKind
from millpond.state.types.rows import Row
from millpond.state.types.ttl import Ttl

CELLS_PER_ACCESS = 5
"""How many cells each access to a state looks at, where it is cleaned incrementally. Flink's number."""


def alive(cells: Cells, ttl: Ttl, now_ms: int) -> Cells:
    """The cells of a state with a TTL without what has expired by now: what a full snapshot keeps.

    A list is judged element by element, and is gone when none is left. Deleted cells stay deleted cells.
    """
    born_before = now_ms - ttl.duration_ms  # born then or earlier: expired
    values = [_alive(value, born_before) for value in cells.values]
    kept = [value is not None for value in values]
    if all(kept):
        return Cells(cells.key_groups, cells.keys, cells.map_keys, values)
    return Cells(
        list(compress(cells.key_groups, kept)),
        list(compress(cells.keys, kept)),
        None if cells.map_keys is None else list(compress(cells.map_keys, kept)),
        list(compress(values, kept)),
    )


def removals(cells: Cells, ttl: Ttl, now_ms: int) -> Cells:
    """What a backend must write to be rid of what has expired of these cells by now: nothing of those that live whole.

    >>> removals(Cells([0, 0], [("ann",), ("bob",)], None, [("old", 90), ("young", 91)]), Ttl(10), now_ms=100)
    Cells(key_groups=[0], keys=[('ann',)], map_keys=None, values=[ABSENT])
    """
    born_before = now_ms - ttl.duration_ms
    values = [_alive(value, born_before) for value in cells.values]
    touched = [living is not value for living, value in zip(values, cells.values, strict=True)]
    return Cells(
        list(compress(cells.key_groups, touched)),
        list(compress(cells.keys, touched)),
        None if cells.map_keys is None else list(compress(cells.map_keys, touched)),
        [ABSENT if living is None else living for living in compress(values, touched)],
    )


def _alive(value: Any, born_before: int) -> Any:
    if value is ABSENT:
        return value
    if type(value) is list:
        living = [stamped for stamped in value if stamped[1] > born_before]
        return value if len(living) == len(value) > 0 else living or None
    return value if value[1] > born_before else None


def without_times(cells: Cells, kind: StateKind) -> Cells:
    """Cells of a state with a TTL as users know them: values without the times at which their lives began."""
    if kind is StateKind.LIST:
        values = [[value for value, _ in elements] for elements in cells.values]
    else:
        values = [value for value, _ in cells.values]
    return Cells(cells.key_groups, cells.keys, cells.map_keys, values)


class Sweep:
    """Removes a state's expired values with every access to it, a few cells at a time.

    A cursor goes round the keys of the state. What belongs to one key is looked at as a whole; if that is more
    than was due, as many of the next accesses look at nothing, so that the work per access is bounded on average.
    One round is made per time, since until time moves on nothing more expires.

    It looks past the handle: the current key stays, and a cache neither counts what is looked at nor makes room for it.
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
        """Look at what is due."""
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
