"""The db keys that a version changed, most of them packed: a version may change millions of cells.

New keys go into a set. Once that is large, it is sorted and packed as a run of compressed blocks. Neighbouring db keys
begin alike, so a packed key takes some bytes, and one in a set about a hundred.
"""

import heapq
import zlib
from collections.abc import Iterable, Iterator

import msgspec

_MOST_RECENT = 50_000
"""Largest number of keys in the set."""

_BLOCK = 1_000
"""Number of keys in a block. A reader holds one block of each run."""


class ChangedKeys:
    """Db keys, each once and in ascending order when they are read.

    >>> changed = ChangedKeys()
    >>> changed.update([b"b", b"a"])
    >>> changed.pack()
    >>> changed.recent.add(b"a")
    >>> list(changed)
    [b'a', b'b']

    Attributes:
        recent: the keys that are not packed. Whoever adds to it calls `pack_if_large` now and then.
    """

    __slots__ = ("_runs", "recent")

    def __init__(self) -> None:
        self.recent: set[bytes] = set()
        self._runs: list[list[bytes]] = []

    def update(self, keys: Iterable[bytes]) -> None:
        """Add many keys."""
        self.recent.update(keys)
        self.pack_if_large()

    def pack_if_large(self) -> None:
        """Pack the recent keys if there are many."""
        if len(self.recent) > _MOST_RECENT:
            self.pack()

    def pack(self) -> None:
        """Pack the recent keys."""
        if self.recent:
            keys = sorted(self.recent)
            self._runs.append([_packed(keys[first : first + _BLOCK]) for first in range(0, len(keys), _BLOCK)])
            self.recent.clear()

    def __bool__(self) -> bool:
        return bool(self.recent or self._runs)

    def __iter__(self) -> Iterator[bytes]:
        last = None
        for key in heapq.merge(sorted(self.recent), *map(_keys, self._runs)):
            if key != last:
                yield key
            last = key


def _packed(keys: list[bytes]) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(keys), level=1)


def _keys(blocks: list[bytes]) -> Iterator[bytes]:
    for block in blocks:
        yield from msgspec.msgpack.decode(zlib.decompress(block), type=list[bytes])
