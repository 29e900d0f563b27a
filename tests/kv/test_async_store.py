"""The async face of a store: which thread its calls run on."""

import asyncio
import threading

import pytest

from millpond.errors import OptionError
from millpond.kv import AsyncRedisStore, Get, LmdbStore, MemoryStore, Put, RedisStore, async_store


async def use(store):
    await store.create("d", rows="many")
    await store.put_many("d", [Put(b"k", b"v", 1)])
    await store.bulk_put("d", [Put(b"k", b"w", 2)])
    await store.delete_keys("d", [b"other"])
    found = await store.get_many([Get("d", b"k")])
    names = await store.datasets()
    await store.drop("d")
    return [row.value for row in found[0]], names


def test_calls_of_an_unknown_store_run_on_threads():
    class Plain:
        def __init__(self):
            self.inner = MemoryStore()

    plain = Plain()
    threads = set()
    for name in ("create", "put_many", "bulk_put", "get_many", "delete_keys", "drop", "datasets", "close"):

        def noted(*args, _name=name, **kwargs):
            threads.add(threading.get_ident())
            return getattr(plain.inner, _name)(*args, **kwargs)

        setattr(plain, name, noted)
    store = async_store(plain)
    assert asyncio.run(use(store)) == ([b"v", b"w"], ["d"])
    assert threading.get_ident() not in threads
    with pytest.raises(OptionError, match="a Plain cannot be walked over: it has no next_keys"):
        asyncio.run(store.next_keys("d", None, 1))
    asyncio.run(store.close())


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_reads_of_memory_and_lmdb_run_on_the_loops_own_thread(tmp_path, monkeypatch, kind):
    inner = MemoryStore() if kind == "memory" else LmdbStore(tmp_path, sync=False)
    threads = []
    get_many = inner.get_many
    monkeypatch.setattr(inner, "get_many", lambda gets: threads.append(threading.get_ident()) or get_many(gets))
    assert asyncio.run(use(async_store(inner))) == ([b"v", b"w"], ["d"])
    assert threads == [threading.get_ident()]
    inner.close()


def test_a_redis_store_gets_a_client_on_the_loop():
    twin = async_store(RedisStore("redis://host:1", prefix="shop"))
    assert isinstance(twin, AsyncRedisStore)
    assert twin.options.prefix == "shop"
