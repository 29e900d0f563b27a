"""Partial caching in front of an asynchronous source: like `partial`, with many requests under way at once.

The invariants are those of `partial`: one load per key at a time, only answers are cached, and a failure reaches
every caller that waits for it. Two more: **at most `capacity` requests are at the source at once**, and cancelling a
caller does not cancel a load that others wait for, since each load is a task of its own.

A load that waits for itself is found as in `millpond.cache.flights`: a context variable tells which load a coroutine
works for, and each load knows the load that it waits for.

Everything runs in one event loop, where nothing else runs between two awaits. So there is no lock.

Source: FLIP-221, `PartialCachingAsyncLookupProvider`; Flink's `AsyncWaitOperator` for order and capacity.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

from millpond.cache import monotonic_ms
from millpond.cache.api import Clock
from millpond.errors import OptionError, UnavailableError
from millpond.lookup.caches.cache import LookupCache, forget_missing
from millpond.lookup.functions.answers import Answers, Halves, checked_answer
from millpond.lookup.functions.async_function import AsyncLookupFunction
from millpond.lookup.functions.function import Key, Rows
from millpond.lookup.functions.keys import KeyCheck, check_key_types, repeated
from millpond.lookup.functions.retry import Retries
from millpond.lookup.hit_history import HitRate
from millpond.lookup.metrics import CacheMetricGroup, LookupStats


class _Load:
    """One request to the source, as a task, and the load that it waits for."""

    __slots__ = ("task", "waits_for")

    def __init__(self) -> None:
        self.task: asyncio.Task[Answers] | None = None
        self.waits_for: _Load | None = None


_WORKING_FOR: ContextVar[_Load | None] = ContextVar("lookup load", default=None)


class AsyncPartialCachingLookup(AsyncLookupFunction):
    """An asynchronous lookup function with a cache; belongs to one event loop.

    Args:
        function: the source.
        cache: the cache in front of it; None always asks the source.
        metrics: counts hits, misses and loads.
        retries: how failures are tried again.
        clock: monotonic milliseconds, to time the loads.
        capacity: the largest number of requests at the source at once.
        timeout_ms: the longest time for a request with all its retries; then it fails with an `UnavailableError`.

    >>> import pyarrow as pa
    >>> from millpond.lookup import AsyncPythonLookup, DefaultLookupCache
    >>> async def lower(code):
    ...     return [(code.lower(),)]
    >>> codes = AsyncPythonLookup(lower, pa.schema([("code", pa.string())]), pa.schema([("lower", pa.string())]))
    >>> async def look():
    ...     async with AsyncPartialCachingLookup(codes, DefaultLookupCache(max_rows=10)) as lookup:
    ...         return [rows async for _, rows in lookup.stream([[("JFK",)], [("EWR",), ("JFK",)]])]
    >>> asyncio.run(look())
    [{('JFK',): [('jfk',)]}, {('EWR',): [('ewr',)], ('JFK',): [('jfk',)]}]
    """

    def __init__(
        self,
        function: AsyncLookupFunction,
        cache: LookupCache | None,
        metrics: CacheMetricGroup | None = None,
        retries: Retries | None = None,
        clock: Clock = monotonic_ms,
        *,
        capacity: int = 100,
        timeout_ms: int = 180_000,
    ) -> None:
        self._metrics = CacheMetricGroup(repr(function)) if metrics is None else metrics
        self._where = f"lookup table {self._metrics.name!r} ({function!r})"
        for option, value in (("capacity", capacity), ("timeout_ms", timeout_ms)):
            if value < 1:
                raise OptionError(f"{self._where}, {option}: expected at least 1, got {value}")
        self.name = self._metrics.name
        """The name of the table, for errors."""
        self.key_schema = function.key_schema
        self.row_schema = function.row_schema
        check_key_types(self._where, self.key_schema)
        self._check = KeyCheck(self._where, self.key_schema)
        self._function = function
        self._cache = cache
        self._retries = Retries() if retries is None else retries
        self._clock = clock
        self._capacity = capacity
        self._timeout_ms = timeout_ms
        self._at_source = asyncio.Semaphore(capacity)
        self._in_flight: dict[Key, _Load] = {}

    async def open(self) -> None:
        """Open the function, with retries, and the cache."""
        self._at_source = asyncio.Semaphore(self._capacity)
        await self._retries.run_async(f"{self._where}: opening it", self._function.open)
        if self._cache is not None:
            self._cache.open(self._metrics)

    async def close(self) -> None:
        """Cancel the loads under way, and close the function and the cache."""
        tasks = [load.task for load in set(self._in_flight.values()) if load.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._function.close()
        if self._cache is not None:
            self._cache.close()

    def stats(self) -> LookupStats:
        """Return the counters so far."""
        return self._metrics.stats()

    def hit_rates(self) -> list[HitRate]:
        """Return the hits and misses of each of the last 60 minutes that had a lookup, oldest first."""
        return self._metrics.hit_rates()

    async def lookup(self, keys: Key) -> Rows:
        """Return the rows of one key."""
        return (await self.lookup_many([keys]))[keys]

    async def lookup_many(self, keys: Sequence[Key]) -> dict[Key, Rows]:
        """Return the rows of every key, from the cache or the source; none for a key with a null.

        Raises:
            DataError: a key is not of the declared types, or the source's answer is not rows.
            UnavailableError: the source did not answer in time, after all retries.
        """
        rows = (await self._looked_up(keys, isolate=False)).all_rows()
        return {key: rows.get(key, []) for key in keys}

    async def lookup_each(self, keys: Sequence[Key]) -> Answers:
        """Return the rows of every key, or its failure, as `PartialCachingLookup.lookup_each` does."""
        answers = await self._looked_up(keys, isolate=True)
        for key in keys:
            if key not in answers.failures:
                answers.rows.setdefault(key, [])
        return answers

    async def _looked_up(self, keys: Sequence[Key], *, isolate: bool) -> Answers:
        answers = Answers()
        loads: dict[Key, _Load] = {}
        mine: list[Key] = []
        asked = self._check(keys)
        for key in asked:
            rows = None if self._cache is None else self._cache.get_if_present(key)
            if rows is not None:
                answers.rows[key] = rows
            elif key in self._in_flight:
                loads[key] = self._in_flight[key]
            else:
                mine.append(key)
        self._metrics.asked(hits=len(asked) - len(mine), misses=len(mine), repeats=repeated(keys, asked))
        for together in [mine] if mine and self._function.batched else [[key] for key in mine]:
            loads |= dict.fromkeys(together, self._start(together, isolate=isolate))
        for key, load in loads.items():
            theirs = await self._end_of(key, load)
            if key in theirs.failures:
                answers.failures[key] = theirs.failures[key]
            else:
                answers.rows[key] = list(theirs.rows[key])
        return answers

    async def stream(
        self, batches: Iterable[Sequence[Key]] | AsyncIterable[Sequence[Key]], *, ordered: bool = True
    ) -> AsyncIterator[tuple[Sequence[Key], dict[Key, Rows]]]:
        """Yield every batch of keys with its rows, in order or as they are answered.

        Batches are looked up ahead of the reader, at most `capacity` of them at once. The first failure ends the
        stream and cancels the other batches.
        """
        source = batches if isinstance(batches, AsyncIterable) else _each(batches)
        waiting: deque[asyncio.Task[tuple[Sequence[Key], dict[Key, Rows]]]] = deque()
        try:
            async for batch in source:
                waiting.append(asyncio.ensure_future(self._with_keys(batch)))
                if len(waiting) == self._capacity:
                    yield await _next(waiting, ordered=ordered)
            while waiting:
                yield await _next(waiting, ordered=ordered)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def invalidate(self, keys: Sequence[Key] | None) -> None:
        """Remove keys whose rows have changed; None removes all. The result of a load under way is not cached."""
        if keys is None:
            self._in_flight.clear()
            if self._cache is not None:
                self._cache.close()
                self._cache.open(self._metrics)
            return
        for key in keys:
            self._in_flight.pop(key, None)
            if self._cache is not None:
                self._cache.invalidate(key)

    def forget_missing(self, keys: Sequence[Key]) -> None:
        """Remove those keys that are cached as missing, so that their next lookup asks the source."""
        forget_missing(self._cache, self._check(keys))

    async def _with_keys(self, batch: Sequence[Key]) -> tuple[Sequence[Key], dict[Key, Rows]]:
        return batch, await self.lookup_many(batch)

    def _start(self, keys: list[Key], *, isolate: bool) -> _Load:
        load = _Load()
        self._in_flight.update(dict.fromkeys(keys, load))
        load.task = asyncio.ensure_future(self._load(keys, load, isolate=isolate))
        load.task.add_done_callback(_looked_at)
        return load

    async def _end_of(self, key: Key, load: _Load) -> Answers:
        working_for = _WORKING_FOR.get()
        ahead: _Load | None = load
        while ahead is not None and working_for is not None:
            if ahead is working_for:
                raise OptionError(
                    f"{self._where}: answering for key {key!r} needs the rows of {key!r}, which would wait for itself "
                    "for ever; let the function get what it needs from outside this table"
                )
            ahead = ahead.waits_for
        if working_for is not None:
            working_for.waits_for = load
        assert load.task is not None  # noqa: S101 - set where it is made
        try:
            return await asyncio.shield(load.task)
        finally:
            if working_for is not None:
                working_for.waits_for = None

    async def _load(self, keys: list[Key], load: _Load, *, isolate: bool) -> Answers:
        _WORKING_FOR.set(load)
        started_ms = self._clock()
        answers, halves = Answers(), Halves(keys)
        try:
            while (part := halves.next()) is not None:
                try:
                    answers.rows.update(await self._ask(part))
                except Exception as error:
                    if len(part) > 1 and not isolate:
                        raise
                    halves.failed(part, error)
        except BaseException:
            self._current(keys, load)
            self._metrics.failed(len(keys))
            raise
        answers.failures.update(halves.failures)
        for key in self._current(keys, load):
            if self._cache is not None and key in answers.rows:
                self._cache.put(key, answers.rows[key])
        self._metrics.failed(len(answers.failures))
        self._metrics.loaded(len(answers.rows), self._clock() - started_ms)
        return answers

    async def _ask(self, keys: list[Key]) -> dict[Key, Rows]:
        async with self._at_source:
            try:
                async with asyncio.timeout(self._timeout_ms / 1_000) as limit:
                    answer: Any = await self._retries.run_async(self._where, lambda: self._call(keys))
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise UnavailableError(
                    f"{self._where}: no answer within {self._timeout_ms} ms, retries included; check that the source "
                    "is up and not overloaded, or raise the time-out"
                ) from error
        return checked_answer(self._where, keys, answer, self.row_schema)

    async def _call(self, keys: list[Key]) -> Any:
        if self._function.batched:
            return await self._function.lookup_many(keys)
        return {key: await self._function.lookup(key) for key in keys}

    def _current(self, keys: list[Key], load: _Load) -> list[Key]:
        """End the load. Return the keys whose answers may be cached: those not invalidated meanwhile."""
        current = [key for key in keys if self._in_flight.get(key) is load]
        for key in current:
            del self._in_flight[key]
        return current


def _looked_at(task: "asyncio.Task[Any]") -> None:
    """Retrieve the task's error, so that asyncio does not warn about it if every caller is gone."""
    if not task.cancelled():
        task.exception()


async def _next(waiting: "deque[asyncio.Task[Any]]", *, ordered: bool) -> Any:
    if ordered:
        return await waiting.popleft()
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    first = next(task for task in waiting if task in done)
    waiting.remove(first)
    return await first


async def _each(batches: Iterable[Sequence[Key]]) -> AsyncIterator[Sequence[Key]]:
    for batch in batches:
        yield batch
