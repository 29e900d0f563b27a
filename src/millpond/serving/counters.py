"""The counters of a fetcher, and the types of its statistics.

Place on the data path: beside it. A fetch counts into a `Tally` of its own, which is added to the sums once, under
one lock. So no count is lost between threads, and counting an event costs one addition. Only one fetch in
`SAMPLED_ONE_IN` is timed, because a clock read costs as much as a cache look-up.
"""

import os
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from millpond.cache import CacheStats

SAMPLED_ONE_IN = 16
"""One fetch in this many is timed."""

BOUNDS_SECONDS = (
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
)  # fmt: skip
"""The upper bounds of a histogram's buckets; one more bucket takes everything above."""


READ_COUNTS = ("batch_gets", "batch_gets_saved", "stream_gets", "rows", "bytes", "tiles", "tiles_saved")
"""What a short read counts, under the names of a `Tally`."""

ReadCounts = tuple[int, int, int, int, int, int, int]
"""The counts of one read, in the order of `READ_COUNTS`."""

_MOST_WAITING = 512
"""How many fetches by short reads are queued before they are added to the sums."""


class Histogram(msgspec.Struct, frozen=True):
    """The durations of one step, in the fetches that were timed.

    Attributes:
        bounds_seconds: the upper bound of each bucket except the last.
        counts: how many durations fell into each bucket.
        seconds: the sum of all durations.

    >>> Histogram((0.001, 0.01), (5, 1, 0), 0.009).count
    6
    """

    bounds_seconds: tuple[float, ...] = BOUNDS_SECONDS
    counts: tuple[int, ...] = (0,) * (len(BOUNDS_SECONDS) + 1)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """Return how many durations were recorded."""
        return sum(self.counts)


class Freshness(msgspec.Struct, frozen=True):
    """The age of a GroupBy's batch and stream, in milliseconds by the fetcher's clock; None where unknown.

    Attributes:
        batch_end_age_ms: time since the end of the batch.
        landing_age_ms: time since the batch landed.
        closing_age_ms: time since the stream's closing time.
        is_late: whether the batch is too old to answer every window exactly.
    """

    batch_end_age_ms: int | None = None
    landing_age_ms: int | None = None
    closing_age_ms: int | None = None
    is_late: bool = False


class FetcherStats(msgspec.Struct, frozen=True):
    """The statistics of a fetcher since it was made. Counts only grow.

    Attributes:
        requests: requests that were answered; a Join counts once.
        errors: requests with an unavailable feature.
        kv_calls: calls of the store; each answers many gets.
        batch_gets: gets of batch rows that were sent.
        batch_gets_saved: gets of batch rows that a cached row made unnecessary.
        stream_gets: gets of ranges of tiles.
        info_gets: gets of serving infos and closing times.
        rows_read: rows that the store returned.
        bytes_read: bytes in these rows.
        tiles_read: tiles that were decoded.
        tiles_saved: tiles that were not read, because a cached closed part contains them.
        joined_reads: reads of an uncached key that waited for the read of another fetch.
        dropped_amended: closed parts that were dropped because a late event amended a tile.
        present, null, unavailable: values by state.
        bounds: values that are only a bound, because a key has more distinct values than are kept.
        refreshes, refresh_failures: refreshes of the serving infos, and how many failed.
        late_batches: GroupBys whose batch is too old to answer every window.
        warmed: keys that were read into the caches before they were requested.
        log_dropped: answers that the answer log had no room for.
        caches: the statistics of each cache, by GroupBy and kind, as in ``route.batch`` and ``route.tiles``.
        freshness: the freshness of each GroupBy.
        latencies: the latencies of ``fetch``, ``get``, ``decode`` and ``finish``.
        process_bytes: the resident memory of this process, as the operating system reports it.
    """

    requests: int = 0
    errors: int = 0
    kv_calls: int = 0
    batch_gets: int = 0
    batch_gets_saved: int = 0
    stream_gets: int = 0
    info_gets: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    tiles_read: int = 0
    tiles_saved: int = 0
    joined_reads: int = 0
    dropped_amended: int = 0
    present: int = 0
    null: int = 0
    unavailable: int = 0
    bounds: int = 0
    refreshes: int = 0
    refresh_failures: int = 0
    late_batches: int = 0
    warmed: int = 0
    log_dropped: int = 0
    caches: Mapping[str, CacheStats] = {}
    freshness: Mapping[str, Freshness] = {}
    latencies: Mapping[str, Histogram] = {}
    process_bytes: int = 0


class Tally:
    """The counts of one fetch; used by that fetch alone."""

    __slots__ = (
        "batch_gets",
        "batch_gets_saved",
        "bytes",
        "dropped_amended",
        "errors",
        "info_gets",
        "joined",
        "kv_calls",
        "null",
        "present",
        "requests",
        "rows",
        "stream_gets",
        "tiles",
        "tiles_saved",
        "unavailable",
        "warmed",
    )

    def __init__(self) -> None:
        self.requests = self.errors = self.kv_calls = 0
        self.batch_gets = self.batch_gets_saved = self.stream_gets = self.info_gets = 0
        self.rows = self.bytes = self.tiles = self.tiles_saved = self.joined = self.dropped_amended = 0
        self.present = self.null = self.unavailable = self.warmed = 0


_TALLIED = Tally.__slots__
_OF_FETCHES = ("kv_calls", "null", "present")
_NAMES = {"bytes": "bytes_read", "joined": "joined_reads", "rows": "rows_read", "tiles": "tiles_read"}


class Counters:
    """The sums of all tallies, and the latencies; safe to use from several threads.

    >>> counters, tally = Counters(), Tally()
    >>> tally.requests = 2
    >>> counters.add(tally)
    >>> counters.sums()["requests"]
    2
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fetches: deque[tuple[int, int, int]] = deque()
        self._reads: deque[ReadCounts] = deque()
        self._sums = dict.fromkeys((*_TALLIED, "bounds"), 0)
        self._buckets = {name: [0] * (len(BOUNDS_SECONDS) + 1) for name in ("fetch", "get", "decode", "finish")}
        self._seconds = dict.fromkeys(self._buckets, 0.0)

    def add(self, tally: Tally) -> None:
        """Add the counts of one fetch."""
        with self._lock:
            sums = self._sums
            for name in _TALLIED:
                amount = getattr(tally, name)
                if amount:
                    sums[name] += amount

    def one_key(self, kv_calls: int, counts: ReadCounts, null: int, present: int) -> None:
        """Add one fetch of one key by a short read."""
        self._fetches.append((kv_calls, null, present))
        self._reads.append(counts)
        if len(self._fetches) >= _MOST_WAITING:
            self._add_waiting()

    def one_join(self, kv_calls: int, counts: Iterable[ReadCounts], null: int, present: int) -> None:
        """Add one fetch of a Join by short reads, with the counts of each part."""
        self._fetches.append((kv_calls, null, present))
        self._reads.extend(counts)
        if len(self._fetches) >= _MOST_WAITING:
            self._add_waiting()

    def info_get(self) -> None:
        """Add one get of a serving info."""
        with self._lock:
            self._sums["info_gets"] += 1

    def bound(self) -> None:
        """Add one value that is only a bound."""
        with self._lock:
            self._sums["bounds"] += 1

    def _add_waiting(self) -> None:
        """Add the queued counts to the sums: queueing costs a fetch much less than a lock and ten additions."""
        with self._lock:
            fetches = [self._fetches.popleft() for _ in range(len(self._fetches))]
            reads = [self._reads.popleft() for _ in range(len(self._reads))]
            self._sums["requests"] += len(fetches)
            for names, added in ((_OF_FETCHES, fetches), (READ_COUNTS, reads)):
                for name, amounts in zip(names, zip(*added, strict=True), strict=False):
                    self._sums[name] += sum(amounts)

    def timed(self, name: str, seconds: float) -> None:
        """Add one duration."""
        with self._lock:
            self._buckets[name][bisect_left(BOUNDS_SECONDS, seconds)] += 1
            self._seconds[name] += seconds

    def sums(self) -> dict[str, int]:
        """Return the counts under the names of `FetcherStats`."""
        self._add_waiting()
        with self._lock:
            return {_NAMES.get(name, name): amount for name, amount in self._sums.items()}

    def latencies(self) -> dict[str, Histogram]:
        """Return the histogram of each timed step."""
        with self._lock:
            return {
                name: Histogram(BOUNDS_SECONDS, tuple(buckets), self._seconds[name])
                for name, buckets in self._buckets.items()
            }


def process_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 where the operating system does not report it.

    >>> process_bytes() > 1_000_000
    True
    """
    try:
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return resident_pages * os.sysconf("SC_PAGE_SIZE")
