"""A database that is ahead of the version it should hold, because a rollback's writes did not fit on the disk.

A rollback writes old values back, which takes space, and the usual reason for a rollback is a full disk. So the
outstanding writes are remembered: their keys, and the snapshot that has their values. Reads of those keys go to the
snapshot, scans merge the snapshot's values into the database's, and the next write first writes the old values back.
Until that succeeds, every write fails and every read is correct.

Invariant: read through this object, the database holds the snapshot's version, and nothing was written since.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from millpond.state.rocksdb.database import Database


class Unreverted:
    """Replaces a database's handle until its keys are written back.

    Args:
        database: the one that is ahead.
        version: the snapshot that has the values of the keys.
        keys: those under which the database may differ from the snapshot.
        done: called once they are written back, when the database's own handle is correct again.
    """

    def __init__(self, database: Database, version: Any, keys: set[bytes], done: Callable[[], None]) -> None:
        self._database = database
        self.version = version
        self.keys = keys
        self._done = done

    def get(self, at: bytes | list[bytes]) -> bytes | list[bytes | None] | None:
        """Return the version's value of a key, or of each of many."""
        if isinstance(at, list):
            return [self._get(each) for each in at]
        return self._get(at)

    def _get(self, at: bytes) -> bytes | None:
        if at in self.keys:
            return self._database.read_from(self.version, at)
        data: bytes | None = self._database.handle.get(at)
        return data

    def __setitem__(self, at: bytes, data: bytes) -> None:
        """Write the old values back, then write."""
        self.put_back()
        self._database.handle[at] = data

    def __delitem__(self, at: bytes) -> None:
        """Write the old values back, then delete."""
        self.put_back()
        del self._database.handle[at]

    def laid_over(self, first: bytes, end: bytes, live: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        """Return a scan of the version, made from a scan of the database."""
        read_from = self._database.read_from
        ours = ((at, read_from(self.version, at)) for at in sorted(self.keys) if first <= at < end)
        theirs = (pair for pair in live if pair[0] not in self.keys)
        there = ((at, data) for at, data in ours if data is not None)
        return heapq.merge(theirs, there)

    def put_back(self) -> None:
        """Write the old values, all or none. Raises UnavailableError if there is still no room for them."""
        places, read_from = list(self.keys), self._database.read_from
        self._database.write_past(places, [read_from(self.version, at) for at in places])
        self._done()
