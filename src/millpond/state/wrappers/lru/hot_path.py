"""The hot path of a value state behind the cache, which every record takes: `get`, `update`, `update_with` and `add`.

A hit is one dictionary look-up by key and one move in the order of use. An update of a cell that the open version
changed already costs no more. An update never reads the backend.

The wheels of some platforms have this module compiled (docs/explanation/state.md), so its types hold at run time.
"""

from collections.abc import Callable
from typing import Any, Final

from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.sums import Sums
from millpond.state.wrappers.lru.entries import CLEAN, Entries, Entry
from millpond.state.wrappers.lru.state_entries import StateEntries

NEVER: Final = -3
"""The `writable` of no entry. A state with this as its version takes the slow path, which weighs."""


class LruHotPath:
    """The methods of a value state whose values cannot be changed in place.

    Args:
        context: the current key.
        cells: the cached entries of the state.
        check: checks a value.
        sums: of the state.
    """

    __slots__ = (
        "_cells", "_check", "_context", "_entries", "_given_number", "_high", "_kind", "_low", "_shard", "_touch",
        "_version",
    )  # fmt: skip

    def __init__(self, context: KeyContext, cells: StateEntries, check: Callable[[Any], Any], sums: Sums) -> None:
        self._context = context
        self._cells = cells
        self._entries = cells.entries
        self._shard: Entries = cells.shard
        self._touch: Callable[[Entry], None] = cells.shard.order.move_to_end
        self._check = check
        self._given_number: Callable[[Any], Any] = sums.number
        self._kind: object = sums.kind
        self._low: Any = sums.low
        self._high: Any = sums.high
        self._version = NEVER
        self.begin_version()

    def begin_version(self) -> None:
        """Change entries in the open version."""
        self._version = NEVER if self._shard.weighs else self._shard.version

    def get(self) -> Any:
        """Return the current key's value, or None."""
        key = self._context.key
        entry: Entry | None = self._entries.get(key)
        if entry is None:
            return self._cells.load(key).value
        self._cells.hits += 1
        self._touch(entry)
        return entry.value

    def update(self, value: Any) -> None:
        """Set the current key's value."""
        checked = self._check(value)
        key = self._context.key
        entry: Entry | None = self._entries.get(key)
        if entry is not None and entry.writable == self._version:
            entry.value = checked
            self._touch(entry)
        else:
            self._set(key, entry, checked)

    def update_with(self, change: Callable[[Any], Any]) -> Any:
        """Set the current key's value to what `change` returns for it, and return that."""
        key = self._context.key
        value = change(self._cells.entry(key).value)
        checked = self._check(value)
        # Look the entry up again: `change` may have evicted it by using another state, or it was too heavy to keep.
        entry: Entry | None = self._entries.get(key)
        if entry is not None and entry.writable == self._version:
            entry.value = checked
        else:
            self._set(key, entry, checked)
        return value

    def add(self, number: Any) -> Any:
        """Add to the current key's number. Return the sum."""
        if type(number) is not self._kind:
            number = self._given_number(number)
        key = self._context.key
        found: Entry | None = self._entries.get(key)
        if found is None:
            entry = self._cells.load(key)
        else:
            entry = found
            self._cells.hits += 1
            self._touch(entry)
        value = entry.value
        value = number if value is None else value + number
        if value > self._high or value < self._low:
            value = self._check(value)
        if entry.writable == self._version:
            entry.value = value
        else:
            self._set(key, self._entries.get(key), value)
        return value

    def _set(self, key: tuple[Any, ...], entry: Entry | None, checked: Any) -> None:
        """Set a value at its first change in a version, or if the cache weighs values."""
        version = self._version
        if entry is None or version == NEVER or entry.writable != CLEAN:
            self._shard.change(self._cells.current_bucket(), key, entry, checked)
            return
        entry.value = checked
        entry.version = entry.writable = version
        self._touch(entry)
        bucket = entry.bucket
        if bucket.dirty is bucket.committed:
            bucket.dirty = bucket.dirty.copy()
        bucket.dirty[key] = entry
        self._shard.any_change = True
