"""Batch access to a cached value state: see `millpond.state.backend.batch_access`.

If all keys of a run are cached, each costs a look-up and a move in the order of use, without a handle's calls. The keys
of a run that are not cached are looked up in the backend in one read.

Invariant: a miss may evict an entry of the same run. So the values of a run are taken before its misses are loaded, and
an entry is looked up again before it is changed.
"""

# ruff: noqa: D102 - the protocols in backend/ say what the methods do
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from millpond.state.backend.batch_access import ManyKeys
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.backend.sums import Sums
from millpond.state.types.rows import Row
from millpond.state.wrappers.lru.entries import Entries, Entry

if TYPE_CHECKING:
    from millpond.state.wrappers.lru.handles import LruState


class ManyInCache:
    """`ManyValues` over a value state behind a cache, for values that cannot be changed in place."""

    def __init__(
        self, state: "LruState", inner: KeyedStateBackend, entries: Entries, sums: Sums, check: Callable[[Any], Any]
    ) -> None:
        self._state = state
        self._inner = inner
        self._entries = entries
        self._sums = sums
        self._check = check
        self._touch: Callable[[Entry], None] = entries.order.move_to_end

    def get_many(self, many: ManyKeys) -> list[Any]:
        found: list[Any] = []
        for key_group, first, end in many.runs:
            found += self._values(key_group, many.keys[first:end])
        return found

    def update_many(self, many: ManyKeys, values: Sequence[Any]) -> None:
        for key_group, first, end in many.runs:
            self._inner.enter(key_group)
            self._set(key_group, many.keys[first:end], values[first:end])

    def add_many(self, many: ManyKeys, number: Any) -> None:
        numbers = self._sums.numbers(number, len(many))
        for key_group, first, end in many.runs:
            keys = many.keys[first:end]
            entries: list[Any] = list(map(self._state.entries.get, keys))
            if all(entries) and not self._entries.weighs:
                self._add_to_hits(entries, numbers[first:end])
            else:
                olds = self._values(key_group, keys)
                sums = self._sums.of_each(keys, olds, numbers[first:end])
                self._set(key_group, list(sums), list(sums.values()))

    def clear_many(self, many: ManyKeys) -> None:
        for key_group, first, end in many.runs:
            keys = many.keys[first:end]
            there = [key for key, value in zip(keys, self._values(key_group, keys), strict=True) if value is not None]
            self._set(key_group, there, [None] * len(there))

    def _values(self, key_group: int, keys: Sequence[Row]) -> list[Any]:
        """Return the values of a run of keys, which become the hottest."""
        state, entries = self._state, list(map(self._state.entries.get, keys))
        hits = [entry for entry in entries if entry is not None]
        deque(map(self._touch, hits), maxlen=0)
        state.hits += len(hits)
        if len(hits) == len(keys):
            return [entry.value for entry in hits]
        self._inner.enter(key_group)
        missing = list(dict.fromkeys(key for key, entry in zip(keys, entries, strict=True) if entry is None))
        state.misses += len(missing)
        state.hits += len(keys) - len(hits) - len(missing)
        places = [state.raw.place(key_group, key) for key in missing]
        looked_up = dict(zip(missing, state.raw.read_all(places), strict=True))
        values = [looked_up[key] if entry is None else entry.value for key, entry in zip(keys, entries, strict=True)]
        bucket = state.bucket(key_group)
        for (key, value), place in zip(looked_up.items(), places, strict=True):
            self._entries.load(bucket, key, value, place)
        return values

    def _set(self, key_group: int, keys: Sequence[Row], values: Sequence[Any]) -> None:
        change, cached, bucket = self._entries.change, self._state.entries, self._state.bucket(key_group)
        for key, value in zip(keys, values, strict=True):
            change(bucket, key, cached.get(key), value)

    def _add_to_hits(self, hits: list[Entry], numbers: Sequence[Any]) -> None:
        version, low, high = self._entries.version, self._sums.low, self._sums.high
        self._state.hits += len(hits)
        deque(map(self._touch, hits), maxlen=0)
        for hit, number in zip(hits, numbers, strict=True):
            entry = hit if hit.writable == version else self._writable(hit)
            value = entry.value
            value = number if value is None else value + number
            if value > high or value < low:
                value = self._check(value)
            entry.value = value

    def _writable(self, hit: Entry) -> Entry:
        """Return the entry of the same cell that the open version may change."""
        # If the key came before in this run, another entry has replaced this one since.
        entry: Entry = self._state.entries[hit.cell]
        if entry.writable == self._entries.version:
            return entry
        return self._entries.change(entry.bucket, entry.cell, entry, entry.value)
