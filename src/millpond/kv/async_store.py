"""Makes an `AsyncKVStore` from a blocking `KVStore`.

Place on the data path: between a fetcher on an event loop and a blocking store.

Idea: a read of LMDB or of this process's memory takes microseconds, so it runs on the event loop's thread. Handing it
to another thread would take longer than the read. Any other store may wait for a network or a disk, so its calls run
on threads. Writes to LMDB wait for its single writer and for the disk, so they run on threads too.
"""

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from millpond.kv.lmdb.store import LmdbStore
from millpond.kv.memory import MemoryStore
from millpond.kv.redis.async_store import AsyncRedisStore
from millpond.kv.redis.store import RedisStore
from millpond.kv.store import Get, KVStore, Put, Rows, TimedValue, check_walkable


def async_store(store: KVStore) -> "AsyncRedisStore | ThreadedStore":
    """Return an async store over the rows of a store.

    For a `RedisStore` this is an asyncio client with connections of its own; close both. For every other store it is a
    wrapper, and closing it closes the store.

    >>> async def read(blocking):
    ...     async with async_store(blocking) as store:
    ...         return await store.get_many([Get("tiles", b"EWR")])
    >>> store = MemoryStore()
    >>> store.put_many("tiles", [Put(b"EWR", b"early", 0)])
    >>> asyncio.run(read(store))
    [[TimedValue(time_ms=0, value=b'early')]]
    """
    if isinstance(store, RedisStore):
        return store.async_twin()
    return InlineReads(store) if reads_inline(store) else ThreadedStore(store)


def reads_inline(store: KVStore) -> bool:
    """Return whether reads of a store are so fast that they need no thread."""
    return isinstance(store, (MemoryStore, LmdbStore))


def reads_may_lag(store: KVStore) -> bool:
    """Return whether a read of a store may miss a row that was written before: whether replicas answer reads."""
    return isinstance(store, RedisStore) and store.options.read_from == "replicas"


class ThreadedStore:
    """An `AsyncKVStore` that runs each call of a store on a thread."""

    def __init__(self, store: KVStore) -> None:
        self._store = store

    async def create(self, dataset: str, *, rows: Rows, ttl_ms: int | None = None) -> None:
        """Declare a dataset before its first row."""
        await asyncio.to_thread(self._store.create, dataset, rows=rows, ttl_ms=ttl_ms)

    async def put_many(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write rows; those of one key become visible together."""
        await asyncio.to_thread(self._store.put_many, dataset, puts)

    async def bulk_put(self, dataset: str, puts: Iterable[Put]) -> None:
        """Write many rows quickly into a dataset that nobody reads yet."""
        await asyncio.to_thread(self._store.bulk_put, dataset, puts)

    async def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """Return the rows of each get, in the order of the gets, each sorted by time."""
        return await asyncio.to_thread(self._store.get_many, gets)

    async def next_keys(self, dataset: str, after: bytes | None, most: int) -> list[tuple[bytes, list[TimedValue]]]:
        """Return up to `most` keys after a key, with their rows; `OptionError` if the store cannot walk over keys."""
        return await asyncio.to_thread(check_walkable(self._store).next_keys, dataset, after, most)

    async def delete_keys(self, dataset: str, keys: Iterable[bytes]) -> None:
        """Remove all rows of some keys."""
        await asyncio.to_thread(self._store.delete_keys, dataset, keys)

    async def drop(self, dataset: str) -> None:
        """Remove a dataset with all its rows."""
        await asyncio.to_thread(self._store.drop, dataset)

    async def datasets(self) -> list[str]:
        """Return the names of all datasets, sorted."""
        return await asyncio.to_thread(self._store.datasets)

    async def close(self) -> None:
        """Close the store."""
        await asyncio.to_thread(self._store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class InlineReads(ThreadedStore):
    """An `AsyncKVStore` that reads on the event loop's thread and writes on other threads."""

    async def get_many(self, gets: Sequence[Get]) -> list[list[TimedValue]]:
        """Return the rows of each get, in the order of the gets, each sorted by time."""
        return self._store.get_many(gets)
