"""Full caching: the whole table in memory, loaded before the first row and then when a trigger says.

The invariant: a reader holds one table, old or new, never a mixture, because a reload makes a new
`KeyedTable` beside the old one and puts it in place with a single assignment. The source is never
asked on a miss: what is not in the table has no rows, and counts a hit like any other.

A reload that fails keeps the last good table, is counted and warned of, and the next trigger tries
again; Flink's original stops for good instead. The first load has nothing to fall back on and raises.

Source: FLIP-221, `FullCachingLookupProvider`.
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Self

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.errors import OptionError
from millpond.lookup.function import Key, LookupFunction, Rows
from millpond.lookup.keyed_table import KeyedTable
from millpond.lookup.metrics import CacheMetricGroup, LookupStats
from millpond.lookup.retry import Retries
from millpond.lookup.scan import LookupScan
from millpond.lookup.trigger import CacheReloadTrigger


@dataclass(frozen=True)
class FullCachingLookupProvider:
    """A scan of the whole table, and the trigger that says when to scan again (None: never)."""

    scan: LookupScan
    trigger: CacheReloadTrigger | None

    @classmethod
    def of(cls, scan: LookupScan, trigger: CacheReloadTrigger | None) -> Self:
        """The provider of both."""
        return cls(scan, trigger)

    def create_lookup_function(
        self,
        metrics: CacheMetricGroup,
        retries: Retries,
        clock: Clock = monotonic_ms,
        on_swap: Callable[[KeyedTable], None] | None = None,
    ) -> "FullCachingLookup":
        """The function that holds the table, not yet open."""
        return FullCachingLookup(self.scan, self.trigger, metrics, retries, clock, on_swap=on_swap)


class FullCachingLookup(LookupFunction):
    """A lookup function over a table that is held whole; thread-safe.

    `on_swap` is called with every new table before it is put in place; if it fails, the reload failed.
    """

    def __init__(
        self,
        scan: LookupScan,
        trigger: CacheReloadTrigger | None,
        metrics: CacheMetricGroup,
        retries: Retries,
        clock: Clock = monotonic_ms,
        *,
        on_swap: Callable[[KeyedTable], None] | None = None,
    ) -> None:
        self.key_schema = scan.key_schema
        self.row_schema = scan.row_schema
        self._scan = scan
        self._trigger = trigger
        self._metrics = metrics
        self._retries = retries
        self._clock = clock
        self._on_swap = on_swap
        self._table: KeyedTable | None = None
        self._reloading = threading.Lock()

    def open(self) -> None:
        """Load the table and start the trigger; raises what the load raises."""
        if self._table is not None:
            return
        self._load()
        self._metrics.sizes(lambda: len(self.current().groups), lambda: self.current().table.nbytes)
        if self._trigger is not None:
            self._trigger.open(self)

    def close(self) -> None:
        """Stop the trigger; the last table stays readable."""
        if self._trigger is not None:
            self._trigger.close()

    def current(self) -> KeyedTable:
        """The table now; hold on to it for as long as one answer should come from one table."""
        if self._table is None:
            raise OptionError("the full lookup table is not loaded yet; call open(), or use it in a with statement")
        return self._table

    def current_processing_time_ms(self) -> int:
        """The clock that the trigger goes by."""
        return self._clock()

    def trigger_reload(self) -> Future[None]:
        """Reload on the caller's thread; the future is done when this returns, whatever became of it."""
        ended: Future[None] = Future()
        try:
            self._load()
        except Exception as error:  # noqa: BLE001 - whatever a scan raises, the last good table stays
            warnings.warn(
                f"a full lookup table could not be reloaded and goes on with the last good one: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
        ended.set_result(None)
        return ended

    def stats(self) -> LookupStats:
        """What was counted so far."""
        return self._metrics.stats()

    def lookup(self, keys: Key) -> Rows:
        """The rows of one key."""
        return self.lookup_many([keys])[keys]

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """The rows of every key, all from one table."""
        table = self.current()
        found = table.find(list(dict.fromkeys(keys)))
        places = [table.table.column_names.index(name) for name in self.row_schema.names]
        self._metrics.asked(hits=len(found), misses=0)
        return {key: [tuple(row[place] for place in places) for row in rows] for key, rows in found.items()}

    def _load(self) -> None:
        with self._reloading:
            started_ms = self._clock()
            try:
                table = KeyedTable.of(self._retries.run("a scan", self._scan.scan), self.key_schema.names)
                if self._on_swap is not None:
                    self._on_swap(table)
            except BaseException:
                self._metrics.failed(1)
                raise
            self._table = table
            self._metrics.loaded(1, self._clock() - started_ms)
