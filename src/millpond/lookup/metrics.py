"""The metrics of a lookup table, with the names and meanings of FLIP-221.

The invariant: every distinct key of a batch is one hit or one miss, and in partial mode every miss is one
load. A batch adds its sums once, under a lock, so counting costs nothing per key. A caller that
waits for another's load counts as a hit. A retry is not counted.

Source: FLIP-221, "Cache Metrics".
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.lookup.hit_history import HitHistory, HitRate
from millpond.metrics import NO_METRICS, Recorder


@dataclass(frozen=True, slots=True)
class LookupStats:
    """The counters and levels of a lookup table. An unknown level is None.

    A batch looks up each distinct key once, and `hit_count` and `miss_count` count these keys. `event_hit_count` counts
    events: all of the batch, except one for each missed key, which counts as the miss.

    Three count events of a join with `retry_missing`: repeated lookups, events that then found a row, and events that
    were given up without one. The last two count keys of a join with `share_cache`: those that were asked of the
    executor that owns them, and those of them that it did not answer.

    >>> total = LookupStats(hit_count=3, miss_count=1) + LookupStats(miss_count=4, latest_load_time_ms=7)
    >>> total.hit_count, total.miss_count, total.latest_load_time_ms, total.hit_rate
    (3, 5, 7, 0.375)
    """

    hit_count: int = 0
    miss_count: int = 0
    event_hit_count: int = 0
    load_count: int = 0
    num_load_failure: int = 0
    latest_load_time_ms: int | None = None
    num_cached_record: int | None = None
    num_cached_bytes: int | None = None
    missing_retry_count: int = 0
    missing_found_count: int = 0
    missing_given_up_count: int = 0
    owner_ask_count: int = 0
    owner_failure_count: int = 0

    @property
    def hit_rate(self) -> float:
        """Hits per key looked up, 0.0 before the first."""
        asked = self.hit_count + self.miss_count
        return self.hit_count / asked if asked else 0.0

    @property
    def event_hit_rate(self) -> float:
        """Hits per event, 0.0 before the first event."""
        asked = self.event_hit_count + self.miss_count
        return self.event_hit_count / asked if asked else 0.0

    def named(self) -> dict[str, int | None]:
        """Return the metrics by their names in FLIP-221; those that it lacks have names of the same style."""
        return {
            "hitCount": self.hit_count,
            "missCount": self.miss_count,
            "eventHitCount": self.event_hit_count,
            "loadCount": self.load_count,
            "numLoadFailure": self.num_load_failure,
            "latestLoadTime": self.latest_load_time_ms,
            "numCachedRecord": self.num_cached_record,
            "numCachedBytes": self.num_cached_bytes,
            "missingRetryCount": self.missing_retry_count,
            "missingFoundCount": self.missing_found_count,
            "missingGivenUpCount": self.missing_given_up_count,
            "ownerAskCount": self.owner_ask_count,
            "ownerFailureCount": self.owner_failure_count,
        }

    def __add__(self, other: "LookupStats") -> "LookupStats":
        later = other.latest_load_time_ms
        return LookupStats(
            self.hit_count + other.hit_count,
            self.miss_count + other.miss_count,
            self.event_hit_count + other.event_hit_count,
            self.load_count + other.load_count,
            self.num_load_failure + other.num_load_failure,
            self.latest_load_time_ms if later is None else later,
            _sum(self.num_cached_record, other.num_cached_record),
            _sum(self.num_cached_bytes, other.num_cached_bytes),
            self.missing_retry_count + other.missing_retry_count,
            self.missing_found_count + other.missing_found_count,
            self.missing_given_up_count + other.missing_given_up_count,
            self.owner_ask_count + other.owner_ask_count,
            self.owner_failure_count + other.owner_failure_count,
        )

    def since(self, earlier: "LookupStats") -> "LookupStats":
        """Return the increase of each counter since `earlier`. Levels are None."""
        return LookupStats(
            self.hit_count - earlier.hit_count,
            self.miss_count - earlier.miss_count,
            self.event_hit_count - earlier.event_hit_count,
            self.load_count - earlier.load_count,
            self.num_load_failure - earlier.num_load_failure,
            self.latest_load_time_ms if self.load_count > earlier.load_count else None,
            missing_retry_count=self.missing_retry_count - earlier.missing_retry_count,
            missing_found_count=self.missing_found_count - earlier.missing_found_count,
            missing_given_up_count=self.missing_given_up_count - earlier.missing_given_up_count,
            owner_ask_count=self.owner_ask_count - earlier.owner_ask_count,
            owner_failure_count=self.owner_failure_count - earlier.owner_failure_count,
        )


class Counting:
    """The counters of one `counting` block."""

    def __init__(self) -> None:
        self.stats = LookupStats()


_COUNTING: ContextVar[Counting | None] = ContextVar("what a caller's lookups count", default=None)


@contextmanager
def counting() -> Iterator[Counting]:
    """Count only the lookups of this thread or coroutine, even if others use the same table meanwhile.

    >>> with counting() as counted:
    ...     CacheMetricGroup("planes").asked(hits=3, misses=1)
    >>> counted.stats.hit_count, counted.stats.miss_count
    (3, 1)
    """
    counted = Counting()
    token = _COUNTING.set(counted)
    try:
        yield counted
    finally:
        _COUNTING.reset(token)


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


class CacheMetricGroup:
    """The metrics of one table in this process; every method is thread-safe.

    Args:
        name: the table's name, which becomes a label.
        recorder: receives the sums after each batch.
        clock: monotonic milliseconds, for the hit rate over time.
    """

    def __init__(self, name: str, recorder: Recorder = NO_METRICS, clock: Clock = monotonic_ms) -> None:
        self.name = name
        self._recorder = recorder
        self._history = HitHistory(clock)
        self._lock = threading.Lock()
        self._sum = LookupStats()
        self._records: Callable[[], int | None] = _unknown
        self._bytes: Callable[[], int | None] = _unknown

    def asked(self, *, hits: int, misses: int, repeats: int = 0) -> None:
        """Add the hits and misses among a batch's distinct keys, and the number of repeated keys."""
        with self._lock:
            self._add(LookupStats(hit_count=hits, miss_count=misses, event_hit_count=hits + repeats))
            self._history.add(hits, misses)
        self._recorder.count("millpond_lookup_requests_total", hits, name=self.name, result="hit")
        self._recorder.count("millpond_lookup_requests_total", misses, name=self.name, result="miss")
        if self._recorder is not NO_METRICS:
            self._record_sizes()

    def loaded(self, loads: int, took_ms: int) -> None:
        """Add successful loads, and the time that they took together."""
        if not loads:
            return
        with self._lock:
            self._add(LookupStats(load_count=loads, latest_load_time_ms=took_ms))
        self._recorder.count("millpond_lookup_loads_total", loads, name=self.name, result="ok")
        self._recorder.gauge("millpond_lookup_latest_load_seconds", took_ms / 1_000, name=self.name)

    def unchanged(self) -> None:
        """Add a reload that was skipped because the source has not changed."""
        self._recorder.count("millpond_lookup_loads_total", 1, name=self.name, result="unchanged")

    def failed(self, loads: int) -> None:
        """Add failed loads."""
        if not loads:
            return
        with self._lock:
            self._add(LookupStats(load_count=loads, num_load_failure=loads))
        self._recorder.count("millpond_lookup_loads_total", loads, name=self.name, result="failure")

    def sizes(self, records: Callable[[], int | None], cached_bytes: Callable[[], int | None]) -> None:
        """Register the functions that return the levels numCachedRecord and numCachedBytes."""
        self._records, self._bytes = records, cached_bytes

    def _record_sizes(self) -> None:
        for metric, size in (("records", self._records()), ("bytes", self._bytes())):
            if size is not None:
                self._recorder.gauge(f"millpond_lookup_cached_{metric}", size, name=self.name)

    def _add(self, more: LookupStats) -> None:
        self._sum += more
        counted = _COUNTING.get()
        if counted is not None:
            counted.stats += more

    def stats(self) -> LookupStats:
        """Return the counters so far and the present levels."""
        with self._lock:
            counted = self._sum
        return counted + LookupStats(num_cached_record=self._records(), num_cached_bytes=self._bytes())

    def hit_rates(self) -> list[HitRate]:
        """Return the hits and misses of each of the last 60 minutes that had a lookup, oldest first."""
        with self._lock:
            return self._history.rates()


def _unknown() -> None:
    return None
