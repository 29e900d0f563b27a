"""The cached entries of one state, and the path of a miss.

The backend is read past its handle (`RawCells`), so a miss switches no key.

The wheels of some platforms have this module compiled (docs/explanation/state.md), so its types hold at run time.
"""

from collections.abc import Callable
from typing import Any

from millpond.state.backend.current_key import no_current_key
from millpond.state.backend.key_context import KeyContext
from millpond.state.backend.protocols import RawCells
from millpond.state.types.rows import Row
from millpond.state.wrappers.lru.entries import Bucket, Entries, Entry


class StateEntries:
    """The cached entries of one state.

    While no key is current, the current key is an empty tuple, which no entry has. So only a miss has to ask whether
    there is a current key.

    Args:
        name: of the state.
        raw: direct access to the state's cells in the backend.
        context: the current key.
        shard: the entries of all states.
        is_map: whether it is a map state.

    Attributes:
        entries: by key, or for a map state by key and then by map key.
        buckets: by key group.
        hits, misses: of reads. A miss reads the backend.
        others: reads of the backend for more than one cell, which the cache alone cannot answer.
        copies: deep copies of mutable values.
    """

    __slots__ = (
        "_context", "_is_map", "_name", "_place", "_read", "buckets", "copies", "entries", "hits", "misses", "others",
        "raw", "shard",
    )  # fmt: skip

    def __init__(self, name: str, raw: RawCells, context: KeyContext, shard: Entries, *, is_map: bool) -> None:
        self.entries: dict[Row, Any] = {}
        self.buckets: dict[int, Bucket] = {}
        self.hits = self.misses = self.others = self.copies = 0
        self.raw = raw
        self.shard = shard
        self._name = name
        self._is_map = is_map
        self._context = context
        self._place: Callable[[int, Any], Any] = raw.place
        self._read: Callable[[Any], Any] = raw.read

    def bucket(self, key_group: int) -> Bucket:
        """Return the bucket of a key group."""
        bucket = self.buckets.get(key_group)
        if bucket is None:
            bucket = Bucket(self.raw, key_group, self.entries, is_map=self._is_map)
            self.buckets[key_group] = bucket
        return bucket

    def current_bucket(self) -> Bucket:
        """Return the bucket of the current key.

        Raises:
            OptionError: no key is current.
        """
        key_group = self._context.key_group
        if key_group < 0:
            raise no_current_key(f"state {self._name!r}")
        return self.bucket(key_group)

    def entry(self, key: Row) -> Entry:
        """Return the entry of the current key, which becomes the hottest. Only for states with one cell a key."""
        entry: Entry | None = self.entries.get(key)
        if entry is None:
            return self.load(key)
        self.hits += 1
        self.shard.order.move_to_end(entry)
        return entry

    def load(self, cell: Row) -> Entry:
        """Load a cell of the current key that is not cached. Return its entry.

        Raises:
            OptionError: no key is current.
        """
        bucket = self.current_bucket()
        self.misses += 1
        place = self._place(bucket.key_group, cell)
        return self.shard.load(bucket, cell, self._read(place), place)

    def read(self, key_group: int, cell: Row) -> Any:
        """Return a cell's value without a change to the cache."""
        entry = self.bucket(key_group).find(cell)
        return self._read(self._place(key_group, cell)) if entry is None else entry.value
