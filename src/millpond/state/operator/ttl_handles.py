"""Handles of states with a TTL: they stamp what is written and hide what has expired.

Each wraps a backend's handle whose values are pairs `(value, alive_since_ms)`. The time is the context's. A write
begins a new life, whatever was there. A read does so only for a living value, and only if the Ttl says so.

Invariant: a value that a read returned becomes state only if the user writes it. A refresh writes back objects that the
handle itself read. So if they could be changed in place, the handle hands out copies.
"""

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any

from millpond.state.backend.expiry import Sweep
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.protocols import KeyedStateBackend, ListState, MapState, ValueState
from millpond.state.backend.sums import PlainValue, Sums
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.rows import Row
from millpond.state.types.ttl import Ttl

_Stamped = tuple[Any, int]


class _Lives:
    """What the handles share: what is alive and visible, and what an access does besides. Made once it is declared."""

    __slots__ = ("context", "outward", "refreshes", "shows_expired", "sweep", "ttl")

    def __init__(self, backend: KeyedStateBackend, descriptor: StateDescriptor, ttl: Ttl) -> None:
        self.ttl = ttl
        self.context: KeyContext = backend.context
        self.refreshes = ttl.refresh == "read-and-write"
        self.shows_expired = ttl.visibility == "until-cleaned"
        self.sweep = Sweep(backend, descriptor.name, ttl) if "incremental" in ttl.clean_up else None
        codec = descriptor.codec(descriptor.name)
        copies = codec.mutable and self.refreshes
        self.outward: Callable[[_Stamped], Any] = (lambda stamped: codec.copy(stamped)[0]) if copies else itemgetter(0)

    def alive(self, stamped: _Stamped) -> bool:
        return not self.ttl.expired(stamped[1], self.context.now_ms)

    def visible(self, stamped: _Stamped) -> bool:
        return self.shows_expired or self.alive(stamped)

    def is_due(self, stamped: _Stamped) -> bool:
        """Return whether reading this begins a new life."""
        return self.refreshes and stamped[1] < self.context.now_ms and self.alive(stamped)

    def refreshed(self, stamped: _Stamped) -> _Stamped:
        return stamped[0], self.context.now_ms

    def swept(self) -> None:
        """Sweep after an access, not before it: an access must fail first if no key is current."""
        if self.sweep is not None:
            self.sweep()


class TtlValue(PlainValue):
    """A value state whose value expires."""

    __slots__ = ("_inner", "_lives", "_sums", "descriptor")
    adds = "a ttl"

    def __init__(self, backend: KeyedStateBackend, descriptor: StateDescriptor, ttl: Ttl) -> None:
        self.descriptor = descriptor
        self._inner: ValueState = backend.value_state(descriptor)
        self._lives = _Lives(backend, descriptor, ttl)
        self._sums = Sums.of_values(descriptor, backend.context)

    def exists(self) -> bool:
        """Return whether the current key has a visible value."""
        stamped = self._inner.get()
        self._lives.swept()
        return stamped is not None and self._lives.visible(stamped)

    def get(self) -> Any:
        """Return the current key's value, or None if none is visible."""
        stamped, lives = self._inner.get(), self._lives
        if stamped is not None and lives.is_due(stamped):
            self._inner.update(lives.refreshed(stamped))
        lives.swept()
        return lives.outward(stamped) if stamped is not None and lives.visible(stamped) else None

    def update(self, value: Any) -> None:
        """Set the current key's value. Its life begins now."""
        self._inner.update((value, self._lives.context.now_ms))
        self._lives.swept()

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        """Set the value to what `change` returns for the living value. One that expired counts as None."""
        lives = self._lives

        def changed(stamped: _Stamped | None) -> _Stamped:
            alive = stamped if stamped is not None and lives.alive(stamped) else None
            return change(None if alive is None else lives.outward(alive)), lives.context.now_ms

        value = self._inner.update_with(changed)[0]
        lives.swept()
        return value

    def clear(self) -> None:
        """Delete the current key's value."""
        self._inner.clear()


class TtlList:
    """A list state whose elements expire one by one. It exists while an element is visible."""

    __slots__ = ("_inner", "_lives")

    def __init__(self, backend: KeyedStateBackend, descriptor: StateDescriptor, ttl: Ttl) -> None:
        self._inner: ListState = backend.list_state(descriptor)
        self._lives = _Lives(backend, descriptor, ttl)

    def exists(self) -> bool:
        """Return whether the current key has a visible element."""
        found = any(map(self._lives.visible, self._inner.get()))
        self._lives.swept()
        return found

    def get(self) -> Iterator[Any]:
        """Iterate over the visible elements as they are now. Later changes do not reach this iterator."""
        lives, elements = self._lives, list(self._inner.get())
        if any(map(lives.is_due, elements)):
            self._inner.put(lives.refreshed(stamped) if lives.is_due(stamped) else stamped for stamped in elements)
        seen = [lives.outward(stamped) for stamped in elements if lives.visible(stamped)]
        lives.swept()
        return iter(seen)

    def put(self, values: Iterable[Any]) -> None:
        """Replace the whole list. The life of every element begins now. Without elements there is no list."""
        stamped = self._stamped(values)
        if stamped:
            self._inner.put(stamped)
        else:
            self._inner.clear()
        self._lives.swept()

    def append(self, value: Any) -> None:
        """Add one element at the end. Its life begins now; that of the others goes on."""
        self._inner.append((value, self._lives.context.now_ms))
        self._lives.swept()

    def extend(self, values: Iterable[Any]) -> None:
        """Add several elements at the end."""
        stamped = self._stamped(values)
        if stamped:
            self._inner.extend(stamped)
        self._lives.swept()

    def clear(self) -> None:
        """Delete the current key's list."""
        self._inner.clear()

    def _stamped(self, values: Iterable[Any]) -> list[_Stamped]:
        now_ms = self._lives.context.now_ms
        return [(value, now_ms) for value in values]


class TtlMap:
    """A map state whose entries expire one by one. It exists while an entry is visible."""

    __slots__ = ("_inner", "_lives")

    def __init__(self, backend: KeyedStateBackend, descriptor: StateDescriptor, ttl: Ttl) -> None:
        self._inner: MapState = backend.map_state(descriptor)
        self._lives = _Lives(backend, descriptor, ttl)

    def exists(self) -> bool:
        """Return whether the current key has a visible entry."""
        found = any(self._lives.visible(stamped) for _, stamped in self._inner.items())
        self._lives.swept()
        return found

    def get(self, map_key: Row) -> Any:
        """Return the value of one entry, or None if none is visible."""
        stamped, lives = self._inner.get(map_key), self._lives
        if stamped is not None and lives.is_due(stamped):
            self._inner.put(map_key, lives.refreshed(stamped))
        lives.swept()
        return lives.outward(stamped) if stamped is not None and lives.visible(stamped) else None

    def contains(self, map_key: Row) -> bool:
        """Return whether the entry exists and is visible."""
        stamped = self._inner.get(map_key)
        self._lives.swept()
        return stamped is not None and self._lives.visible(stamped)

    def put(self, map_key: Row, value: Any) -> None:
        """Set one entry. Its life begins now."""
        self._inner.put(map_key, (value, self._lives.context.now_ms))
        self._lives.swept()

    def remove(self, map_key: Row) -> None:
        """Delete one entry."""
        self._inner.remove(map_key)

    def items(self) -> Iterator[tuple[Row, Any]]:
        """Iterate over the visible entries as they are now. Later changes do not reach this iterator."""
        lives, entries = self._lives, list(self._inner.items())
        if lives.refreshes:
            for map_key, stamped in entries:
                if lives.is_due(stamped):
                    self._inner.put(map_key, lives.refreshed(stamped))
        seen = [(map_key, lives.outward(stamped)) for map_key, stamped in entries if lives.visible(stamped)]
        lives.swept()
        return iter(seen)

    def clear(self) -> None:
        """Delete every entry of the current key."""
        self._inner.clear()
