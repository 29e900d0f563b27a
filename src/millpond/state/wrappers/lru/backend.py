"""The LRU cache of FLIP-325: a backend that keeps the objects of another backend's hottest cells.

On the data path it stands between the handles that user code holds and a backend that is slow to read, such as
RocksDB. With room for every cell it costs what the heap backend costs. With less room, the backend behind it holds the
cold cells. It is write-back: an update changes the cache alone, and a changed cell reaches the backend when it leaves
the cache, or shortly before, in batches. Timers bypass the cache (`timers`).

A commit flushes nothing. The backend commits what it was given so far, and the snapshot puts the dirty entries
over the backend's cells (see `entries` and `snapshot`). So the blocking part of a checkpoint costs the same for one
dirty entry and for a million.

Invariant: the live state is the backend's with the dirty entries put over it. Every committed version is the backend's
version with the entries that were dirty then. A dirty entry is cached.

- Key: state, key group and key; for a map state the map key too. A list is one pair.
- Unit of capacity: pairs, cached absences included, over all states; or bytes, as estimated by
  `millpond.cache.weight.deep_size`.
- Freshness: always current, since every read and write of the shard goes through the cache.
- Concurrent misses: none. The handles belong to one thread. Snapshots may be read from others.

The trade-off: up to three dictionaries refer to a dirty entry (live, last commit, commit before). And the first change
of a bucket after a commit copies the bucket's dictionary.

Source: FLIP-325, "Introduce LRU cache to accelerate state backend access".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millpond.cache import Bounds, monotonic_ms
from millpond.cache.api import Clock, Policy
from millpond.cache.curves.recording import Recording
from millpond.cache.curves.registry import register
from millpond.cache.weight import deep_size
from millpond.errors import OptionError
from millpond.metrics.recorder import NO_METRICS, Recorder
from millpond.state.backend.cell_bytes import cell_bytes
from millpond.state.backend.declarations import Declarations, open_version
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.pairs import Pair, Pairs
from millpond.state.backend.protocols import (
    Cells,
    KeyedStateBackend,
    ListState,
    MapState,
    RawCells,
    Snapshot,
    ValueState,
)
from millpond.state.types.descriptor import StateDescriptor, StateKind
from millpond.state.types.rows import Row
from millpond.state.types.timer_states import TIMER_STATES
from millpond.state.wrappers.forwarding import ForwardingBackend
from millpond.state.wrappers.lru.entries import Bucket, Entries, Weigher, overlaid, overlaid_pairs, places
from millpond.state.wrappers.lru.handles import LruListState, LruMapState, LruState, LruValueState
from millpond.state.wrappers.lru.hit_ratio import HitRatio
from millpond.state.wrappers.lru.snapshot import LruSnapshot, Part
from millpond.state.wrappers.lru.timers import UncachedTimers
from millpond.state.wrappers.lru.told_reads import tell_reads

_TURNS_A_LOOK = 1_024
"""Number of `enter` calls between two clock reads for the hit ratio: reading the clock costs as much as a hit."""


@dataclass(frozen=True)
class LruStats:
    """What a cache did since it was created, and what it holds.

    Attributes:
        hits: reads that found their pair in the cache. A write reads nothing, so it is neither a hit nor a miss.
        misses: reads that did not.
        gets: reads of the backend.
        puts: cells written to the backend. They are written in batches.
        key_switches: how often the backend had to find another key than the record's: once for each of its reads.
            Writes need none, since an entry keeps the place of its cell.
        copies: deep copies of mutable values.
        evictions: pairs that were dropped to make room.
        entries: pairs cached now.
        bytes: their estimated weight; 0 if the cache is sized in pairs.
    """

    hits: int
    misses: int
    gets: int
    puts: int
    key_switches: int
    copies: int
    evictions: int
    entries: int
    bytes: int


class LruStateCache(ForwardingBackend):
    """A `KeyedStateBackend` that caches the cells of another one.

    Args:
        inner: the backend to cache. Nothing else may use it from now on. It is closed with the cache.
        max_entries: pairs the cache may hold, over all states (FLIP-325's `state.backend.cache.max-entries-num`). To
            have no cache, which is 0 there, use the backend without this class.
        max_bytes: bytes the pairs may weigh. A pair heavier than this is written through and not kept.
        weigher: returns the bytes of a pair, from its key (with its map key) and its value.
        hit_rate_curve: whether to record the hit rate at other sizes, for `millpond.cache.curves`.
        recorder: gets hits, misses and the hit ratio (`stateCacheHitRatio`) once a second while records flow, and
            at every commit.
        clock: returns monotonic milliseconds, for the hit ratio.

    Raises:
        OptionError: neither limit is given, or one is below 1.

    >>> import pyarrow as pa
    >>> from millpond.state.spi import HeapBackend, StateKind
    >>> cache = LruStateCache(HeapBackend(range(128)), max_entries=1)
    >>> visits = cache.value_state(
    ...     StateDescriptor("visits", StateKind.VALUE, pa.schema([("count", pa.int64())])))
    >>> for name in ("ann", "bob", "ann"):
    ...     cache.enter(7)
    ...     cache.context.key = (name,)
    ...     visits.update(((visits.get() or (0,))[0] + 1,))
    >>> visits.get()
    (2,)
    >>> stats = cache.stats()
    >>> stats.hits, stats.misses, stats.gets, stats.puts
    (1, 3, 3, 2)
    """

    def __init__(
        self,
        inner: KeyedStateBackend,
        *,
        max_entries: int | None = None,
        max_bytes: int | None = None,
        weigher: Weigher = deep_size,
        hit_rate_curve: bool = False,
        recorder: Recorder = NO_METRICS,
        clock: Clock = monotonic_ms,
    ) -> None:
        for option, limit in (("max_entries", max_entries), ("max_bytes", max_bytes)):
            if limit is not None and limit < 1:
                raise OptionError(f"{option} is {limit}: a cache holds at least 1. Use the backend alone for no cache.")
        if max_entries is None and max_bytes is None:
            raise OptionError("a cache needs a limit: give max_entries or max_bytes.")
        super().__init__(inner)
        self.name = "state"
        self._context = KeyContext()
        self._entries = Entries(inner, max_entries, max_bytes, weigher)
        self._wanted_bounds: Bounds | None = None
        self._recording = Recording(self, ("lru",)) if hit_rate_curve else None
        if self._recording is not None:
            register(self._recording)
        self._declared = Declarations(_KINDS, self._make)
        self._states = self._declared.states
        self._timers: dict[str, UncachedTimers] = {}
        self._entered: set[int] = set()
        self._hit_ratio = HitRatio(self._reads, clock)
        self._recorder = recorder
        self._turns_to_clock = _TURNS_A_LOOK
        # The numbers of the first versions that belong to the open and to the last committed version.
        self._opened = self._committed = 0
        self._newest: LruSnapshot | None = None

    @property
    def context(self) -> KeyContext:
        """The current key, and the time."""
        return self._context

    @property
    def shares_objects(self) -> bool:
        """Whether it keeps the very objects it is given: yes."""
        return True

    def enter(self, key_group: int) -> None:
        """Enter a key group. The backend enters it when something must be read there."""
        if key_group not in self._entered:
            self._enter_first(key_group)
        self._context.key_group = key_group
        self._turns_to_clock -= 1
        if not self._turns_to_clock:
            self._turns_to_clock = _TURNS_A_LOOK
            self._hit_ratio.record_if_due(self._recorder)
            if self._wanted_bounds is not None:
                self._entries.resize(self._wanted_bounds)
                self._wanted_bounds = None

    def _enter_first(self, key_group: int) -> None:
        """Enter a key group for the first time in this version. Only the backend knows which groups are the shard's."""
        self._inner.enter(key_group)
        self._entered.add(key_group)

    def value_state(self, descriptor: StateDescriptor) -> ValueState:
        """Return the handle of a value state."""
        return self._declared.declare(descriptor, LruValueState)

    def list_state(self, descriptor: StateDescriptor) -> ListState:
        """Return the handle of a list state."""
        return self._declared.declare(descriptor, LruListState)

    def map_state(self, descriptor: StateDescriptor) -> MapState:
        """Return the handle of a map state. That of timers bypasses the cache."""
        if descriptor.name not in TIMER_STATES:
            return self._declared.declare(descriptor, LruMapState)
        timers = UncachedTimers(descriptor, self._inner, self._context)
        return self._timers.setdefault(descriptor.name, timers)

    def _make(self, kind: type[LruState], descriptor: StateDescriptor) -> LruState:
        inner = self._inner
        declare = {
            StateKind.VALUE: inner.value_state,
            StateKind.LIST: inner.list_state,
            StateKind.MAP: inner.map_state,
        }[descriptor.kind]
        made = kind(descriptor, inner, declare(descriptor), self._context, self._entries)
        if self._recording is not None:
            tell_reads(made, self._context, self._recording)
        return made

    def keys(self, name: str) -> Iterator[tuple[int, Row]]:
        """Yield key group and key of every key that has this state: those of dirty entries, then other keys."""
        state = self._states.get(name)
        if state is None:
            yield from self._inner.keys(name)
            return
        dirty = {
            (group, cell[0] if state.is_map else cell): None
            for group, bucket in list(state.cached.buckets.items())
            for cell in bucket.dirty
        }
        ours = {place: None for place in dirty if state.holds(*place)}
        yield from ours
        for place in self._inner.keys(name):
            if place not in ours and state.holds(*place) is not False:
                yield place

    def cells(self, name: str, key_group: int) -> Cells:
        """Return every cell of a state in one key group as it is now."""
        cells = self._inner.cells(name, key_group)
        state = self._states.get(name)
        bucket = None if state is None else state.cached.buckets.get(key_group)
        return cells if bucket is None else overlaid(cells, bucket.dirty)

    def raw_cells(self, name: str, key_group: int) -> Pairs | None:
        """Return every cell of a state in one key group as bytes; None if there are no bytes. Between two versions."""
        pairs, state = self._inner.raw_cells(name, key_group), self._states.get(name)
        bucket = None if state is None else state.cached.buckets.get(key_group)
        if pairs is None or state is None or bucket is None:
            return pairs
        return overlaid_pairs(pairs, state.descriptor, bucket.dirty)

    def write(self, name: str, cells: Cells) -> None:
        """Put or delete cells: cached ones in the cache, the others in the backend."""
        state = self._states.get(name)
        if state is None:
            if name in self._timers:
                self._timers[name].changed = True
            self._inner.write(name, cells)
        else:
            state.write(cells)

    def raw(self, name: str) -> RawCells:
        """Return direct access to the cells of a declared state. Reads consult the cache and change nothing in it."""
        return self._inner.raw(name) if name in self._timers else self._declared.find(name)

    def commit(self) -> Snapshot:
        """End the version. Dirty entries stay in the cache, and are part of the snapshot."""
        inner = self._inner.commit()
        descriptors = {name: state.descriptor for name, state in self._states.items()}
        parts = {
            name: {
                group: Part(bucket.dirty, bucket.carried, self._opened)
                for group, bucket in state.cached.buckets.items()
                if bucket.dirty or bucket.carried
            }
            for name, state in self._states.items()
        }
        for bucket in self._buckets():
            bucket.commit()
        self._committed = self._opened
        self._entries.end_version()
        self._opened = self._entries.version
        self._leave()
        self._hit_ratio.record(self._recorder)
        self._timers_are_as_committed()
        self._newest = LruSnapshot(inner, parts, descriptors)
        return self._newest

    def rollback(self) -> bool:
        """Drop every change since the last commit. Return whether there was any."""
        changed = self._any_change()
        self._inner.rollback()
        for bucket in self._buckets():
            bucket.roll_back()
        self._go_back(self._opened)
        return changed

    def undo_commit(self) -> None:
        """Revert the last commit, and what came after it."""
        self._inner.undo_commit()
        for bucket in self._buckets():
            bucket.undo_commit()
        self._go_back(self._committed)
        self._opened = self._entries.version

    def acknowledge(self) -> None:
        """Take note that the last commit will not be reverted."""
        self._inner.acknowledge()
        replaced = []
        for bucket in self._buckets():
            if bucket.previous is not None:
                replaced.append(bucket.previous)
                bucket.previous = None
        if self._newest is not None:
            self._newest.keep(replaced)
            self._newest = None

    def load(self, descriptor: StateDescriptor, cells: Cells) -> None:
        """Put or delete cells in the backend as part of a restore, and drop them from the cache."""
        self._check_nothing_open(descriptor)
        self._inner.load(descriptor, cells)
        self._forget(descriptor, cells)

    def load_raw(self, descriptor: StateDescriptor, key_group: int, pairs: Iterable[Pair]) -> None:
        """Put cells, given as bytes, in the backend as part of a restore, and drop them from the cache."""
        self._check_nothing_open(descriptor)
        pairs = list(pairs)
        self._inner.load_raw(descriptor, key_group, pairs)
        state = self._states.get(descriptor.name)
        # Before the first record the cache is empty, so nothing needs to be decoded.
        known = state is not None and key_group in state.cached.buckets
        self._forget(descriptor, cell_bytes(descriptor, 0).cells(key_group, pairs) if known else Cells())

    def _check_nothing_open(self, descriptor: StateDescriptor) -> None:
        if self._any_change():
            raise open_version(descriptor.name)

    def _forget(self, descriptor: StateDescriptor, cells: Cells) -> None:
        state = self._states.get(descriptor.name)
        if state is not None:
            by_group: dict[int, set[Row]] = {}
            for key_group, cell in zip(cells.key_groups, places(cells), strict=True):
                by_group.setdefault(key_group, set()).add(cell)
            for key_group, loaded in by_group.items():
                self._entries.forget(state.bucket(key_group), loaded)

    def close(self) -> None:
        """Free everything, the backend included. Idempotent."""
        self._states.clear()
        self._timers.clear()
        self._entries.order.clear()
        self._inner.close()

    def stats(self) -> LruStats:
        """Return the counters and the size."""
        states, entries = self._states.values(), self._entries
        gets = sum(state.cached.misses + state.cached.others for state in states)
        return LruStats(
            hits=sum(state.cached.hits for state in states),
            misses=sum(state.cached.misses for state in states),
            gets=gets,
            puts=entries.puts,
            key_switches=gets,
            copies=sum(state.cached.copies for state in states),
            evictions=entries.evictions,
            entries=len(entries.order),
            bytes=entries.bytes,
        )

    @property
    def policy(self) -> Policy:
        """LRU."""
        return "lru"

    @property
    def bounds(self) -> Bounds:
        """The most that it may hold."""
        return self._entries.bounds

    def resize(self, bounds: Bounds) -> None:
        """Change the limits soon: at one of the next `enter` calls, on the thread that has the handles.

        Raises:
            OptionError: a bound is below 1, or of another kind than the present ones.
        """
        present = self._entries.bounds
        for option, before, limit in zip(bounds._fields, present, bounds, strict=True):
            if (before is None) != (limit is None) or (limit is not None and limit < 1):
                raise OptionError(f"{option} is {limit}: expected a whole number of 1 or more in place of {before}.")
        self._wanted_bounds = bounds

    @property
    def hit_ratio(self) -> HitRatio:
        """The gauge `stateCacheHitRatio`."""
        return self._hit_ratio

    def _reads(self) -> tuple[int, int]:
        states = self._states.values()
        return sum(state.cached.hits for state in states), sum(state.cached.misses for state in states)

    def _any_change(self) -> bool:
        """Return whether the open version has changed anything."""
        return self._entries.any_change or any(timers.changed for timers in self._timers.values())

    def _timers_are_as_committed(self) -> None:
        for timers in self._timers.values():
            timers.changed = False

    def _buckets(self) -> Iterable[Bucket]:
        return (bucket for state in self._states.values() for bucket in state.cached.buckets.values())

    def _go_back(self, oldest: int) -> None:
        self._entries.revert(oldest, self._buckets())
        self._timers_are_as_committed()
        self._leave()

    def _leave(self) -> None:
        self._context.leave()
        self._entered.clear()
        for state in self._states.values():
            state.begin_version()


_KINDS: dict[StateKind, type[LruState]] = {
    StateKind.VALUE: LruValueState,
    StateKind.LIST: LruListState,
    StateKind.MAP: LruMapState,
}
