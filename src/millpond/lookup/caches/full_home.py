"""Where a fully cached table is stored: for this process alone, or for a whole cluster.

Place on the data path: between the full cache, which decides when to load, and the readers. The invariant: `swap`
is called only after a complete load, and after `fail` no reader gets an answer.

The table is a mapped file even for a single process, because an index of Python keys would take several times the
memory of the table. The file is unlinked before it is read, so the system removes it with its last reader.
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
    """Stores the loads of one table and makes them visible to readers. Called by one load at a time."""

    def hold(self, scanned: Scanned, keys: Sequence[str]) -> HeldTable:
        """Build a `HeldTable` from a scanned table and the names of its key columns. No reader sees it yet."""
        ...

    def swap(self, held: HeldTable) -> None:
        """Replace the table that readers see. If it raises, the reload has failed."""
        ...

    def fail(self, error: Exception) -> None:
        """Make every further lookup fail with `error`."""
        ...

    def watermark_ms(self) -> int | None:
        """Return the last watermark of the query that reads it, in ms since 1970 UTC; None if unknown."""
        ...


class InProcess:
    """Stores a table that only this process reads, through its full cache."""

    def hold(self, scanned: Scanned, keys: Sequence[str]) -> HeldTable:
        """Write the table with its index to a file, map it, and unlink the file."""
        scans = [scanned]
        del scanned
        with tempfile.TemporaryDirectory(prefix="millpond-lookup-") as folder:
            made = MappedTable.of(scans.pop(), keys, Path(folder, "1.table"))
        pa.default_memory_pool().release_unused()
        return made

    def swap(self, held: HeldTable) -> None:
        """Do nothing: the full cache holds the table."""

    def fail(self, error: Exception) -> None:
        """Do nothing: the full cache raises the error."""

    def watermark_ms(self) -> int | None:
        """Return None: there is no query."""
        return None
