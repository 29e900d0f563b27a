"""An asynchronous source that the test holds and lets go, and how tests run coroutines."""

import asyncio

import pyarrow as pa

from millpond.lookup import (
    AsyncLookupFunction,
    AsyncPartialCachingLookup,
    CacheMetricGroup,
    DefaultLookupCache,
    Retries,
)

KEYS = pa.schema([("n", pa.int64())])
ROWS = pa.schema([("text", pa.string())])
PARTIAL = {"lookup.cache": "PARTIAL", "lookup.partial-cache.max-rows": 100, "lookup.max-retries": 0}
PATIENCE_S = 20


def rows_of(n):
    return [(f"{n}.{row}",) for row in range(n % 3)]


class Source(AsyncLookupFunction):
    """Answers when the test lets it: a gate per key, all open at first."""

    key_schema, row_schema = KEYS, ROWS

    def __init__(self):
        self.asked, self.failures, self.gates = [], [], {}
        self.under_way = self.most_under_way = 0

    def hold(self, n):
        self.gates[n] = asyncio.Event()

    async def lookup(self, keys):
        (n,) = keys
        self.asked.append(n)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(0)
            if n in self.gates:
                await self.gates[n].wait()
            if self.failures:
                raise self.failures.pop(0)
            return rows_of(n)
        finally:
            self.under_way -= 1


class Batched(Source):
    async def lookup_many(self, keys):
        self.asked.append(list(keys))
        if self.failures:
            raise self.failures.pop(0)
        return {key: rows_of(*key) for key in keys}


def cached(source, max_rows=100, *, max_retries=0, **choices):
    async def no_wait(_):
        pass

    retries = Retries(max_retries, async_sleep=no_wait)
    cache = None if max_rows is None else DefaultLookupCache(max_rows=max_rows)
    return AsyncPartialCachingLookup(source, cache, CacheMetricGroup("planes"), retries, **choices)


async def asked(source, keys=1):
    while len(source.asked) < keys:  # noqa: ASYNC110 - one step of the loop at a time
        await asyncio.sleep(0)


def run(coroutine):
    async def limited():
        async with asyncio.timeout(PATIENCE_S):
            return await coroutine

    return asyncio.run(limited())
