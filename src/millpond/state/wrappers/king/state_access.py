"""Access to one value state below King's caches: reads and writes of any key, with the user's hooks around them.

`WriteBackCache` and `TwoLayerCache` differ in what they keep and when they write. What a read and a write are is the
same for both, and is here: enter the key, run the hook, run the watch, copy the value if the backend would otherwise
share the user's object, and return to the key that was current.

Invariant: after `write`, whether it raised or not, the current key is the one from before. An entry is clean, and no
longer in `dirty`, only if its value reached the state.

A change that a caller makes to a value in place becomes state only with an update. So two objects are kept apart: an
entry's value, and the object *given* by the key's last update or handed out since, which later reads of the version
return. A clean value that can be changed is handed out itself, to spare a copy. It is then *lent*: it is dropped at
the end of its version. Both are noted by key, so the end of a version costs by what it touched, not by what is cached.

Source: King's flink-state-cache, which defined these hooks, trackers and watches.
"""

import datetime as dt
import decimal
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import islice
from typing import Any, Protocol, TypeAlias, TypedDict

from millpond.cache import Cache
from millpond.errors import DataError, OptionError
from millpond.state.backend.current_key import Who, no_current_key
from millpond.state.backend.protocols import RawCells, StateAccess, ValueCache, ValueState
from millpond.state.backend.sums import Sums
from millpond.state.types.rows import Row

Where: TypeAlias = tuple[int, Row]
"""A key group and a key of it: the keys of the caches' maps."""

Hook: TypeAlias = Callable[[Row, Any], Any]
"""Gets a key and its value (None if there is none). Returns the value to use instead."""

HitTracker: TypeAlias = Callable[[bool], object]
"""Called at each read with whether the layer had the key."""

_WRITTEN_TOGETHER = 64

_UNCHANGEABLE = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        dt.date,
        dt.datetime,
        dt.time,
        dt.timedelta,
        decimal.Decimal,
    }
)


class Carrier(StateAccess, Protocol):
    """A backend that carries caches and flushes them, such as `CachedValues`."""

    def attach(self, cache: ValueCache) -> None:
        """Carry a cache from now on."""


class Watch(Protocol):
    """A stopwatch that records its measurements in the user's metrics."""

    def restart(self) -> None:
        """Start: the state is about to be read or written."""

    def stop_and_record(self) -> None:
        """Stop and record: the read or write succeeded. Not called if it raised."""


class Watching(TypedDict, total=False):
    """The functions that a user gives to either cache. `WriteBackCache` explains each."""

    on_get: Hook | None
    on_update: Hook | None
    read_watch: Watch | None
    write_watch: Watch | None
    copy: Callable[[Any], Any] | None
    raw: RawCells | None


class Entry:
    """One cached value. None means that the key has none."""

    __slots__ = ("dirty", "value")

    def __init__(self, value: Any, *, dirty: bool) -> None:
        self.value = value
        self.dirty = dirty


class WatchedState:
    """A value state below a cache. The caches' docstrings explain the arguments."""

    def __init__(
        self,
        backend: Carrier,
        state: ValueState,
        *,
        on_get: Hook | None = None,
        on_update: Hook | None = None,
        read_watch: Watch | None = None,
        write_watch: Watch | None = None,
        copy: Callable[[Any], Any] | None = None,
        raw: RawCells | None = None,
    ) -> None:
        if not hasattr(backend, "attach"):
            raise OptionError(
                f"a state cache needs a backend that carries it, got {type(backend).__name__}: wrap the backend of its "
                "state, CachedValues(backend), and use that from then on."
            )
        if state is None:
            raise OptionError("a state cache needs a state, got None: pass what backend.value_state(...) returned.")
        self._backend = backend
        self._context = backend.context
        self._state = state
        self._on_get = on_get
        self._on_update = on_update
        self._read_watch = read_watch
        self._write_watch = write_watch
        self.dirty: dict[Where, Entry] = {}
        self._given: dict[Where, Any] = {}
        self._lent: set[Where] = set()
        self._spent: list[Any] = []
        descriptor = getattr(state, "descriptor", None)
        adds = getattr(state, "adds", None)
        if descriptor is not None and adds is not None:
            raise OptionError(
                f"state {descriptor.name!r} has {adds}, which a cache in front of it would hide. Let the cache stand "
                "below it: give it with the declaration, states.value(..., cache=WriteBack(max_size=...))."
            )
        self._name = "a cached state" if descriptor is None else f"state {descriptor.name!r}"
        self._who = Who(self._name, self._context)
        self._is_mutable: Callable[[Any], bool]
        if descriptor is None:
            self._check, self._private = _as_it_is, deepcopy
            self._is_mutable, self._gives_back = can_change, False
        else:
            codec = descriptor.codec(self._who)
            self._check, self._private = codec.check, codec.copy
            self._is_mutable = _is_value if codec.mutable else _never
            # The handle of a state with a TTL creates new pairs, and the check of tuples creates new tuples.
            self._gives_back = codec.mutable and descriptor.serializer is not None and descriptor.ttl is None
        self.sums = Sums(descriptor, self._check)
        self._raw = raw
        # A state with a descriptor copies a mutable object that it is given by itself.
        self._copy = (copy or (deepcopy if descriptor is None else None)) if backend.shares_objects else None

    def require_key(self) -> Where:
        """Return the current key. Raises OptionError if there is none."""
        context = self._context
        if context.key_group < 0:
            raise no_current_key(self._name)
        return context.key_group, context.key

    def updated(self, where: Where, value: Any) -> Entry:
        """Return the dirty entry for a value that the user gives. A value the state cannot keep raises a DataError."""
        if value is None:
            raise DataError(f"{self._who}: expected a value, got None: a state without a value is absent. Use clear().")
        entry = self.dirty[where] = Entry(self._check(value), dirty=True)
        if self._gives_back:
            self._given[where] = value
            self._lent.discard(where)
            if self._spent:
                self._spent.pop()
        else:
            self.let_go(where)
        return entry

    def cleared(self, where: Where) -> Entry:
        """Return the dirty entry for a key without a value."""
        entry = self.dirty[where] = Entry(None, dirty=True)
        self.let_go(where)
        return entry

    def lend(self, entry: Entry) -> Any:
        """Return the current key's value, from its entry, to a caller that may change it."""
        value = entry.value
        if not self._is_mutable(value):
            return value
        context = self._context
        where = (context.key_group, context.key)
        given = self._given.get(where)
        if given is not None:
            return given
        if entry.dirty:
            self._given[where] = value = self._private(value)
        else:
            self._lent.add(where)
        return value

    def revert(self, where: Where) -> None:
        """Have reads in this version return a key's entry again, instead of the object given to its last update."""
        self._given.pop(where, None)

    def let_go(self, where: Where) -> None:
        """Forget the objects given or lent for a key, because its entry was replaced or dropped."""
        self._given.pop(where, None)
        self._lent.discard(where)

    def read(self) -> Entry:
        """Read the current key's value from the state, apply the hook, and return it as a clean entry."""
        key = self.require_key()[1]
        watch = self._read_watch
        if watch is not None:
            watch.restart()
        value = self._state.get()
        if watch is not None:
            watch.stop_and_record()
        return Entry(value if self._on_get is None else self._on_get(key, value), dirty=False)

    def write_dirty(self) -> None:
        """Write every dirty entry to the state and make it clean. After an error the rest stay dirty."""
        if self.dirty:
            self.write(list(self.dirty.items()))

    def write_key(self, where: Where) -> None:
        """Write one key's entry, if it is dirty."""
        if where in self.dirty:
            self.write(((where, self.dirty[where]),))

    def write(self, entries: Iterable[tuple[Where, Entry]]) -> None:
        """Write those of these entries that are dirty."""
        if self._raw is not None:
            dirty = ((where, entry) for where, entry in entries if entry.dirty)
            while together := list(islice(dirty, _WRITTEN_TOGETHER)):
                self._write_together(self._raw, together)
            return
        context = self._context
        key_group, key = context.key_group, context.key
        try:
            for where, entry in entries:
                if entry.dirty:
                    its_group, its_key = where
                    if context.key_group != its_group:
                        self._backend.enter(its_group)
                    context.key = its_key
                    self._write(where, entry)
                    del self.dirty[where]
        finally:
            if key_group >= 0 and context.key_group != key_group:
                self._backend.enter(key_group)
            context.key_group, context.key = key_group, key

    def _write_together(self, raw: RawCells, entries: list[tuple[Where, Entry]]) -> None:
        raw.put_all([raw.place(*where) for where, _ in entries], [entry.value for _, entry in entries])
        for where, entry in entries:
            entry.dirty = False
            del self.dirty[where]

    def _write(self, where: Where, entry: Entry) -> None:
        value = entry.value if self._on_update is None else self._on_update(where[1], entry.value)
        watch = self._write_watch
        if watch is not None:
            watch.restart()
        if value is None:
            self._state.clear()
        else:
            self._state.update(value if self._copy is None else self._copy(value))
        if watch is not None:
            watch.stop_and_record()
        if value is not entry.value:
            self.revert(where)
        entry.value, entry.dirty = value, False

    def end_version(self, *layers: Cache[Where, Entry]) -> None:
        """Drop what a caller may hold. No key is current from here on, until the operator enters the next one."""
        # Freeing a large object takes as long as making it, so each is freed with a later update.
        self._spent += self._given.values()
        self._given = {}
        for where in self._lent:
            for entries in layers:
                entries.invalidate(where)
        self._lent = set()
        self._context.key_group = -1


def checked_size(option: str, size: int) -> int:
    """Return a size of at least one. An OptionError names the option."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise OptionError(f"{option}: expected a whole number of at least 1, got {size!r}.")
    return size


def can_change(value: Any) -> bool:
    """Return whether a holder of the value could change it in place. An unknown type counts as changeable.

    >>> can_change((1, "a", None)), can_change({"a": 1}), can_change((1, []))
    (False, True, True)
    """
    kind = type(value)
    if kind in _UNCHANGEABLE:
        return False
    return kind is not tuple or any(map(can_change, value))


def _is_value(value: Any) -> bool:
    return value is not None


def _never(_: Any) -> bool:
    return False


def _as_it_is(value: Any) -> Any:
    return value
