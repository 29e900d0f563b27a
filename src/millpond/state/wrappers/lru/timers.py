"""The timers of keyed state behind an LRU cache: they bypass it and use the backend.

The backend keeps the order of timers, so it must know them all. Caching would gain little: a timer is looked up once
before it is set, and once when it fires.

Invariant: during each call of a handle here, the backend's current key is the cache's.
"""

# ruff: noqa: D102 - the protocols in backend/protocols.py say what the methods do
from collections.abc import Iterator
from typing import Any

from millpond.state.backend.current_key import no_current_key
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.protocols import KeyedStateBackend, MapState
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.rows import Row


class UncachedTimers:
    """A map state of the backend behind the cache. `changed` tells whether the open version has changed it."""

    __slots__ = ("_backend", "_context", "_state", "changed", "descriptor")

    def __init__(self, descriptor: StateDescriptor, backend: KeyedStateBackend, context: KeyContext) -> None:
        self.descriptor = descriptor
        self.changed = False
        self._backend = backend
        self._context = context
        self._state = backend.map_state(descriptor)

    def exists(self) -> bool:
        return self._turned().exists()

    def get(self, map_key: Row) -> Any:
        return self._turned().get(map_key)

    def contains(self, map_key: Row) -> bool:
        return self._turned().contains(map_key)

    def put(self, map_key: Row, value: Any) -> None:
        self.changed = True
        self._turned().put(map_key, value)

    def remove(self, map_key: Row) -> None:
        self.changed = True
        self._turned().remove(map_key)

    def items(self) -> Iterator[tuple[Row, Any]]:
        return self._turned().items()

    def clear(self) -> None:
        self.changed = True
        self._turned().clear()

    def _turned(self) -> MapState:
        """Make the current key the backend's, and return the backend's handle."""
        ours, theirs = self._context, self._backend.context
        if ours.key_group < 0:
            raise no_current_key(f"state {self.descriptor.name!r}")
        if theirs.key_group != ours.key_group:
            self._backend.enter(ours.key_group)
        theirs.key = ours.key
        return self._state
