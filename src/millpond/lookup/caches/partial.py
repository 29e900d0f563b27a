"""Partial caching: rows that were looked up are cached by key.

Place on the data path: between the join and the source. A batch of keys has three parts: keys that are cached, keys
that another thread is loading, and the rest, for which this thread sends one request to the source. The invariant: a
key has at most one request under way, and only answers of the source are cached. A failure reaches every caller that
waits for the request, and is not cached. If a thread is interrupted, its request fails for nobody else: the waiting
callers ask the source themselves.

Keys that the cache reports as due are answered from the cache, and one background request loads them again
(`refresh-after-write`). If the source does not answer, expired rows are returned as long as the cache keeps them
(`stale-if-error`).

`requests` asks the source. `ColumnCachingLookup` does the same for batches of keys in Arrow.

Source: FLIP-221; Flink's `CachingLookupFunction`.
"""

import contextlib
import threading
from collections.abc import Sequence
from functools import partial

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.cache.curves.recording import Recording
from millpond.cache.flights import NOBODY, Flights
from millpond.errors import UnavailableError
from millpond.lookup.caches.background import Background
from millpond.lookup.caches.cache import DefaultLookupCache, KnowsAges, LookupCache, find_present, forget_missing
from millpond.lookup.caches.in_flight import Request, needs_itself
from millpond.lookup.functions.answers import Answers
from millpond.lookup.functions.function import Key, LookupFunction, Rows
from millpond.lookup.functions.keys import KeyCheck, check_key_types, repeated
from millpond.lookup.functions.requests import Requests
from millpond.lookup.functions.retry import Retries
from millpond.lookup.hit_history import HitRate
from millpond.lookup.metrics import CacheMetricGroup, LookupStats


class PartialCachingLookup(LookupFunction):
    """A lookup function with a cache; thread-safe if the function is.

    Args:
        function: the source.
        cache: the cache in front of it; None always asks the source, but only once per key and batch.
        metrics: counts hits, misses and loads.
        retries: how failures are tried again.
        clock: monotonic milliseconds, to time the loads.

    >>> import pyarrow as pa
    >>> from millpond.lookup import DefaultLookupCache, PythonLookup
    >>> codes = PythonLookup(lambda code: [(code.lower(),)], pa.schema([("code", pa.string())]),
    ...                      pa.schema([("lower", pa.string())]))
    >>> with PartialCachingLookup(codes, DefaultLookupCache(max_rows=10)) as lookup:
    ...     lookup.lookup_many([("JFK",), ("EWR",)]), lookup.lookup(("JFK",)), lookup.stats().hit_count
    ({('JFK',): [('jfk',)], ('EWR',): [('ewr',)]}, [('jfk',)], 1)
    """

    def __init__(
        self,
        function: LookupFunction,
        cache: LookupCache | None,
        metrics: CacheMetricGroup | None = None,
        retries: Retries | None = None,
        clock: Clock = monotonic_ms,
    ) -> None:
        self._metrics = CacheMetricGroup(repr(function)) if metrics is None else metrics
        self._where = f"lookup table {self._metrics.name!r} ({function!r})"
        self.key_schema = function.key_schema
        self.row_schema = function.row_schema
        check_key_types(self._where, self.key_schema)
        self._check = KeyCheck(self._where, self.key_schema)
        self._function = function
        self._cache = cache
        self._ages = cache if isinstance(cache, KnowsAges) else None
        self._requests = Requests(function, self._where, Retries() if retries is None else retries)
        self._clock = clock
        self._lock = threading.Lock()
        self._background = Background("millpond-lookup-refresh")
        self._in_flight: Flights[Key, Request] = Flights(partial(needs_itself, self._where))

    def open(self) -> None:
        """Open the function, with retries, and the cache."""
        self._requests.open()
        if self._cache is not None:
            self._cache.open(self._metrics)

    def close(self) -> None:
        """Close the function and the cache, after waiting some seconds for a refresh under way.

        The result of a load under way is not cached.
        """
        self._background.close()
        self._function.close()
        with self._lock:
            self._in_flight.forget_all()
            if self._cache is not None:
                self._cache.close()

    @property
    def recording(self) -> Recording | None:
        """The hit-rate recording of the cache; None if there is none, or the cache is the user's own."""
        return self._cache.recording if isinstance(self._cache, DefaultLookupCache) else None

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
        """Return the rows of every key, from the cache or from one request to the source; none for a key with a null.

        Raises:
            DataError: a key is not of the declared types, or the source's answer is not rows.
            UnavailableError: the source did not answer, after all retries.
        """
        rows = self._looked_up(keys, isolate=False).all_rows()
        return {key: rows.get(key, []) for key in keys}

    def lookup_each(self, keys: Sequence[Key]) -> Answers:
        """Return the rows of every key, or its failure. A failed key does not affect the others.

        If a request for many keys fails, its keys are asked for again in halves, until the failing keys are found.

        Raises:
            DataError: a key is not of the declared types.
            UnavailableError: the source did not answer, after all retries.
            Exception: the source's own error, if so many keys fail that the source itself is at fault.
        """
        answers = self._looked_up(keys, isolate=True)
        for key in keys:
            if key not in answers.failures:
                answers.rows.setdefault(key, [])
        return answers

    def _looked_up(self, keys: Sequence[Key], *, isolate: bool) -> Answers:
        answers = Answers()
        asked = self._check(keys)
        repeats = repeated(keys, asked)
        self._background.count(self._metrics)
        while asked:
            asked, repeats = self._round(asked, answers, repeats, isolate=isolate), 0
        return answers

    def _round(self, asked: Sequence[Key], answers: Answers, repeats: int, *, isolate: bool) -> list[Key]:
        """Look up the keys once. Return those that another thread was loading when it was interrupted."""
        others: dict[Key, Request] = {}
        mine: list[Key] = []
        request: Request | None = None
        with self._lock:
            present = find_present(self._cache, asked)
            answers.rows.update(present)
            if self._ages is not None:
                self._refresh(self._ages.due(present))
            for key in [key for key in asked if key not in present]:
                if (under_way := self._in_flight.get(key)) is not None:
                    others[key] = under_way
                else:
                    mine.append(key)
            if mine:
                request = Request()
                self._in_flight.start(mine, request)
        try:
            self._metrics.asked(hits=len(asked) - len(mine), misses=len(mine), repeats=repeats)
            if request is not None:
                answers.add(self._load(mine, request, isolate=isolate, metrics=self._metrics))
        except UnavailableError:
            if not self._took_stale(mine, answers):
                raise
        finally:
            if request is not None and not request.done.is_set():
                # It has not begun: the recorder raised, or the thread was interrupted.
                self._end(mine, request)
        return [key for key, under_way in others.items() if not self._taken_over(key, under_way, answers)]

    def invalidate(self, keys: Sequence[Key] | None) -> None:
        """Remove keys whose rows have changed; None removes all. The result of a load under way is not cached."""
        with self._lock:
            if keys is None:
                self._in_flight.forget_all()
                if self._cache is not None:
                    self._cache.close()
                    self._cache.open(self._metrics)
                return
            for key in keys:
                self._in_flight.forget(key)
                if self._cache is not None:
                    self._cache.invalidate(key)

    def forget_missing(self, keys: Sequence[Key]) -> None:
        """Remove those keys that are cached as missing, so that their next lookup asks the source."""
        with self._lock:
            forget_missing(self._cache, self._check(keys))

    def _refresh(self, due: list[Key]) -> None:
        """Load keys again in the background. During another refresh do nothing: their next use reports them again."""
        if not due or not self._background.is_idle():
            return
        due = [key for key in due if self._in_flight.get(key) is None]
        if not due:
            return
        request = Request()
        request.owner = NOBODY

        def load() -> None:
            # Meanwhile, lookups find the cached rows. After a failure these stay until they expire.
            with contextlib.suppress(Exception):
                self._load(due, request, isolate=True, metrics=self._background)

        # The caller holds the lock, which the load needs to end. So the load is registered before it can end.
        if self._background.run(load):
            self._in_flight.start(due, request)

    def _took_stale(self, keys: Sequence[Key], answers: Answers) -> bool:
        """Take stale rows, because the source did not answer. Return False if a key has none."""
        stale: dict[Key, Rows] = {} if self._ages is None else self._ages.find_stale(keys)
        answers.rows.update(stale)
        return len(stale) == len(keys)

    def _taken_over(self, key: Key, under_way: Request, answers: Answers) -> bool:
        """Wait for another thread's request and take its answer for the key. Return False if it has none."""
        with self._lock:
            self._in_flight.wait_for(key, under_way)
        try:
            return under_way.wait_for(key, answers)
        except UnavailableError:
            if not self._took_stale([key], answers):
                raise
            return True
        finally:
            with self._lock:
                self._in_flight.waited()

    def _load(
        self, mine: list[Key], request: Request, *, isolate: bool, metrics: CacheMetricGroup | Background
    ) -> Answers:
        started_ms = self._clock()
        answers = request.answers
        try:
            self._requests.rows(mine, answers, isolate=isolate)
        except Exception as error:
            request.error = error
            # A source that is asked key by key has failed at the last key that it was asked for.
            metrics.failed(len(mine) if self._function.batched else 1 + len(answers.failures))
            raise
        else:
            metrics.failed(len(answers.failures))
        finally:
            self._end(mine, request)
            metrics.loaded(len(answers.rows), self._clock() - started_ms)
        return Answers({key: list(rows) for key, rows in answers.rows.items()}, answers.failures)

    def _end(self, mine: list[Key], request: Request) -> None:
        """End a request. Later callers find its answer in the cache, or ask the source again."""
        try:
            with self._lock:
                current = self._in_flight.end(mine, request)
                for key in current:
                    if self._cache is not None and key in request.answers.rows:
                        self._cache.put(key, request.answers.rows[key])
        finally:
            request.done.set()
