"""Partial caching for batches of keys in Arrow: the rows of a batch stay in columns from the source to the join.

Place on the data path: between the lookup join and the source, like `PartialCachingLookup` for keys in Python. The
invariants are the same: a key has at most one request under way, and only answers of the source are cached. A failure
reaches every caller that waits for the request, and is not cached. A thread that is interrupted fails no other caller.

Keys that the cache reports as due are answered from the cache, and one background request loads them again
(`refresh-after-write`). If the source does not answer, expired rows are returned as long as the cache keeps them
(`stale-if-error`).

Keys are identified by their hashes. If two keys have the same hash, their columns distinguish them. If both are loaded
at the same time, only the first is cached.

Source: FLIP-221; Flink's `CachingLookupFunction`.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.cache.curves.recording import Recording
from millpond.cache.flights import NOBODY, Flight, Flights
from millpond.errors import UnavailableError
from millpond.lookup.caches.background import Background
from millpond.lookup.caches.in_flight import needs_itself
from millpond.lookup.column_cache.cache import ColumnCache
from millpond.lookup.column_cache.chunks import Rows, joined_rows, taken_rows
from millpond.lookup.column_cache.hashed_keys import HashedKeys
from millpond.lookup.column_cache.key_hash import key_array
from millpond.lookup.column_cache.recorded import RecordedColumns
from millpond.lookup.functions.function import Key, LookupFunction
from millpond.lookup.functions.keys import check_key_types
from millpond.lookup.functions.requests import ColumnAnswers, Requests
from millpond.lookup.functions.retry import Retries
from millpond.lookup.hit_history import HitRate
from millpond.lookup.metrics import CacheMetricGroup, LookupStats

Positions = npt.NDArray[np.int64]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Matched:
    """The results for a batch of keys.

    Attributes:
        rows: the rows of each key.
        failures: the failures by the key's number in the batch.
        ages_ms: how long ago the rows of each key were loaded, -1 if they were not in the cache; None if not asked for.
    """

    rows: Rows
    failures: Mapping[int, Exception] = field(default_factory=dict)
    ages_ms: Positions | None = None


class ColumnCachingLookup:
    """A lookup function with a cache of columns; thread-safe if the function is.

    Args:
        function: the source.
        cache: the cache in front of it; None always asks the source, but only once per key and batch.
        metrics: counts hits, misses and loads.
        retries: how failures are tried again.
        clock: monotonic milliseconds, to time the loads.
        hit_rate_curve: whether to record the cache's hit rates at other sizes, see `millpond.cache.curves`.

    Attributes:
        recording: the recording of the cache's hit-rate curve; None if there is none.

    >>> from millpond.lookup import PythonLookup
    >>> from millpond.lookup.column_cache.cache import ColumnCacheLimits
    >>> codes = PythonLookup(lambda code: [(code.lower(),)], pa.schema([("code", pa.string())]),
    ...                      pa.schema([("lower", pa.string())]))
    >>> with ColumnCachingLookup(codes, ColumnCache(ColumnCacheLimits(max_rows=10))) as lookup:
    ...     _, found = lookup.match([pa.array(["EWR"])]), lookup.match([pa.array(["JFK", "EWR"])])
    ...     [found.rows.rows.column(0)[start].as_py() for start in found.rows.starts], lookup.stats().hit_count
    (['jfk', 'ewr'], 1)
    """

    def __init__(
        self,
        function: LookupFunction,
        cache: ColumnCache | None,
        metrics: CacheMetricGroup | None = None,
        retries: Retries | None = None,
        clock: Clock = monotonic_ms,
        *,
        hit_rate_curve: bool = False,
    ) -> None:
        self._metrics = CacheMetricGroup(repr(function)) if metrics is None else metrics
        where = f"lookup table {self._metrics.name!r} ({function!r})"
        self.key_schema, self.row_schema = function.key_schema, function.row_schema
        check_key_types(where, self.key_schema)
        self._function, self._cache, self._clock = function, cache, clock
        self._requests = Requests(function, where, Retries() if retries is None else retries)
        self._lock = threading.Lock()
        self._background = Background("millpond-lookup-refresh")
        self._in_flight: Flights[Any, _Request] = Flights(partial(needs_itself, where))
        self._recorded = RecordedColumns(cache) if hit_rate_curve and cache is not None else None
        self.recording = None if self._recorded is None else Recording(self._recorded)

    def open(self) -> None:
        """Open the function, with retries, and register the cache's sizes."""
        self._requests.open()
        cache = self._cache
        if cache is not None:
            self._metrics.sizes(partial(self._locked, cache.__len__), partial(self._locked, lambda: cache.nbytes))

    def close(self) -> None:
        """Close the function and empty the cache, after waiting some seconds for a refresh under way.

        The result of a load under way is not cached.
        """
        self._background.close()
        self._function.close()
        self.invalidate(None)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stats(self) -> LookupStats:
        """Return the counters so far."""
        return self._metrics.stats()

    def hit_rates(self) -> list[HitRate]:
        """Return the hits and misses of each of the last 60 minutes that had a lookup, oldest first."""
        return self._metrics.hit_rates()

    def match(self, keys: Sequence[pa.Array], *, isolate: bool = False, with_ages: bool = False) -> Matched:
        """Return the rows of distinct keys, given as one array for each key column; none for a key with a null.

        With `isolate`, a failed key does not affect the others. Without it, the first failure is raised. With
        `with_ages`, the result also has the ages of the rows.

        Raises:
            DataError: the source's answer is not rows.
            UnavailableError: the source did not answer, after all retries.
        """
        hashed, possible = HashedKeys.of(keys, self.key_schema)
        places = np.flatnonzero(possible)
        batch = _Batch(keys, hashed, len(possible))
        if with_ages:
            batch.ages_ms = np.full(len(possible), -1, np.int64)
        self._background.count(self._metrics)
        while len(places):
            places = self._round(batch, places, isolate=isolate)
        if not isolate:
            for failure in batch.failures.values():
                raise failure
        return Matched(batch.rows(self.row_schema), batch.failures, batch.ages_ms)

    def invalidate(self, keys: Sequence[Key] | None) -> None:
        """Remove keys whose rows have changed; None removes all. The result of a load under way is not cached."""
        if keys is None:
            with self._lock:
                self._in_flight.forget_all()
                if self._cache is not None:
                    self._cache.clear()
            return
        keys = self._requests.checked(keys)
        if not keys:
            return
        columns = zip(*keys, strict=True)
        arrays = [key_array(values, field.type) for values, field in zip(columns, self.key_schema, strict=True)]
        hashed, possible = HashedKeys.of(arrays, self.key_schema)
        hashed = hashed.take(np.flatnonzero(possible))
        with self._lock:
            for key in hashed.hashes.tolist():
                self._in_flight.forget(key)
            if self._cache is not None:
                self._cache.invalidate(hashed)

    def forget_missing(self, keys: Sequence[pa.Array]) -> None:
        """Remove those keys that are cached as missing, so that their next lookup asks the source."""
        if self._cache is None:
            return
        hashed, possible = HashedKeys.of(keys, self.key_schema)
        hashed = hashed.take(np.flatnonzero(possible))
        with self._lock:
            slots = self._cache.find_stale(hashed)
            there = np.flatnonzero(slots >= 0)
            cached = self._cache.rows(slots[there])
            if cached is not None:
                self._cache.invalidate(hashed.take(there[cached.counts == 0]))

    def _round(self, batch: "_Batch", places: Positions, *, isolate: bool) -> Positions:
        """Look up keys by position. Return those that another thread was loading when it was interrupted."""
        others: dict[_Request, list[tuple[int, int]]] = {}
        request: _Request | None = None
        with self._lock:
            mine, due = self._missing(batch, places)
            self._refresh(batch, due)
            alone = mine[:0]
            if len(mine) and self._in_flight:
                others, mine, alone = self._under_way(batch, mine)
            asked = np.concatenate((mine, alone))
            if len(asked):
                request = _Request(batch.hashed.take(asked), len(mine), self.row_schema)
                self._in_flight.start(request.registered, request)
        try:
            self._metrics.asked(hits=len(places) - len(asked), misses=len(asked))
            if request is not None:
                self._load(batch, asked, request, isolate=isolate)
        finally:
            if request is not None and not request.done.is_set():
                # It has not begun: the recorder raised, or the thread was interrupted.
                self._end(request, ColumnAnswers())
        again = [self._taken_over(batch, other, pairs) for other, pairs in others.items()]
        return np.concatenate(again) if again else places[:0]

    def _missing(self, batch: "_Batch", places: Positions) -> tuple[Positions, Positions]:
        """Add the cached rows to the batch. Return the positions of keys not cached, and of keys to refresh."""
        if self._cache is None:
            return places, places[:0]
        asked = batch.hashed if len(places) == len(batch.hashed) else batch.hashed.take(places)
        if self.recording is not None:
            self.recording.asked_hashes(asked.hashes.view(np.int64))
        slots = self._cache.find(asked)
        present = slots >= 0
        if self._recorded is not None:
            hits = int(np.count_nonzero(present))
            self._recorded.hits += hits
            self._recorded.misses += len(present) - hits
        found = self._cache.rows(slots[present])
        if found is not None:
            batch.add(places[present], found)
            if batch.ages_ms is not None:
                batch.ages_ms[places[present]] = self._cache.ages_ms(slots[present])
        return places[~present], places[present][self._cache.due(slots[present])]

    def _refresh(self, batch: "_Batch", due: Positions) -> None:
        """Load keys again in the background. During another refresh do nothing: their next use reports them again."""
        if not len(due) or not self._background.is_idle():
            return
        hashed = batch.hashed.take(due)
        free = [number for number, key in enumerate(hashed.hashes.tolist()) if self._in_flight.get(key) is None]
        if not free:
            return
        numbers = np.array(free, np.int64)
        request = _Request(hashed.take(numbers), len(numbers), self.row_schema)
        request.owner = NOBODY
        keys = [pc.take(column, pa.array(due[numbers])) for column in batch.keys]

        def load() -> None:
            # Meanwhile, lookups find the cached rows. After a failure these stay until they expire.
            with contextlib.suppress(Exception):
                self._ask(keys, request, isolate=True, metrics=self._background)

        # The caller holds the lock, which the load needs to end. So the load is registered before it can end.
        if self._background.run(load):
            self._in_flight.start(request.registered, request)

    def _under_way(
        self, batch: "_Batch", places: Positions
    ) -> tuple[dict["_Request", list[tuple[int, int]]], Positions, Positions]:
        """Split the positions of keys that are not cached into three parts.

        The first are keys that other requests load, as pairs of position and number in that request. The second are
        keys for this thread to load. The third are keys whose hash another key under way has: this thread loads them
        too, but does not register them.
        """
        others: dict[_Request, list[tuple[int, int]]] = {}
        mine, alone = [], []
        for place, key in zip(places.tolist(), batch.hashed.hashes[places].tolist(), strict=True):
            other = self._in_flight.get(key)
            if other is None:
                mine.append(place)
            elif (number := other.number_of(batch.hashed, place)) is None:
                alone.append(place)
            else:
                others.setdefault(other, []).append((place, number))
        return others, np.array(mine, np.int64), np.array(alone, np.int64)

    def _load(self, batch: "_Batch", asked: Positions, request: "_Request", *, isolate: bool) -> None:
        keys = [pc.take(column, pa.array(asked)) for column in batch.keys]
        try:
            self._ask(keys, request, isolate=isolate, metrics=self._metrics)
        except UnavailableError:
            if not self._took_stale(batch, asked):
                raise
            return
        batch.add(asked[request.answered], request.rows)
        batch.failures.update({int(asked[number]): error for number, error in request.failures.items()})

    def _took_stale(self, batch: "_Batch", places: Positions) -> bool:
        """Take stale rows, because the source did not answer. Return False if a key has none."""
        if self._cache is None:
            return False
        with self._lock:
            slots = self._cache.find_stale(batch.hashed.take(places))
            found = self._cache.rows(slots) if bool((slots >= 0).all()) else None
        if found is not None:
            batch.add(places, found)
        return found is not None

    def _ask(
        self, keys: Sequence[pa.Array], request: "_Request", *, isolate: bool, metrics: "CacheMetricGroup | Background"
    ) -> None:
        started_ms = self._clock()
        answers = ColumnAnswers()
        try:
            self._requests.columns(keys, answers, isolate=isolate)
        except Exception as error:
            request.error = error
            # A source that is asked key by key has failed at the last key that it was asked for.
            metrics.failed(len(request.keys) if self._requests.batched else 1 + len(answers.failures))
            raise
        else:
            metrics.failed(len(answers.failures))
        finally:
            self._end(request, answers)
            metrics.loaded(len(request.answered), self._clock() - started_ms)

    def _end(self, request: "_Request", answers: ColumnAnswers) -> None:
        """End a request. Later callers find its answer in the cache, or ask the source again."""
        try:
            request.answer(answers)
        finally:
            try:
                with self._lock:
                    current = self._in_flight.end(request.registered, request)
                    if self._cache is not None and len(request.answered):
                        self._put(self._cache, request, current)
            finally:
                request.done.set()

    def _put(self, cache: ColumnCache, request: "_Request", current: list[int]) -> None:
        keys, rows = request.keys.take(request.answered), request.rows
        if len(current) < len(keys):
            kept = np.flatnonzero(np.isin(keys.hashes, np.array(current, np.uint64)))
            keys, rows = keys.take(kept), rows.taken(kept)
        cache.put(keys, rows)

    def _taken_over(self, batch: "_Batch", request: "_Request", pairs: list[tuple[int, int]]) -> Positions:
        """Wait for another thread's request and take its answers. Return the positions of keys without one."""
        key = tuple(str(column[pairs[0][0]]) for column in batch.keys)
        with self._lock:
            self._in_flight.wait_for(key, request)
        try:
            request.done.wait()
        finally:
            with self._lock:
                self._in_flight.waited()
        places, numbers = (np.array(each, np.int64) for each in zip(*pairs, strict=True))
        answered = np.searchsorted(request.answered, numbers)
        there = answered < len(request.answered)
        there[there] = request.answered[answered[there]] == numbers[there]
        batch.add(places[there], request.rows.taken(answered[there]))
        left = places[~there]
        again = []
        for place, number in zip(left.tolist(), numbers[~there].tolist(), strict=True):
            if number in request.failures:
                batch.failures[place] = request.failures[number]
            else:
                again.append(place)
        if again and request.error is not None:
            passing = isinstance(request.error, UnavailableError)
            if not passing or not self._took_stale(batch, np.array(again, np.int64)):
                raise request.error
            again = []
        return np.array(again, np.int64)

    def _locked(self, call: Callable[[], T]) -> T:
        with self._lock:
            return call()


class _Batch:
    """The keys of a batch, and the results found so far, by position."""

    def __init__(self, keys: Sequence[pa.Array], hashed: HashedKeys, count: int) -> None:
        self.keys, self.hashed = keys, hashed
        self.failures: dict[int, Exception] = {}
        self.ages_ms: Positions | None = None
        self._starts, self._counts = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, places: Positions, found: Rows) -> None:
        """Add the rows of some of the keys."""
        self._starts[places] = found.starts + self._rows
        self._counts[places] = found.counts
        self._rows += int(found.counts.sum())
        self._parts.append(found.rows)

    def rows(self, schema: pa.Schema) -> Rows:
        """Return the rows of all keys."""
        return Rows(self._starts, self._counts, joined_rows(self._parts) if self._parts else empty(schema))


class _Request(Flight):
    """One request to the source. Its results are complete once `done` is set.

    `answered` has the numbers of the answered keys in ascending order, and `rows` has their rows.
    """

    __slots__ = ("_numbers", "answered", "error", "failures", "keys", "registered", "rows")

    def __init__(self, keys: HashedKeys, registered: int, row_schema: pa.Schema) -> None:
        super().__init__()
        self.keys = keys
        self.registered = list(dict.fromkeys(keys.hashes[:registered].tolist()))
        self._numbers: dict[int, int] | None = None
        self.answered = np.zeros(0, np.int64)
        self.rows = Rows(self.answered, self.answered, empty(row_schema))
        self.failures: Mapping[int, Exception] = {}
        self.error: Exception | None = None

    def answer(self, answers: ColumnAnswers) -> None:
        """Store the source's answers, with the rows in the order of the keys."""
        self.failures = answers.failures
        if not answers.answered:
            return
        self.answered = np.sort(np.concatenate(answers.answered))
        numbers = np.concatenate([found.numbers for found in answers.found])
        rows = joined_rows([found.rows for found in answers.found])
        counts = np.bincount(numbers, minlength=len(self.keys))[self.answered]
        if len(numbers) > 1 and bool((numbers[1:] < numbers[:-1]).any()):
            rows = taken_rows(rows, np.argsort(numbers, kind="stable"))
        self.rows = Rows(np.cumsum(counts) - counts, counts, rows)

    def number_of(self, hashed: HashedKeys, place: int) -> int | None:
        """Return the number in this request of the key at `place`; None if another key has its hash here."""
        if self._numbers is None:
            self._numbers = {key: number for number, key in reversed(list(enumerate(self.keys.hashes.tolist())))}
        number = self._numbers[int(hashed.hashes[place])]
        pairs = zip(self.keys.columns, hashed.columns, strict=True)
        return number if all(there[number] == asked[place] for there, asked in pairs) else None


def empty(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    arrays = [pa.array([], column.type) for column in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
