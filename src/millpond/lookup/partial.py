"""Partial caching: what was asked for before is not asked for again.

Between the join and the source. A batch of keys is split into what is cached, what another thread
is loading right now, and the rest, which the source is asked for in one request. The invariant: a
key has at most one request under way, and only what the source answered is cached: if the request
fails, it fails for everyone who waits for it, and nothing is remembered.

No two batches can wait for each other for ever: each loads its own keys, to the end, before it
waits for any of the others'.

Source: FLIP-221, `PartialCachingLookupProvider`; Flink's `CachingLookupFunction`.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Self

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.lookup.cache import LookupCache
from millpond.lookup.function import Key, LookupFunction, Rows
from millpond.lookup.metrics import CacheMetricGroup, LookupStats
from millpond.lookup.retry import Retries


@dataclass(frozen=True)
class PartialCachingLookupProvider:
    """A lookup function and the cache that stands before it; `cache=None` asks the source always."""

    function: LookupFunction
    cache: LookupCache | None

    @classmethod
    def of(cls, function: LookupFunction, cache: LookupCache | None) -> Self:
        """The provider of both."""
        return cls(function, cache)

    def create_lookup_function(
        self, metrics: CacheMetricGroup, retries: Retries, clock: Clock = monotonic_ms
    ) -> "PartialCachingLookup":
        """The function with its cache before it, not yet open."""
        return PartialCachingLookup(self.function, self.cache, metrics, retries, clock)


class PartialCachingLookup(LookupFunction):
    """A lookup function that remembers; thread-safe if the function is."""

    def __init__(
        self,
        function: LookupFunction,
        cache: LookupCache | None,
        metrics: CacheMetricGroup,
        retries: Retries,
        clock: Clock = monotonic_ms,
    ) -> None:
        self.key_schema = function.key_schema
        self.row_schema = function.row_schema
        self._function = function
        self._cache = cache
        self._metrics = metrics
        self._retries = retries
        self._clock = clock
        self._lock = threading.Lock()
        self._loading: dict[Key, Future[dict[Key, Rows]]] = {}

    def open(self) -> None:
        """Open the function, with retries, and the cache."""
        self._retries.run("opening the lookup table", self._function.open)
        if self._cache is not None:
            self._cache.open(self._metrics)

    def close(self) -> None:
        """Close both."""
        self._function.close()
        if self._cache is not None:
            self._cache.close()

    def stats(self) -> LookupStats:
        """What was counted so far."""
        return self._metrics.stats()

    def lookup(self, keys: Key) -> Rows:
        """The rows of one key."""
        return self.lookup_many([keys])[keys]

    def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """The rows of every key, from the cache or from one request to the source."""
        found: dict[Key, Rows] = {}
        others: dict[Key, Future[dict[Key, Rows]]] = {}
        mine: list[Key] = []
        request: Future[dict[Key, Rows]] = Future()
        with self._lock:
            for key in dict.fromkeys(keys):
                rows = None if self._cache is None else self._cache.get_if_present(key)
                if rows is not None:
                    found[key] = rows
                elif key in self._loading:
                    others[key] = self._loading[key]
                else:
                    mine.append(key)
            self._loading |= dict.fromkeys(mine, request)
        self._metrics.asked(hits=len(found) + len(others), misses=len(mine))
        if mine:
            found |= self._load(mine, request)
        for key, loading in others.items():
            found[key] = loading.result()[key]
        return found

    def _load(self, mine: list[Key], request: Future[dict[Key, Rows]]) -> dict[Key, Rows]:
        started_ms = self._clock()
        try:
            answer = self._retries.run("a lookup", lambda: self._function.lookup_many(mine))
            loaded = {key: answer.get(key, []) for key in mine}
        except BaseException as error:
            self._metrics.failed(len(mine))
            self._end(mine, {})
            request.set_exception(error)
            raise
        self._metrics.loaded(len(mine), self._clock() - started_ms)
        self._end(mine, loaded)
        request.set_result(loaded)
        return loaded

    def _end(self, mine: list[Key], loaded: dict[Key, Rows]) -> None:
        """Nobody joins the request any more: from here on its answer is cached, or asked for anew."""
        with self._lock:
            for key in mine:
                del self._loading[key]
            if self._cache is not None:
                for key, rows in loaded.items():
                    self._cache.put(key, rows)
