"""Batch access to a cached value state: see `millpond.state.backend.batch_access`.

If all keys of a run are cached, each costs a look-up and a move in the order of use, without a handle's calls. The keys
of a run that are not cached are looked up in the backend in one read.

Invariant: a miss may evict an entry of the same run. So the values of a run are taken before its misses are loaded, and
an entry is looked up again before it is changed.

The wheels of some platforms have this module compiled (docs/explanation/state.md), so its types hold at run time.
"""

# ruff: noqa: D102 - the protocols in backend/ say what the methods do
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from millpond.state.backend.batch_access import ManyKeys
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.backend.sums import Sums
from millpond.state.types.rows import Row
from millpond.state.wrappers.lru.entries import Entry
from millpond.state.wrappers.lru.state_entries import StateEntries


class ManyInCache:
    """`ManyValues` over a value state behind a cache, for values that cannot be changed in place."""

    def __init__(self, cached: StateEntries, inner: KeyedStateBackend, sums: Sums, check: Callable[[Any], Any]) -> None:
        self._cached = cached
        self._shard = cached.shard
        self._inner = inner
        self._sums = sums
        self._check = check
        self._touch: Callable[[Entry], None] = cached.shard.order.move_to_end

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
        numbers: list[Any] = self._sums.numbers(number, len(many))
        for key_group, first, end in many.runs:
            keys = many.keys[first:end]
            entries: list[Any] = list(map(self._cached.entries.get, keys))
            if None not in entries and not self._shard.weighs:
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
        cached = self._cached
        entries = list(map(cached.entries.get, keys))
        hits = [entry for entry in entries if entry is not None]
        deque(map(self._touch, hits), maxlen=0)
        cached.hits += len(hits)
        if len(hits) == len(keys):
            return [entry.value for entry in hits]
        self._inner.enter(key_group)
        missing = list(dict.fromkeys(key for key, entry in zip(keys, entries, strict=True) if entry is None))
        cached.misses += len(missing)
        cached.hits += len(keys) - len(hits) - len(missing)
        places = [cached.raw.place(key_group, key) for key in missing]
        looked_up = dict(zip(missing, cached.raw.read_all(places), strict=True))
        values = [looked_up[key] if entry is None else entry.value for key, entry in zip(keys, entries, strict=True)]
        bucket = cached.bucket(key_group)
        for (key, value), place in zip(looked_up.items(), places, strict=True):
            self._shard.load(bucket, key, value, place)
        return values

    def _set(self, key_group: int, keys: Sequence[Row], values: Sequence[Any]) -> None:
        change, cached, bucket = self._shard.change, self._cached.entries, self._cached.bucket(key_group)
        for key, value in zip(keys, values, strict=True):
            change(bucket, key, cached.get(key), value)

    def _add_to_hits(self, hits: list[Entry], numbers: list[Any]) -> None:
        version = self._shard.version
        # Of the numbers' own type: as floats they would be compared with integers, which takes longer than adding.
        low: Any = self._sums.low
        high: Any = self._sums.high
        self._cached.hits += len(hits)
        touch = self._touch
        for at, hit in enumerate(hits):
            entry = hit if hit.writable == version else self._writable(hit)
            touch(entry)
            number = numbers[at]
            value = entry.value
            value = number if value is None else value + number
            if value > high or value < low:
                value = self._check(value)
            entry.value = value

    def _writable(self, hit: Entry) -> Entry:
        """Return the entry of the same cell that the open version may change."""
        # If the key came before in this run, another entry has replaced this one since.
        entry: Entry = self._cached.entries[hit.cell]
        if entry.writable == self._shard.version:
            return entry
        return self._shard.change(entry.bucket, entry.cell, entry, entry.value)
