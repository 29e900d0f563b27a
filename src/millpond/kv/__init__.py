"""The key-value store interface and its implementations.

`LmdbStore` imports lmdb and `RedisStore` imports redis when they are first used, so that this package
stays light.
"""

from millpond.kv.async_store import async_store
from millpond.kv.lmdb.store import LmdbStore
from millpond.kv.memory import MemoryStore
from millpond.kv.redis.async_store import AsyncRedisStore
from millpond.kv.redis.store import RedisStore
from millpond.kv.store import (
    MAX_KEY_BYTES,
    AsyncKVStore,
    Get,
    KVStore,
    PartlyReadError,
    Put,
    TimedValue,
    WalkableStore,
    check_declaration,
    check_get,
    check_same_rows,
    checked_puts,
)
from millpond.kv.urls import open_store

__all__ = [
    "MAX_KEY_BYTES",
    "AsyncKVStore",
    "AsyncRedisStore",
    "Get",
    "KVStore",
    "LmdbStore",
    "MemoryStore",
    "PartlyReadError",
    "Put",
    "RedisStore",
    "TimedValue",
    "WalkableStore",
    "async_store",
    "check_declaration",
    "check_get",
    "check_same_rows",
    "checked_puts",
    "open_store",
]
