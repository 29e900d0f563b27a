"""What type checkers make of `millpond.kv`."""

from collections.abc import Sequence
from typing import assert_type

from millpond.kv import AsyncKVStore, Get, KVStore, LmdbStore, MemoryStore, Put, RedisStore, TimedValue, async_store
from millpond.kv import open_store as opened


def every_store_is_one(path: str, url: str) -> list[KVStore]:
    return [MemoryStore(), LmdbStore(path), RedisStore(url), opened(url)]


def rows_are_bytes_at_times(store: KVStore) -> None:
    store.put_many("route", [Put(b"EWR", b"row", 0)])
    (rows,) = store.get_many([Get("route", b"EWR", start_ms=0)])
    assert_type(rows[0], TimedValue)
    assert_type(rows[0].value, bytes)
    assert_type(rows[0].time_ms, int)


async def a_loop_reads_the_same(store: KVStore) -> None:
    on_a_loop: AsyncKVStore = async_store(store)
    rows: Sequence[Sequence[TimedValue]] = await on_a_loop.get_many([Get("route", b"EWR")])
    assert_type(rows[0][0].value, bytes)


async def what_is_opened_is_closed(path: str, url: str) -> None:
    with LmdbStore(path) as own, opened(url) as other:
        assert_type(own, LmdbStore)
        stores: list[KVStore] = [own, other]
    for store in stores:
        async with async_store(store) as on_a_loop:
            assert_type(await on_a_loop.datasets(), list[str])


def texts_are_no_rows(store: KVStore) -> None:
    Put("EWR", b"row", 0)  # type: ignore[arg-type]
    store.put_many("route", [("EWR", b"row")])  # type: ignore[list-item]
