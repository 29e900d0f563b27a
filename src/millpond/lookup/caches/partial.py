"""Partial caching: what was asked for before is not asked for again.

Between the join and the source. A batch of keys is split into what is cached, what another thread
is loading right now, and the rest, which the source is asked for in one request. The invariant: a
key has at most one request under way, and only what the source answered is cached. What fails, fails
for everyone who waits for it, and is not remembered. A thread that is interrupted fails nobody else: who
waits for its request asks the source itself.

Where the cache says that keys are to be loaded again, their rows are given as they are, and one request for them
runs in a thread of its own (`refresh-after-write`). Where the source does not answer, rows that are too old are
given as long as the cache keeps them (`stale-if-error`).

The source is asked by `requests`. For batches of keys in Arrow there is `ColumnCachingLookup`.

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
    """A lookup function that remembers; thread-safe if the function is.

    Args:
        function: the source.
        cache: what stands before it; None asks the source always, but still once per key and batch.
        metrics: what counts.
        retries: how failures are tried again.
        clock: monotonic milliseconds, for the time a load took.

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
        """Close both; a refresh under way ends first."""
        self._background.close()
        self._function.close()
        if self._cache is not None:
            self._cache.close()

    @property
    def recording(self) -> Recording | None:
        """Of the cache; None if it is not recorded, or is one of the user's own."""
        return self._cache.recording if isinstance(self._cache, DefaultLookupCache) else None

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
        """The rows of every key, from the cache or from one request to the source; none for a key with a null.

        Raises:
            DataError: a key is not of the declared types, or the source answered with something else than rows.
            UnavailableError: the source did not answer, after all retries.
        """
        rows = self._looked_up(keys, isolate=False).all_rows()
        return {key: rows.get(key, []) for key in keys}

    def lookup_each(self, keys: Sequence[Key]) -> Answers:
        """The rows of every key, or its failure, which leaves the others their rows.

        Where one request is for many keys and fails, the keys that fail are found by halves.

        Raises:
            DataError: a key is not of the declared types, or so many keys fail that it is the source that does.
            UnavailableError: the source did not answer, after all retries.
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
        """Look the keys up; those that another thread was asked for and gave up are to be asked for again."""
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
        self._metrics.asked(hits=len(asked) - len(mine), misses=len(mine), repeats=repeats)
        if request is not None:
            try:
                answers.add(self._load(mine, request, isolate=isolate, metrics=self._metrics))
            except UnavailableError:
                if not self._took_stale(mine, answers):
                    raise
        return [key for key, under_way in others.items() if not self._taken_over(key, under_way, answers)]

    def invalidate(self, keys: Sequence[Key] | None) -> None:
        """Forget keys, or all, because their rows have changed; a load of one that is under way will not be cached."""
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
        """Forget those of the keys that are cached as missing, so that their next lookup asks the source."""
        with self._lock:
            forget_missing(self._cache, self._check(keys))

    def _refresh(self, due: list[Key]) -> None:
        """Load keys again in the background, unless a refresh is under way: they are due at their next use, too."""
        if not due or not self._background.is_idle():
            return
        due = [key for key in due if self._in_flight.get(key) is None]
        if not due:
            return
        request = Request()
        request.owner = NOBODY

        def load() -> None:
            # Whoever asks while this runs finds the cached rows; a failure leaves them there until they expire.
            with contextlib.suppress(Exception):
                self._load(due, request, isolate=True, metrics=self._background)

        # Under the lock, which the load needs to end: so it cannot end before it is noted.
        if self._background.run(load):
            self._in_flight.start(due, request)

    def _took_stale(self, keys: Sequence[Key], answers: Answers) -> bool:
        """Take rows that are too old, as the source did not answer; False if one of the keys has none."""
        stale: dict[Key, Rows] = {} if self._ages is None else self._ages.find_stale(keys)
        answers.rows.update(stale)
        return len(stale) == len(keys)

    def _taken_over(self, key: Key, under_way: Request, answers: Answers) -> bool:
        """Whether another thread's request has an answer for the key."""
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
            # Of keys that are asked for one by one, the last is the one that failed.
            metrics.failed(len(mine) if self._function.batched else 1 + len(answers.failures))
            raise
        else:
            metrics.failed(len(answers.failures))
        finally:
            metrics.loaded(len(answers.rows), self._clock() - started_ms)
            self._end(mine, request)
        return Answers({key: list(rows) for key, rows in answers.rows.items()}, answers.failures)

    def _end(self, mine: list[Key], request: Request) -> None:
        """Nobody joins the request any more: from here on its answer is cached, or asked for anew."""
        try:
            with self._lock:
                current = self._in_flight.end(mine, request)
                for key in current:
                    if self._cache is not None and key in request.answers.rows:
                        self._cache.put(key, request.answers.rows[key])
        finally:
            request.done.set()
