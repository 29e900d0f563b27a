"""A database that is ahead of the version it should hold: a rollback's writes did not fit on the disk.

A rollback writes old values back, which takes space, and the usual reason for a rollback is a disk that has none left.
So what could not be written back is remembered: the keys, and the snapshot that has their values. Reads of those keys
go to the snapshot, scans lay it over the database, and the first write that comes puts the old values back before it.
Until that succeeds, every write fails, and every read is right.

Invariant: read through this, the database holds the version of the snapshot, and nothing was written since.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from millpond.state.rocksdb.database import Database


class Unreverted:
    """Stands for a database's handle until its keys are put back.

    Args:
        database: that is ahead.
        version: the snapshot that has the values of the keys.
        keys: under which the database may differ from it.
        done: called once they are put back: the database's own handle is right again.
    """

    def __init__(self, database: Database, version: Any, keys: set[bytes], done: Callable[[], None]) -> None:
        self._database = database
        self.version = version
        self.keys = keys
        self._done = done

    def get(self, at: bytes | list[bytes]) -> bytes | list[bytes | None] | None:
        """What the version has under a key, or under each of many."""
        if isinstance(at, list):
            return [self._get(each) for each in at]
        return self._get(at)

    def _get(self, at: bytes) -> bytes | None:
        if at in self.keys:
            return self._database.read_from(self.version, at)
        data: bytes | None = self._database.handle.get(at)
        return data

    def __setitem__(self, at: bytes, data: bytes) -> None:
        """Put the keys back, then write."""
        self.put_back()
        self._database.handle[at] = data

    def __delitem__(self, at: bytes) -> None:
        """Put the keys back, then delete."""
        self.put_back()
        del self._database.handle[at]

    def laid_over(self, first: bytes, end: bytes, live: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """A scan of the version, from one of the database."""
        read_from = self._database.read_from
        ours = ((at, read_from(self.version, at)) for at in sorted(self.keys) if first <= at < end)
        theirs = (pair for pair in live if pair[0] not in self.keys)
        there = ((at, data) for at, data in ours if data is not None)
        return heapq.merge(theirs, there)

    def put_back(self) -> None:
        """Write the old values, all or none. An UnavailableError says that there is still no room for them."""
        places, read_from = list(self.keys), self._database.read_from
        self._database.write_past(places, [read_from(self.version, at) for at in places])
        self._done()
