"""Full caching: the whole table in memory, loaded before the first row and then when a trigger says.

The source is never asked on a miss: what is not in the table has no rows, and counts a hit like any
other. The invariant: the table is replaced whole, by a load that succeeded, or not at all.

A reload that fails keeps the last good table, is counted and warned of, and the next trigger tries
again. That is a choice: Flink's original fails the job, which `on_reload_failure="fail"` gives. The
first load has nothing to fall back on and raises. A reload in which the table has lost all its rows
is taken for a failure, unless that is allowed: half-written sources look so.

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
"""A tenth of the processor where readers want all of it, and all of it where they want none."""


def wall_clock_ms() -> int:
    """The time of day, in ms since 1970 UTC."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - "02:30" is said by the wall clock


def in_a_thread(action: Callable[[], None]) -> None:
    """Run `action` in a daemon thread of its own."""
    threading.Thread(target=action, name="millpond-reload", daemon=True).start()


def in_a_thread_that_gives_way(action: Callable[[], None]) -> None:
    """The same at a lower priority, for a table whose readers are other processes: they do not wait for a reload.

    Readers in this process would: for the interpreter, while a thread that is seldom let run has it.
    """

    def give_way_and_act() -> None:
        # Where threads have priorities of their own; elsewhere this would slow the whole process down.
        if sys.platform == "linux":
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(os.getpriority(os.PRIO_PROCESS, thread), _RELOAD_NICENESS))
        action()

    in_a_thread(give_way_and_act)


class FullCachingLookup(LookupFunction):
    """A lookup function over a table that is held whole; thread-safe.

    Args:
        scan: reads the whole table.
        trigger: says when to read it again; None never.
        metrics: what counts.
        retries: how a scan that failed is tried again.
        clock: monotonic milliseconds, for the time a load took.
        home: where the loads go, and who else is told of them; this process alone by default.
        on_reload_failure: `"keep"` the last good table, or `"fail"` every lookup from then on.
        allow_empty_reload: whether a table that had rows may come back without any.
        wall_clock: the time of day in ms, for the trigger.
        run: where the reloads that the trigger asks for run.

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
        """Load the table and start the trigger; raises what the load raises. Who opens it meanwhile waits for that."""
        with self._opening:
            if not self._cache.is_loaded or self._closed:
                self._open()

    def _open(self) -> None:
        self._closed = False
        self._failure = None
        self._load(skip_unchanged=False)
        self._cache.open(self._metrics)
        if self._trigger is not None:
            self._trigger.open(self)

    def close(self) -> None:
        """Stop the trigger; the last table stays readable, and a reload under way changes it no more."""
        self._closed = True
        if self._trigger is not None:
            self._trigger.close()
        if isinstance(self._scan, Closeable):
            self._scan.close()

    def current(self) -> HeldTable:
        """The table now; hold on to it for as long as one answer should come from one table.

        Raises:
            UnavailableError: a reload failed, and `on_reload_failure` is `"fail"`.
        """
        if self._failure is not None:
            raise UnavailableError(*self._failure.args) from self._failure.__cause__
        return self._cache.current()

    def current_processing_time_ms(self) -> int:
        """The time of day, by which the trigger goes."""
        return self._wall_clock()

    def current_watermark_ms(self) -> int | None:
        """The last watermark that is known at home, or was told to `advance_watermark`."""
        known_ms = self._home.watermark_ms()
        if known_ms is not None:
            self.advance_watermark(known_ms)
        return self._watermark_ms

    def advance_watermark(self, watermark_ms: int) -> None:
        """Tell the trigger how far the stream has come; a watermark never goes back."""
        with self._lock:
            self._watermark_ms = watermark_ms if self._watermark_ms is None else max(self._watermark_ms, watermark_ms)

    def trigger_reload(self) -> Future[None]:
        """Reload in a thread of its own; the future ends when that has, with the error if it failed.

        While one that was asked for has not begun, the next who asks gets the same one. Once a reload has failed the
        table, with `on_reload_failure="fail"`, nothing is scanned any more.
        """
        with self._lock:
            if self._asked_for is not None:
                return self._asked_for
            ended = self._asked_for = Future()
        self._run(lambda: self._reload_for(ended))
        return ended

    def reload(self) -> None:
        """Reload now, in this thread; a failure is counted and warned of, and with `"fail"` raised."""
        with self._reloading:
            self._reload()

    def stats(self) -> LookupStats:
        """What was counted so far."""
        return self._metrics.stats()

    def hit_rates(self) -> list[HitRate]:
        """Hits and misses of each of the last 60 minutes in which there was a lookup, oldest first."""
        return self._metrics.hit_rates()

    def lookup(self, keys: Key) -> Rows:
        """The rows of one key."""
        return self.lookup_many([keys])[keys]

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """The rows of every key, all from one table; none for a key with a null."""
        table = self.current()
        asked = self._check(keys)
        found = table.find(asked, self.row_schema.names)
        self._metrics.asked(hits=len(asked), misses=0, repeats=repeated(keys, asked))
        return {key: found.get(key, []) for key in keys}

    def _reload_for(self, ended: "Future[None]") -> None:
        failure: Exception | None = None
        with self._reloading:
            with self._lock:
                self._asked_for = None
            failure = self._reloaded()
        if failure is None:
            ended.set_result(None)
        else:
            ended.set_exception(failure)

    def _reload(self) -> None:
        failure = self._reloaded()
        if failure is not None and self._fails:
            raise failure

    def _reloaded(self) -> Exception | None:
        """What went wrong, if anything; after a failure that was final, that."""
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
            # Before the scan: what changes while that runs makes another version, and is seen by the next reload.
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
        # Straight in: whoever holds on to a scanned table here needs its memory twice.
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
