"""The entries of an `LruStateCache`: their order, their limit, and what a snapshot needs of them.

An entry is *dirty* while the backend behind the cache does not have its value. The dirty entries of one state and key
group are in one dictionary, the bucket's `dirty`. A commit keeps a reference to it, and the first change after that
copies it. So a bucket's dictionary is copied shallowly, when it is changed, and never by the commit. An entry that a
commit may have seen is not changed either, but replaced.

So an entry is in one of four conditions, which the hot path tells by one comparison of `writable`:

- the open version: dirty since this version; changed in place.
- an earlier version: dirty, and part of a snapshot; a change replaces it.
- `CLEAN`: in no snapshot; changed in place, and then dirty.
- `WRITTEN`: part of a snapshot, and written to the backend since; a change replaces it.

Invariant: a `dirty` that a commit has seen never changes, neither the dictionary nor its entries.

When the coldest entry is dirty, the coldest entries of its state are written together. All but the first stay, clean
(*cleaning ahead*). So the backend gets batches and no key switch, and the order of eviction is exactly LRU. The
object of an entry that leaves is used again for the entry that comes, unless a snapshot has it. So in a full cache a
miss creates no object and moves one in the order of use.

The wheels of some platforms have this module compiled (docs/explanation/state.md), so its types hold at run time.

Source: FLIP-325, whose buckets are copied on write in the same way (Flink's CopyOnWriteStateMap).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from millpond.cache import Bounds
from millpond.state.backend.cell_bytes import cell_bytes, laid_over
from millpond.state.backend.pairs import Pairs
from millpond.state.backend.protocols import ABSENT, Appended, Cells, KeyedStateBackend, RawCells, cells_at
from millpond.state.types.descriptor import StateDescriptor
from millpond.state.types.key_types import given_form
from millpond.state.types.rows import Row

CLEAN: Final = -1
WRITTEN: Final = -2

Weigher = Callable[[object, object], int]

_WRITTEN_TOGETHER: Final = 64
_SHARE_WRITTEN_TOGETHER: Final = 4


class Entry:
    """One cached pair. Entries are compared by identity, so hashing one costs least.

    Attributes:
        bucket: the bucket it belongs to.
        cell: the key, or `(key, map_key)`.
        value: the cell's value; None for an absent cell, since no state can hold None.
        version: the version in which it came into the cache or was last changed.
        place: where the backend has the cell; None until the backend was asked.
        writable: see the module.
        kept: for a list to which the version in `version` has only added, its length before; else -1.
        lent: the copy of a mutable value that user code got in version `lent_in`.
        weight: in bytes, if the cache is sized in bytes.
    """

    __slots__ = ("bucket", "cell", "kept", "lent", "lent_in", "place", "value", "version", "weight", "writable")

    def __init__(self, bucket: "Bucket", cell: Row, value: Any, version: int, place: Any) -> None:
        self.bucket = bucket
        self.cell = cell
        self.value = value
        self.version = version
        self.place = place
        self.writable = CLEAN
        self.kept = -1
        self.lent: Any = None
        self.lent_in = -1
        self.weight = 0


class Bucket:
    """The cached entries of one state in one key group, and what its open and committed versions need.

    Attributes:
        raw: direct access to the state's cells in the backend.
        entries: the cached entries of the whole state: by key, or for a map state by key and then by map key.
        dirty: by cell, the entries that the backend does not have.
        committed: `dirty` as the last commit saw it. It is the same dictionary until the first change after the commit.
        previous: `committed` as it was before that commit, while the commit may be reverted.
        carried: cells that earlier versions changed and the open version only wrote to the backend: not its changes.
        given: cells that the open version changed and wrote to the backend.
    """

    __slots__ = ("carried", "committed", "dirty", "entries", "given", "is_map", "key_group", "previous", "raw")

    def __init__(self, raw: RawCells, key_group: int, entries: dict[Row, Any], *, is_map: bool) -> None:
        self.raw = raw
        self.key_group = key_group
        self.is_map = is_map
        self.entries = entries
        self.dirty: dict[Row, Entry] = {}
        self.committed: dict[Row, Entry] = {}
        self.previous: dict[Row, Entry] | None = None
        self.carried: set[Row] = set()
        self.given: set[Row] = set()

    def find(self, cell: Row) -> Entry | None:
        """Return the cached entry of a cell, or None."""
        if not self.is_map:
            return self.entries.get(cell)
        found: Entry | None = self.entries.get(cell[0], {}).get(cell[1])
        return found

    def add(self, entry: Entry) -> None:
        """Add an entry, in place of any other of its cell."""
        if self.is_map:
            self.entries.setdefault(entry.cell[0], {})[entry.cell[1]] = entry
        else:
            self.entries[entry.cell] = entry

    def remove(self, entry: Entry) -> None:
        """Remove an entry that is clean, or about to be dropped."""
        if not self.is_map:
            del self.entries[entry.cell]
            return
        key, map_key = entry.cell
        of_key = self.entries[key]
        del of_key[map_key]
        if not of_key:
            del self.entries[key]

    def commit(self) -> None:
        """Commit the open version as it is, without copying anything."""
        self.previous, self.committed = self.committed, self.dirty
        self.carried, self.given = set(), set()

    def roll_back(self) -> None:
        """Go back to what the last commit saw."""
        self.dirty = self.committed
        self.carried, self.given = set(), set()

    def undo_commit(self) -> None:
        """Go back to what the commit before the last one saw, if that is still kept."""
        if self.previous is not None:
            self.committed, self.previous = self.previous, None
        self.roll_back()

    def forget(self, cells: set[Row]) -> None:
        """Forget everything about these cells, because the backend restored them."""

        def without(known: dict[Row, Entry]) -> dict[Row, Entry]:
            return {cell: entry for cell, entry in known.items() if cell not in cells}

        self.dirty, self.committed = map(without, (self.dirty, self.committed))
        self.previous = None
        self.carried -= cells
        self.given -= cells


class Entries:
    """Every cached entry of a shard, coldest first. Between calls there are never more than the limit."""

    def __init__(
        self, inner: KeyedStateBackend, max_entries: int | None, max_bytes: int | None, weigher: Weigher
    ) -> None:
        self.order: OrderedDict[Entry, None] = OrderedDict()
        self.version = 0
        self.bytes = 0
        self.puts = self.evictions = 0
        self.any_change = False
        self.weighs = max_bytes is not None
        self._inner = inner
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._weigher = weigher
        share = _WRITTEN_TOGETHER if max_entries is None else max_entries // _SHARE_WRITTEN_TOGETHER
        self._together = max(1, min(_WRITTEN_TOGETHER, share))

    def load(self, bucket: Bucket, cell: Row, value: Any, place: Any) -> Entry:
        """Add what the backend has for a cell. Return its entry."""
        entry = self._admit(bucket, cell, value, place)
        if self.weighs:
            self._weigh(entry)
        return entry

    def change(self, bucket: Bucket, cell: Row, entry: Entry | None, value: Any) -> Entry:
        """Set a cell's value (None deletes it), given its cached entry or None. Return its entry."""
        version = self.version
        if entry is not None and (entry.writable == CLEAN or entry.writable == version):  # noqa: PLR1714 - the hot path
            entry.value = value
            entry.lent_in = -1
            self.order.move_to_end(entry)
        else:
            place = None
            if entry is not None:
                place = entry.place
                self.drop(entry)
            entry = self._admit(bucket, cell, value, place)
        entry.version = entry.writable = version
        entry.kept = -1
        if bucket.dirty is bucket.committed:
            bucket.dirty = bucket.dirty.copy()
        bucket.dirty[cell] = entry
        self.any_change = True
        if self.weighs:
            self._weigh(entry)
        return entry

    def _admit(self, bucket: Bucket, cell: Row, value: Any, place: Any) -> Entry:
        """Add a clean entry as the hottest, and evict the coldest if there is no room. Every miss comes here."""
        order, version = self.order, self.version
        if len(order) != self._max_entries:
            entry = Entry(bucket, cell, value, version, place)
            order[entry] = None
        else:
            entry = next(iter(order))
            if entry.writable >= 0:
                self._write_from(entry)
            self.evictions += 1
            if entry.writable == CLEAN and not self.weighs:
                # No snapshot has the entry that leaves, so its object is used again.
                if entry.bucket.is_map:
                    entry.bucket.remove(entry)
                else:
                    del entry.bucket.entries[entry.cell]
                order.move_to_end(entry)
                entry.bucket = bucket
                entry.cell = cell
                entry.value = value
                entry.version = version
                entry.place = place
                entry.kept = -1
                entry.lent, entry.lent_in = None, -1
            else:
                self.drop(entry)
                entry = Entry(bucket, cell, value, version, place)
                order[entry] = None
        if bucket.is_map:
            bucket.add(entry)
        else:
            bucket.entries[cell] = entry
        return entry

    def drop(self, entry: Entry) -> None:
        """Drop an entry without writing it."""
        del self.order[entry]
        entry.bucket.remove(entry)
        if self.weighs:
            self.bytes -= entry.weight

    def forget(self, bucket: Bucket, cells: set[Row]) -> None:
        """Drop everything about these cells, because the backend restored them."""
        for cell in cells:
            entry = bucket.find(cell)
            if entry is not None:
                self.drop(entry)
        bucket.forget(cells)

    def end_version(self) -> None:
        """Begin another version."""
        self.version += 1
        self.any_change = False

    def written_through(self, bucket: Bucket, cell: Row) -> None:
        """Take note that the open version changed a cell in the backend that is not cached."""
        self.puts += 1
        self.any_change = True
        bucket.carried.discard(cell)
        bucket.given.add(cell)

    def write_through(self, bucket: Callable[[int], Bucket], name: str, cells: Cells) -> None:
        """Put cells that are not cached directly into the backend, as changes of the open version."""
        self._inner.write(name, cells)
        for key_group, cell in zip(cells.key_groups, places(cells), strict=True):
            self.written_through(bucket(key_group), cell)

    def revert(self, oldest: int, buckets: Iterable[Bucket]) -> None:
        """Follow the backend back: drop what came or changed in versions from `oldest` on, and restore what was dirty.

        The dirty entries were all cached at one commit, so there is room for them once clean ones are dropped.
        """
        self.end_version()
        for entry in [entry for entry in self.order if entry.version >= oldest]:
            self.drop(entry)
        for bucket in buckets:
            for cell, entry in bucket.dirty.items():
                present = bucket.find(cell)
                if present is not entry:
                    self._return(entry, present)
                entry.writable = entry.version
        for entry in list(self.order) if self._is_over() else ():
            if entry.writable < 0 and self._is_over():
                self.drop(entry)

    def _return(self, entry: Entry, present: Entry | None) -> None:
        if present is not None:
            self.drop(present)
        self.order[entry] = None
        entry.bucket.add(entry)
        if self.weighs:
            self.bytes += entry.weight

    @property
    def bounds(self) -> Bounds:
        """The most that it may hold."""
        return Bounds(self._max_entries, self._max_bytes)

    def resize(self, bounds: Bounds) -> None:
        """Change the limits. The coldest entries are evicted, and written before if they are dirty."""
        self._max_entries, self._max_bytes = bounds
        while self._is_over():
            self._evict()

    def _evict(self) -> None:
        """Drop the coldest entry, written before if it is dirty."""
        coldest = next(iter(self.order))
        if coldest.writable >= 0:
            self._write_from(coldest)
        self.drop(coldest)
        self.evictions += 1

    def _is_over(self) -> bool:
        return (self._max_entries is not None and len(self.order) > self._max_entries) or (
            self._max_bytes is not None and self.bytes > self._max_bytes
        )

    def _write_from(self, coldest: Entry) -> None:
        """Write the coldest entry, together with the next dirty ones of its state."""
        raw = coldest.bucket.raw
        self._write(
            raw,
            [entry for entry in islice(self.order, self._together) if entry.writable >= 0 and entry.bucket.raw is raw],
        )

    def _write(self, raw: RawCells, dirty: list[Entry]) -> None:
        """Write dirty entries of one state to the backend and make them clean. If that fails, nothing changes."""
        places = [entry.place for entry in dirty]
        if not all(places):
            places = [entry.place or raw.place(entry.bucket.key_group, entry.cell) for entry in dirty]
        raw.put_all(places, [entry.value for entry in dirty])
        self.puts += len(dirty)
        version = self.version
        for entry in dirty:
            bucket = entry.bucket
            if bucket.dirty is bucket.committed:
                bucket.dirty = bucket.dirty.copy()
            del bucket.dirty[entry.cell]
            if entry.version == version:
                entry.writable = CLEAN
                bucket.given.add(entry.cell)
                if bucket.carried:
                    bucket.carried.discard(entry.cell)
            else:
                entry.writable = WRITTEN
                bucket.carried.add(entry.cell)

    def _weigh(self, entry: Entry) -> None:
        weight = self._weigher(entry.cell, entry.value)
        self.bytes += weight - entry.weight
        entry.weight = weight
        limit = self._max_bytes or 0
        if weight > limit:
            # Too heavy for the whole cache: it is evicted alone, before it pushes out the others.
            if entry.writable >= 0:
                self._write(entry.bucket.raw, [entry])
            self.drop(entry)
            self.evictions += 1
        while self.bytes > limit:
            self._evict()


def as_cells(entries: list[Entry]) -> Cells:
    """Return entries of one state as cells, absences as deletions. There must be at least one."""
    return cells_at(
        [(entry.bucket.key_group, entry.cell) for entry in entries],
        [entry.value for entry in entries],
        is_map=entries[0].bucket.is_map,
    )


def as_changes(entries: list[Entry]) -> Cells:
    """Return the same as changes of a version: for lists to which it only added, the added elements."""
    changes = as_cells(entries)
    changes.values = [
        value if entry.kept < 0 else Appended(value[entry.kept :])
        for entry, value in zip(entries, changes.values, strict=True)
    ]
    return changes


def places(cells: Cells) -> list[Any]:
    """Return what names each cell in a bucket: its key, or key and map key."""
    return cells.keys if cells.map_keys is None else list(zip(cells.keys, cells.map_keys, strict=True))


def overlaid(cells: Cells, dirty: dict[Row, Entry]) -> Cells:
    """Return the cells of one key group with the dirty entries put over them: changed, added or deleted."""
    if not dirty:
        return cells
    kept = cells.where(cell not in dirty for cell in places(cells))
    present = [entry for entry in dirty.values() if entry.value is not None]
    if not present:
        return kept
    ours = as_cells(present)
    map_keys = ours.map_keys if ours.map_keys is None else (kept.map_keys or []) + ours.map_keys
    return Cells(kept.key_groups + ours.key_groups, kept.keys + ours.keys, map_keys, kept.values + ours.values)


def overlaid_pairs(pairs: Pairs, descriptor: StateDescriptor, dirty: dict[Row, Entry]) -> Pairs:
    """Return the same for cells that are bytes."""
    table: dict[Any, Any] = {}
    for cell, entry in dirty.items():
        value = ABSENT if entry.value is None else entry.value
        if entry.bucket.is_map:
            table.setdefault(given_form(cell[0]), {})[cell[1]] = value
        else:
            table[given_form(cell)] = value
    return laid_over(cell_bytes(descriptor, 0), pairs, table)
