"""Timers: moments at which a key wants to be called, kept as durably as its state.

A key's timers are a map state of their own (expiry in ms -> true; `$timers`, or `$processing_timers` for
those that wait for processing time), so they travel in the same deltas and bases and are undone with the
same rollbacks. Beside it stands a priority queue over all keys, which answers what is due without looking
at every key. It is built from the live cells, the open version's included, so it is right at any time and
on any backend.

Invariant: every timer in the state is in the queue, once it is built. The reverse need not hold: an
entry whose timer was deleted is passed over when it comes up. After an undo or a restore the queue is
thrown away and built again from the state when it is next asked.

Times are event or processing time, in ms, as the operator's time mode says; this module does not care.
"""

import heapq
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa

from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.rows import Row

TIMERS = StateDescriptor(
    name="$timers",
    kind=StateKind.MAP,
    value_schema=pa.schema([("set", pa.bool_())]),
    map_key_schema=pa.schema([("expiry_ms", pa.int64())]),
)

PROCESSING_TIMERS = StateDescriptor(
    name="$processing_timers",
    kind=TIMERS.kind,
    value_schema=TIMERS.value_schema,
    map_key_schema=TIMERS.map_key_schema,
)

TIMER_STATES = (TIMERS.name, PROCESSING_TIMERS.name)
"""The names of the states that hold timers."""


class DueTimer(NamedTuple):
    """A timer whose time has come."""

    expiry_ms: int
    key_group: int
    key: Row


class Timers:
    """The timers of one shard. `register`, `delete` and `of_key` speak of the backend's current key."""

    def __init__(self, backend: KeyedStateBackend, key_groups: range, descriptor: StateDescriptor = TIMERS) -> None:
        self._backend = backend
        self._key_groups = key_groups
        self._name = descriptor.name
        self._state = backend.map_state(descriptor)
        self._order = itertools.count()
        self._queue: list[tuple[int, int, int, Row]] | None = None

    def register(self, expiry_ms: int) -> None:
        """Set a timer of the current key. Setting it twice sets it once."""
        if not self._state.contains((expiry_ms,)):
            self._state.put((expiry_ms,), (True,))
            if self._queue is not None:
                context = self._backend.context
                heapq.heappush(self._queue, (expiry_ms, next(self._order), context.key_group, context.key))

    def delete(self, expiry_ms: int) -> None:
        """Forget a timer of the current key."""
        self._state.remove((expiry_ms,))

    def of_key(self) -> Iterator[int]:
        """The current key's timers, in ms, in their order."""
        return iter(sorted(expiry for (expiry,), _ in self._state.items()))

    def due(self, limit_ms: int) -> list[DueTimer]:
        """Every timer at or before the limit, in the order of time. They stay set until they are deleted."""
        queue = self._built()
        # A timer that was deleted and set again stands in the queue twice.
        found: dict[DueTimer, None] = {}
        with self._current_key_kept():
            while queue and queue[0][0] <= limit_ms:
                expiry, _, key_group, key = heapq.heappop(queue)
                if self._is_set(expiry, key_group, key):
                    found[DueTimer(expiry, key_group, key)] = None
        for timer in found:
            heapq.heappush(queue, (timer.expiry_ms, next(self._order), timer.key_group, timer.key))
        return list(found)

    def next_expiry_ms(self) -> int | None:
        """The earliest timer, or None."""
        queue = self._built()
        with self._current_key_kept():
            while queue and not self._is_set(queue[0][0], queue[0][2], queue[0][3]):
                heapq.heappop(queue)
        return queue[0][0] if queue else None

    def forget_queue(self) -> None:
        """The state was undone or restored: build the queue anew when it is next asked."""
        self._queue = None

    @contextmanager
    def _current_key_kept(self) -> Iterator[None]:
        """Whoever asks goes on with the key it had, if it had one."""
        context = self._backend.context
        key_group, key = context.key_group, context.key
        yield
        if key_group >= 0:
            self._backend.enter(key_group)
            context.key = key

    def _is_set(self, expiry_ms: int, key_group: int, key: Row) -> bool:
        self._backend.enter(key_group)
        self._backend.context.key = key
        return self._state.contains((expiry_ms,))

    def _built(self) -> list[tuple[int, int, int, Row]]:
        if self._queue is None:
            self._queue = [
                (map_key[0], next(self._order), key_group, key)
                for group in self._key_groups
                for cells in (self._backend.cells(self._name, group),)
                for key_group, key, map_key in zip(cells.key_groups, cells.keys, cells.map_keys or (), strict=True)
            ]
            heapq.heapify(self._queue)
        return self._queue
