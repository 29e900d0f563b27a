"""The handles of an `LruStateCache`: the hot path of every record, and the path of a miss.

A hit is one dictionary look-up by key and one move in the order of use. An update of a cell that the open version
changed already costs no more. Everything else (misses, the first change of a cell in a version) goes through `Entries`.
An update never reads the backend.

The backend is read past its handles (`RawCells`): values come as they are, and are copied only when handed out. Its
current key changes for two purposes only. One is iterating over a map, because the backend's handle returns entries
that belong to the caller. The other is extending a list that is too heavy for the cache. So a record that hits costs no
key switch but its own.
"""

# ruff: noqa: D102 - the protocols in backend/protocols.py say what the methods do
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from millpond.state.backend.current_key import NoKeyGroup, Who
from millpond.state.backend.protocols import ABSENT, Cells, KeyContext, KeyedStateBackend, cells_at
from millpond.state.backend.sums import Sums
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.rows import Row, RowCodec
from millpond.state.wrappers.lru.batch_access import ManyInCache
from millpond.state.wrappers.lru.entries import CLEAN, Bucket, Entries, Entry, overlaid, places

_NEVER = -3
"""The `writable` of no entry. A handle with this as its version takes the slow path, which weighs and copies."""


class LruState:
    """What the handles of the three kinds share. `handle` is the backend's handle of the same state.

    Attributes:
        hits, misses: of reads. A miss reads the backend.
        others: reads of the backend for more than one cell, which the cache alone cannot answer.
        copies: deep copies of mutable values.
    """

    def __init__(
        self, descriptor: StateDescriptor, inner: KeyedStateBackend, handle: Any, context: KeyContext, entries: Entries
    ) -> None:
        self.descriptor = descriptor
        self.is_map = descriptor.kind is StateKind.MAP
        self.entries: dict[Row, Any] = {}
        self.buckets: dict[int, Bucket] = {}
        self.hits = self.misses = self.others = self.copies = 0
        self._inner = inner
        self._handle = handle
        self.raw = raw = inner.raw(descriptor.name)
        self._inner_place, self._inner_read = raw.place, raw.read
        self._context = context
        self._entries = entries
        self._touch: Callable[[Entry], None] = entries.order.move_to_end
        self._no_key_group = NoKeyGroup(descriptor.name)
        codec = descriptor.codec(Who(f"state {descriptor.name!r}", context))
        self._check = codec.check
        self._copy: Callable[[Any], Any] = codec.copy
        self._mutable = codec.mutable
        self._gives_back = codec.mutable and descriptor.serializer is not None
        self._cached: Any
        self._version: int
        self.unbind()

    def bind(self) -> None:
        """Take note that there is a current key again."""
        self._cached = self.entries

    def unbind(self) -> None:
        """Take note that no key group is entered any more, because a version has ended."""
        self._cached = self._no_key_group
        self._version = _NEVER if self._entries.weighs else self._entries.version

    def bucket(self, key_group: int) -> Bucket:
        """Return the bucket of a key group."""
        bucket = self.buckets.get(key_group)
        if bucket is None:
            bucket = Bucket(self.raw, key_group, self.entries, is_map=self.is_map)
            self.buckets[key_group] = bucket
        return bucket

    @property
    def _bucket(self) -> Bucket:
        """The bucket of the current key."""
        return self.bucket(self._context.key_group)

    def holds(self, key_group: int, key: Row) -> bool | None:  # noqa: ARG002 - a map must ask the backend
        """Return whether the key has this state, as far as the cache knows; None if only the backend knows."""
        entry = self.entries.get(key)
        return None if entry is None else entry.value is not None

    def dirty_of(self, key_group: int, key: Row) -> dict[Row, Entry]:
        """Return the entries of a key that the backend does not have, by cell."""
        bucket = self.buckets.get(key_group)
        entry = None if bucket is None else bucket.dirty.get(key)
        return {} if entry is None else {key: entry}

    def place(self, key_group: int, cell: Any) -> tuple[int, Any]:
        return key_group, cell

    def read(self, place: tuple[int, Any]) -> Any:
        key_group, cell = place
        entry = self.bucket(key_group).find(cell)
        return self._inner_read(self._inner_place(key_group, cell)) if entry is None else entry.value

    def read_all(self, places: list[tuple[int, Any]]) -> list[Any]:
        return list(map(self.read, places))

    def put_all(self, places: list[tuple[int, Any]], values: list[Any]) -> None:
        self.write(cells_at(places, values, is_map=self.is_map))

    def of_key(self, key_group: int, key: Row) -> Cells:
        return overlaid(self.raw.of_key(key_group, key), self.dirty_of(key_group, key))

    def write(self, cells: Cells) -> None:
        """Put or delete cells: cached ones in the cache, the others in the backend."""
        beyond = []
        for key_group, cell, value in zip(cells.key_groups, places(cells), cells.values, strict=True):
            bucket = self.bucket(key_group)
            entry = bucket.find(cell)
            beyond.append(entry is None)
            if entry is not None:
                self._entries.change(bucket, cell, entry, None if value is ABSENT else value)
        if any(beyond):
            self._entries.write_through(self.bucket, self.descriptor.name, cells.where(beyond))

    def exists(self) -> bool:
        return self._entry(self._context.key).value is not None

    def clear(self) -> None:
        key = self._context.key
        entry = self._cached.get(key)
        if entry is None or entry.value is not None:
            self._entries.change(self._bucket, key, entry, None)

    def _entry(self, key: Row) -> Entry:
        entry: Entry | None = self._cached.get(key)
        if entry is None:
            return self._load(key)
        self.hits += 1
        self._touch(entry)
        return entry

    def _load(self, cell: Any) -> Entry:
        """Load a cell of the current key that is not cached. Return its entry."""
        key_group = self._context.key_group
        self.misses += 1
        place = self._inner_place(key_group, cell)
        value = self._inner_read(place)
        return self._entries.load(self.buckets.get(key_group) or self.bucket(key_group), cell, value, place)

    def _turn(self) -> Any:
        """Make the current key the backend's current key. Return the backend's handle."""
        context = self._context
        self._inner.enter(context.key_group)
        self._inner.context.key = context.key
        self.others += 1
        return self._handle

    def _change(self, cell: Row, entry: Entry | None, checked: Any, given: Any) -> None:
        entry = self._entries.change(self._bucket, cell, entry, checked)
        if self._gives_back:
            # Later gets of the version return the caller's own object; the cache keeps another.
            entry.lent, entry.lent_in = given, entry.version
        else:
            entry.lent_in = -1

    def _lend(self, entry: Entry) -> Any:
        """Return a mutable value for user code: the one copy of it in this version."""
        version = self._entries.version
        if entry.lent_in != version and entry.value is not None:
            self.copies += 1
            entry.lent, entry.lent_in = self._copy(entry.value), version
        return None if entry.value is None else entry.lent


class LruValueState(LruState):
    """One value per key."""

    def __init__(
        self, descriptor: StateDescriptor, inner: KeyedStateBackend, handle: Any, context: KeyContext, entries: Entries
    ) -> None:
        super().__init__(descriptor, inner, handle, context, entries)
        self._sums = Sums(descriptor, self._check)
        self._number_kind, self._low, self._high = self._sums.kind, self._sums.low, self._sums.high

    def many(self) -> ManyInCache | None:
        """Return batch access; None if a value that is handed out could be changed."""
        return None if self._mutable else ManyInCache(self, self._inner, self._entries, self._sums, self._check)

    def unbind(self) -> None:
        super().unbind()
        if self._mutable:
            self._version = _NEVER

    def get(self) -> Any:
        key = self._context.key
        entry = self._cached.get(key)
        if entry is None:
            entry = self._load(key)
        else:
            self.hits += 1
            self._touch(entry)
        return self._lend(entry) if self._mutable else entry.value

    def update(self, value: Any) -> None:
        checked = self._check(value)
        key = self._context.key
        entry = self._cached.get(key)
        if entry is not None and entry.writable == self._version:
            entry.value = checked
            self._touch(entry)
        else:
            self._set(key, entry, checked, value)

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        key = self._context.key
        entry = self._entry(key)
        value = change(self._lend(entry) if self._mutable else entry.value)
        checked = self._check(value)
        # Look the entry up again: `change` may have evicted it by using another state, or it was too heavy to keep.
        entry = self._cached.get(key)
        if entry is not None and entry.writable == self._version:
            entry.value = checked
        else:
            self._set(key, entry, checked, value)
        return value

    def add(self, number: Any) -> Any:
        if type(number) is not self._number_kind:
            number = self._sums.number(number)
        key = self._context.key
        entry = self._cached.get(key)
        if entry is None:
            entry = self._load(key)
        else:
            self.hits += 1
            self._touch(entry)
        value = entry.value
        value = number if value is None else value + number
        if value > self._high or value < self._low:
            value = self._check(value)
        if entry.writable == self._version:
            entry.value = value
        else:
            self._set(key, self._cached.get(key), value, value)
        return value

    def _set(self, key: Row, entry: Entry | None, checked: Any, given: Any) -> None:
        """Set a value at its first change in a version, or if the cache weighs values or hands out copies."""
        version = self._version
        if entry is None or version == _NEVER or entry.writable != CLEAN:
            self._change(key, entry, checked, given)
            return
        entry.value = checked
        entry.version = entry.writable = version
        self._touch(entry)
        bucket = entry.bucket
        if bucket.dirty is bucket.committed:
            bucket.dirty = bucket.dirty.copy()
        bucket.dirty[key] = entry
        self._entries.any_change = True


class LruListState(LruState):
    """A list is one pair. It grows in place after its first change in a version."""

    def __init__(
        self, descriptor: StateDescriptor, inner: KeyedStateBackend, handle: Any, context: KeyContext, entries: Entries
    ) -> None:
        super().__init__(descriptor, inner, handle, context, entries)
        self._copy_element = copy_element = self._copy
        self._copy = lambda values: [copy_element(value) for value in values]

    def read(self, place: tuple[int, Any]) -> Any:
        values = super().read(place)
        return None if values is None else list(values)  # it may grow in place

    def get(self) -> Iterator[Any]:
        entry = self._entry(self._context.key)
        return iter(tuple((self._lend(entry) if self._mutable else entry.value) or ()))

    def put(self, values: Iterable[Any]) -> None:
        given = list(values)
        checked = list(map(self._check, given))
        key = self._context.key
        entry = self._cached.get(key)
        self._change(key, entry, checked, given)

    def append(self, value: Any) -> None:
        self.extend((value,))

    def extend(self, values: Iterable[Any]) -> None:
        given = list(values)
        checked = list(map(self._check, given))
        key = self._context.key
        entry = self._entry(key)
        if not checked:
            return
        if self._cached.get(key) is not entry:
            # Too heavy for the cache, so it was not kept.
            self._turn().extend(checked)
            self._entries.written_through(self._bucket, key)
            return
        version = self._entries.version
        lent = entry.lent if entry.lent_in == version and entry.value is not None else None
        if entry.writable == self._version and entry.value is not None:
            entry.value.extend(checked)
        else:
            old, kept = entry.value, entry.kept if entry.writable == version else -1
            if entry.writable != version and old is not None:
                kept = len(old)
            entry = self._entries.change(self._bucket, key, entry, [*(old or ()), *checked])
            # The backend was given earlier changes of this version, which this entry hides: it reports the whole list.
            entry.kept = -1 if key in self._bucket.given else kept
        if lent is not None and self._mutable:
            more = given if self._gives_back else map(self._copy_element, checked)
            entry.lent, entry.lent_in = [*lent, *more], version


class LruMapState(LruState):
    """Each entry of a map is a pair of its own. A key's cached entries are put over the backend's."""

    def __init__(
        self, descriptor: StateDescriptor, inner: KeyedStateBackend, handle: Any, context: KeyContext, entries: Entries
    ) -> None:
        super().__init__(descriptor, inner, handle, context, entries)
        who = Who(f"map key of state {descriptor.name!r}", context)
        self._check_key = RowCodec(descriptor.map_key_schema, who).check_key()

    def holds(self, key_group: int, key: Row) -> bool | None:
        cached = self.entries.get(key)
        if not cached:
            return None
        return any(entry.value is not None for entry in cached.values()) or bool(self._beyond(key_group, key))

    def dirty_of(self, key_group: int, key: Row) -> dict[Row, Entry]:  # noqa: ARG002 - a key has one key group
        cached = self.entries.get(key, _NOTHING)
        return {entry.cell: entry for entry in cached.values() if entry.writable >= 0}

    def _beyond(self, key_group: int, key: Row) -> list[Row]:
        """Return the map keys of a key that only the backend has."""
        cached = self.entries.get(key, _NOTHING)
        return [map_key for map_key in self.raw.of_key(key_group, key).map_keys or () if map_key not in cached]

    def get(self, map_key: Row) -> Any:
        entry = self._entry_of(self._check_key(map_key))
        return self._lend(entry) if self._mutable else entry.value

    def contains(self, map_key: Row) -> bool:
        return self._entry_of(self._check_key(map_key)).value is not None

    def put(self, map_key: Row, value: Any) -> None:
        checked_key, checked = self._check_key(map_key), self._check(value)
        key = self._context.key
        entry = self._cached.get(key, _NOTHING).get(checked_key)
        if entry is None or entry.writable != self._version or self._mutable:
            self._change((key, checked_key), entry, checked, value)
        else:
            entry.value = checked
            self._touch(entry)

    def remove(self, map_key: Row) -> None:
        checked_key = self._check_key(map_key)
        key = self._context.key
        entry = self._cached.get(key, _NOTHING).get(checked_key)
        if entry is None or entry.value is not None:
            self._entries.change(self._bucket, (key, checked_key), entry, None)

    def exists(self) -> bool:
        cached = self._cached.get(self._context.key, _NOTHING)
        if any(entry.value is not None for entry in cached.values()):
            self.hits += 1
            return True
        self.misses += 1
        return bool(self._beyond(self._context.key_group, self._context.key))

    def items(self) -> Iterator[tuple[Row, Any]]:
        cached = self._cached.get(self._context.key, _NOTHING)
        # The values that the backend's handle returns belong to the caller, so they are not copied again.
        theirs = [(map_key, value) for map_key, value in self._turn().items() if map_key not in cached]
        ours = [
            (map_key, self._lend(entry) if self._mutable else entry.value)
            for map_key, entry in cached.items()
            if entry.value is not None
        ]
        return iter(theirs + ours)

    def clear(self) -> None:
        context, entries = self._context, self._entries
        cached = self._cached.get(context.key, _NOTHING)
        beyond = self._beyond(context.key_group, context.key)
        self.others += 1
        for map_key in list(cached):
            cell = (context.key, map_key)
            entry = self._bucket.find(cell)
            if entry is None or entry.value is not None:
                entries.change(self._bucket, cell, entry, None)
        if beyond:
            count = len(beyond)
            gone = Cells([context.key_group] * count, [context.key] * count, beyond, [ABSENT] * count)
            entries.write_through(self.bucket, self.descriptor.name, gone)

    def _entry_of(self, map_key: Row) -> Entry:
        key = self._context.key
        of_key = self._cached.get(key)
        entry: Entry | None = None if of_key is None else of_key.get(map_key)
        if entry is None:
            return self._load((key, map_key))
        self.hits += 1
        self._touch(entry)
        return entry


_NOTHING: dict[Row, Entry] = {}
