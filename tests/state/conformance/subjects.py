"""The backends and wrappers that every test of this folder runs over: a new one is one line of `SUBJECTS`."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millpond.state import TwoLayer, WriteBack
from millpond.state.rocksdb.backend import RocksDbBackend
from millpond.state.spi import CachedValues, ForwardingBackend, HeapBackend, KeyedStateBackend, Snapshot
from millpond.state.wrappers.lru.backend import LruStateCache
from tests.state.spillable.restless import Restless, open_spillable

IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - only ever a folder with a name of its own in it
"""Where tests put a database's folder, if there is such a place: a new one syncs its files when it opens."""

Open = Callable[[range, Path], KeyedStateBackend]


@dataclass(frozen=True)
class Subject:
    """One way to hold state, by name.

    Attributes:
        name: in test ids.
        layer: whose code a call reaches first; a layer's subjects share what `covering` covers.
        open: a backend of some key groups, whose files, if it has any, go into an empty folder.
        keeps_what_it_hands_out: whether a second get of one version must give the very object of the first:
            not where values are bytes, nor where the first may have been evicted.
        every_kind: whether it is tested with every kind of values, or with one: a wrapper asks the same codecs as
            its backend.
    """

    name: str
    layer: str
    open: Open
    keeps_what_it_hands_out: bool = False
    every_kind: bool = False

    def __repr__(self) -> str:
        return self.name


def heap(key_groups: range, _: Path) -> KeyedStateBackend:
    return HeapBackend(key_groups)


def rocksdb(key_groups: range, folder: Path) -> KeyedStateBackend:
    return RocksDbBackend(key_groups, folder, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20)


def spillable(key_groups: range, folder: Path) -> KeyedStateBackend:
    """A heap some of whose key groups are spilled, loaded or written before any operation, at random."""
    return Restless(key_groups, folder)


def spilled(key_groups: range, folder: Path) -> KeyedStateBackend:
    """A heap all of whose key groups are on disk."""
    backend = open_spillable(key_groups, folder)
    backend.spill_now(key_groups)
    return backend


def lru(inner: Open, **limit: int) -> Open:
    """A cache of the last used cells over another backend."""
    return lambda key_groups, folder: LruStateCache(inner(key_groups, folder), **limit)


def king(inner: Open, choice: WriteBack | TwoLayer) -> Open:
    """One of King's caches in front of every value state of another backend."""
    return lambda key_groups, folder: CachedValues(inner(key_groups, folder), choice)


class Counting(ForwardingBackend):
    """A user's wrapper, which counts versions and leaves all else to the backend."""

    commits = 0

    def commit(self) -> Snapshot:
        """Count it."""
        self.commits += 1
        return super().commit()


def counting(inner: Open) -> Open:
    """A user's wrapper around another backend."""
    return lambda key_groups, folder: Counting(inner(key_groups, folder))


SUBJECTS = [
    Subject("heap", "heap", heap, keeps_what_it_hands_out=True, every_kind=True),
    Subject("rocksdb", "rocksdb", rocksdb, every_kind=True),
    Subject("spillable", "spillable", spillable, every_kind=True),
    Subject("spilled", "spillable", spilled),
    Subject("lru1-heap", "lru", lru(heap, max_entries=1)),
    Subject("lru2-heap", "lru", lru(heap, max_entries=2)),
    Subject("lru8-heap", "lru", lru(heap, max_entries=8)),
    Subject("lru1000-heap", "lru", lru(heap, max_entries=1000), keeps_what_it_hands_out=True),
    Subject("lru-bytes-heap", "lru", lru(heap, max_bytes=1500)),
    Subject("lru2-spillable", "lru", lru(spillable, max_entries=2)),
    Subject("lru2-rocksdb", "lru", lru(rocksdb, max_entries=2)),
    Subject("lru1000-rocksdb", "lru", lru(rocksdb, max_entries=1000), keeps_what_it_hands_out=True),
    Subject("users-wrapper-heap", "users-wrapper", counting(heap), keeps_what_it_hands_out=True),
    Subject("users-wrapper-lru2-spilled", "users-wrapper", counting(lru(spilled, max_entries=2))),
    Subject("write-back1-heap", "king", king(heap, WriteBack(max_size=1))),
    Subject("write-back1000-rocksdb", "king", king(rocksdb, WriteBack(max_size=1000))),
    Subject("write-back1-spillable", "king", king(spillable, WriteBack(max_size=1))),
    Subject("two-layer2-1-heap", "king", king(heap, TwoLayer(max_size=2, max_size_l2=1))),
    Subject("two-layer1-2-lru2-heap", "king", king(lru(heap, max_entries=2), TwoLayer(max_size=1, max_size_l2=2))),
]
