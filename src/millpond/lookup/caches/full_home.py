"""Where a fully cached table lives: in this process, or where a whole cluster reads it.

Between the full cache, which says when a table is loaded, and those who look rows up. The invariant:
`swap` comes after a load that is whole, and once `fail` was called no reader gets an answer any more.

In one process too the table is a mapped file. Python objects for the keys of an index would take several
times the table. The file has no name by the time it is read, so the system removes it with its last reader.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from millpond.lookup.caches.column_file import Scanned
from millpond.lookup.caches.held_table import HeldTable
from millpond.lookup.caches.mapped_table import MappedTable


class FullHome(Protocol):
    """What becomes of the loads of one table; called by one load at a time."""

    def hold(self, scanned: Scanned, keys: Sequence[str]) -> HeldTable:
        """Make of a scanned table and the names of its key columns what rows are found in; nobody reads it yet."""
        ...

    def swap(self, held: HeldTable) -> None:
        """Let readers have this table instead of the one before; if it raises, the reload failed."""
        ...

    def fail(self, error: Exception) -> None:
        """Let every reader fail with `error` from now on."""
        ...

    def watermark_ms(self) -> int | None:
        """The last watermark of the query that reads it, in ms since 1970 UTC, where that is known."""
        ...


class InProcess:
    """The home of a table that this process alone reads, through its full cache."""

    def hold(self, scanned: Scanned, keys: Sequence[str]) -> HeldTable:
        """Write it with its index, map it, and let go of the file's name."""
        scans = [scanned]
        del scanned
        with tempfile.TemporaryDirectory(prefix="millpond-lookup-") as folder:
            made = MappedTable.of(scans.pop(), keys, Path(folder, "1.table"))
        pa.default_memory_pool().release_unused()
        return made

    def swap(self, held: HeldTable) -> None:
        """Nothing: the full cache has it."""

    def fail(self, error: Exception) -> None:
        """Nothing: the full cache raises it."""

    def watermark_ms(self) -> int | None:
        """None: there is no query."""
        return None
