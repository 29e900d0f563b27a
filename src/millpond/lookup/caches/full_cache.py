"""The cache that holds a whole table, with the methods of every lookup cache.

The invariant: a reader sees one table, old or new, never a mixture. A table is never changed, and a reload
replaces it by a single assignment. A key that is not in the table has no rows, so nothing is ever "not cached".
Only a reload may change the contents: `put` and `invalidate` raise an error.

Source: FLIP-221, full caching; Flink's `LookupFullCache`.
"""

from collections.abc import Sequence

from millpond.errors import OptionError
from millpond.lookup.caches.held_table import HeldTable
from millpond.lookup.functions.function import Key, Rows
from millpond.lookup.metrics import CacheMetricGroup


class LookupFullCache:
    """A `LookupCache` of a whole table.

    - Key: the tuple of key values.
    - Capacity: the whole table, whatever its size.
    - Freshness: as of the last successful load.
    - Concurrent miss: cannot happen.

    Args:
        columns: the columns of a row.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._table: HeldTable | None = None

    def open(self, metrics: CacheMetricGroup) -> None:
        """Register numCachedRecord and numCachedBytes."""
        metrics.sizes(self.size, self._bytes)

    @property
    def is_loaded(self) -> bool:
        """Whether a table was loaded."""
        return self._table is not None

    def swap(self, table: HeldTable) -> None:
        """Replace the table. Readers that hold the old one can go on using it."""
        self._table = table

    def current(self) -> HeldTable:
        """Return the present table. Keep the reference for all lookups that should come from one table."""
        if self._table is None:
            raise OptionError("the full lookup table is not loaded yet; call open(), or use it in a with statement")
        return self._table

    def get_if_present(self, key: Key) -> Rows:
        """Return the rows of a key; never None."""
        return self.find([key])[key]

    def find(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key, all from one table."""
        return self.current().find(keys, self._columns)

    def put(self, key: Key, rows: Rows) -> Rows | None:
        """Raise an error: only a reload changes a full cache.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            f"a full cache holds what the source has, so nothing can be put there (key {key!r}, {len(rows)} rows); "
            "change the source and reload"
        )

    def invalidate(self, key: Key) -> None:
        """Raise an error: only a reload changes a full cache.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            f"a full cache holds what the source has, so no key of it can be invalidated ({key!r}); reload it"
        )

    def size(self) -> int:
        """Return the number of distinct keys in the table."""
        return 0 if self._table is None else self._table.key_count

    def close(self) -> None:
        """Do nothing: the last table stays readable, and is freed with its last reader."""

    def _bytes(self) -> int:
        return 0 if self._table is None else self._table.held_bytes
