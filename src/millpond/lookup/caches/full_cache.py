"""The cache that holds a whole table, behind the interface that every lookup cache has.

The invariant: a reader holds one table, old or new, never a mixture, because a table is put in place
with a single assignment and never changed. What is not in it has no rows: nothing is ever "not
cached". Nobody but a reload may change it, so `put` and `invalidate` are refused.

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
    - Capacity: the table, whatever its size.
    - Freshness: the last good load.
    - Concurrent miss: there is none.

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
        """Whether there is a table."""
        return self._table is not None

    def swap(self, table: HeldTable) -> None:
        """Put a new table in place of the old one; whoever holds the old one keeps it."""
        self._table = table

    def current(self) -> HeldTable:
        """The table now; hold on to it for as long as several answers should come from one table."""
        if self._table is None:
            raise OptionError("the full lookup table is not loaded yet; call open(), or use it in a with statement")
        return self._table

    def get_if_present(self, key: Key) -> Rows:
        """The rows of a key; never None."""
        return self.find([key])[key]

    def find(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """The rows of every key, all from one table."""
        return self.current().find(keys, self._columns)

    def put(self, key: Key, rows: Rows) -> Rows | None:
        """Refused.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            f"a full cache holds what the source has, so nothing can be put there (key {key!r}, {len(rows)} rows); "
            "change the source and reload"
        )

    def invalidate(self, key: Key) -> None:
        """Refused.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            f"a full cache holds what the source has, so no key of it can be invalidated ({key!r}); reload it"
        )

    def size(self) -> int:
        """How many keys the table has."""
        return 0 if self._table is None else self._table.key_count

    def close(self) -> None:
        """Nothing: the last table stays readable, and goes with its last reader."""

    def _bytes(self) -> int:
        return 0 if self._table is None else self._table.held_bytes
