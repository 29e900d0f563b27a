"""A cache for batches of keys in front of a lookup function: rows stay in columns, and keys are never Python objects.

Place on the data path: between the lookup join and the source, in a worker or a state host. It behaves like
`DefaultLookupCache`: the same limits, order and expiry, and **an entry without rows is a cached missing key**.
The tests compare the two. The one difference is that the window of W-TinyLFU keeps its first share here.

A batch of keys is hashed (`hashed_keys`). An index maps hashes to slots (`hash_index`), and chunks hold the rows
by slot (`chunks`). The `order` chooses the entries to evict. Two logs (`slot_log`) find the entries that expired.
Every step works on the whole batch.

The trade-off: a batch of one key costs as much as one of hundreds. So lookups of single keys use a
`DefaultLookupCache`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock, Policy
from millpond.cache.bounds import checked_limits, checked_policy
from millpond.cache.steady_clock import SteadyClock
from millpond.lookup.column_cache.chunks import Chunks, Rows
from millpond.lookup.column_cache.hash_index import HashIndex, Slots, grown
from millpond.lookup.column_cache.hashed_keys import HashedKeys
from millpond.lookup.column_cache.order import LruOrder, Order, TinyLfu
from millpond.lookup.column_cache.slot_log import SlotLog

ENTRY_BYTES = 110
"""Bytes of an entry in the index and the order, including their free places."""

_EXPIRY_BYTES = 30
"""Bytes of an entry for each kind of expiry."""

_LIVE_SHARE = 0.75
"""The least share of the chunks' weight that is live."""


@dataclass(frozen=True, slots=True)
class ColumnCacheLimits:
    """The limits of a cache, in entries, bytes and time. The arguments of `DefaultLookupCache` explain each."""

    max_rows: int | None = None
    max_bytes: int | None = None
    policy: Policy = "lru"
    expire_after_access_ms: int | None = None
    expire_after_write_ms: int | None = None
    cache_missing_key: bool = True
    refresh_after_write_ms: int | None = None
    stale_if_error_ms: int = 0
    expiry_jitter_ms: int = 0


class ColumnCache:
    """A bounded map from keys to rows in columns.

    - Key: the values of the key columns.
    - Capacity: `max_rows` keys, or `max_bytes` bytes in memory.
    - Freshness: a key expires `expire_after_write_ms` after it was put, or `expire_after_access_ms` after its last
      use. The former comes up to `expiry_jitter_ms` earlier, by a time that is fixed for each key. An entry that
      expired after its write is kept `stale_if_error_ms` longer, for `find_stale`.
    - Concurrent miss: the lookup around the cache handles it. Only one thread at a time may use the cache.

    >>> cache = ColumnCache(ColumnCacheLimits(max_rows=100))
    >>> codes = pa.schema([("code", pa.string())])
    >>> keys, _ = HashedKeys.of([pa.array(["EWR", "LHR"])], codes)
    >>> cache.put(keys, Rows(np.array([0, 2]), np.array([2, 0]), pa.record_batch({"gate": [7, 8]})))
    >>> keys, _ = HashedKeys.of([pa.array(["LHR", "EWR", "JFK"])], codes)
    >>> slots = cache.find(keys)
    >>> slots.tolist(), cache.rows(slots[:2]).counts.tolist()
    ([1, 0, -1], [0, 2])
    """

    def __init__(self, limits: ColumnCacheLimits, clock: Clock = monotonic_ms) -> None:
        checked_policy("lookup", limits.policy)
        checked_limits(
            "lookup",
            {
                "max_entries": (limits.max_rows, 0),
                "max_bytes": (limits.max_bytes, 0),
                "expire_after_access_ms": (limits.expire_after_access_ms, 1),
                "expire_after_write_ms": (limits.expire_after_write_ms, 1),
            },
        )
        self._limits = limits
        self._now_ms = SteadyClock(clock)
        expiries = (limits.expire_after_access_ms is not None) + (limits.expire_after_write_ms is not None)
        self._entry_bytes = ENTRY_BYTES + expiries * _EXPIRY_BYTES
        self._write_limit_ms = None
        if limits.expire_after_write_ms is not None:
            self._write_limit_ms = limits.expire_after_write_ms + limits.stale_if_error_ms
        self._max_weight = None if limits.max_bytes is None else int(limits.max_bytes * _LIVE_SHARE)
        self.clear()

    def clear(self) -> None:
        """Remove every key."""
        kind = LruOrder if self._limits.policy == "lru" else TinyLfu
        self._order: Order = kind(self._limits.max_rows, self._max_weight)
        self._index = HashIndex()
        self._chunks = Chunks()
        self._hashes = np.zeros(0, np.uint64)
        self._free = np.zeros(0, np.int64)
        self._used = SlotLog()
        self._written = SlotLog()
        self._written_ms = np.zeros(0, np.int64)
        self._has_aged = False

    def __len__(self) -> int:
        """Return the number of entries, including missing keys and stale entries."""
        self._sweep()
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """The bytes held."""
        return len(self) * self._entry_bytes + self._chunks.nbytes

    @property
    def limits(self) -> ColumnCacheLimits:
        """The limits of this cache."""
        return self._limits

    def held(self) -> tuple[int, int]:
        """Return the numbers of entries and bytes, expired ones included. Any thread may call this read-only method."""
        entries = len(self._index)
        return entries, entries * self._entry_bytes + self._chunks.nbytes

    def find(self, keys: HashedKeys) -> Slots:
        """Return the slot of every key, or -1 if it is not cached, and count a use of each found key."""
        now_ms = self._sweep()
        slots = self._found(keys)
        if self._limits.expire_after_write_ms is not None and (
            self._limits.stale_if_error_ms or self._limits.expiry_jitter_ms or self._has_aged
        ):
            there = np.flatnonzero(slots >= 0)
            jitter_ms = (keys.hashes[there] % np.uint64(self._limits.expiry_jitter_ms + 1)).astype(np.int64)
            ages_ms = now_ms - self._written_ms[slots[there]]
            slots[there[ages_ms >= self._limits.expire_after_write_ms - jitter_ms]] = -1
        used = slots[slots >= 0]
        self._order.read(used)
        if self._limits.expire_after_access_ms is not None:
            self._used.note(used, now_ms)
        return slots

    def find_stale(self, keys: HashedKeys) -> Slots:
        """Return the slot of every key, stale or not, or -1 if there is none. Counts no use."""
        self._sweep()
        return self._found(keys)

    def due(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return which of the slots just found are old enough to be refreshed."""
        if self._limits.refresh_after_write_ms is None:
            return np.zeros(len(slots), np.bool_)
        old: npt.NDArray[np.bool_] = self.ages_ms(slots) >= self._limits.refresh_after_write_ms
        return old

    def rows(self, slots: Slots) -> Rows | None:
        """Return the rows of slots just found; None if there are no slots."""
        return self._chunks.rows(slots)

    def ages_ms(self, slots: Slots) -> npt.NDArray[np.int64]:
        """Return how long ago the rows of slots just found were loaded."""
        return self._now_ms() - self._written_ms[slots]

    def put(self, keys: HashedKeys, rows: Rows, ages_ms: npt.NDArray[np.int64] | None = None) -> None:
        """Cache the rows of distinct keys, replacing older entries; missing keys only with `cache_missing_key`.

        `ages_ms` tells how long ago the rows of each key were loaded, if that was not just now.
        """
        now_ms = self._sweep()
        kept = _first_of_each(keys.hashes)
        weights = np.ones(len(keys), np.int64)
        if self._max_weight is not None:
            weights = self._entry_bytes + _weights(keys, rows)
            kept = kept[weights[kept] <= self._max_weight]
        if not self._limits.cache_missing_key:
            kept = kept[rows.counts[kept] > 0]
        if len(kept) < len(keys):
            self.invalidate(keys.take(np.setdiff1d(np.arange(len(keys)), kept)))
            keys, weights = keys.take(kept), weights[kept]
            ages_ms = None if ages_ms is None else ages_ms[kept]
        slots = self._index.find(keys.hashes)
        new = np.flatnonzero(slots < 0)
        known = slots[slots >= 0]
        self._chunks.remove(known)
        slots[new] = self._taken_slots(len(new))
        self._index.add(keys.hashes[new], slots[new])
        self._hashes[slots] = keys.hashes
        self._written_ms = grown(self._written_ms, int(slots.max(initial=-1)), 0)
        self._written_ms[slots] = now_ms if ages_ms is None else now_ms - ages_ms
        self._has_aged |= ages_ms is not None
        self._chunks.add(slots, keys, rows.taken(kept), weights)
        if self._limits.expire_after_access_ms is not None:
            self._used.note(slots, now_ms)
        if self._limits.expire_after_write_ms is not None:
            self._written.note(slots, now_ms)
        self._let_go(self._order.put(slots, keys.hashes, weights))

    def invalidate(self, keys: HashedKeys) -> None:
        """Remove keys."""
        slots = self._found(keys)
        self._remove(np.unique(slots[slots >= 0]))

    def _found(self, keys: HashedKeys) -> Slots:
        slots = self._index.find(keys.hashes)
        if keys.columns:
            there = np.flatnonzero(slots >= 0)
            same = self._chunks.have(slots[there], keys.take(there))
            slots[there[~same]] = -1
        return slots

    def _sweep(self) -> int:
        """Remove the expired entries and return the present time."""
        now_ms = self._now_ms()
        for log, limit_ms in (
            (self._written, self._write_limit_ms),
            (self._used, self._limits.expire_after_access_ms),
        ):
            if limit_ms is not None and log.first_ms is not None and log.first_ms <= now_ms - limit_ms:
                self._remove(log.due(now_ms - limit_ms))
        return now_ms

    def _remove(self, slots: Slots) -> None:
        self._order.removed(slots)
        self._let_go(slots)

    def _let_go(self, slots: Slots) -> None:
        """Remove entries that the order has already removed."""
        if not len(slots):
            return
        self._index.remove(self._hashes[slots])
        self._chunks.remove(slots)
        self._used.forget(slots)
        self._written.forget(slots)
        self._free = np.concatenate((self._free, slots))

    def _taken_slots(self, count: int) -> Slots:
        """Take free slots, making more if there are too few."""
        missing = count - len(self._free)
        if missing > 0:
            before = len(self._hashes)
            more = max(missing, before)
            self._hashes = np.concatenate((self._hashes, np.zeros(more, np.uint64)))
            self._free = np.concatenate((np.arange(before + more - 1, before - 1, -1), self._free))
        cut = len(self._free) - count
        taken, self._free = self._free[cut:][::-1], self._free[:cut]
        return taken


def _first_of_each(hashes: npt.NDArray[np.uint64]) -> Slots:
    """Return the positions of the keys, leaving out each whose hash an earlier key has."""
    _, first = np.unique(hashes, return_index=True)
    return np.sort(first) if len(first) < len(hashes) else np.arange(len(hashes))


def _weights(keys: HashedKeys, rows: Rows) -> npt.NDArray[np.int64]:
    """Return the bytes that the chunks need for every key and its rows."""
    weights = np.full(len(keys), 4 * np.dtype(np.int64).itemsize, np.float64)
    for column in keys.columns:
        weights += _value_bytes(column)
    for column in rows.rows.columns:
        sums = np.concatenate((np.zeros(1), np.cumsum(_value_bytes(column))))
        weights += sums[rows.starts + rows.counts] - sums[rows.starts]
    return weights.astype(np.int64)


def _value_bytes(column: pa.Array) -> npt.NDArray[np.float64]:
    """Return the bytes of every value: exact for text and binary, the column's mean for other types."""
    kind, count = column.type, len(column)
    width = 4 if kind in (pa.string(), pa.binary()) else 8 if kind in (pa.large_string(), pa.large_binary()) else 0
    if not width or not count:
        return np.full(count, column.nbytes / max(count, 1))
    offsets = np.frombuffer(column.buffers()[1], f"<i{width}", count + 1, column.offset * width)
    return np.diff(offsets) + float(width)
