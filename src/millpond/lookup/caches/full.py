"""Full caching: the whole table is loaded before the first lookup, and again whenever a trigger asks.

There are no misses: a key that is not in the table has no rows, and counts as a hit. The invariant: the table
is replaced as a whole, by a load that succeeded, or not at all.

A reload that fails is counted and warned of, and the last good table stays until the next trigger tries again.
Flink instead fails the job; `on_reload_failure="fail"` does the same here. The first load has no earlier table,
so its failure is raised. A reload that finds no rows where there were some counts as failed, unless
`allow_empty_reload` is set, because a half-written source looks like that.

Source: FLIP-221, `FullCachingLookupProvider`.
"""

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Literal, TypeAlias

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.errors import DataError, OptionError, UnavailableError
from millpond.lookup.caches.full_cache import LookupFullCache
from millpond.lookup.caches.full_home import FullHome, InProcess
from millpond.lookup.caches.held_table import HeldTable
from millpond.lookup.functions.function import Key, LookupFunction, Rows
from millpond.lookup.functions.keys import KeyCheck, repeated
from millpond.lookup.functions.retry import Retries
from millpond.lookup.hit_history import HitRate
from millpond.lookup.metrics import CacheMetricGroup, LookupStats
from millpond.lookup.reload.scan import Closeable, KnowsVersion, LookupScan, ScansInBatches
from millpond.lookup.reload.trigger import CacheReloadTrigger

OnReloadFailure: TypeAlias = Literal["keep", "fail"]

_RELOAD_NICENESS = 10
"""The niceness of a reload. It gets a tenth of a processor that readers use fully, and all of an idle one."""


def wall_clock_ms() -> int:
    """Return the time of day, in ms since 1970 UTC."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - "02:30" is a time of the wall clock


def in_a_thread(action: Callable[[], None]) -> None:
    """Run `action` in a daemon thread of its own."""
    threading.Thread(target=action, name="millpond-reload", daemon=True).start()


def in_a_thread_that_gives_way(action: Callable[[], None]) -> None:
    """Run `action` in a daemon thread of low priority, for a table whose readers are other processes.

    Readers in this process would suffer: a thread of low priority that holds the interpreter lock delays them.
    """

    def give_way_and_act() -> None:
        # Only Linux gives each thread its own priority; elsewhere this would slow down the whole process.
        if sys.platform == "linux":
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), _RELOAD_NICENESS))
        action()

    in_a_thread(give_way_and_act)


class FullCachingLookup(LookupFunction):
    """A lookup function over a fully cached table; thread-safe.

    Args:
        scan: reads the whole table.
        trigger: decides when to read it again; None means never.
        metrics: counts lookups and loads.
        retries: how a failed scan is tried again.
        clock: monotonic milliseconds, to time the loads.
        home: where the table is stored, and who can read it; by default only this process.
        on_reload_failure: `"keep"` the last good table, or `"fail"` every further lookup.
        allow_empty_reload: whether a reload of a table that had rows may have none.
        wall_clock: the time of day in ms since 1970 UTC, for the trigger.
        run: starts a reload that the trigger asks for, by default in a thread of its own.

    >>> import pyarrow as pa
    >>> from millpond.lookup import TableScan
    >>> tables = [pa.table({"code": ["JFK"], "gate": [gate]}) for gate in (1, 1, 2)]
    >>> with FullCachingLookup(TableScan(lambda: tables.pop(0), ["code"]), trigger=None) as gates:
    ...     before = gates.lookup_many([("JFK",), ("LHR",)])
    ...     gates.reload()
    ...     before, gates.lookup(("JFK",))
    ({('JFK',): [(1,)], ('LHR',): []}, [(2,)])
    """

    def __init__(
        self,
        scan: LookupScan,
        trigger: CacheReloadTrigger | None,
        metrics: CacheMetricGroup | None = None,
        retries: Retries | None = None,
        clock: Clock = monotonic_ms,
        *,
        home: FullHome | None = None,
        on_reload_failure: OnReloadFailure = "keep",
        allow_empty_reload: bool = False,
        wall_clock: Clock = wall_clock_ms,
        run: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._metrics = CacheMetricGroup(type(scan).__name__) if metrics is None else metrics
        self._where = f"lookup table {self._metrics.name!r}"
        if on_reload_failure not in ("keep", "fail"):
            raise OptionError(f"{self._where}, on_reload_failure: expected keep or fail, got {on_reload_failure!r}")
        self.key_schema = scan.key_schema
        self.row_schema = scan.row_schema
        self._check = KeyCheck(self._where, self.key_schema)
        self._cache = LookupFullCache(self.row_schema.names)
        self._scan = scan
        self._trigger = trigger
        self._retries = Retries() if retries is None else retries
        self._clock = clock
        self._home = InProcess() if home is None else home
        self._fails = on_reload_failure == "fail"
        self._allow_empty = allow_empty_reload
        self._wall_clock = wall_clock
        self._run = run or (in_a_thread if home is None else in_a_thread_that_gives_way)
        self._failure: UnavailableError | None = None
        self._watermark_ms: int | None = None
        self._version: Hashable | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._reloading = threading.Lock()
        self._asked_for: Future[None] | None = None

    def open(self) -> None:
        """Load the table and start the trigger; raise what the load raises. A concurrent `open` waits for this one.

        An open table is not loaded again, unless a reload failed for good.
        """
        with self._opening:
            if not self.is_open or self._failure is not None:
                self._open()

    def _open(self) -> None:
        self._closed = False
        try:
            self._load(skip_unchanged=False)
        except BaseException:
            self._closed = True
            raise
        self._failure = None
        self._cache.open(self._metrics)
        if self._trigger is not None:
            self._trigger.open(self)
            if self._closed:
                # By another thread, during the load.
                self._trigger.close()

    def close(self) -> None:
        """Stop the trigger. The last table stays readable, and a reload under way does not replace it."""
        self._closed = True
        if self._trigger is not None:
            self._trigger.close()
        if isinstance(self._scan, Closeable):
            self._scan.close()

    @property
    def is_open(self) -> bool:
        """Whether a table was loaded, and `close` was not called since."""
        return self._cache.is_loaded and not self._closed

    def current(self) -> HeldTable:
        """Return the present table. Keep the reference for all lookups that should come from one table.

        Raises:
            UnavailableError: a reload failed, and `on_reload_failure` is `"fail"`.
        """
        if self._failure is not None:
            raise UnavailableError(*self._failure.args) from self._failure.__cause__
        return self._cache.current()

    def current_processing_time_ms(self) -> int:
        """Return the time of day in ms since 1970 UTC, for the trigger."""
        return self._wall_clock()

    def current_watermark_ms(self) -> int | None:
        """Return the last watermark that the `home` knows, or that `advance_watermark` was given."""
        known_ms = self._home.watermark_ms()
        if known_ms is not None:
            self.advance_watermark(known_ms)
        return self._watermark_ms

    def advance_watermark(self, watermark_ms: int) -> None:
        """Set the watermark that the trigger sees. A lower value than before is ignored."""
        with self._lock:
            self._watermark_ms = watermark_ms if self._watermark_ms is None else max(self._watermark_ms, watermark_ms)

    def trigger_reload(self) -> Future[None]:
        """Reload in a thread of its own. The future completes with the reload, with its error if it failed.

        While a requested reload has not begun, further requests return the same future. After a failure with
        `on_reload_failure="fail"`, the source is not scanned again.
        """
        with self._lock:
            if self._asked_for is not None:
                return self._asked_for
            ended = self._asked_for = Future()
        try:
            self._run(lambda: self._reload_for(ended))
        except RuntimeError as error:
            # The system has no thread left. The next request tries again.
            with self._lock:
                self._asked_for = None
            self._metrics.failed(1)
            ended.set_exception(
                UnavailableError(
                    f"{self._where}: a reload could not begin: {error}; the last good table stays, and the next "
                    "request tries again. Let this process have more threads, or start fewer"
                )
            )
        return ended

    def reload(self) -> None:
        """Reload in this thread. A failure is counted and warned of; with `on_reload_failure="fail"` it is raised."""
        with self._reloading:
            self._reload()

    def stats(self) -> LookupStats:
        """Return the counters so far."""
        return self._metrics.stats()

    def hit_rates(self) -> list[HitRate]:
        """Return the hits and misses of each of the last 60 minutes that had a lookup, oldest first."""
        return self._metrics.hit_rates()

    def lookup(self, keys: Key) -> Rows:
        """Return the rows of one key."""
        return self.lookup_many([keys])[keys]

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key, all from one table; none for a key with a null."""
        table = self.current()
        asked = self._check(keys)
        found = table.find(asked, self.row_schema.names)
        self._metrics.asked(hits=len(asked), misses=0, repeats=repeated(keys, asked))
        return {key: found.get(key, []) for key in keys}

    def _reload_for(self, ended: "Future[None]") -> None:
        try:
            with self._reloading:
                with self._lock:
                    self._asked_for = None
                failure = self._reloaded()
        except BaseException as error:
            # For example the warning, if the program turns warnings into errors.
            ended.set_exception(error)
            raise
        if failure is None:
            ended.set_result(None)
        else:
            ended.set_exception(failure)

    def _reload(self) -> None:
        failure = self._reloaded()
        if failure is not None and self._fails:
            raise failure

    def _reloaded(self) -> Exception | None:
        """Reload. Return the error if it failed; after a final failure, return that without a reload."""
        if self._failure is not None:
            return self._failure
        try:
            self._load(skip_unchanged=True)
        except Exception as error:  # noqa: BLE001 - whatever a scan raises, the last good table stays
            if self._fails:
                self._fail(error)
            warnings.warn(
                f"{self._where} could not be reloaded and "
                f"{'fails from now on' if self._fails else 'goes on with the last good one'}: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )
            return error
        return None

    def _fail(self, error: Exception) -> None:
        failure = UnavailableError(
            f"{self._where}: a reload failed, and on_reload_failure is 'fail': {type(error).__name__}: {error}; mend "
            "the source and open the table anew, or choose 'keep' to go on with the last good table"
        )
        failure.__cause__ = error
        self._failure = failure
        if self._trigger is not None:
            self._trigger.close()
        self._home.fail(failure)

    def _load(self, *, skip_unchanged: bool) -> None:
        started_ms = self._clock()
        try:
            # Read before the scan: a change during the scan gives another version, so the next reload sees it.
            version = self._version_now()
            if skip_unchanged and version is not None and version == self._version:
                self._metrics.unchanged()
                return
            table = self._retries.run(f"{self._where}: a scan", self._scanned)
            self._check_whole(table)
            if self._closed:
                return
            self._home.swap(table)
        except BaseException:
            self._metrics.failed(1)
            raise
        self._cache.swap(table)
        self._version = version
        self._metrics.loaded(1, self._clock() - started_ms)

    def _version_now(self) -> Hashable | None:
        scan = self._scan
        if not isinstance(scan, KnowsVersion):
            return None
        return self._retries.run(f"{self._where}: its version", scan.version)

    def _scanned(self) -> HeldTable:
        scan = self._scan
        # Passed on directly: a reference to the scanned table here would keep its memory twice.
        return self._home.hold(
            scan.scan_batches() if isinstance(scan, ScansInBatches) else scan.scan(), self.key_schema.names
        )

    def _check_whole(self, table: HeldTable) -> None:
        missing = [name for name in self.row_schema.names if name not in table.table.column_names]
        if missing:
            raise DataError(
                f"{self._where}: the scan gave no column {', '.join(missing)}, only "
                f"{', '.join(table.table.column_names)}; the source has changed, or the scan leaves it out"
            )
        if not table.key_count and self._cache.size() and not self._allow_empty:
            raise DataError(
                f"{self._where}: the reload found no rows where there were {self._cache.size():,} keys before, which "
                "looks like a source that is being written; if an empty table is right, allow it (allow_empty_reload)"
            )
