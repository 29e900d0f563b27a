"""The handles of an `LruStateCache`. Those of value states are the hot path of every record (`hot_path`).

Hits change entries directly. Everything else (misses, the first change of a cell in a version) goes through
`StateEntries` and `Entries`. An update never reads the backend.

Values of the backend come as they are, and are copied only when handed out. Its current key changes for two purposes
only. One is iterating over a map, because the backend's handle returns entries that belong to the caller. The other is
extending a list that is too heavy for the cache. So a record that hits costs no key switch but its own.
"""

# ruff: noqa: D102 - the protocols in backend/protocols.py say what the methods do
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from millpond.state.backend.current_key import Who
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.protocols import ABSENT, Cells, KeyedStateBackend, cells_at
from millpond.state.backend.sums import PlainValue, Sums
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.rows import Row, RowCodec
from millpond.state.wrappers.lru.batch_access import ManyInCache
from millpond.state.wrappers.lru.entries import Bucket, Entries, Entry, overlaid, places
from millpond.state.wrappers.lru.hot_path import NEVER, LruHotPath
from millpond.state.wrappers.lru.state_entries import StateEntries


class LruState:
    """What the handles of the three kinds share. `handle` is the backend's handle of the same state."""

    def __init__(
        self, descriptor: StateDescriptor, inner: KeyedStateBackend, handle: Any, context: KeyContext, shard: Entries
    ) -> None:
        self.descriptor = descriptor
        self.is_map = descriptor.kind is StateKind.MAP
        self.raw = raw = inner.raw(descriptor.name)
        self.cached = cached = StateEntries(descriptor.name, raw, context, shard, is_map=self.is_map)
        self.bucket: Callable[[int], Bucket] = cached.bucket
        self._inner = inner
        self._handle = handle
        self._context = context
        self._shard = shard
        self._entries: dict[Row, Any] = cached.entries
        self._touch: Callable[[Entry], None] = shard.order.move_to_end
        codec = descriptor.codec(Who(f"state {descriptor.name!r}", context))
        self._check = codec.check
        self._copy: Callable[[Any], Any] = codec.copy
        self._mutable = codec.mutable
        self._gives_back = codec.mutable and descriptor.serializer is not None
        self._version = NEVER
        self.begin_version()

    def begin_version(self) -> None:
        """Change entries in the open version."""
        self._version = NEVER if self._shard.weighs else self._shard.version

    def holds(self, key_group: int, key: Row) -> bool | None:  # noqa: ARG002 - a map must ask the backend
        """Return whether the key has this state, as far as the cache knows; None if only the backend knows."""
        entry = self._entries.get(key)
        return None if entry is None else entry.value is not None

    def dirty_of(self, key_group: int, key: Row) -> dict[Row, Entry]:
        """Return the entries of a key that the backend does not have, by cell."""
        bucket = self.cached.buckets.get(key_group)
        entry = None if bucket is None else bucket.dirty.get(key)
        return {} if entry is None else {key: entry}

    def place(self, key_group: int, cell: Any) -> tuple[int, Any]:
        return key_group, cell

    def read(self, place: tuple[int, Any]) -> Any:
        return self.cached.read(*place)

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
                self._shard.change(bucket, cell, entry, None if value is ABSENT else value)
        if any(beyond):
            self._shard.write_through(self.bucket, self.descriptor.name, cells.where(beyond))

    def exists(self) -> bool:
        return self.cached.entry(self._context.key).value is not None

    def clear(self) -> None:
        key = self._context.key
        entry = self._entries.get(key)
        if entry is None or entry.value is not None:
            self._shard.change(self.cached.current_bucket(), key, entry, None)

    def _turn(self) -> Any:
        """Make the current key the backend's current key. Return the backend's handle."""
        self._inner.enter(self.cached.current_bucket().key_group)
        self._inner.context.key = self._context.key
        self.cached.others += 1
        return self._handle

    def _change(self, cell: Row, entry: Entry | None, checked: Any, given: Any) -> None:
        entry = self._shard.change(self.cached.current_bucket(), cell, entry, checked)
        if self._gives_back:
            # Later gets of the version return the caller's own object; the cache keeps another.
            entry.lent, entry.lent_in = given, entry.version
        else:
            entry.lent_in = -1

    def _lend(self, entry: Entry) -> Any:
        """Return a mutable value for user code: the one copy of it in this version."""
        version = self._shard.version
        if entry.lent_in != version and entry.value is not None:
            self.cached.copies += 1
            entry.lent, entry.lent_in = self._copy(entry.value), version
        return None if entry.value is None else entry.lent


class LruValueState(LruState, PlainValue):
    """One value per key. If its values cannot be changed in place, the methods are those of `LruHotPath`."""

    def __init__(
        self, descriptor: StateDescriptor, inner: KeyedStateBackend, handle: Any, context: KeyContext, shard: Entries
    ) -> None:
        self._hot: LruHotPath | None = None
        super().__init__(descriptor, inner, handle, context, shard)
        self._sums = Sums(descriptor, self._check)
        self._many: ManyInCache | None = None
        if not self._mutable:
            self._many = ManyInCache(self.cached, inner, self._sums, self._check)
            self._hot = hot = LruHotPath(context, self.cached, self._check, self._sums)
            self.get = hot.get  # type: ignore[method-assign]
            self.update = hot.update  # type: ignore[method-assign]
            self.update_with = hot.update_with  # type: ignore[method-assign]
            self.add = hot.add  # type: ignore[method-assign]

    def many(self) -> ManyInCache | None:
        """Return batch access; None if a value that is handed out could be changed."""
        return self._many

    def begin_version(self) -> None:
        super().begin_version()
        if self._hot is not None:
            self._hot.begin_version()

    def get(self) -> Any:
        return self._lend(self.cached.entry(self._context.key))

    def update(self, value: Any) -> None:
        checked = self._check(value)
        key = self._context.key
        self._change(key, self._entries.get(key), checked, value)

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        value = change(self._lend(self.cached.entry(self._context.key)))
        self.update(value)
        return value


class LruListState(LruState):
    """A list is one pair. It grows in place after its first change in a version."""

    def __init__(
        self, descriptor: StateDescriptor, inner: KeyedStateBackend, handle: Any, context: KeyContext, shard: Entries
    ) -> None:
        super().__init__(descriptor, inner, handle, context, shard)
        self._copy_element = copy_element = self._copy
        self._copy = lambda values: [copy_element(value) for value in values]

    def read(self, place: tuple[int, Any]) -> Any:
        values = super().read(place)
        return None if values is None else list(values)  # it may grow in place

    def get(self) -> Iterator[Any]:
        entry = self.cached.entry(self._context.key)
        return iter(tuple((self._lend(entry) if self._mutable else entry.value) or ()))

    def put(self, values: Iterable[Any]) -> None:
        given = list(values)
        checked = list(map(self._check, given))
        key = self._context.key
        entry = self._entries.get(key)
        self._change(key, entry, checked, given)

    def append(self, value: Any) -> None:
        self.extend((value,))

    def extend(self, values: Iterable[Any]) -> None:
        given = list(values)
        checked = list(map(self._check, given))
        key = self._context.key
        entry = self.cached.entry(key)
        if not checked:
            return
        if self._entries.get(key) is not entry:
            # Too heavy for the cache, so it was not kept.
            self._turn().extend(checked)
            self._shard.written_through(self.cached.current_bucket(), key)
            return
        version = self._shard.version
        lent = entry.lent if entry.lent_in == version and entry.value is not None else None
        if entry.writable == self._version and entry.value is not None:
            entry.value.extend(checked)
        else:
            old, kept = entry.value, entry.kept if entry.writable == version else -1
            if entry.writable != version and old is not None:
                kept = len(old)
            entry = self._shard.change(self.cached.current_bucket(), key, entry, [*(old or ()), *checked])
            # The backend was given earlier changes of this version, which this entry hides: it reports the whole list.
            entry.kept = -1 if key in self.cached.current_bucket().given else kept
        if lent is not None and self._mutable:
            more = given if self._gives_back else map(self._copy_element, checked)
            entry.lent, entry.lent_in = [*lent, *more], version


class LruMapState(LruState):
    """Each entry of a map is a pair of its own. A key's cached entries are put over the backend's."""

    def __init__(
        self, descriptor: StateDescriptor, inner: KeyedStateBackend, handle: Any, context: KeyContext, shard: Entries
    ) -> None:
        super().__init__(descriptor, inner, handle, context, shard)
        who = Who(f"map key of state {descriptor.name!r}", context)
        self._check_key = RowCodec(descriptor.map_key_schema, who).check_key()

    def holds(self, key_group: int, key: Row) -> bool | None:
        cached = self._entries.get(key)
        if not cached:
            return None
        return any(entry.value is not None for entry in cached.values()) or bool(self._beyond(key_group, key))

    def dirty_of(self, key_group: int, key: Row) -> dict[Row, Entry]:  # noqa: ARG002 - a key has one key group
        cached = self._entries.get(key, _NOTHING)
        return {entry.cell: entry for entry in cached.values() if entry.writable >= 0}

    def _beyond(self, key_group: int, key: Row) -> list[Row]:
        """Return the map keys of a key that only the backend has."""
        cached = self._entries.get(key, _NOTHING)
        return [map_key for map_key in self.raw.of_key(key_group, key).map_keys or () if map_key not in cached]

    def get(self, map_key: Row) -> Any:
        entry = self._entry_of(self._check_key(map_key))
        return self._lend(entry) if self._mutable else entry.value

    def contains(self, map_key: Row) -> bool:
        return self._entry_of(self._check_key(map_key)).value is not None

    def put(self, map_key: Row, value: Any) -> None:
        checked_key, checked = self._check_key(map_key), self._check(value)
        key = self._context.key
        entry = self._entries.get(key, _NOTHING).get(checked_key)
        if entry is None or entry.writable != self._version or self._mutable:
            self._change((key, checked_key), entry, checked, value)
        else:
            entry.value = checked
            self._touch(entry)

    def remove(self, map_key: Row) -> None:
        checked_key = self._check_key(map_key)
        key = self._context.key
        entry = self._entries.get(key, _NOTHING).get(checked_key)
        if entry is None or entry.value is not None:
            self._shard.change(self.cached.current_bucket(), (key, checked_key), entry, None)

    def exists(self) -> bool:
        cached = self._entries.get(self._context.key, _NOTHING)
        if any(entry.value is not None for entry in cached.values()):
            self.cached.hits += 1
            return True
        key_group = self.cached.current_bucket().key_group
        self.cached.misses += 1
        return bool(self._beyond(key_group, self._context.key))

    def items(self) -> Iterator[tuple[Row, Any]]:
        cached = self._entries.get(self._context.key, _NOTHING)
        # The values that the backend's handle returns belong to the caller, so they are not copied again.
        theirs = [(map_key, value) for map_key, value in self._turn().items() if map_key not in cached]
        ours = [
            (map_key, self._lend(entry) if self._mutable else entry.value)
            for map_key, entry in cached.items()
            if entry.value is not None
        ]
        return iter(theirs + ours)

    def clear(self) -> None:
        key, bucket = self._context.key, self.cached.current_bucket()
        beyond = self._beyond(bucket.key_group, key)
        self.cached.others += 1
        for map_key in list(self._entries.get(key, _NOTHING)):
            entry = bucket.find((key, map_key))
            if entry is None or entry.value is not None:
                self._shard.change(bucket, (key, map_key), entry, None)
        if beyond:
            count = len(beyond)
            gone = Cells([bucket.key_group] * count, [key] * count, beyond, [ABSENT] * count)
            self._shard.write_through(self.bucket, self.descriptor.name, gone)

    def _entry_of(self, map_key: Row) -> Entry:
        key = self._context.key
        of_key = self._entries.get(key)
        entry: Entry | None = None if of_key is None else of_key.get(map_key)
        if entry is None:
            return self.cached.load((key, map_key))
        self.cached.hits += 1
        self._touch(entry)
        return entry


_NOTHING: dict[Row, Entry] = {}
